"""Schedules are run here by a small library of contiguous collectives, and compared with the interpreter."""

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import Collective, Goal, Hierarchy, Program, parse_hierarchy, parse_program, program_graph, run_program
from meshwright.language.goals import PROGRAM_GOALS
from meshwright.runtime.schedule import INPUT, OUTPUT, Call, Copy, Schedule, schedule

Array = np.ndarray[Any, np.dtype[Any]]


class Device:
    """One device's buffers; every block has `width` elements."""

    def __init__(self, plan: Schedule, whole: int, own: Array | None, width: int) -> None:
        self.plan, self.width = plan, width
        sizes = {INPUT: plan.blocks, OUTPUT: plan.blocks}
        if plan.goal is Goal.ALL_GATHER:
            sizes[INPUT] = 1
        if plan.goal is Goal.REDUCE_SCATTER:
            sizes[OUTPUT] = 1
        sizes |= {2 + k: blocks for k, blocks in enumerate(plan.scratch)}
        self.buffers = {k: np.full(blocks * width, -7_000_000) for k, blocks in sizes.items()}
        if own is not None:
            self.buffers[INPUT][:] = own
        assert whole == plan.blocks * width

    def view(self, buffer: int, parts: int) -> Array:
        view = self.buffers[buffer][: parts * self.width]
        assert len(view) == parts * self.width, "the buffer is large enough"
        return view

    def copy(self, move: Copy) -> None:
        assert move.source != move.target
        source = self.view(move.source, move.given).reshape(*move.shape, self.width)
        self.view(move.target, move.given)[:] = source.transpose(*move.axes, len(move.axes)).reshape(-1)


def call(collective: Collective, members: list[tuple[Device, Call]]) -> None:
    if collective is Collective.BROADCAST:
        device, move = members[0]
        assert move.taken == move.given
        data = device.view(move.source, move.taken).copy()
        for device, move in members[1:]:
            assert move.source == move.target
            device.view(move.target, move.given)[:] = data
        return
    taken = [device.view(move.source, move.taken).copy() for device, move in members]
    for k, (device, move) in enumerate(members):
        assert (move.source == move.target) == (collective in (Collective.ALL_REDUCE, Collective.REDUCE))
        if collective is Collective.REDUCE and k > 0:
            device.view(move.source, move.taken)[:] = -9_000_000
            continue
        result = np.concatenate(taken) if collective is Collective.ALL_GATHER else np.sum(taken, axis=0)
        if collective is Collective.REDUCE_SCATTER:
            result = result.reshape(len(members), -1)[k]
        device.view(move.target, move.given)[:] = result


def run(program: Program, hierarchy: Hierarchy, goal: Goal, width: int = 2) -> list[Array | None]:
    """What every device has where its result belongs, after all schedules have run in lockstep."""
    plans = [schedule(program, hierarchy, device, goal) for device in range(hierarchy.size)]
    assert len({plan.blocks for plan in plans}) == 1
    whole = plans[0].blocks * width
    inputs = payloads(hierarchy, goal, whole)
    devices = [Device(plan, whole, own, width) for plan, own in zip(plans, inputs, strict=True)]
    queues = [list(plan.moves) for plan in plans]
    for step in range(len(program.steps)):
        waiting: dict[tuple[int, ...], list[tuple[Device, Call]]] = {}
        for number, (device, queue) in enumerate(zip(devices, queues, strict=True)):
            while queue and isinstance(move := queue[0], Copy):
                device.copy(move)
                queue.pop(0)
            if queue and isinstance(move, Call) and move.step == step:
                queue.pop(0)
                assert number in move.group
                waiting.setdefault(move.group, []).append((device, move))
        for group, members in waiting.items():
            assert len(members) == len(group)
            call(members[0][1].collective, members)
    for device, queue in zip(devices, queues, strict=True):
        for move in queue:
            assert isinstance(move, Copy)
            device.copy(move)
    home = INPUT if goal in (Goal.ALL_REDUCE, Goal.REDUCE, Goal.BROADCAST) else OUTPUT
    if home == OUTPUT:
        for device, own in zip(devices, inputs, strict=True):
            assert own is not None
            assert np.array_equal(device.buffers[INPUT], own), "the input is left as it was"
    return [
        None if goal is Goal.REDUCE and number > 0 else device.buffers[home] for number, device in enumerate(devices)
    ]


def payloads(hierarchy: Hierarchy, goal: Goal, whole: int) -> list[Array | None]:
    rng = np.random.default_rng(0)
    if goal is Goal.ALL_GATHER:
        return list(rng.integers(0, 1000, (hierarchy.size, whole // hierarchy.size)))
    data: list[Array | None] = list(rng.integers(0, 1000, (hierarchy.size, whole)))
    return [data[0], *[None] * (hierarchy.size - 1)] if goal is Goal.BROADCAST else data


def agrees(program: Program, hierarchy: Hierarchy, goal: Goal) -> None:
    ours = run(program, hierarchy, goal)
    whole = schedule(program, hierarchy, 0, goal).blocks * 2
    theirs = run_program(program, hierarchy, payloads(hierarchy, goal, whole), goal)
    text = program.text(hierarchy)
    for mine, wanted in zip(ours, theirs, strict=True):
        assert (mine is None) == (wanted is None), text
        if mine is not None and wanted is not None:
            assert np.array_equal(mine, wanted.reshape(-1)), text


CASES = ["a=2", "a=2,b=2", "a=2,b=4", "a=4,b=2", "a=3,b=2", "a=2,b=2,c=2", "a=2,b=3,c=2"]


@pytest.mark.parametrize("goal", PROGRAM_GOALS)
@pytest.mark.parametrize("spec", CASES)
def test_every_program_does_what_the_interpreter_does(spec: str, goal: Goal) -> None:
    hierarchy = parse_hierarchy(spec)
    graph = program_graph(len(hierarchy.names), goal, max_steps=5 if len(hierarchy.names) < 3 else 4)
    count = 0
    for program in graph.programs():
        agrees(program, hierarchy, goal)
        count += 1
    assert count == graph.count() > 0


@given(
    st.lists(st.sampled_from([2, 2, 3]), min_size=3, max_size=5), st.sampled_from(PROGRAM_GOALS), st.integers(0, 2**64)
)
def test_long_programs_over_many_levels(radices: list[int], goal: Goal, seed: int) -> None:
    hierarchy = Hierarchy(tuple("abcde"[: len(radices)]), tuple(radices))
    weights: dict[Any, float] = {}
    random = Random(seed)  # there are thousands of edges, each of which Hypothesis would draw on its own

    def cost(*edge: Any) -> float:
        if edge not in weights:
            weights[edge] = 1 + random.randint(0, 5)
        return weights[edge]

    graph = program_graph(len(radices), goal, max_steps=6)
    agrees(next(iter(graph.ranked(cost)))[1], hierarchy, goal)


def moves(text: str, spec: str, device: int = 0, goal: Goal = Goal.ALL_REDUCE) -> Schedule:
    hierarchy = parse_hierarchy(spec)
    return schedule(parse_program(text, hierarchy), hierarchy, device, goal)


def copies(plan: Schedule) -> int:
    return sum(isinstance(move, Copy) for move in plan.moves)


@pytest.mark.parametrize(
    "text",
    [
        "AllReduce all",
        "ReduceScatter inside node; AllReduce across node; AllGather inside node",
        "ReduceScatter across node; AllReduce inside node; AllGather across node",
        "ReduceScatter inside node; ReduceScatter across node; AllGather across node; AllGather inside node",
        "Reduce inside node; AllReduce masters of node; Broadcast inside node",
        "ReduceScatter all; AllGather all",
        "ReduceScatter all; AllGather across node; AllGather inside node",
    ],
)
def test_copies_only_where_the_gather_is_transposed(text: str) -> None:
    transposed = text == "ReduceScatter all; AllGather across node; AllGather inside node"
    assert copies(moves(text, "node=2,gpu=4")) == (1 if transposed else 0)


def test_a_tensor_is_cut_only_along_levels_that_are_scattered() -> None:
    assert moves("Reduce all; Broadcast all", "node=2,gpu=4").blocks == 1
    assert moves("ReduceScatter inside node; AllReduce across node; AllGather inside node", "node=2,gpu=4").blocks == 4
    assert moves("ReduceScatter all", "node=2,gpu=4", goal=Goal.REDUCE_SCATTER).blocks == 8


def test_scratch_is_no_larger_than_what_it_holds() -> None:
    plan = moves("ReduceScatter inside node; AllReduce across node; AllGather inside node", "node=2,gpu=4")
    assert plan.scratch == (1,)
    assert moves("AllReduce all", "node=2,gpu=4").scratch == ()


def test_devices_that_sit_a_step_out_have_no_move_for_it() -> None:
    text = "Reduce inside node; AllReduce masters of node; Broadcast inside node"
    assert [len(moves(text, "node=2,gpu=2", device).moves) for device in range(4)] == [3, 2, 3, 2]
