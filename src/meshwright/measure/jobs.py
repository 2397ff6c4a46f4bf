"""Jobs: what is to be measured into which file, by the ranks of one launcher or by ranks on a testbed.

On a testbed PyTorch is imported once, then a rank is forked for each device, which enters the device's namespace before
it starts any thread. When ranks die, or nothing happens for too long, the measurement in progress is marked as failed
and new ranks go on with the rest.
"""

import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from meshwright.errors import EngineError, SpecError
from meshwright.measure.bench import Case, Patience, measure
from meshwright.measure.records import Measurement, Records, entries
from meshwright.measure.trials.runners import make_runner, measured_as, require
from meshwright.runtime.launch import wait_for_ranks
from meshwright.runtime.seats import TESTBED
from meshwright.runtime.signals import die_with_parent, end_at_once, fork
from meshwright.system.model import System
from meshwright.testbed.bed import Testbed, running
from meshwright.testbed.gpu import shared_gpu

Bar = Callable[[int], AbstractContextManager[Callable[[Measurement], None]]]
"""Shows progress: opened with the number of measurements to make, then called with each one as it begins."""


def no_bar(_: int) -> AbstractContextManager[Callable[[Measurement], None]]:
    """Show nothing."""
    return nullcontext(lambda _: None)


@dataclass(frozen=True, slots=True)
class Job:
    """Cases to measure on a system, and the file that the measurements are added to."""

    system: System
    cases: Sequence[Case]
    out: Path
    patience: Patience
    timeout: float  # how many seconds a measurement may be stuck
    engine: str = "torch"
    device: str | None = None  # cpu or cuda, for torch
    gives_up: bool = False  # whether ranks that die on a testbed end it all, instead of one measurement

    @property
    def measurements(self) -> list[Measurement]:
        """All of them, not yet measured."""
        name = measured_as(self.engine, self.device)
        return [measurement for case in self.cases for measurement in case.measurements(name)]

    def missing(self) -> list[Measurement]:
        """Those that the file does not have yet."""
        done = {entry.id for entry in entries(self.out) if isinstance(entry, Measurement)} if self.out.exists() else ()
        return [measurement for measurement in self.measurements if measurement.id not in done]


def measure_here(job: Job, bar: Bar = no_bar) -> bool:
    """Measure what is missing. Every rank calls this; the first one writes the file and shows the progress.

    Returns whether this process has the first rank.
    """
    end_at_once()
    runner = make_runner(job.engine, job.timeout, job.device)
    if 0 not in runner.ranks:
        measure(runner, job.cases, None, job.patience)
    else:
        with Records(job.out) as records, bar(len(job.missing())) as progress:
            watch = running(os.environ[TESTBED]).watch if TESTBED in os.environ else None
            measure(runner, job.cases, records, job.patience, progress=progress, watch=watch)
    runner.close()
    return 0 in runner.ranks


def fork_ranks(
    bed: Testbed, port: int, work: Callable[[int], object], order: Sequence[int] | None = None
) -> dict[int, int]:
    """Start a rank on every device, numbered in the order of the devices or in another; the process ids, by rank."""
    start = partial(_rank, bed, order, port, os.getpid(), work)
    return {rank: fork(partial(start, rank)) for rank in range(bed.system.devices)}


def _rank(
    bed: Testbed, order: Sequence[int] | None, port: int, parent: int, work: Callable[[int], object], rank: int
) -> int:
    """What a rank does; its exit code. It dies with its parent, or it would go on beside the ranks of the next run."""
    try:
        die_with_parent(parent, signal.SIGKILL)
        device = rank if order is None else order[rank]
        bed.enter(device)
        os.environ.update(bed.environment(device, port, order))
        work(rank)
    except BaseException as error:
        print(f"rank {rank}: {str(error) or type(error).__name__}", file=sys.stderr)
        if os.environ.get("MESHWRIGHT_DEBUG"):
            traceback.print_exc()
        return 1
    return 0


def measure_on(bed: Testbed, job: Job, bar: Bar = no_bar, say: Callable[[str], object] = lambda _: None) -> None:
    """Run ranks on the devices of a testbed until everything is measured or marked as failed."""
    if bed.system.counts != job.system.counts:
        raise SpecError(f"testbed {bed.network.name!r} has the counts {bed.system.counts}, not {job.system.counts}")
    if job.engine != "torch":
        raise SpecError(
            f"--testbed runs --engine torch; for {job.engine}, start it yourself with: meshwright testbed exec"
        )
    Records(job.out).close()  # refuses now, if it must
    say(f"{len(job.missing())} of {len(job.measurements)} measurements are to be made")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # silence warnings that addresses have no names here
    require("torch")
    importlib.import_module("meshwright.measure.trials.torch")
    with shared_gpu(job.device) as added:
        _measure_all(bed, job, bar, added)


def _measure_all(bed: Testbed, job: Job, bar: Bar, added: Mapping[str, str]) -> None:
    """`added` is what the ranks' environment has besides: it is theirs only, as it holds for this job only."""

    def work(_: int) -> None:
        os.environ.update(added)
        measure_here(job, bar)

    port = bed.port()
    while job.missing():
        port += 1  # the last one may not be free yet
        reason = wait_for_forked(fork_ranks(bed, port, work), quiet(job))
        if left := job.missing():
            if reason and job.gives_up:
                raise EngineError(reason)
            if not reason:
                raise EngineError(f"the ranks ended, but {len(left)} measurements are missing in {job.out}")
            _mark_failed(job, left, reason)


def _mark_failed(job: Job, left: Sequence[Measurement], reason: str) -> None:
    """Mark the measurement that the ranks were at, or else the first that is left, so that the next ranks skip it.

    For example, the file has results of A and B, and a line which says that C was started, when rank 2 is killed: C
    gets a line with `failed`, and new ranks go on with D. If they died before they started any, each attempt still
    uses up one measurement, so that the loop ends.
    """
    with Records(job.out) as records:
        started = [measurement for measurement in left if measurement.id in records.unfinished]
        records.add(replace(started[-1] if started else left[0], failed=reason))


def quiet(job: Job, clock: Callable[[], float] = time.monotonic) -> Callable[[], str]:
    """What says that ranks are stuck, once the file that they write shows no sign of life for as long as they may be.

    It grows by a line when a measurement begins and when it ends, and is touched after every repetition in between.
    """
    seen, since = None, clock()

    def stuck() -> str:
        nonlocal seen, since
        status = job.out.stat() if job.out.exists() else None
        now = status and (status.st_size, status.st_mtime_ns)
        if now != seen:
            seen, since = now, clock()
        return f"nothing was measured for {job.timeout:g} s" if clock() - since > job.timeout else ""

    return stuck


def wait_for_forked(pids: dict[int, int], stuck: Callable[[], str] = lambda: "") -> str:
    """Wait for ranks that were forked; why they failed, empty if they did not. No rank is left when this returns."""
    waiting: dict[int, Callable[[], int | None]] = {rank: partial(_exit_code, pid) for rank, pid in pids.items()}
    try:
        return wait_for_ranks(waiting, stuck)[1]
    finally:
        for rank in waiting:
            os.kill(pids[rank], signal.SIGKILL)
        for rank in waiting:
            os.waitpid(pids[rank], 0)


def _exit_code(pid: int) -> int | None:
    """The exit code of a forked process; None as long as it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None
