"""Which programs are measured, how often, and what is recorded."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshwright import Goal, Reduction, load_library, parse_system, placements
from meshwright.measure.bench import Patience, case_of, cases, measure
from meshwright.measure.records import Records, read_measurements
from meshwright.measure.trials.numpy import NumpyRunner
from meshwright.planning.tuning import half_width

SYSTEM = parse_system("node=2@1GB/s,gpu=2@8GB/s")
RING = load_library("ring")
ONCE = Patience(least=1, most=1)


def test_every_short_program_and_the_best_long_ones_are_measured() -> None:
    (case,) = cases(placements(SYSTEM, {"data": 4}), [Reduction(("data",), 1024)], RING, every=3, best=0)
    assert len(case.plan.reductions) == 29
    assert case.numbers[0] is None
    (more,) = cases(placements(SYSTEM, {"data": 4}), [Reduction(("data",), 1024)], RING, every=3, best=10)
    assert 29 <= len(more.plan.reductions) <= 39
    best = sorted(more.plan.reductions, key=lambda planned: planned.seconds)
    assert best[0].seconds <= min(planned.seconds for planned in case.plan.reductions)
    (sampled,) = cases(placements(SYSTEM, {"data": 4}), [Reduction(("data",), 1024)], RING, every=3, best=10, sample=5)
    drawn = {planned.program for planned in sampled.plan.reductions[len(more.plan.reductions) :]}
    assert len(drawn) == 5
    assert sampled.plan.reductions[: len(more.plan.reductions)] == more.plan.reductions
    assert {len(program.steps) for program in drawn} <= {4, 5}
    (one,) = cases(placements(SYSTEM, {"data": 4}), [Reduction(("data",), 1024)], RING, every=0, best=1)
    assert len(one.plan.reductions) == 1


def test_reductions_over_a_single_device_are_left_out() -> None:
    placed = list(placements(SYSTEM, {"data": 4, "none": 1}))
    assert cases(placed, [Reduction(("none",), 1024)], RING) == []


def test_patience() -> None:
    patience = Patience(least=3, most=6, width=0.1, budget=100)
    assert not patience.enough([1.0, 1.0])
    assert patience.enough([1.0, 1.0, 1.0])
    assert not patience.enough([1.0, 2.0, 1.5])
    assert patience.enough([1.0, 2.0] * 3)
    assert patience.enough([50.0, 60.0, 70.0])
    # The t-interval of 1, 2, 3: 4.303 * 1 / sqrt(3).
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(2.484, abs=0.001)


def test_results_are_recorded_and_not_measured_again(tmp_path: Path) -> None:
    wanted = cases(placements(SYSTEM, {"data": 4}), [Reduction(("data",), 1024)], RING, every=2, best=0)
    runner = NumpyRunner()
    seen: list[str] = []
    for _ in range(2):
        with Records(tmp_path / "m.jsonl") as records:
            measure(runner, wanted, records, ONCE, progress=lambda one: seen.append(one.program))
    found = read_measurements(tmp_path / "m.jsonl")
    assert [one.program for one in found] == seen
    assert seen[:2] == ["default", "AllReduce all"]
    assert len(seen) == 1 + len(wanted[0].plan.reductions)
    assert all(one.failed is None and len(one.seconds) == 1 and one.seconds[0] > 0 for one in found)


def test_every_repetition_is_a_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touched: list[bool] = []
    monkeypatch.setattr(Records, "touch", lambda _: touched.append(True))
    (case,) = cases(placements(SYSTEM, {"data": 4}), [Reduction(("data",), 1024)], RING, every=0, best=1)
    with Records(tmp_path / "m.jsonl") as records:
        measure(NumpyRunner(), [case], records, Patience(least=5, most=5))
    assert len(touched) == 2 * (1 + 5)  # the default and a program, which both warm up first


def test_a_wrong_result_is_a_failure_and_not_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (placed,) = placements(SYSTEM, {"data": 4})
    case = case_of(placed, Reduction(("data",), 64), RING, ["AllReduce all"])
    monkeypatch.setattr(NumpyRunner, "results", lambda _: [np.zeros(16, np.float32)] * 4)
    with Records(tmp_path / "m.jsonl") as records:
        measure(NumpyRunner(), [case], records, ONCE)
    for one in read_measurements(tmp_path / "m.jsonl"):
        assert one.failed is not None
        assert one.failed.startswith("wrong result: rank 0 has 0.0 at element 0, but")
        assert one.seconds == []


def test_links_are_watched_where_they_can_be(tmp_path: Path) -> None:
    (placed,) = placements(SYSTEM, {"data": 4})
    case = replace(case_of(placed, Reduction(("data",), 64, goal=Goal.REDUCE), RING, ["Reduce all"]), numbers=(0,))

    def watch(work: object) -> dict[str, int]:
        assert callable(work)
        work()
        return {"node": 7}

    with Records(tmp_path / "m.jsonl") as records:
        measure(NumpyRunner(), [case], records, ONCE, watch=watch)
    assert read_measurements(tmp_path / "m.jsonl")[0].links == {"node": 7}
