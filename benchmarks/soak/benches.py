"""Benches that are killed at random moments, and go on: nothing is lost, nothing is counted twice."""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

import meshwright.__main__ as program
from benchmarks.soak.cell import ROOT, Outcome, ended, fork, text_of, wait_for
from benchmarks.soak.verdict import aborted
from meshwright import parse_system
from meshwright.measure.records import Measurement, entries
from meshwright.testbed import temporary

SYSTEM = "node=2@50Mbit/s,gpu=2@200Mbit/s"
MEASUREMENTS = ROOT / "build" / "soak"
LIMIT = 120.0


def verb(arguments: Sequence[str], said: Path) -> int:
    """Run a verb in a process of its own, as the command line would; its process id."""

    def work() -> int:
        sys.argv = ["meshwright", *arguments]
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        program.main(prog_name="meshwright")
        return 0

    return fork(work, said)


def bench_arguments(engine: str, out: Path, bed: str | None) -> list[str]:
    """A bench of some seconds at most: 15 measurements."""
    arguments = ["bench", "--system", SYSTEM, "--axes", "data=2,shard=2", "--reduce", "data=64KiB"]
    arguments += ["--reduce", "shard=64KiB", "--every", "2", "--best", "0", "--engine", engine, "--library", "gloo"]
    arguments += ["--least", "4", "--most", "4", "--timeout", "60s", "--out", str(out)]
    if bed is not None:
        return [*arguments, "--testbed", bed]
    return arguments if engine == "numpy" else [*arguments, "--local"]


def killed_bench(engine: str, on_testbed: bool, folder: Path, random: Random) -> Outcome:
    """Kill a bench once or a few times, let it go on each time, and compare with one that was left alone."""
    with ExitStack() as stack:
        bed = None
        if on_testbed:
            bed = f"soak{os.getpid()}"
            stack.enter_context(temporary(parse_system(SYSTEM), bed))
        reference = undisturbed(engine, bed)
        out, said = folder / "out.jsonl", folder / "job"
        arguments = bench_arguments(engine, out, bed)
        kills = random.choice([1, 1, 2, 3])
        before = b""
        hit = 0
        for _ in range(kills):
            pid = verb(arguments, said)
            hit += _kill(pid, out, random, len(reference))
            now = out.read_bytes() if out.exists() else b""
            if not now.startswith(before[: before.rfind(b"\n") + 1]):
                return Outcome("wrong result", "what was measured before the kill is no longer there")
            before = now
        outcome = finish(verb(arguments, said), said)
        if outcome.verdict != "ok":
            return outcome
    return compare(out, reference, before, {"kills": hit})


def _kill(pid: int, out: Path, random: Random, count: int) -> int:
    """Kill a bench after a random number of lines, or a random time; 1 if it was not over by then."""
    statuses: dict[int, int] = {}
    if random.random() < 0.3:
        wait_for(lambda: ended(pid, statuses), random.random() * 3)
    else:
        lines = random.randrange(2 * count)
        wait_for(lambda: ended(pid, statuses) or _lines(out) >= lines, LIMIT)
        time.sleep(random.random() * 0.1)
    if ended(pid, statuses):
        return 0
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return 1


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def finish(pid: int, said: Path) -> Outcome:
    """Wait for a verb that nobody disturbs."""
    statuses: dict[int, int] = {}
    if not wait_for(lambda: ended(pid, statuses), LIMIT, 0.02):
        return Outcome("hang", text_of(said)[-300:])
    text = text_of(said)
    if aborted(text):
        return Outcome("abort", aborted(text))
    if statuses[pid]:
        return Outcome("unclear error", f"it did not go on: {statuses[pid]}: {text.strip()[-400:]}")
    return Outcome()


def undisturbed(engine: str, bed: str | None) -> set[str]:
    """The keys of what a bench measures that nobody disturbs; measured once, and kept."""
    MEASUREMENTS.mkdir(parents=True, exist_ok=True)
    path = MEASUREMENTS / f"undisturbed-{engine}{'' if bed is None else '-testbed'}.jsonl"
    if not path.exists():
        mine = path.with_suffix(f".{os.getpid()}")
        outcome = finish(verb(bench_arguments(engine, mine, bed), Path("undisturbed")), Path("undisturbed"))
        if outcome.verdict != "ok":
            raise AssertionError(f"the bench that nobody disturbs: {outcome}")
        mine.rename(path)
    return {entry.id for entry in entries(path) if isinstance(entry, Measurement)}


def compare(out: Path, reference: set[str], before: bytes, details: dict[str, int]) -> Outcome:
    """Whether a file has every measurement once, all that it had before, and no failures."""
    if not out.read_bytes().startswith(before[: before.rfind(b"\n") + 1]):
        return Outcome("wrong result", "what was measured before the kill is no longer there", details)
    found = [entry for entry in entries(out) if isinstance(entry, Measurement)]
    times = Counter(entry.id for entry in found)
    if set(times) != reference:
        return Outcome("wrong result", f"{len(set(times) ^ reference)} measurements are missing or too many", details)
    if max(times.values()) > 1:
        return Outcome("wrong result", f"{sum(n > 1 for n in times.values())} measurements are there twice", details)
    bad = [entry for entry in found if entry.failed is not None or len(entry.seconds) != 4]
    if bad:
        return Outcome("wrong result", f"{len(bad)} measurements failed: {bad[0].failed}", details)
    return Outcome(details=details)
