"""Waiting for other ranks: how long, and a watchdog for waits that cannot be broken off, as inside MPI and XLA."""

import os
import sys
import threading
import time
from collections.abc import Callable
from math import inf
from typing import Self

from meshwright.errors import EngineError

TIMEOUT = 300.0  # seconds that a rank waits for others unless told otherwise
TICK = 0.1


def check_timeout(timeout: float) -> float:
    """Refuse a timeout that is not a number of seconds, or is longer than about thirty years."""
    if not isinstance(timeout, int | float) or not 0 < timeout < 1e9:
        raise EngineError(f"timeout={timeout!r}: expected a number of seconds above 0 and below 1e9")
    return timeout


class Watchdog:
    """Ends this process when it waits too long for others; the launcher then ends them.

    Used as `with watchdog(what):`, where `what` is a text or a function that makes one.
    """

    _all: "set[Watchdog]" = set()  # noqa: RUF012 - all of the process, which one thread watches
    _started = False
    _lock = threading.Lock()

    def __init__(self, timeout: float, rank: int) -> None:
        self.timeout, self.rank = timeout, rank
        self.what: str | Callable[[], str] = ""
        self.deadline = inf
        with Watchdog._lock:
            if not Watchdog._started:
                threading.Thread(target=_watch, name="meshwright-watchdog", daemon=True).start()
                Watchdog._started = True
            Watchdog._all.add(self)

    def __call__(self, what: str | Callable[[], str]) -> Self:
        """Name what is about to be waited for."""
        self.what = what
        return self

    def __enter__(self) -> None:
        self.deadline = time.monotonic() + self.timeout

    def __exit__(self, *_: object) -> None:
        self.deadline = inf
        self.what = ""

    def close(self) -> None:
        """Watch no longer."""
        with Watchdog._lock:
            Watchdog._all.discard(self)

    def fire(self) -> None:
        """Say what was waited for, and end."""
        try:
            what = self.what if isinstance(self.what, str) else self.what()
            print(
                f"meshwright: rank {self.rank} waited {self.timeout:g} s in {what}: another rank has died, hangs or "
                "makes other calls",
                file=sys.stderr,
                flush=True,
            )
        finally:  # even if stderr cannot be written to
            os._exit(3)


def _watch() -> None:
    while True:
        time.sleep(TICK)
        now = time.monotonic()
        for each in tuple(Watchdog._all):
            if now > each.deadline:
                each.fire()
