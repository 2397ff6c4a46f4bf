"""What the verbs share that measure: where to run, how long, and the loop with its progress bar."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from meshwright import testbed as beds
from meshwright.cli.common import say, stdout_kept
from meshwright.errors import SpecError
from meshwright.measure.bench import Case, Patience, measure
from meshwright.measure.records import Measurement, Records
from meshwright.measure.supervise import missing, supervise
from meshwright.measure.trials.engines import ENGINES, make_engine, start_locally
from meshwright.runtime.engine import TESTBED
from meshwright.runtime.signals import end_at_once
from meshwright.system.model import System
from meshwright.testbed.watch import link_watch
from meshwright.text.units import parse_seconds


class Where(NamedTuple):
    """Where and how to measure, from the command line."""

    engine: str
    testbed: str | None
    local: bool
    patience: Patience
    timeout: float


def measuring_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that `where` reads."""
    for option in reversed(
        (
            click.option("--engine", type=click.Choice(ENGINES), default="torch", show_default=True),
            click.option(
                "--testbed",
                is_flag=False,
                flag_value=beds.DEFAULT_NAME,
                help="Run in the devices of a testbed that is up; its name may follow.",
            ),
            click.option("--local", is_flag=True, help="Start all ranks on this machine, through torchrun or mpirun."),
            click.option(
                "--least", type=click.IntRange(1), default=3, show_default=True, help="The fewest repetitions."
            ),
            click.option("--most", type=click.IntRange(1), default=20, show_default=True, help="The most repetitions."),
            click.option(
                "--width",
                type=click.FloatRange(0, 1),
                default=0.02,
                show_default=True,
                help="Repeat until the mean is known to this share of itself, with 95% confidence,",
            ),
            click.option("--budget", default="10s", show_default=True, help="or until so much time was measured."),
            click.option("--timeout", default="60s", show_default=True, help="How long a measurement may be stuck."),
        )
    ):
        command = option(command)
    return command


def where(options: dict[str, Any]) -> Where:
    """Read the options of `measuring_options`."""
    patience = Patience(
        options["least"], max(options["least"], options["most"]), options["width"], parse_seconds(options["budget"])
    )
    timeout = parse_seconds(options["timeout"])
    if timeout <= 0:
        raise SpecError(f"--timeout {options['timeout']}: expected more than no time")
    return Where(options["engine"], options["testbed"], options["local"], patience, timeout)


def measure_cases(system: System, wanted: list[Case], out: Path, at: Where) -> None:
    """Measure what the file does not have yet, where the command line says."""
    if at.local and at.engine in ("torch", "mpi"):
        arguments = [argument for argument in sys.argv[1:] if argument != "--local"]
        code = start_locally(at.engine, system.devices, arguments)
        sys.exit(code)
    if at.testbed is None:
        with stdout_kept():
            _rank(wanted, out, at)
        return
    bed = beds.running(at.testbed)
    if bed.system.counts != system.counts:
        raise SpecError(f"testbed {at.testbed!r} has the counts {bed.system.counts}, not {system.counts}")
    if at.engine != "torch":
        raise SpecError(
            f"--testbed runs --engine torch; for {at.engine}, start it yourself with: meshwright testbed exec"
        )
    Records(out).close()  # refuses now, if it must
    every = [measurement for case in wanted for measurement in case.measurements(at.engine)]
    say(f"{len(missing(out, every))} of {len(every)} measurements are to be made")
    supervise(bed, out, every, lambda _: _rank(wanted, out, at), at.timeout)


def _rank(wanted: list[Case], out: Path, at: Where) -> None:
    """What every rank does."""
    end_at_once()
    engine = make_engine(at.engine, at.timeout)
    if 0 not in engine.ranks:
        measure(engine, wanted, None, at.patience)
        engine.close()
        return
    records = Records(out)
    every = [measurement for case in wanted for measurement in case.measurements(at.engine)]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    watch = link_watch(os.environ[TESTBED]) if TESTBED in os.environ else None
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=len(missing(out, every)))

        def progress(measurement: Measurement) -> None:
            bar.update(task, advance=1, description=f"{'+'.join(measurement.over)} {measurement.matrix}")

        measure(engine, wanted, records, at.patience, progress=progress, watch=watch)
    records.close()
    engine.close()
