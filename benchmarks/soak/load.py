"""Load made on purpose: processes that keep the cores busy for as long as the soak runs."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.soak.cell import die_with_parent


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep so many cores busy for the time of a with statement."""
    pids = []
    for _ in range(processes):
        pid = os.fork()
        if pid == 0:
            die_with_parent()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            while True:
                pass
        pids.append(pid)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
