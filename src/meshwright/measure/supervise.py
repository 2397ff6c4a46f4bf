"""Runs a job on the devices of a testbed, and goes on after ranks have died.

PyTorch is imported once, then a rank is forked for each device, which enters the device's namespace before it starts
any thread. When ranks die, or nothing happens for too long, the measurement in progress is marked as failed and new
ranks go on with the rest.
"""

import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from meshwright.errors import EngineError, SpecError
from meshwright.measure.jobs import Bar, Job, measure_here, no_bar
from meshwright.measure.records import Measurement, Records
from meshwright.measure.trials.runners import require
from meshwright.runtime.launch import ending
from meshwright.runtime.signals import die_with_parent, fork
from meshwright.testbed.bed import Testbed

POLL = 0.05


def fork_ranks(bed: Testbed, port: int, work: Callable[[int], None]) -> dict[int, int]:
    """Start a rank on every device; the process ids, by rank."""
    parent = os.getpid()
    return {rank: fork(partial(_rank, bed, rank, port, parent, work)) for rank in range(bed.system.devices)}


def _rank(bed: Testbed, rank: int, port: int, parent: int, work: Callable[[int], None]) -> int:
    """What a rank does; its exit code. It dies with its parent, or it would go on beside the ranks of the next run."""
    try:
        die_with_parent(parent, signal.SIGKILL)
        bed.enter(rank)
        os.environ.update(bed.environment(rank, port))
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
    port = bed.port()
    while job.missing():
        port += 1  # the last one may not be free yet
        reason = _watch(job, fork_ranks(bed, port, lambda _: measure_here(job, bar)))
        if left := job.missing():
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


def _watch(job: Job, pids: dict[int, int]) -> str:
    """Wait for ranks; why they failed, empty if they did not. No rank is left when this returns.

    The file that they write is the sign of life: it grows by a line when a measurement begins and when it ends.
    """
    size, since = -1, time.monotonic()
    waiting = dict(pids)
    reason = ""
    try:
        while waiting and not reason:
            time.sleep(POLL)
            now = job.out.stat().st_size if job.out.exists() else 0
            if now != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > job.timeout:
                reason = f"nothing was measured for {job.timeout:g} s"
            for rank, pid in list(waiting.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if not ended:
                    continue
                del waiting[rank]
                code = os.waitstatus_to_exitcode(status)
                if code != 0 and not reason:
                    reason = f"rank {rank} {ending(code)}"
    finally:
        for pid in waiting.values():
            os.kill(pid, signal.SIGKILL)
        for pid in waiting.values():
            os.waitpid(pid, 0)
    return reason
