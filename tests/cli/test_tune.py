"""`meshwright tune`, on times that are made up: what is taken, what is said, and what is left as it was."""

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from meshwright import EngineError, Reduction, plan, read_plan, write_plan
from meshwright.measure.trials.numpy import NumpyRunner
from meshwright.measure.trials.trial import Array
from meshwright.measure.tune import spans
from meshwright.planning.plan import Planned
from tests.cli.test_verbs import run, run_json


class MadeUp(NumpyRunner):
    """Runs with the interpreter, and says that it took as long as it is told; it may fail or be wrong."""

    name = "torch"

    def __init__(self, seconds: Callable[[Planned | None], float], spoils: bool = False, fails: bool = False) -> None:
        self.seconds, self.spoils, self.fails, self.runs = seconds, spoils, fails, 0

    def run(self, default: bool, alone: bool = False) -> float:
        super().run(default, alone)
        self.runs += 1
        self.default = default
        if self.fails and self.runs > 8:
            raise EngineError("rank 1: step 1 failed: Connection closed by peer")
        return self.seconds(None if default else self.plan.reductions[self._payload.number]) * (1 + self.runs % 3 / 100)

    def results(self) -> list[Array | None]:
        wrong = self.spoils and not self.default and self.plan.reductions[self._payload.number].chunks > 1
        return [None if one is None else np.zeros_like(one) if wrong else one for one in super().results()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A plan that takes chunks."""
    what = [Reduction(("data",), 2**18)]
    best = plan("node=2@20Mbit/s,gpu=2@100Mbit/s", {"data": 4}, what, library="gloo").candidates[0]
    assert best.reductions[0].chunks > 1
    write_plan(best, tmp_path / "plan.json")
    return tmp_path / "plan.json"


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[MadeUp], None]:
    """Have a runner run all that is measured."""
    return lambda runner: monkeypatch.setattr("meshwright.measure.jobs.make_runner", lambda *_: runner)


def test_the_fastest_is_taken(path: Path, on: Callable[[MadeUp], None]) -> None:
    before = path.read_text()
    on(MadeUp(lambda one: 3.0 if one is None else 1.0 if one.chunks == 1 and len(one.program.steps) == 3 else 2.0))
    out = path.parent / "tuned.json"
    page = path.parent / "report.html"
    document = run_json("tune", str(path), "--out", str(out), "--size", "1KiB", "--best", "3", "--html", str(page))
    assert path.read_text() == before
    shown = re.search(r'<script id="view" type="application/json">(.*?)</script>', page.read_text())
    assert shown is not None
    view = json.loads(shown[1])
    assert view["plans"][view["chosen"]]["communications"][0]["measured"]["engine"] == "torch"
    assert "other programs for it: these were measured" in view["snippets"][0]["note"]
    (planned,) = read_plan(out).reductions
    assert (planned.chunks, len(planned.program.steps)) == (1, 3)
    assert [(each.bytes, each.least, each.most) for each in planned.tuned] == [
        (1024, 512, 2047),
        (2**18, 2**17, 2**19 - 1),
    ]
    assert document["engine"] == "torch"
    for row, tuned in zip(document["tuned"], planned.tuned, strict=True):
        assert len(row["measured"]) == 4 == 1 + len(tuned.compared)
        assert row["measured"][0]["program"] == "default"
        assert row["seconds"] == tuned.chosen.seconds == pytest.approx(1, abs=0.02)
        assert row["noise"] == tuned.chosen.noise
        assert row["speedup"] == pytest.approx(3, abs=0.1)
        assert all(one["failed"] is None for one in row["measured"])
    said = run("explain", str(out)).stdout
    assert re.search(r"tuned with torch for calls of 128KiB to 512KiB: 256KiB took 1(\.0\d?)?s ", said)
    assert "the library's own 3.0" in said
    assert run_json("explain", str(out))["reductions"][0]["tuned"][1]["engine"] == "torch"
    ran = run("run", str(out), "--engine", "numpy", "--repeat", "1")
    assert re.search(r"all-reduce over data, 256KiB: tuned, when it took 1(\.0\d?)?s", ran.stderr)
    assert run_json("run", str(out), "--engine", "numpy", "--repeat", "1")["reductions"][0]["tuned_bytes"] == 2**18


def test_noise_keeps_the_simpler_one_and_the_plan_file_is_replaced(path: Path, on: Callable[[MadeUp], None]) -> None:
    on(MadeUp(lambda one: 1.0 if one is None else 0.999))
    done = run("tune", str(path))
    assert done.exit_code == 0, done.stderr
    assert "* the library's own" in " ".join(done.stdout.split())
    assert "* is taken, instead of ReduceScatter inside node; " in done.stdout
    assert f"wrote the tuned plan to {path}" in done.stderr
    (planned,) = read_plan(path).reductions
    assert len(planned.program.steps) == planned.chunks == 1
    again = run("tune", str(path))
    assert "* is taken, as before: 1.00x as fast as the library's own" in again.stdout
    assert len(read_plan(path).reductions[0].tuned) == 1


def test_wrong_results_are_not_taken(path: Path, on: Callable[[MadeUp], None]) -> None:
    on(MadeUp(lambda one: 3.0 if one is None or one.chunks == 1 else 1.0, spoils=True))
    done = run("tune", str(path))
    assert done.exit_code == 0, done.stderr
    assert "chunks: wrong result: rank 0 has 0.0 at element 0" in done.stdout
    assert read_plan(path).reductions[0].chunks == 1


def test_a_failure_leaves_the_plan_as_it_was(path: Path, on: Callable[[MadeUp], None]) -> None:
    before = path.read_text()
    on(MadeUp(lambda _: 1.0, fails=True))
    done = run("tune", str(path))
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr == "Error: rank 1: step 1 failed: Connection closed by peer\n"
    assert path.read_text() == before


def test_bad_input(path: Path, tmp_path: Path) -> None:
    for arguments, message in (
        ([str(tmp_path / "no.json")], "there is no plan file"),
        ([str(path), "--engine", "numpy"], "--engine numpy has no links to measure: expected torch, mpi or jax"),
        ([str(path), "--least", "1"], "--least 1: the noise of one repetition is not known; expected 2 or more"),
        ([str(path), "--size", "many"], "'many' is not"),
        ([str(path), "--best", "0"], "0 is not in the range 1<=x<=50"),
    ):
        done = run("tune", *arguments)
        assert done.exit_code == 2
        assert message in done.stderr
    assert (
        run("plan", "--system", "node=4@1GB/s", "--axes", "a=4,b=1", "--reduce", "b=1kB", "--out", str(path)).exit_code
        == 0
    )
    assert "no reduction of the plan has more than one program" in run("tune", str(path)).stderr


def test_spans_of_sizes_do_not_overlap() -> None:
    for sizes in ([1], [1, 2, 3], [4096, 4097], [1000, 3000, 10**9], [7, 10, 11, 500]):
        found = spans(sizes)
        assert all(least <= size <= most for size, (least, most) in zip(sizes, found, strict=True))
        assert all(one[1] < other[0] for one, other in pairwise(found))
