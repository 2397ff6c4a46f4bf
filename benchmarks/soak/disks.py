"""A full disk and a read-only folder: files are whole or as before, the error says what could not be written."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import meshwright.testbed.bed as beds
from benchmarks.soak.benches import bench_arguments, finish, undisturbed, verb
from benchmarks.soak.cell import Outcome, ended, text_of, wait_for
from benchmarks.soak.interrupts import calibrate_arguments, plan_arguments
from meshwright.measure.records import Measurement, entries

LIMIT = 60.0
BLOCK = 4096
"""What a tmpfs gives out at once."""


@contextmanager
def disk(at: Path, blocks: int) -> Iterator[Path]:
    """A small disk for the time of a with statement."""
    at.mkdir()
    size = f"size={blocks * BLOCK},nr_inodes=64"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "soak", str(at)], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


def fill(at: Path, free: int) -> None:
    """Fill a disk until `free` blocks are left."""
    with (at / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(BLOCK))
        except OSError:
            pass
        file.truncate(max(0, file.tell() - free * BLOCK))


def files_on_a_bad_disk(verb_name: str, readonly: bool, folder: Path, random: Random) -> Outcome:
    """`plan` or `calibrate` onto a disk that is full or read-only, into new files or over old ones."""
    with disk(folder / "disk", 16) as at:
        work = at / "work"
        work.mkdir()
        names = ["plan.json"] if verb_name == "plan" else ["system.yaml", "library.yaml"]
        files = [work / name for name in names]
        old = random.random() < 0.5
        if old:
            for path in files:
                path.write_text("as before\n")
        if readonly:
            subprocess.run(["mount", "-o", "remount,ro", str(at)], check=True)
        else:
            fill(at, random.choice([0, 0, 1]))
        arguments: Callable[..., list[str]] = plan_arguments if verb_name == "plan" else calibrate_arguments
        outcome, code = _refused(arguments(*files), folder / "job", {0, 2} if not readonly else {2})
        if outcome.verdict != "ok":
            return outcome
        for path in files:
            text = path.read_text() if path.exists() else None
            if text != ("as before\n" if old else None) and (code != 0 and not _whole(text)):
                return Outcome("wrong result", f"{path.name} is neither whole nor as before: {text!r:.200}")
        strays = {path.name for path in work.iterdir()} - set(names)
        return Outcome("leftover", f"files: {sorted(strays)}") if strays else Outcome(details={"status": code})


def _whole(text: str | None) -> bool:
    """One of two files may have been written before the disk was full."""
    return text is not None and text.startswith("# Calibrated from ") and text.endswith("\n") and "levels:" in text


def bench_on_a_bad_disk(readonly: bool, folder: Path, random: Random) -> Outcome:
    """A bench whose disk gets full: what is there is whole, and it goes on when there is room."""
    reference = undisturbed("numpy", None)
    with disk(folder / "disk", 64) as at:
        out = at / "out.jsonl"
        arguments = bench_arguments("numpy", out, None)
        if readonly:
            subprocess.run(["mount", "-o", "remount,ro", str(at)], check=True)
        else:
            fill(at, random.randrange(7))
        outcome, code = _refused(arguments, folder / "job", {2} if readonly else {0, 2})
        if outcome.verdict != "ok":
            return outcome
        before = out.read_bytes() if out.exists() else b""
        if not before.endswith(b"\n") and before:
            return Outcome("wrong result", f"the last line is torn: {before[-60:]!r}")
        if readonly:
            subprocess.run(["mount", "-o", "remount,rw", str(at)], check=True)
        else:
            (at / "filler").unlink()
        outcome = finish(verb(arguments, folder / "again"), folder / "again")
        if outcome.verdict != "ok":
            return outcome
        found = [entry.id for entry in entries(out) if isinstance(entry, Measurement)]
        if sorted(found) != sorted(reference) or not out.read_bytes().startswith(before):
            return Outcome("wrong result", f"{len(found)} measurements, not {len(reference)}")
        return Outcome(details={"status": code})


def testbed_on_a_bad_disk(readonly: bool, folder: Path, random: Random) -> Outcome:
    """`testbed up` where it cannot put down what it makes: it makes nothing."""
    name = f"bad{os.getpid()}"
    with disk(folder / "disk", 4) as at:
        beds.STATE = at / "state"
        if random.random() < 0.5:
            beds.STATE.mkdir()
        if readonly:
            subprocess.run(["mount", "-o", "remount,ro", str(at)], check=True)
        else:
            fill(at, 0)
        arguments = ["testbed", "up", "--system", "node=2@20Mbit/s,gpu=2@100Mbit/s", "--name", name]
        outcome, _ = _refused(arguments, folder / "job", {2, 3})
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        left = [line.split()[0] for line in listed.splitlines() if line.startswith(f"mw-{name}")]
        for namespace in left:
            subprocess.run(["ip", "netns", "delete", namespace], check=True)
        if outcome.verdict == "ok" and left:
            return Outcome("leftover", f"namespaces: {left}")
        if outcome.verdict == "ok" and (beds.STATE / f"testbed-{name}.json").exists():
            return Outcome("leftover", "what is known about the testbed")
        return outcome


def _refused(arguments: list[str], said: Path, codes: set[int]) -> tuple[Outcome, int]:
    """Run a verb that cannot write: its exit code is one of these, and its error says what it could not write."""
    statuses: dict[int, int] = {}
    pid = verb(arguments, said)
    if not wait_for(lambda: ended(pid, statuses), LIMIT, 0.01):
        return Outcome("hang", text_of(said)[-300:]), 0
    text, code = text_of(said), statuses[pid]
    if code < 0:
        return Outcome("abort", f"{code}: {text[-300:]}"), code
    if code not in codes or (code and "Error: cannot write " not in text) or "Traceback" in text:
        return Outcome("unclear error", f"it ended with {code}: {text.strip()[-300:]}"), code
    return Outcome(), code
