"""`meshwright accuracy`: measurements beside predictions."""

from dataclasses import asdict
from pathlib import Path

import click

from meshwright.cli import options
from meshwright.cli.output import print_json, print_table, say
from meshwright.cli.progress import progress
from meshwright.cost.library import load_library
from meshwright.measure.accuracy import Pair, Report, join, misses, report, scatter
from meshwright.measure.records import read_measurements
from meshwright.placement.notation import format_placement
from meshwright.show.accuracy import accuracy_view
from meshwright.show.report import write_report
from meshwright.system.read import load_system
from meshwright.text.units import format_seconds


@click.command()
@click.argument("measurements", type=options.FILE)
@options.library
@click.option(
    "--system",
    "system_spec",
    shell_complete=options.SYSTEMS,
    help="Predict with this system, as from `calibrate`, instead of the measured one.",
)
@click.option("--noise", type=click.FloatRange(0, 1), help="Programs this close to the fastest are as fast.")
@options.number("--worst", 5, "How many misses to explain.", 0, 1000)
@options.out("Draw predicted over measured times to this file (SVG, PNG).", "--plot")
@options.out("Write a page with the figures, the misses and every program to this file.", "--html")
@options.json
def accuracy(
    measurements: Path,
    library: str,
    system_spec: str | None,
    noise: float | None,
    worst: int,
    plot: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Join the file MEASUREMENTS of `bench` with predictions: how often the fastest program is among the best
    predicted.

    Also the error of predicted times, how placements and programs differ as measured, and the worst misses.
    """
    profile = load_library(library)
    with progress("predicting what was measured"):
        pairs = join(read_measurements(measurements), profile, load_system(system_spec) if system_spec else None)
        figures = report(pairs, noise)
    if plot is not None:
        scatter(pairs, plot)
        say(f"wrote {plot}")
    missed = misses(pairs, figures.noise)[:worst]
    if html is not None:
        write_report(accuracy_view(pairs, profile.name, _rows(figures), [_why(pair) for pair in missed]), html)
        say(f"wrote {html}")
    if as_json:
        explained = [{"loss": pair.loss, "why": _why(pair)} for pair in missed]
        print_json({**asdict(figures), "top": {str(k): v for k, v in figures.top.items()}, "misses": explained})
        return
    print_table(["figure", "value"], _rows(figures))
    for pair in missed:
        say(_why(pair))


def _rows(figures: Report) -> list[tuple[str, object]]:
    return [
        ("placements and reductions", figures.pairs),
        ("programs", figures.programs),
        ("noise", f"{figures.noise:.1%}"),
        *((f"fastest is among the {k} best predicted", f"{share:.0%}") for k, share in figures.top.items()),
        ("programs beyond the 10 best predicted", _others(figures.others)),
        ("error of predicted times, median", f"{figures.median_error:.1%}"),
        ("error of predicted times, 90th percentile", f"{figures.worst_tenth_error:.1%}"),
        ("rank correlation", f"{figures.correlation:.3f}"),
        ("slowest over fastest placement, default", f"{figures.spread:.1f}x"),
        ("cases where a program beats the default", f"{figures.share:.0%}"),
        ("mean speedup in those cases", f"{figures.mean_speedup:.2f}x"),
        ("best speedup", f"{figures.best_speedup:.2f}x"),
        ("fastest program over the bound, median", f"{figures.over_bound:.2f}x"),
    ]


def _others(others: dict[int, int]) -> str:
    return ", ".join(f"{count} of {steps} steps" for steps, count in others.items()) or "none"


def _why(pair: Pair) -> str:
    """What is off about the program that was predicted best, and about the fastest."""
    chosen, fastest = pair.chosen, pair.fastest
    return (
        f"{pair.system} {format_placement(pair.axes, pair.matrix)} over {'+'.join(pair.over)}: predicted best is "
        f"'{chosen.program}', {format_seconds(chosen.predicted)} predicted and {format_seconds(chosen.measured)} "
        f"measured ({chosen.error:+.0%}); fastest is '{fastest.program}', {format_seconds(fastest.predicted)} "
        f"predicted and {format_seconds(fastest.measured)} measured ({fastest.error:+.0%}): {pair.loss:.0%} lost"
    )
