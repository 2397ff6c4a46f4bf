"""Tuning: what is worth measuring, what is taken, and plans that hold it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import (
    EngineError,
    Measured,
    MeshwrightWarning,
    Pipelined,
    Plan,
    Reduction,
    SpecError,
    Tuned,
    parse_system,
    plan,
    read_plan,
    write_plan,
)
from meshwright.language.goals import Goal, flat_program
from meshwright.measure.tune import heats
from meshwright.planning.tuning import (
    beaten,
    candidates,
    check_tunable,
    choose,
    own_program,
    retuned,
    simplest,
    spliced,
    where,
)
from meshwright.runtime.calls import Notices
from meshwright.runtime.seats import check_devices
from meshwright.runtime.tuning import Tuner

MiB = 2**20


@pytest.fixture(scope="module")
def best() -> Plan:
    """A plan that takes chunks for 1 MiB on gloo."""
    what = [Reduction(("data",), MiB)]
    return plan("node=2@20Mbit/s,gpu=2@100Mbit/s", {"data": 4}, what, library="gloo").candidates[0]


def tuned_to(given: Plan, one: Pipelined | None, size: int = MiB) -> Tuned:
    """The result of measurements in which a program was the fastest."""
    own = own_program(given, given.reductions[0])
    times = {None: [1.0, 1.01, 1.02], one or own: [0.5, 0.51, 0.5]}
    return choose(given, given.reductions[0], size, (size // 2, 2 * size - 1), "torch", times)


def test_noise_keeps_the_simpler_one() -> None:
    assert simplest([[1.0, 1.0, 1.0], [0.98, 0.98, 0.98], [0.8, 0.8, 0.8]]) == 2
    assert simplest([[1.0, 1.2, 0.9], [0.98, 1.1, 0.9], [0.95, 1.1, 0.9]]) == 0
    assert simplest([[2.0, 2.1, 2.0], [1.0, 1.02, 1.01], [0.99, 1.03, 1.0]]) == 1
    assert simplest([[1.0], [0.9]]) == 0  # one run says nothing of the noise
    assert simplest([[1.3, 1.3, 2.0], [1.0, 1.0, 1.0]]) == 1  # never as fast, however noisy
    assert beaten([1.3, 9.0], [[1.0, 1.0, 5.0]])
    assert not beaten([1.2, 9.0], [[1.0, 1.0, 5.0], []])
    assert not beaten([1.0], [])


def test_what_is_measured(best: Plan) -> None:
    (planned,) = best.reductions
    own = own_program(best, planned)
    for size in (1000, 10**5, MiB, 10**9):
        for count in (2, 3, 5):
            found = candidates(best, planned, size, count)
            assert found[0] == own
            assert len(found) == len(set(found)) == count + 1
            assert planned.at(size) in found
            assert any(one.chunks == 1 for one in found[1:])
            assert [one.chunks for one in found] == sorted(one.chunks for one in found)
    assert len({one.program for one in candidates(best, planned, MiB, 5)}) >= 3


def test_a_tuned_plan_takes_what_was_measured_and_reads_back(best: Plan, tmp_path: Path) -> None:
    (planned,) = best.reductions
    other = next(each.pipelined for each in planned.alternatives if each.pipelined.chunks == 1)
    done = retuned(best, {0: [tuned_to(best, other)]})
    (now,) = done.reductions
    assert now.pipelined == other == now.at(MiB // 2) == now.at(2 * MiB - 1)
    assert now.at(2 * MiB) == planned.at(2 * MiB)
    assert now.at(MiB // 2 - 1) == planned.at(MiB // 2 - 1)
    assert planned.pipelined in [each.pipelined for each in now.alternatives]
    assert now.tuned_at(MiB) == now.tuned[0]
    assert now.tuned_at(2 * MiB) is None
    assert done.is_tuned
    assert not best.is_tuned
    write_plan(done, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == done
    again = retuned(done, {0: [tuned_to(done, None), tuned_to(done, other, 8 * MiB)]})
    assert [each.bytes for each in again.reductions[0].tuned] == [MiB, 8 * MiB]  # the older one for 1 MiB is gone
    assert again.reductions[0].pipelined == own_program(best, planned)
    assert retuned(again, {}) == again


def test_a_plan_that_was_tuned_elsewhere_says_so(best: Plan, tmp_path: Path) -> None:
    done = retuned(best, {0: [tuned_to(best, None)]})
    write_plan(done, tmp_path / "plan.json")
    document = json.loads((tmp_path / "plan.json").read_text())
    document["system"]["name"] = "another name"
    (tmp_path / "named.json").write_text(json.dumps(document))
    assert read_plan(tmp_path / "named.json").is_tuned
    document["system"]["levels"][0]["bandwidth"] = "1MB/s"
    (tmp_path / "edited.json").write_text(json.dumps(document))
    with pytest.raises(SpecError, match=r"reductions\[0\]\.tuned\[0\]: .* so its measurements no longer count: make"):
        read_plan(tmp_path / "edited.json")
    faster = parse_system("node=2@40Mbit/s,gpu=2@100Mbit/s")
    moved = replace(done, placement=replace(done.placement, system=faster))
    with pytest.warns(MeshwrightWarning, match="tuned on another system .* its measurements no longer count"):
        Notices(moved, 0).tuned("torch")
    with pytest.warns(MeshwrightWarning, match="tuned with torch, but runs with mpi, so its measurements no longer"):
        Notices(done, 0).tuned("mpi")
    Notices(done, 0).tuned("torch")  # a warning would be an error
    Notices(best, 0).tuned("mpi")
    with pytest.raises(EngineError, match="plan for 3, and tune that: what was measured with 4 no longer counts"):
        check_devices(done.placement.system, 3, tuned=done.is_tuned)
    again = retuned(moved, {0: [tuned_to(moved, None, 64 * MiB)]})
    assert {each.where for each in again.reductions[0].tuned} == {where(moved.placement)}


def test_what_no_tuning_gives_is_refused(best: Plan, tmp_path: Path) -> None:
    (planned,) = best.reductions
    tuned = tuned_to(best, None)
    with pytest.raises(SpecError, match="tuned for 1048576 bytes to other programs than it has: give tuned="):
        replace(planned, tuned=(tuned,))
    with pytest.raises(SpecError, match="expected bytes between least and most"):
        replace(tuned, least=2 * MiB)
    with pytest.raises(SpecError, match="expected noise of zero or more"):
        Measured(None, 1.0, -1.0)
    done = retuned(best, {0: [tuned]})
    write_plan(done, tmp_path / "plan.json")
    written = json.loads((tmp_path / "plan.json").read_text())
    for key, value, message in (
        ("noise", None, r"tuned\[0\]\.noise: None is not what is expected here"),
        ("program", "default", "tuned"),
        ("compared", [{"program": "AllReduce none", "seconds": 1, "noise": 0}], r"tuned\[0\]\.compared\[0\]\.program"),
        ("more", 1, "unknown key 'more'"),
        ("bytes", 1, "expected bytes between"),
    ):
        document = json.loads(json.dumps(written))
        document["reductions"][0]["tuned"][0][key] = value
        (tmp_path / "bad.json").write_text(json.dumps(document))
        with pytest.raises(SpecError, match=message):
            read_plan(tmp_path / "bad.json")
    with pytest.raises(SpecError, match=r"only one program for the all-reduce over data, .* make the plan again"):
        check_tunable(replace(best, communications=(replace(planned, ranges=(), alternatives=()),)))
    check_tunable(plan("node=4@8GB/s", {"data": 4, "one": 1}, [Reduction(("one",), MiB)]).candidates[0])


def test_reductions_with_one_program_are_left_as_they_are() -> None:
    goals = (Goal.BROADCAST, Goal.REDUCE_SCATTER, Goal.ALL_GATHER)
    what = [Reduction(("shard",), 400_000, 1, goal) for goal in goals]
    best = plan("node=2@20Mbit/s,gpu=8@200Mbit/s", {"replica": 2, "shard": 8}, what, library="gloo").candidates[0]
    assert not best.reductions[0].alternatives
    wanted = heats(best, 5)
    assert [heat.number for heat in wanted] == [1, 2]  # gloo's own of these are others than ours
    race = Tuner(best).race(0, 400_000)
    assert race.winner == race.programs[0]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6, unique=True), st.integers(1, 60), st.integers(0, 30))
def test_ranges_are_spliced(starts: list[int], least: int, more: int) -> None:
    program = flat_program(Goal.ALL_REDUCE, 1)
    ranges = [(start, Pipelined.of(program, k + 1)) for k, start in enumerate(sorted(starts))]
    new = Pipelined.of(program, 50)
    found = spliced(ranges, least, least + more, new)
    firsts = [first for first, _ in found]
    assert firsts == sorted(set(firsts))

    def at(where: list[tuple[int, Pipelined]], size: int) -> Pipelined:
        return next((one for first, one in reversed(where) if first <= size), where[0][1])

    for size in range(1, 100):
        assert at(found, size) == (new if least <= size <= least + more else at(ranges, size))
