"""Jobs: what is to be measured into which file, and what every rank of a job does."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from meshwright.measure.bench import Case, Patience, measure
from meshwright.measure.records import Measurement, Records, entries
from meshwright.measure.trials.runners import make_runner
from meshwright.runtime.seats import TESTBED
from meshwright.runtime.signals import end_at_once
from meshwright.system.model import System
from meshwright.testbed.bed import running

Bar = Callable[[int], AbstractContextManager[Callable[[Measurement], None]]]
"""Shows progress: opened with the number of measurements to make, then called with each one as it begins."""


def no_bar(_: int) -> AbstractContextManager[Callable[[Measurement], None]]:
    """Show nothing."""
    return nullcontext(lambda _: None)


@dataclass(frozen=True, slots=True)
class Job:
    """Cases to measure on a system, and the file that the measurements are added to.

    timeout: how many seconds a measurement may be stuck.
    """

    system: System
    cases: Sequence[Case]
    out: Path
    patience: Patience
    timeout: float
    engine: str = "torch"

    @property
    def measurements(self) -> list[Measurement]:
        """All of them, not yet measured."""
        return [measurement for case in self.cases for measurement in case.measurements(self.engine)]

    def missing(self) -> list[Measurement]:
        """Those that the file does not have yet."""
        done = {entry.id for entry in entries(self.out) if isinstance(entry, Measurement)} if self.out.exists() else ()
        return [measurement for measurement in self.measurements if measurement.id not in done]


def measure_here(job: Job, bar: Bar = no_bar) -> None:
    """Measure what is missing. Every rank calls this; the first one writes the file and shows the progress."""
    end_at_once()
    runner = make_runner(job.engine, job.timeout)
    if 0 not in runner.ranks:
        measure(runner, job.cases, None, job.patience)
    else:
        with Records(job.out) as records, bar(len(job.missing())) as progress:
            watch = running(os.environ[TESTBED]).watch if TESTBED in os.environ else None
            measure(runner, job.cases, records, job.patience, progress=progress, watch=watch)
    runner.close()
