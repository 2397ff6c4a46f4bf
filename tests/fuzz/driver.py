"""Runs cases under limits of time and memory, and notes what is not as it should be."""

import os
import resource
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from random import Random
from typing import Any, TextIO

from meshwright.errors import MeshwrightError
from tests.fuzz.targets import TARGETS, Target

MOST_SECONDS = 5.0
MOST_BYTES = 2**30
MOST_LETTERS = 5000
"""Of an error's message."""

MOST_FAILURES = 50
"""The most failures of one target that are kept."""


class TooSlowError(BaseException):
    """A case took too long; no `except Exception` catches it."""


def fuzz(
    names: Sequence[str], cases: int, seed: int, seconds: float = float("inf"), progress: TextIO | None = None
) -> dict[str, Any]:
    """Run `cases` cases, divided among the targets by their shares; returns what was found."""
    shares = sum(TARGETS[name].share for name in names)
    ends = time.monotonic() + seconds
    found = {}
    with tempfile.TemporaryDirectory() as folder, chdir(folder):  # whatever is taken for a path stays in there
        for name in names:
            count = max(1, round(cases * TARGETS[name].share / shares))
            found[name] = _target(name, count, seed, ends, Path(folder))
            if progress is not None:
                known = {key: value for key, value in found[name].items() if key != "failures"}
                print(f"{name}: {known}", file=progress)
                for failure in found[name]["failures"]:
                    print(f"  case {failure['number']}: {failure['fault']}", file=progress)
                progress.flush()
    return {"seed": seed, "cases": sum(each["cases"] for each in found.values()), "targets": found}


def _target(name: str, count: int, seed: int, ends: float, folder: Path) -> dict[str, Any]:
    target = TARGETS[name]
    failures: dict[str, dict[str, Any]] = {}
    accepted = done = 0
    slowest = 0.0
    # Once without limits: on many cores, what libraries set aside for their threads is a gigabyte already.
    target.make(Random(f"{name} {seed}"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with _limited_memory(), _kept_quiet() as said, warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(count):
            if time.monotonic() > ends:
                break
            case = target.make(Random(f"{name} {seed} {number}"))
            started = time.process_time()
            fault = _fault(target, case, folder)
            slowest = max(slowest, time.process_time() - started)
            if text := said():
                fault = f"written to the terminal: {text[:200]!r}"
            accepted += fault == ""
            done += 1
            if fault and fault not in failures and len(failures) < MOST_FAILURES:
                failures[fault] = {"number": number, "fault": fault, "case": repr(case)[:2000]}
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {
        "cases": done,
        "accepted": accepted,
        "slowest_seconds": round(slowest, 3),
        "memory_grown_mib": round(grown / 1024, 1),
        "failures": list(failures.values()),
    }


def _fault(target: Target, case: Any, folder: Path) -> str | None:
    """What is wrong with what a case does; empty where it is accepted, None where it is refused as it should be."""
    try:
        with _limited_time():
            target.use(case, folder)
    except MeshwrightError as error:
        if not str(error) or len(str(error)) > MOST_LETTERS:
            return f"a message of {len(str(error))} letters at {_place(error.__traceback__)}"
        return None
    except TooSlowError as error:
        return f"over {MOST_SECONDS:g} s at {_place(error.__traceback__)}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:80]} at {_place(error.__traceback__)}"
    return ""


def _place(trace: Any) -> str:
    """The innermost place in the package."""
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if "meshwright" in Path(frame.filename).parts] or frames[-1:]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}"


@contextmanager
def _limited_time() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooSlowError

    # The processor's time, so that a busy machine makes no difference; and some limit for what only waits.
    timers = (
        (signal.SIGPROF, signal.ITIMER_PROF, MOST_SECONDS),
        (signal.SIGALRM, signal.ITIMER_REAL, 20 * MOST_SECONDS),
    )
    before = {number: signal.signal(number, stop) for number, _, _ in timers}
    for _, timer, seconds in timers:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for number, timer, _ in timers:
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


@contextmanager
def _limited_memory() -> Iterator[None]:
    """What is asked for beyond the limit is refused, which ends in a MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def _kept_quiet() -> Iterator[Callable[[], str]]:
    """Gives a function that tells what was written to stdout and stderr since it was last asked, also from C."""
    with tempfile.TemporaryFile() as file:
        kept = os.dup(1), os.dup(2)
        for number in (1, 2):
            os.dup2(file.fileno(), number)

        def said() -> str:
            if not os.fstat(file.fileno()).st_size:
                return ""
            file.seek(0)
            text = file.read().decode(errors="replace")
            file.seek(0)
            file.truncate()
            return text

        try:
            yield said
        finally:
            for number, one in enumerate(kept, 1):
                os.dup2(one, number)
                os.close(one)
