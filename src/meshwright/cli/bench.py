"""`meshwright bench`: measure programs on real process groups."""

import json
import os
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from meshwright import testbed as beds
from meshwright.cli.common import axes_option, max_steps_option, say, stdout_kept, system_option
from meshwright.engine import TESTBED
from meshwright.errors import SpecError
from meshwright.launch import run_locally
from meshwright.measure.bench import Case, Patience, case_of, cases, measure
from meshwright.measure.records import Measurement, Records
from meshwright.measure.supervise import missing, supervise
from meshwright.placement import Placement, parse_axes, placements
from meshwright.plan import parse_reduction
from meshwright.planner import DEFAULT_LIBRARY
from meshwright.profiles import load_library
from meshwright.program import ROOTED, Collective
from meshwright.system import load_system
from meshwright.testbed.watch import link_watch
from meshwright.trials import ENGINES, make_engine
from meshwright.units import parse_seconds


@click.command()
@system_option
@axes_option
@click.option(
    "--reduce",
    "reduce_specs",
    multiple=True,
    required=True,
    metavar="[GOAL:]AXIS[+AXIS…]=BYTES",
    help="What to reduce; may be repeated.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The file that measurements are added to.",
)
@click.option("--engine", "engine_name", type=click.Choice(ENGINES), default="torch", show_default=True)
@click.option(
    "--testbed",
    "testbed_name",
    is_flag=False,
    flag_value=beds.DEFAULT_NAME,
    help="Run in the devices of a testbed that is up.",
)
@click.option("--local", is_flag=True, help="Start all ranks on this machine, through torchrun or mpirun.")
@click.option(
    "--placement",
    "matrices",
    multiple=True,
    metavar="MATRIX",
    help="Only this placement, like [[2,2],[2,8]]; may be repeated.",
)
@click.option(
    "--every",
    type=click.IntRange(0, 20),
    default=3,
    show_default=True,
    help="Measure every program of at most so many steps.",
)
@click.option(
    "--best",
    type=click.IntRange(0, 1000),
    default=10,
    show_default=True,
    help="And the best so many predicted, of at most --max-steps.",
)
@click.option("--program", "texts", multiple=True, metavar="PROGRAM", help="Only this program; may be repeated.")
@click.option("--no-rooted", is_flag=True, help="Without Reduce and Broadcast.")
@max_steps_option
@click.option(
    "--library",
    "library_name",
    default=DEFAULT_LIBRARY,
    show_default=True,
    help="Predicts the best ones; a name or a file.",
)
@click.option("--least", type=click.IntRange(1), default=3, show_default=True, help="The fewest repetitions.")
@click.option("--most", type=click.IntRange(1), default=20, show_default=True, help="The most repetitions.")
@click.option(
    "--width",
    type=click.FloatRange(0, 1),
    default=0.02,
    show_default=True,
    help="Repeat until the mean is known to this share.",
)
@click.option("--budget", default="10s", show_default=True, help="Or until so much time was measured.")
@click.option("--timeout", default="60s", show_default=True, help="How long one measurement may be stuck.")
@click.option("--dtype", type=click.Choice(["float32", "int32"]), default="float32", show_default=True)
def bench(
    system_spec: str,
    axes_spec: str,
    reduce_specs: tuple[str, ...],
    out: Path,
    engine_name: str,
    testbed_name: str | None,
    local: bool,
    matrices: tuple[str, ...],
    every: int,
    best: int,
    texts: tuple[str, ...],
    no_rooted: bool,
    max_steps: int,
    library_name: str,
    least: int,
    most: int,
    width: float,
    budget: str,
    timeout: str,
    dtype: str,
) -> None:
    """Measure programs for placements of AXES on SYSTEM, and the library's own collective on the same groups.

    Each result is added to the file as it happens; what is in it already is not measured again, so a run that was
    killed goes on where it stopped. Start it with torchrun or mpirun on a cluster, with --local, or with --testbed.
    """
    system = load_system(system_spec)
    axes = parse_axes(axes_spec)
    reductions = [parse_reduction(spec) for spec in reduce_specs]
    library = load_library(library_name)
    chosen = [_placement(system, axes, text) for text in matrices] or list(placements(system, axes))
    allowed = [collective for collective in Collective if not (no_rooted and collective in ROOTED)]
    if texts:
        wanted = [case_of(placement, r, library, texts) for placement in chosen for r in reductions]
    else:
        wanted = cases(chosen, reductions, library, every, best, max_steps, allowed)
    patience = Patience(least, max(least, most), width, parse_seconds(budget))
    seconds = parse_seconds(timeout)
    if local and engine_name in ("torch", "mpi"):
        arguments = [argument for argument in sys.argv[1:] if argument != "--local"]
        sys.exit(run_locally(engine_name, system.devices, arguments))
    if testbed_name is None:
        with stdout_kept():
            _measure(wanted, out, engine_name, patience, seconds, dtype)
        return
    bed = beds.running(testbed_name)
    if bed.system.counts != system.counts:
        raise SpecError(f"testbed {testbed_name!r} is {bed.system.counts}, not {system.counts}")
    Records(out).close()  # refuses now, if it must
    every_one = [case.measurement(n, engine_name) for case in wanted for n in (None, *range(len(case.plan.reductions)))]
    say(f"{len(missing(out, every_one))} of {len(every_one)} measurements are to be made")

    def work(_: int) -> None:
        _measure(wanted, out, engine_name, patience, seconds, dtype)

    supervise(bed, out, every_one, work, seconds)


def _placement(system: object, axes: dict[str, int], text: str) -> Placement:
    try:
        return Placement(system, tuple(axes), json.loads(text))  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        raise SpecError(f"--placement {text}: {error}") from None


def _measure(wanted: list[Case], out: Path, engine_name: str, patience: Patience, timeout: float, dtype: str) -> None:
    """What every rank does."""
    engine = make_engine(engine_name, timeout)
    leads = 0 in engine.ranks
    if not leads:
        measure(engine, wanted, None, patience, dtype)
        engine.close()
        return
    records = Records(out)
    total = [case.measurement(n, engine_name) for case in wanted for n in (None, *range(len(case.plan.reductions)))]
    left = len(missing(out, total))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    watch = link_watch(os.environ[TESTBED]) if TESTBED in os.environ else None
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=left)

        def progress(measurement: Measurement) -> None:
            bar.update(task, advance=1, description=f"{'+'.join(measurement.over)} {measurement.matrix}")

        measure(engine, wanted, records, patience, dtype, progress, watch)
    records.close()
    engine.close()
