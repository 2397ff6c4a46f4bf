"""The soak's own judgement: what it takes for clear, which trials it goes on with, and what it counts."""

import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from benchmarks.soak.__main__ import mend, missing_trials
from benchmarks.soak.cell import FAULTS, Kind, Outcome, first_fault, read_outcome
from benchmarks.soak.ranks import call_of, draw, groups_of
from benchmarks.soak.report import figures, joined, table
from benchmarks.soak.verdict import aborted, unclear, without_crash

from meshwright.runtime.agreement import CallCheck

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


def test_a_crash_of_mpirun_is_not_one_of_a_rank() -> None:
    frames = "[vm:13] *** Process received signal ***\n[vm:13] [ 1] libpmix.so.2({})\n[vm:13] *** End of error ***\n"
    line = "meshwright: rank 2 waited 4 s in a call: another rank has died\n"
    assert without_crash(line + frames.format("PMIx_server_finalize+0xb08")) == line
    of_a_rank = frames.format("PMIx_Finalize").replace("13", "12")
    both = of_a_rank + frames.format("PMIx_server_finalize+0xb08")
    assert aborted(without_crash(both)) == "[vm:12] *** Process received signal ***"
    assert without_crash(of_a_rank) == of_a_rank


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


def test_figures_of_kinds_that_were_not_tried_again_stay() -> None:
    def of(**kinds: int) -> dict[str, Any]:
        rows = {kind: {"trials": trials, **dict.fromkeys(FAULTS, 0)} for kind, trials in kinds.items()}
        return {"kinds": rows, "total": {"trials": sum(kinds.values()), **dict.fromkeys(FAULTS, 0)}}

    both = joined(of(a=5, b=7), of(b=2, c=1))
    assert {name: row["trials"] for name, row in both["kinds"].items()} == {"a": 5, "b": 2, "c": 1}
    assert both["total"]["trials"] == 8


@pytest.mark.parametrize("seed", range(12))
def test_only_a_rank_that_calls_otherwise_calls_otherwise(seed: int) -> None:
    scenario = draw(Random(seed), seed, otherwise=True)
    groups = [groups_of(scenario.plan(), rank) for rank in range(scenario.devices)]
    wrong = 0
    for call in range(scenario.calls):
        calls = [call_of(scenario, groups[rank], call, rank) for rank in range(scenario.devices)]
        for rank, each in enumerate(calls):
            mine = groups[rank][each.number]
            if call == scenario.otherwise and scenario.victim in mine:
                assert not each.same
                wrong += rank == scenario.victim
                right = next(len(calls[other].given) for other in mine if other != scenario.victim)
                assert (len(each.given) == right) == (rank != scenario.victim)
            else:
                assert each.same
                assert each.right == np.sum([calls[other].given for other in mine], 0).tolist()
    assert wrong == 1


class Agreeable:
    """A channel on which all calls are alike; it counts them."""

    compared = 0

    def agree(self, *_: Any) -> None:
        self.compared += 1

    announce = agree


@pytest.mark.parametrize("seed", range(12))
def test_a_rank_compares_the_call_that_it_makes_otherwise(seed: int) -> None:
    """So no other rank gets more bytes than it expects, at which gloo would end it."""
    scenario = draw(Random(seed), seed, otherwise=True)
    groups = groups_of(scenario.plan(), scenario.victim)
    channel, checks = Agreeable(), dict[frozenset[str], CallCheck]()
    before = 0
    for call in range(scenario.otherwise + 1):
        made = call_of(scenario, groups, call, scenario.victim)
        over = frozenset(scenario.over[made.number])
        check = checks.setdefault(over, CallCheck("", groups[made.number], "first", channel))
        before = channel.compared
        check((str(made.number), str(len(made.given))), made.given.nbytes)
    assert channel.compared == before + 1
