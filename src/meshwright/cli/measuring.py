"""What the verbs share that measure: their options, the start of ranks with --local, and the progress bar."""

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from meshwright import testbed as beds
from meshwright.cli import options
from meshwright.cli.output import say, stdout_kept
from meshwright.cli.progress import bar
from meshwright.measure.bench import Case, Patience
from meshwright.measure.jobs import Job, measure_here, measure_on
from meshwright.measure.records import Measurement
from meshwright.measure.trials.runners import ENGINES, start_locally
from meshwright.placement.notation import format_placement
from meshwright.system.model import System


def measuring_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that `measure_cases` reads."""
    for option in reversed(
        (
            click.option("--engine", type=click.Choice(ENGINES), default="torch"),
            click.option(
                "--testbed",
                is_flag=False,
                flag_value=beds.DEFAULT_NAME,
                help="Run in the devices of a testbed that is up; its name may follow.",
            ),
            options.device,
            click.option("--local", is_flag=True, help="Start all ranks on this machine, through torchrun or mpirun."),
            options.number("--least", 3, "The fewest repetitions."),
            options.number("--most", 20, "The most repetitions."),
            click.option(
                "--width",
                type=click.FloatRange(0, 1),
                default=0.02,
                help="Repeat until the mean is known to this share of itself, with 95% confidence,",
            ),
            options.time("--budget", "10s", "or until this much time was measured.", zero=True),
            options.time("--timeout", "60s", "How long a measurement may be stuck."),
        )
    ):
        command = option(command)
    return command


def measure_cases(
    system: System, cases: Sequence[Case], out: Path, given: dict[str, Any], gives_up: bool = False
) -> bool:
    """Measure what the file does not have yet, where the options say; with --local, this does not return.

    Returns whether the file is this process's: of several ranks, only the first has one. gives_up: as in `Job`.
    """
    least, name = given["least"], given["testbed"]
    patience = Patience(least, max(least, given["most"]), given["width"], given["budget"])
    job = Job(system, cases, out, patience, given["timeout"], given["engine"], given["device"], gives_up)
    if given["local"] and job.engine in ("torch", "mpi"):
        arguments = [argument for argument in sys.argv[1:] if argument != "--local"]
        sys.exit(start_locally(job.engine, system.devices, arguments))
    if name is not None:
        measure_on(beds.running(name), job, _bar, say)
        return True
    with stdout_kept():
        return measure_here(job, _bar)


@contextmanager
def _bar(count: int) -> Iterator[Callable[[Measurement], None]]:
    """A progress bar on stderr, if that is a terminal: what is being measured, how many are done and how many are left.

    It is opened with the number of measurements, and told of each one as it begins.
    """
    with bar(Console(stderr=True)) as line:
        task = line.add_task(f"0 of {count:,} measured", total=count)
        begun = itertools.count()

        def begin(one: Measurement) -> None:
            number = next(begun)
            what = f"{format_placement(one.axes, one.matrix)} over {'+'.join(one.over)}"
            line.update(task, completed=number, description=f"{number:,} of {count:,} measured, now {what}")

        yield begin
