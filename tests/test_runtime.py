"""The runtime, which all engines share."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, nan
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright import (
    EngineError,
    Goal,
    MeshwrightWarning,
    Pipelined,
    Plan,
    Planned,
    Reduction,
    Timed,
    load_library,
    parse_system,
    placements,
)
from meshwright.language.goals import flat_program
from meshwright.runtime.agreement import CallCheck
from meshwright.runtime.calls import KEPT, Calls, Notices
from meshwright.runtime.role import role_of
from meshwright.runtime.waiting import check_timeout
from meshwright.runtime.walk import take_turns
from tests.engines import hierarchical, pipelined_plan


@pytest.mark.parametrize("timeout", [0, -1, nan, inf, 1e9, "60", None, 1j])
def test_what_is_not_a_time_to_wait_is_refused(timeout: Any) -> None:
    with pytest.raises(EngineError, match=r"^timeout=.*: expected a number of seconds above 0 and below 1e9$"):
        check_timeout(timeout)


def plan_for_nccl() -> Plan:
    """The library's own all-reduce, on nodes that several steps would be faster on with gloo."""
    system = parse_system("node=4@8GB/s+20us,gpu=8@200GB/s+5us")
    placement = next(iter(placements(system, {"data": 32})))
    one, own = Reduction(("data",), 2**28), Pipelined.of(flat_program(Goal.ALL_REDUCE, 2))
    return Plan(placement, load_library("nccl"), (Planned(one, own, 1, 1, 1),))


def test_a_plan_for_another_library_is_said_once_and_on_rank_0_alone() -> None:
    plan = replace(hierarchical(), library=load_library("nccl"))
    notices = Notices(plan, 0)
    with pytest.warns(MeshwrightWarning, match="the plan was made for nccl, but runs on gloo") as said:
        notices.library("gloo")
    notices.library("gloo")  # a second warning would be an error
    assert [str(each.message).rpartition("; ")[2] for each in said] == ["plan with --library gloo"]
    calibrated = replace(plan, library=replace(plan.library, name="nccl-calibrated"))
    with pytest.warns(MeshwrightWarning, match="made for nccl, but runs on MPICH: .* may be faster$"):
        Notices(calibrated, 0).library("MPICH")
    linked = plan_for_nccl()
    with pytest.warns(MeshwrightWarning, match=r"but 6.*ms is predicted, where a plan for gloo takes 5.*ms; "):
        Notices(linked, 0).library("gloo")
    Notices(plan, 1).library("gloo")
    Notices(calibrated, 0).library("nccl")
    Notices(hierarchical(), 0).library("gloo")  # the profile ring is for any library


def test_chunks_that_vanish_are_said_once_per_reduction() -> None:
    (small,) = pipelined_plan(Goal.ALL_REDUCE).reductions
    pipelined = Pipelined(((small.program, 7), *small.shares[1:]))
    large = replace(small, communication=replace(small.communication, bytes=1 << 28), pipelined=pipelined)
    plan = replace(hierarchical(), communications=(large, *hierarchical().reductions))
    notices = Notices(plan, 0)
    notices.chunks(0, 2, 1 << 26)
    notices.chunks(1, 1, 1 << 10)  # was never planned in chunks
    with pytest.warns(MeshwrightWarning) as said:
        notices.chunks(0, 1, 1 << 22)
    notices.chunks(0, 1, 1 << 21)
    assert [str(each.message) for each in said] == [
        "the all-reduce over data was planned for 256MiB in 8 chunks, but a call with 4MiB is a single chunk, whose "
        "steps do not overlap: make the plan again, so that it has programs for every size"
    ]
    Notices(plan, 1).chunks(0, 1, 1 << 22)
    ranged = replace(large, ranges=(Timed(1, pipelined, 1.0),))
    Notices(replace(plan, communications=(ranged,)), 0).chunks(0, 1, 1 << 22)  # as the plan says


class _Silent:
    """A channel that nothing may be said on."""

    def agree(self, *_: Any) -> None:
        raise AssertionError

    announce = agree


def test_sizes_that_always_change_do_not_fill_the_memory() -> None:
    import torch  # here, as is all of PyTorch that tests import: only the workers that run them load it

    from meshwright.torch.executor import ARRAYS

    plan = hierarchical(Goal.ALL_REDUCE)
    role = role_of(plan, 0, 0)
    calls = Calls(plan, 0, [role], [CallCheck("", role.ranks, "never", _Silent())], ARRAYS)
    for length in (*range(1, 3 * KEPT), 5):
        tensor = torch.ones(length)
        prepared = calls.prepare(Goal.ALL_REDUCE, tensor, None, "sum", None)
        assert (prepared.kind.length, prepared.kept is tensor) == (length, True)
        assert len(calls.kinds) <= KEPT
        assert calls.choose.find.cache_info().currsize <= KEPT


class _Agreeable:
    """A channel on which all calls are alike; it keeps what is compared."""

    def __init__(self) -> None:
        self.compared: list[str] = []

    def agree(self, _key: str, _before: str | None, value: Any, _judge: Any) -> None:
        self.compared.append(value[0])

    def announce(self, *_: Any) -> None:
        raise AssertionError


def test_calls_are_compared_unless_they_have_come_in_this_order() -> None:
    channel = _Agreeable()
    check = CallCheck("", (0, 1), "first", channel)
    for _ in range(50):
        for call in ("small", "large"):
            check((call,), 1)
    assert channel.compared == ["small", "large", "small", "small"]  # the last one is the 64th since
    del channel.compared[:]
    check(("large",), 1)
    check(("large",), 1)
    check(("small",), 1)
    check(("small",), 1)
    assert channel.compared == ["large", "small"]


def test_orders_of_calls_that_always_change_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CallCheck, "PAIRS", 100)
    channel = _Agreeable()
    check = CallCheck("", (0, 1), "first", channel)
    for number in range(1000):
        check((str(number),), 1)
        assert len(check.known) <= 100
    assert len(channel.compared) == 1000


def test_the_first_steps_do_not_run_far_ahead() -> None:
    open_now: list[int] = []
    most: list[int] = []

    def chunk(number: int) -> Any:
        steps = [SimpleNamespace(lane=lane, moves=(lane,), groups=((0, 1),)) for lane in range(3)]
        return SimpleNamespace(
            flow=SimpleNamespace(steps=steps),
            before=lambda: open_now.append(number),
            after=lambda: open_now.remove(number),
            ends=lambda _: (number, None),
        )

    def run(_flow: Any, lane: Any, _where: Any, number: Any, _target: Any) -> list[tuple[int, int]]:
        most.append(len(open_now))
        return [(lane, number)]

    def slowest_last(pending: Sequence[tuple[int, int]]) -> int:
        return min(range(len(pending)), key=lambda k: pending[k])  # the first steps are done before all others

    take_turns([chunk(number) for number in range(9)], run, slowest_last)
    assert open_now == []
    assert max(most) == 4
