"""A trial runs in a cell: a process of its own, which adopts whatever its descendants leave behind, and so sees it."""

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from meshwright.runtime import signals
from meshwright.runtime.signals import die_with_parent

ROOT = Path(__file__).parents[2]

OK, MISSED = "ok", "missed"
FAULTS = ("hang", "abort", "wrong result", "unclear error", "leftover", "failed")
"""What can be wrong with a trial: it did not end in time; a process was ended by a signal that nobody sent; a result or
a file was wrong; an error did not say what happened; a process, a namespace or a file was left; a test failed.
"""

GRACE = 5.0
"""Seconds that processes have to vanish after the one that started them has ended."""


@dataclass(frozen=True)
class Outcome:
    """What became of a trial: ok, missed (it was over before it was disturbed), or one of the faults, and why."""

    verdict: str = OK
    about: str = ""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Kind:
    """A kind of trial. `run` gets an empty folder and random numbers of its own; it may take `limit` seconds."""

    part: str
    name: str
    run: Callable[[Path, Random], Outcome]
    count: int
    limit: float
    alone: bool = False


def first_fault(outcomes: "list[Outcome]") -> Outcome:
    """The first outcome that is not well, or the first."""
    return next((outcome for outcome in outcomes if outcome.verdict != OK), outcomes[0])


def start_cell(kind: Kind, folder: Path, seed: str) -> int:
    """Fork a cell that runs a trial and leaves its outcome in the folder."""
    parent = os.getpid()

    def work() -> None:
        try:
            os.setsid()
            ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans below become children of this process
            die_with_parent(parent, signal.SIGKILL)
            redirect(folder / "said")
            os.chdir(folder)
            try:
                outcome = kind.run(folder, Random(seed))
            except BaseException as error:
                traceback.print_exc()
                outcome = Outcome("failed", f"the trial itself: {type(error).__name__}: {error}"[:500])
            left = _leftovers()
            if left and outcome.verdict in (OK, MISSED):
                outcome = Outcome("leftover", f"processes are left: {'; '.join(left)}"[:500])
            partial = folder / "outcome.partial"
            partial.write_text(json.dumps(asdict(outcome)))
            partial.rename(folder / "outcome")
        finally:
            end_descendants(os.getpid())

    return signals.fork(work)


def read_outcome(folder: Path) -> Outcome:
    """The outcome that a cell has left."""
    try:
        return Outcome(**json.loads((folder / "outcome").read_text()))
    except (OSError, ValueError) as error:
        return Outcome("failed", f"the trial left no outcome: {error}")


def fork(work: Callable[[], int], said: Path, environment: Mapping[str, str] | None = None) -> int:
    """Do some work in a process that says what it says into a file, and ends as Python does."""
    parent = os.getpid()

    def child() -> int:
        die_with_parent(parent, signal.SIGKILL)
        os.environ.update(environment or {})
        return guarded(work, said)

    return signals.fork(child, python_end)


def start(command: Sequence[str], said: Path, environment: Mapping[str, str] | None = None) -> int:
    """Start a command in the repository's root; what it says goes into a file."""

    def work() -> int:
        os.chdir(ROOT)
        os.execve(command[0], list(command), os.environ | dict(environment or {}))

    return fork(work, said)


def guarded(work: Callable[[], int], said: Path) -> int:
    """The exit code that Python would give a script that does some work; what it says goes into a file."""
    redirect(said)
    try:
        return work()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1


def python_end(code: int) -> NoReturn:
    """End this process as the interpreter ends a script: threads, exit handlers, modules, then the C library's."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.pythonapi.Py_Exit(code)
    finally:
        os._exit(code)


def redirect(said: Path) -> None:
    """Let all that this process says go into a file."""
    handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(handle, stream)
    os.close(handle)
    sys.stdout, sys.stderr = (os.fdopen(os.dup(stream), "w", buffering=1) for stream in (1, 2))


def text_of(said: Path) -> str:
    """What a process has said; nothing if it was ended before it could."""
    return said.read_text(errors="replace") if said.exists() else ""


def wait_for(condition: Callable[[], bool], seconds: float, pause: float = 0.005) -> bool:
    """Whether something comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def ended(pid: int, statuses: dict[int, int]) -> bool:
    """Whether a child has ended; its exit code is put down when it has."""
    if pid not in statuses:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            statuses[pid] = os.waitstatus_to_exitcode(status)
    return pid in statuses


def descendants(pid: int) -> list[int]:
    """All processes below one that live. One whose parent just ends may be missed, so look twice."""
    found = _snapshot(pid)
    return found or _snapshot(pid)


def _snapshot(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    dead = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            children.setdefault(int(parent), []).append(int(entry.name))
            if state in "ZX":
                dead.add(int(entry.name))
    found, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return [each for each in found if each not in dead]


def end_descendants(pid: int) -> None:
    """Kill all processes below one, and those that they start meanwhile; bounded."""
    for _ in range(100):
        below = descendants(pid)
        if not below:
            return
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that they start no more
            for each in below:
                with suppress(ProcessLookupError):
                    os.kill(each, number)
        time.sleep(0.02)


def _leftovers() -> list[str]:
    """The command lines of processes that are left of a trial that has ended."""
    if wait_for(lambda: not descendants(os.getpid()), GRACE, 0.05):
        return []
    found = []
    for pid in descendants(os.getpid()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        found.append(f"{pid} {' '.join(words)[:120]}")
    return found
