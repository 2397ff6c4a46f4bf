"""SIGINT and SIGTERM at random moments of verbs: files are whole or as before, and nothing is left."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

from benchmarks.soak.benches import SYSTEM, bench_arguments, finish, undisturbed, verb
from benchmarks.soak.cell import MISSED, ROOT, Outcome, ended, text_of, wait_for
from benchmarks.soak.verdict import aborted
from meshwright import load_library, load_system, parse_system, read_plan
from meshwright.errors import MeshwrightError
from meshwright.measure.records import Measurement, entries
from meshwright.testbed import down, running, temporary
from meshwright.testbed.bed import STATE

IN_TIME = 20.0
"""Seconds in which a verb must end after a signal."""

CALIBRATION = ROOT / "benchmarks" / "results" / "calibration-4x4.jsonl"


def plan_arguments(out: Path) -> list[str]:
    """A plan that takes a moment to find."""
    arguments = ["plan", "--system", "gcp-a100:4", "--axes", "data=4,shard=16", "--reduce", "data=2GiB"]
    return [*arguments, "--reduce", "shard=64MiB*80", "--out", str(out)]


def calibrate_arguments(out: Path, library: Path) -> list[str]:
    """A fit of what is in the repository."""
    arguments = ["calibrate", "--system", "node=4@40Mbit/s,gpu=4@100Mbit/s", "--library", "gloo", "--fit-only"]
    return [*arguments, "--measurements", str(CALIBRATION), "--out", str(out), "--library-out", str(library)]


def interrupted_plan(folder: Path, random: Random) -> Outcome:
    """`plan --out`, into a new file or over an old one."""
    return _writing([folder / "work" / "plan.json"], plan_arguments, _plan_is_whole, 0.6, folder, random)


def interrupted_calibrate(folder: Path, random: Random) -> Outcome:
    """`calibrate --fit-only --out --library-out`, into new files or over old ones."""
    files = [folder / "work" / "system.yaml", folder / "work" / "library.yaml"]
    return _writing(files, calibrate_arguments, _yaml_is_whole, 1.0, folder, random)


def interrupted_bench(on_testbed: bool, folder: Path, random: Random) -> Outcome:
    """`bench`: what is in the file stays, and a second start goes on."""
    (folder / "work").mkdir()
    out, said = folder / "work" / "out.jsonl", folder / "job"
    with ExitStack() as stack:
        bed = None
        if on_testbed:
            bed = f"soak{os.getpid()}"
            stack.enter_context(temporary(parse_system(SYSTEM), bed))
        engine = "torch" if on_testbed else "numpy"
        reference = undisturbed(engine, bed)
        pid = verb(bench_arguments(engine, out, bed), said)
        outcome = _interrupt(pid, said, random, 4.0 if on_testbed else 0.4)
        if outcome.verdict != "ok":
            return outcome
        if strays := _strays(folder / "work", [out]):
            return Outcome("leftover", f"files: {strays}")
        outcome = finish(verb(bench_arguments(engine, out, bed), folder / "again"), folder / "again")
        if outcome.verdict != "ok":
            return outcome
    found = [entry.id for entry in entries(out) if isinstance(entry, Measurement)]
    if sorted(found) != sorted(reference):
        return Outcome("wrong result", f"{len(found)} measurements, not {len(reference)}")
    return Outcome()


def interrupted_testbed(latency: bool, folder: Path, random: Random) -> Outcome:
    """`testbed up`: all of it is there, or nothing."""
    name = f"int{os.getpid()}"
    spec = "node=2@20Mbit/s+2ms,gpu=2@100Mbit/s" if latency else "node=2@20Mbit/s,gpu=2@100Mbit/s"
    try:
        said = folder / "job"
        pid = verb(["testbed", "up", "--system", spec, "--name", name], said)
        outcome = _interrupt(pid, said, random, 1.5 if latency else 0.7)
        if "is up: " in text_of(said):  # the signal came when all was done
            return outcome if running(name) else Outcome("wrong result", "it is up, but not whole")
        if outcome.verdict == "ok" and (left := _namespaces(name, pid)):
            return Outcome("leftover", f"namespaces: {left}")
        if outcome.verdict == "ok" and (STATE / f"testbed-{name}.json").exists():
            return Outcome("leftover", "what is known about the testbed")
        return outcome
    finally:
        down(name)


def _writing(
    files: list[Path],
    arguments: Callable[..., list[str]],
    whole: Callable[[Path], bool],
    longest: float,
    folder: Path,
    random: Random,
) -> Outcome:
    """Interrupt a verb that writes files; each is then whole, or as it was before."""
    (folder / "work").mkdir()
    old = random.random() < 0.5
    if old:
        for path in files:
            path.write_text("as before\n")
    outcome = _interrupt(verb(arguments(*files), folder / "job"), folder / "job", random, longest)
    if outcome.verdict != "ok":
        return outcome
    for path in files:
        as_before = path.read_text() == "as before\n" if old and path.exists() else not old and not path.exists()
        if not as_before and not (path.exists() and whole(path)):
            return Outcome("wrong result", f"{path.name} is neither whole nor as before")
    if strays := _strays(folder / "work", files):
        return Outcome("leftover", f"files: {strays}")
    return outcome


def _interrupt(pid: int, said: Path, random: Random, longest: float) -> Outcome:
    """Send a verb a signal at a random moment; how it ended."""
    number = random.choice([signal.SIGINT, signal.SIGTERM])
    statuses: dict[int, int] = {}
    wait_for(lambda: ended(pid, statuses), random.random() * longest * 1.5, 0.001)
    if ended(pid, statuses):
        return Outcome(MISSED, details={"status": statuses[pid]})
    os.kill(pid, number)
    struck = time.monotonic()
    if not wait_for(lambda: ended(pid, statuses), IN_TIME):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return Outcome("hang", f"after {number.name}")
    details = {"status": statuses[pid], "signal": number.name, "seconds": round(time.monotonic() - struck, 2)}
    text = text_of(said)
    if "Traceback" in text:
        return Outcome("unclear error", f"a traceback after {number.name}: {text.strip()[-300:]}", details)
    if aborted(text):
        return Outcome("abort", aborted(text), details)
    if statuses[pid] not in (0, 128 + number, -number):
        return Outcome("unclear error", f"{statuses[pid]} after {number.name}: {text.strip()[-300:]}", details)
    return Outcome(details=details)


def _strays(folder: Path, files: list[Path]) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path not in files)


def _namespaces(name: str, pid: int) -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    ours = (f"mw-{name}", f"mw-probe-{pid}")
    return [line.split()[0] for line in listed.splitlines() if line.startswith(ours)]


def _plan_is_whole(path: Path) -> bool:
    try:
        return read_plan(path).placement.system.devices == 64
    except MeshwrightError:
        return False


def _yaml_is_whole(path: Path) -> bool:
    try:
        return bool(load_system(str(path)) if path.name.startswith("system") else load_library(str(path)))
    except MeshwrightError:
        return False
