"""`meshwright show`: a plan as a page to look at, or as a trace."""

from pathlib import Path

import click

from meshwright.cli import options
from meshwright.cli.output import print_json, say
from meshwright.errors import SpecError
from meshwright.measure.records import read_measurements
from meshwright.planning.planfile import read_plan
from meshwright.show.report import write_report
from meshwright.show.trace import write_trace
from meshwright.show.view import view_of


@click.command()
@options.plan
@options.out("Write a page to this file: one HTML file that needs nothing else, fit to be attached to a ticket.")
@options.out("Write a Chrome trace to this file, for the Perfetto UI (ui.perfetto.dev).", "--trace")
@click.option(
    "--measurements",
    type=options.FILE,
    help="Measurements of `meshwright bench`: where they have the plan's programs, these are shown beside the "
    "predictions.",
)
@options.json
def show(plan_path: Path, out: Path | None, trace: Path | None, measurements: Path | None, as_json: bool) -> None:
    """Show the plan file PLAN: as a page with drawings, or in time as a trace.

    \b
      meshwright show plan.json --out report.html
      meshwright show plan.json --trace trace.json

    With --json, all that is shown of the plan goes to stdout as data.
    """
    if out is None and trace is None and not as_json:
        raise SpecError("say what to make of the plan: --out report.html, --trace trace.json or --json")
    plan = read_plan(plan_path)
    known = [] if measurements is None else read_measurements(measurements)
    if trace is not None:
        shown = write_trace(plan, trace, known)
        say(f"wrote {trace}{f': {shown}' if shown else ''}")
    if out is not None or as_json:
        view = view_of(plan, measurements=known)
        if out is not None:
            write_report(view, out)
            say(f"wrote {out}")
        if as_json:
            print_json(view)
