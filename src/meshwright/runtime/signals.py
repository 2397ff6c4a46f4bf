"""Signals that ask a process to end: cleaning up first, and ending with the process that started one."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

ENDING = tuple(number for number in _ASKING if signal.getsignal(number) is not signal.SIG_IGN)
"""Without those that this process was started to ignore, as by nohup, or in the background of a script."""


class Interrupted(BaseException):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"interrupted by {signal.Signals(number).name}")


@contextmanager
def _handled_by(handler: Callable[[int, object], object]) -> Iterator[None]:
    """Handle the signals that ask to end; other threads than the main one get none."""
    here = ENDING if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, handler) for number in here}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def interrupting() -> AbstractContextManager[None]:
    """Inside this block, signals that ask the process to end raise `Interrupted`, so that it can clean up.

    Only the first signal does, so that cleaning up is not interrupted. SIGQUIT still ends the process at once.
    """

    def stop(number: int, _: object) -> None:
        for each in ENDING:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    return _handled_by(stop)


@contextmanager
def holding_back() -> Iterator[None]:
    """Let the signals that ask to end wait until this is over."""
    # A mask would not do: another thread could take the signal, and Python would handle it here all the same.
    came: list[int] = []
    try:
        with _handled_by(lambda number, _: came.append(number)):
            yield
    finally:
        for first in came[:1]:
            signal.raise_signal(first)


def fork(work: Callable[[], int | None], end: Callable[[int], object] = os._exit) -> int:
    """Fork a process that does some work and then ends, with what the work returns (None is 0), or 1 where it raises.

    Returns the process id; only the parent returns. A signal that comes during the fork is not lost, and does not make
    the child clean up what is its parent's.
    """
    sys.stdout.flush()  # otherwise the child would write the same text again
    sys.stderr.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        pid = os.fork()
        if pid == 0:
            for number in ENDING:
                signal.signal(number, signal.SIG_DFL)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if pid:
        return pid
    status = 1
    try:
        status = work() or 0
        sys.stdout.flush()
        sys.stderr.flush()
        end(status)
    finally:
        os._exit(status)


def end_at_once() -> None:
    """Have SIGTERM and SIGHUP end this process as it is: a rank that waits inside a library could not clean up."""
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            if number != signal.SIGINT:
                signal.signal(number, signal.SIG_DFL)


def die_with_parent(parent: int, number: int) -> None:
    """Have Linux send this process a signal when the one that started it, `parent`, ends, however that happens."""
    ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it has ended already
        os.kill(os.getpid(), number)
