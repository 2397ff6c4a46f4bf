"""`meshwright tune`: measure what a plan may take, and write the fastest into it."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click

from meshwright.cli import options
from meshwright.cli.measuring import measure_cases, measuring_options
from meshwright.cli.output import print_json, print_table, print_text, say
from meshwright.errors import SpecError
from meshwright.measure.records import Measurement, read_measurements
from meshwright.measure.trials.runners import measured_as
from meshwright.measure.tune import Heat, heats
from meshwright.measure.tune import tune as tuned_plan
from meshwright.planning.plan import DEFAULT_PROGRAM, Plan, ratio
from meshwright.planning.planfile import read_plan, where_document, write_plan
from meshwright.planning.tuning import half_width
from meshwright.runtime.calls import describe
from meshwright.runtime.role import program_at
from meshwright.show.report import write_report
from meshwright.show.view import view_of
from meshwright.text.files import scratch_folder
from meshwright.text.units import format_seconds, format_size, parse_bytes

ONE_MACHINE = (
    "note: all ranks are on this machine, whose links are not the plan's: what is fastest here may not be so on the "
    "system that the plan is for"
)


@click.command()
@options.plan
@click.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="BYTES",
    help="Also for calls of this size, like 4MiB; may be repeated. [default: only the planned sizes]",
)
@options.number("--best", 5, "How many programs to measure for each size, beside the library's own.", most=50)
@options.out("Write the tuned plan to this file. [default: the plan file itself]")
@options.out("Write a page that shows the tuned plan to this file, as `meshwright show` does.", "--html")
@measuring_options
@options.json
def tune(
    plan_path: Path,
    sizes: tuple[str, ...],
    best: int,
    out: Path | None,
    html: Path | None,
    as_json: bool,
    **measuring: Any,
) -> None:
    """Measure what each reduction of the plan file PLAN may take, and write the fastest into the plan.

    The library's own collective and the best predicted programs, in different numbers of chunks, are repeated in
    turns. The fastest is taken, or a simpler one that is as fast within the noise; it then counts for calls of half to
    twice the size. Start it as `bench`: with torchrun or mpirun on a cluster, with --local, or with --testbed.

    \b
      torchrun … -m meshwright tune plan.json
      mpirun -n 8 python -m meshwright tune plan.json --engine mpi
      sudo meshwright tune plan.json --testbed

    If a rank dies, nothing is written.
    """
    plan = read_plan(plan_path)
    engine = measured_as(measuring["engine"], measuring["device"])
    if engine == "numpy":
        raise SpecError("--engine numpy has no links to measure: expected torch, mpi or jax")
    if measuring["least"] < 2:
        raise SpecError("--least 1: the noise of one repetition is not known; expected 2 or more")
    wanted = heats(plan, best, [parse_bytes(size) for size in sizes])
    if measuring["local"]:
        say(ONE_MACHINE)
    with scratch_folder() as folder:
        file = Path(folder) / "measurements.jsonl"
        if not measure_cases(plan.placement.system, [heat.case for heat in wanted], file, measuring, gives_up=True):
            return
        measured = read_measurements(file)
    found = tuned_plan(plan, wanted, measured, engine)
    write_plan(found, out or plan_path)
    if html is not None:
        write_report(view_of(found), html)
        say(f"wrote {html}")
    rows = [_row(plan, found, heat, measured, engine) for heat in wanted]
    if as_json:
        print_json({"engine": engine, **where_document(plan), "tuned": rows})
    else:
        for row in rows:
            _print(row)
    say(f"wrote the tuned plan to {out or plan_path}")


def _row(plan: Plan, found: Plan, heat: Heat, measured: Sequence[Measurement], engine: str) -> dict[str, Any]:
    """What was measured for one payload of a reduction, and what is taken."""
    planned, by_id = plan.reductions[heat.number], {one.id: one for one in measured}
    (tuned,) = [each for each in found.reductions[heat.number].tuned if each.bytes == heat.bytes]
    rows = []
    for number, blank in zip(heat.case.numbers, heat.case.measurements(engine), strict=True):
        one, predicted = by_id[blank.id], heat.case.plan.reductions[number or 0]
        row: dict[str, Any] = {"program": one.program, "failed": one.failed}
        row["predicted_seconds"] = predicted.default_seconds if number is None else predicted.seconds
        row["seconds"] = None if one.failed else median(one.seconds)
        row["noise"] = None if one.failed else half_width(one.seconds)
        rows.append(row)
    hierarchy = plan.hierarchy(planned)
    return {
        "reduction": describe(planned),
        "bytes": heat.bytes,
        "before": program_at(planned, heat.bytes).text(hierarchy),
        "program": program_at(found.reductions[heat.number], heat.bytes).text(hierarchy),
        "seconds": tuned.chosen.seconds,
        "noise": tuned.chosen.noise,
        "speedup": ratio(rows[0]["seconds"], tuned.chosen.seconds),
        "measured": rows,
    }


def _print(row: dict[str, Any]) -> None:
    click.echo(f"{row['reduction']}, {format_size(row['bytes'])}:")
    cells = []
    for one in row["measured"]:
        text = "the library's own" if one["program"] == DEFAULT_PROGRAM else one["program"]
        predicted = format_seconds(one["predicted_seconds"])
        if one["failed"]:
            cells.append(["  failed", "", predicted, "", f"{text}: {one['failed']}"])
            continue
        taken = "*" if one["seconds"] == row["seconds"] and one["noise"] == row["noise"] else ""
        cells.append(
            [f"  {format_seconds(one['seconds'])}", f"±{format_seconds(one['noise'])}", predicted, taken, text]
        )
    print_table(["  time", "noise", "predicted", "", "program"], cells)
    changed = "as before" if row["program"] == row["before"] else f"instead of {row['before']}"
    print_text(f"  * is taken, {changed}: {row['speedup']:.2f}x as fast as the library's own")
