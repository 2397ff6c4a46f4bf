"""Runs a benchmark in the devices of a testbed, and goes on after ranks have died.

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
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from meshwright.errors import EngineError
from meshwright.measure.records import Measurement, Records, entries
from meshwright.measure.trials.engines import require
from meshwright.runtime.signals import die_with_parent, fork
from meshwright.testbed import Testbed, ending

POLL = 0.05


def fork_ranks(bed: Testbed, port: int, work: Callable[[int], None]) -> dict[int, int]:
    """Start a rank in every device; the process ids, by rank."""
    sys.stdout.flush()
    sys.stderr.flush()
    pids: dict[int, int] = {}
    parent = os.getpid()
    for device in range(bed.system.devices):
        pid = fork()
        if pid == 0:
            status = 1
            try:
                die_with_parent(parent, signal.SIGKILL)  # or it would go on measuring, beside those of the next run
                bed.enter(device)
                os.environ.update(bed.environment(device, port))
                work(device)
                status = 0
            except BaseException as error:
                message = str(error) or type(error).__name__
                print(f"rank {device}: {message}", file=sys.stderr)
                if os.environ.get("MESHWRIGHT_DEBUG"):
                    traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        pids[device] = pid
    return pids


def supervise(bed: Testbed, path: Path, wanted: list[Measurement], work: Callable[[int], None], timeout: float) -> None:
    """Run ranks until everything is measured or marked as failed; work(rank) measures what is missing in the file."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # addresses have no names here, which is no news
    require("torch")
    importlib.import_module("meshwright.measure.trials.torch")
    port = 20_000 + os.getpid() % 10_000
    while missing(path, wanted):
        port += 1
        reason = _watch(path, fork_ranks(bed, port, work), timeout)
        left = missing(path, wanted)
        if not left:
            return
        if not reason:
            raise EngineError(f"the ranks ended, but {len(left)} measurements are missing in {path}")
        records = Records(path)
        try:
            started = [measurement for measurement in left if measurement.id in records.unfinished]
            culprit = started[-1] if started else left[0]
            records.add(replace(culprit, failed=reason))
        finally:
            records.close()


def missing(path: Path, wanted: list[Measurement]) -> list[Measurement]:
    """What is in no line of the file yet."""
    done = {entry.id for entry in entries(path) if isinstance(entry, Measurement)} if path.exists() else set()
    return [measurement for measurement in wanted if measurement.id not in done]


def _watch(path: Path, pids: dict[int, int], timeout: float) -> str:
    """Wait for ranks; why they failed, empty if they did not. None is left when this returns."""
    size, since = -1, time.monotonic()
    waiting = dict(pids)
    reason = ""
    try:
        while waiting and not reason:
            time.sleep(POLL)
            now = path.stat().st_size if path.exists() else 0
            if now != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > timeout:
                reason = f"nothing was measured for {timeout:g} s"
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
