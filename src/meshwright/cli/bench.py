"""`meshwright bench`: measure programs on real process groups."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import click

from meshwright.cli import options
from meshwright.cli.measuring import measure_cases, measuring_options
from meshwright.cli.output import print_json, print_table, say
from meshwright.cli.progress import counted
from meshwright.errors import MeshwrightError, SpecError
from meshwright.measure.bench import MOST_MEASUREMENTS, Case, case_of, cases, check_measurements
from meshwright.measure.records import Measurement, read_measurements
from meshwright.measure.trials.runners import measured_as
from meshwright.placement.notation import format_placement, parse_placement
from meshwright.placement.placement import Placement, parse_axes, placements
from meshwright.planning.plan import DEFAULT_PROGRAM
from meshwright.planning.planner import library_for
from meshwright.planning.settings import collectives
from meshwright.system.model import System
from meshwright.system.read import load_system, system_document
from meshwright.text.units import format_seconds, format_size
from meshwright.workload.communication import parse_reduction

MOST_ROWS = 40
"""Of how many placements and reductions the results are shown."""


@click.command()
@options.system
@options.axes
@click.option(
    "--reduce",
    "reduce_specs",
    multiple=True,
    required=True,
    metavar="[GOAL:]AXIS[+AXIS…]=BYTES",
    help="What to reduce; may be repeated.",
)
@options.out("The file that measurements are added to, one JSON object per line.", required=True)
@options.placement("matrices", multiple=True)
@options.number("--every", 3, "Every program of at most this many steps,", 0, 20)
@options.number("--best", 10, "and this many of the best predicted,", 0, 1000)
@options.number("--sample", 0, "and this many of all others, drawn at random (always the same).", 0, 1000)
@options.max_steps
@click.option("--program", "texts", multiple=True, metavar="PROGRAM", help="Only this one; may be repeated.")
@options.no_rooted
@options.system_library
@measuring_options
@options.json
def bench(
    system_spec: str,
    axes_spec: str,
    reduce_specs: tuple[str, ...],
    out: Path,
    matrices: tuple[str, ...],
    every: int,
    best: int,
    sample: int,
    max_steps: int,
    texts: tuple[str, ...],
    no_rooted: bool,
    library: str | None,
    as_json: bool,
    **measuring: Any,
) -> None:
    """Measure programs for placements of AXES on SYSTEM, and the library's own collective on the same groups.

    Each result is added to the file as it happens; what is in it already is not measured again, so a run that was
    killed goes on where it stopped. Start it with torchrun or mpirun on a cluster, with --local, or with --testbed.
    In the end it says which program was the fastest on each placement, beside the library's own.
    """
    system = load_system(system_spec)
    axes = parse_axes(axes_spec)
    reductions = [parse_reduction(spec) for spec in reduce_specs]
    profile = library_for(system, library)
    chosen = [_placement(system, axes, text) for text in matrices]
    chosen = chosen or list(islice(placements(system, axes), MOST_MEASUREMENTS + 1))
    check_measurements(len(chosen) * len(reductions) * max(1, len(texts)))
    looked_at = counted(chosen, "placements, looking for programs to measure", len(chosen))
    if texts:
        wanted = [case_of(placement, reduction, profile, texts) for placement in looked_at for reduction in reductions]
    else:
        wanted = cases(looked_at, reductions, profile, every, best, max_steps, collectives(no_rooted), sample)
    if measure_cases(system, wanted, out, measuring):
        by_id = {one.id: one for one in read_measurements(out)}
        engine = measured_as(measuring["engine"], measuring["device"])
        rows = [_row(case, [by_id.get(blank.id) for blank in case.measurements(engine)]) for case in wanted]
        rows.sort(key=lambda row: (row["axes"], row["bytes"], row["seconds"] is None, row["seconds"] or 0.0))
        if as_json:
            print_json({"system": system_document(system), "engine": engine, "results": rows})
        else:
            _print(rows)
        programs, failed = (sum(row[key] for row in rows) for key in ("programs", "failed"))
        say(f"{programs:,} programs are measured in {out}" + (f"; {failed:,} failed" if failed else ""))
        say(f"next: meshwright accuracy {out} --library {profile.name}")


def _row(case: Case, measured: Sequence[Measurement | None]) -> dict[str, Any]:
    """What was measured for one reduction on one placement: the fastest program, beside the library's own."""
    times = {one.program: median(one.seconds) for one in measured if one is not None and not one.failed}
    own = times.pop(DEFAULT_PROGRAM, None)
    program = min(times, key=times.__getitem__, default=None)
    seconds = times[program] if program is not None else None
    return {
        "placement": case.plan.placement.document(),
        "axes": list(case.reduction.axes),
        "goal": str(case.reduction.goal),
        "bytes": case.reduction.bytes,
        "program": program,
        "seconds": seconds,
        "default_seconds": own,
        "speedup": own / seconds if own is not None and seconds is not None else None,
        "programs": len(times),
        "failed": sum(one is None or bool(one.failed) for one in measured),
    }


def _print(rows: Sequence[dict[str, Any]]) -> None:
    print_table(["reduction", "placement", "fastest", "default", "speedup", "program"], map(_cells, rows[:MOST_ROWS]))
    if len(rows) > MOST_ROWS:
        click.echo(f"… and {len(rows) - MOST_ROWS:,} more (--json has all)")


def _cells(row: dict[str, Any]) -> list[str]:
    what = f"{row['goal']} over {'+'.join(row['axes'])}, {format_size(row['bytes'])}"
    at = format_placement(row["placement"]["axes"], row["placement"]["matrix"])
    times = ["" if row[key] is None else format_seconds(row[key]) for key in ("seconds", "default_seconds")]
    speedup = "" if row["speedup"] is None else f"{row['speedup']:.2f}x"
    return [what, at, *times, speedup, row["program"] or "all failed"]


def _placement(system: System, axes: dict[str, int], text: str) -> Placement:
    try:
        placement = parse_placement(text, system, axes)
    except MeshwrightError as error:
        raise SpecError(f"--placement {text}: {error}") from None
    if placement.sizes != axes:
        raise SpecError(f"--placement {text}: its rows multiply to {placement.sizes}, not to the axes {axes}")
    return placement
