"""Load made on purpose: processes that keep the cores busy for as long as the soak runs."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from meshwright.runtime.signals import die_with_parent, fork


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep this number of cores busy for the time of a with statement."""
    parent = os.getpid()

    def spin() -> None:
        die_with_parent(parent, signal.SIGKILL)
        while True:
            pass

    pids = [fork(spin) for _ in range(processes)]
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
