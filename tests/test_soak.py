"""The soak's own judgement: what it takes for clear, which trials it goes on with, and what it counts."""

import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from benchmarks.soak.__main__ import mend, missing_trials
from benchmarks.soak.cell import Kind, Outcome, first_fault, read_outcome
from benchmarks.soak.report import figures, table
from benchmarks.soak.verdict import aborted, unclear

STEP = "rank 1: step 2 (AllReduce across node) with ranks 1, 3 failed"


@pytest.mark.parametrize(
    "text",
    [
        f"{STEP}: Connection closed by peer\n[/build/gloo/pair.cc:553] GLHF",
        "rank 3 did not join the others within 1.6 s",
        f"this Reducer can no longer be used: {STEP}",
        "rank 2 made other calls than rank 0 since the ranks compared theirs last, so results since then may be wrong",
    ],
)
def test_clear(text: str) -> None:
    assert unclear(text) == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it says nothing"),
        (f"{STEP}: [/build/gloo/pair.cc:553] Connection closed by peer", "its first line has '.cc:553'"),
        (f"{STEP}: Connection closed by peer. GLHF", "its first line has 'GLHF'"),
        ("Connection reset by peer, says rank 1", "it names no rank before what a library says"),
        ("rank 1 cannot reach the others: Connection reset by peer", "it does not say what was waited for"),
        ("the run failed", "it names no rank"),
    ],
)
def test_unclear(text: str, why: str) -> None:
    assert unclear(text).startswith(why)


def test_aborts_are_seen() -> None:
    assert aborted("fine\nterminate called without an active exception\nmore") == (
        "terminate called without an active exception"
    )
    assert aborted("Aborted!") == "", "that is how Click says that a person pressed a key"


def nothing(_: Path, __: Random) -> Outcome:
    return Outcome()


def line(kind: str, number: int, verdict: str = "ok", **details: Any) -> str:
    return json.dumps(
        {"part": "p", "kind": kind, "number": number, "verdict": verdict, "about": "", "details": details, "took": 1.0}
    )


def test_a_second_start_goes_on_where_the_first_one_stopped(tmp_path: Path) -> None:
    journal = tmp_path / "trials.jsonl"
    kinds = [Kind("p", name, nothing, count, 1.0) for name, count in (("a", 4), ("b", 2))]
    done = [line("a", 0), line("a", 1, "missed"), line("b", 0), line("b", 1)]
    journal.write_text("\n".join(done) + "\n" + line("a", 2)[:20])  # it was killed in the middle of a line
    mend(journal)
    assert journal.read_text() == "\n".join(done) + "\n"
    assert [(kind.name, number) for kind, number in missing_trials(kinds, journal)] == [("a", 2), ("a", 3), ("a", 4)]


def test_kinds_are_drawn_at_the_same_pace(tmp_path: Path) -> None:
    (tmp_path / "trials.jsonl").touch()
    kinds = [Kind("p", name, nothing, count, 1.0) for name, count in (("a", 4), ("b", 2))]
    drawn = [kind.name for kind, _ in missing_trials(kinds, tmp_path / "trials.jsonl")]
    assert drawn == ["a", "a", "b", "a", "a", "b"]


def test_figures(tmp_path: Path) -> None:
    journal = tmp_path / "trials.jsonl"
    lines = [line("a", 0), line("a", 1, "missed"), line("a", 2, "hang"), line("b", 0, kills=2), line("b", 1, kills=1)]
    journal.write_text("\n".join(lines) + "\n")
    found = figures(journal)
    assert found["total"] | {"trials": 4, "hang": 1} == found["total"]
    assert (found["kinds"]["a"]["trials"], found["kinds"]["a"]["missed"], found["kinds"]["b"]["kills"]) == (2, 1, 3)
    assert "| a | 2 | 1 | 0 | 0 | 0 | 0 | 0 |" in table(found)
    assert "| b | 2 (3 kills) | 0 |" in table(found)


def test_the_first_fault_counts() -> None:
    assert first_fault([Outcome(), Outcome("hang"), Outcome("abort")]).verdict == "hang"


PROGRAM = """
import os, sys, time
from pathlib import Path
from benchmarks.soak import cell

seconds, cell.GRACE = float(sys.argv[2]), float(sys.argv[3])

def trial(folder, random):
    read, write = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:  # which loses its parent at once
            (folder / "pid").write_text(str(os.getpid()))
            os.write(write, b".")
            time.sleep(seconds)
        os._exit(0)
    os.read(read, 1)  # what a trial leaves may be ended before it has said who it is
    return cell.Outcome()

os.waitpid(cell.start_cell(cell.Kind("p", "a", trial, 1, 60.0), Path(sys.argv[1]), "seed"), 0)
"""


@pytest.mark.parametrize(("seconds", "grace", "verdict"), [(100, 0.5, "leftover"), (0.1, 60, "ok")])
def test_a_cell_sees_and_ends_what_a_trial_leaves(seconds: float, grace: float, verdict: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, tmp_path, str(seconds), str(grace)], check=True, timeout=100)
    assert read_outcome(tmp_path).verdict == verdict
    left = Path("/proc") / (tmp_path / "pid").read_text() / "stat"
    assert not left.exists() or left.read_text().rpartition(")")[2].split()[0] in "ZX"
