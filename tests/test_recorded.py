"""Recorded calls become workloads: whatever the axes, the groups and the numbering, and nothing is lost."""

from dataclasses import replace
from itertools import pairwise, product
from math import prod
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import Goal, MeshwrightError, load_system, plan
from meshwright.workload.grid import Grid, axis_sizes, spans
from meshwright.workload.numbering import grid_order
from meshwright.workload.recorded import Recorded, Translation, to_workload

Sent = tuple[str, tuple[str, ...], int, int]
"""What every rank calls: kind, axes, bytes and count."""

COLLECTIVES: list[str] = [goal for goal in Goal if goal is not Goal.POINT_TO_POINT]


def groups_of(axes: dict[str, int], chosen: tuple[str, ...]) -> list[tuple[int, ...]]:
    """The groups of some axes, by the coordinates of every rank: written without strides."""
    points = list(product(*(range(size) for size in axes.values())))
    fixed = [k for k, axis in enumerate(axes) if axis not in chosen]
    found: dict[tuple[int, ...], list[int]] = {}
    for rank, point in enumerate(points):
        found.setdefault(tuple(point[k] for k in fixed), []).append(rank)
    return [tuple(group) for group in found.values()]


@st.composite
def programs(draw: st.DrawFn) -> tuple[dict[str, int], list[Sent]]:
    """Axes, and what every rank calls."""
    sizes = draw(st.lists(st.integers(2, 4), min_size=1, max_size=4).filter(lambda found: prod(found) <= 64))
    axes = dict(zip("abcd", sizes, strict=False))
    some = st.lists(st.sampled_from(sorted(axes)), min_size=1, unique=True).map(lambda found: tuple(sorted(found)))
    amounts = st.integers(1, 2**30), st.integers(1, 5)
    lines = draw(st.lists(st.tuples(st.sampled_from(COLLECTIVES), some, *amounts), min_size=1, max_size=6))
    return axes, lines


def calls_of(axes: dict[str, int], lines: list[Sent], steps: int) -> list[Recorded]:
    return [
        Recorded(rank, kind, group, size, count * steps)
        for kind, chosen, size, count in lines
        for group in groups_of(axes, chosen)
        for rank in group
    ]


def told(found: Translation) -> dict[tuple[str, tuple[str, ...], int], int]:
    """The counts of a workload's communications."""
    counts = {(str(one.goal), one.axes, one.bytes): one.count for one in found.workload.communications}
    assert len(counts) == len(found.workload.lines)
    return counts


def expected(lines: list[Sent]) -> dict[tuple[str, tuple[str, ...], int], int]:
    counts: dict[tuple[str, tuple[str, ...], int], int] = {}
    for kind, chosen, size, count in lines:
        counts[str(kind), chosen, size] = counts.get((str(kind), chosen, size), 0) + count
    return counts


@given(programs(), st.integers(1, 3))
def test_given_axes_give_back_what_was_called(program: tuple[dict[str, int], list[Sent]], steps: int) -> None:
    axes, lines = program
    found = to_workload(calls_of(axes, lines, steps), prod(axes.values()), steps, axes)
    assert told(found) == expected(lines)
    assert (found.left_out, found.notes) == ((), ())


@given(programs(), st.randoms(use_true_random=False))
def test_renumbered_ranks_give_the_same_workload(program: tuple[dict[str, int], list[Sent]], random: Random) -> None:
    axes, lines = program
    world = prod(axes.values())
    order = random.sample(range(world), world)  # the program's rank at each point of the grid
    calls = [
        Recorded(order[call.rank], call.kind, tuple(order[rank] for rank in call.ranks), call.bytes, call.count)
        for call in calls_of(axes, lines, 1)
    ]
    found = to_workload(calls, world, 1, axes, order)
    assert found == to_workload(calls_of(axes, lines, 1), world, 1, axes)
    assert found.left_out == ()


@given(programs(), st.randoms(use_true_random=False), st.booleans())
def test_another_numbering_is_found(program: tuple[dict[str, int], list[Sent]], random: Random, named: bool) -> None:
    axes, lines = program
    world = prod(axes.values())
    order = random.sample(range(world), world)
    plain = calls_of(axes, lines, 1)
    labels = {call.ranks: "+".join(chosen) for _, chosen, _, _ in lines for call in plain}
    calls = [
        replace(
            call,
            rank=order[call.rank],
            ranks=tuple(order[rank] for rank in call.ranks),
            label=labels[call.ranks] if named else "",
        )
        for call in plain
    ]
    random.shuffle(others := list({call.rank for call in calls}))
    calls = [call for rank in others for call in calls if call.rank == rank]  # in any order of ranks
    found = to_workload(calls, world)
    assert found.left_out == ()
    own = found.workload.axes
    assert prod(own.values()) == world
    sizes = sorted((str(kind), prod(axes[axis] for axis in chosen), size) for kind, chosen, size in expected(lines))
    assert sizes == sorted((kind, prod(own[axis] for axis in chosen), size) for kind, chosen, size in told(found))


@given(programs(), st.data())
def test_found_axes_are_the_fewest_that_fit(program: tuple[dict[str, int], list[Sent]], data: st.DataObject) -> None:
    axes, lines = program
    world = prod(axes.values())
    every = calls_of(axes, lines, 1)
    alone = data.draw(st.integers(0, world - 1))
    calls = data.draw(st.sampled_from([every, [call for call in every if call.rank == alone]]))
    found = to_workload(calls, world)
    assert found.left_out == ()
    assert prod(found.workload.axes.values()) == world
    # The same calls as with the true axes, over groups of the same sizes.
    sizes = sorted((str(kind), prod(axes[axis] for axis in chosen), size) for kind, chosen, size in expected(lines))
    own = found.workload.axes
    assert sizes == sorted((kind, prod(own[axis] for axis in chosen), size) for kind, chosen, size in told(found))
    # An axis between two others could be left out only if no group began or ended there.
    names = list(own)
    for outer, inner in pairwise(names):
        assert any((outer in one.axes) != (inner in one.axes) for one in found.workload.communications)
    assert len(own) <= len(axes)


@given(st.integers(2, 24), st.data())
def test_nothing_is_lost_whatever_the_groups(world: int, data: st.DataObject) -> None:
    groups = st.lists(st.integers(0, world - 1), min_size=2, max_size=world, unique=True).map(sorted).map(tuple)
    calls = [
        Recorded(ranks[0], data.draw(st.sampled_from(COLLECTIVES)), ranks, data.draw(st.integers(1, 2**20)))
        for ranks in data.draw(st.lists(groups, min_size=1, max_size=6))
    ]
    own = [call for call in calls if call.rank == calls[0].rank]  # of one rank, as others are only compared with it
    own.append(Recorded(own[0].rank, "all-reduce", tuple(range(world)), 1))  # which is a product in any case
    found = to_workload(own, world)
    sent = sum(one.bytes * one.count for one in found.workload.communications)
    assert sent + sum(one.bytes for one in found.left_out) == sum(call.bytes for call in own)
    for one in found.left_out:
        assert Grid(found.workload.axes).axes_of(one.call.ranks) is None


@given(programs())
def test_spans_are_what_the_group_is(program: tuple[dict[str, int], list[Sent]]) -> None:
    axes, lines = program
    for _, chosen, _, _ in lines:
        for group in groups_of(axes, chosen):
            parts = spans(group)
            assert parts is not None
            ranks = np.full(1, min(group))
            for stride, times in parts:
                ranks = np.add.outer(ranks, stride * np.arange(times)).ravel()
            assert sorted(ranks.tolist()) == list(group)
            assert Grid(axes).axes_of(group) == chosen


def test_stages_of_a_pipeline_are_found_from_their_messages() -> None:
    world = tuple(range(8))
    calls = [Recorded(r, "point-to-point", world, 1000, 4, to=r + 2) for r in range(6)]
    calls += [Recorded(r + 2, "point-to-point", world, 500, 4, to=r) for r in range(6)]
    found = to_workload(calls, 8, 2)
    assert found.workload.axes == {"axis1": 4, "axis2": 2}
    assert [(one.name, one.count) for one in found.workload.communications] == [
        ("point-to-point forward of 1kB", 2),
        ("point-to-point backward of 500B", 2),
    ]
    around = [*calls, Recorded(6, "point-to-point", world, 1000, 4, to=0)]
    assert to_workload(around, 8, 2) == found
    far = to_workload([*calls, Recorded(0, "point-to-point", world, 10, to=7)], 8, 2, {"pipeline": 4, "tensor": 2})
    assert [str(one) for one in far.left_out] == [
        "point-to-point from rank 0 to 7, 10B in all: the ranks are no neighbours along one of the axes "
        "pipeline=4,tensor=2"
    ]


def test_labels_name_the_axes_that_groups_go_along() -> None:
    calls = [
        Recorded(0, "all-reduce", (0, 2, 4, 6), 100, label="dp shard"),
        Recorded(0, "all-reduce", (0, 2, 4, 6), 100, label="dp_shard"),
        Recorded(0, "all-reduce", (0, 1), 100, label="dp_shard"),
        Recorded(0, "all-reduce", tuple(range(8)), 100, label="world"),
    ]
    assert to_workload(calls, 8).workload.axes == {"dp_shard": 4, "axis2": 2}


def test_the_busiest_rank_counts_where_ranks_differ() -> None:
    calls = [Recorded(r, "all-reduce", (0, 1) if r < 2 else (2, 3), 100 + r, 2) for r in range(4)]
    found = to_workload(calls, 4)
    assert [(one.bytes, one.count) for one in found.workload.communications] == [(103, 2)]
    assert found.notes == (
        "all-reduce over axis2 differs between ranks: rank 3 sends 206B, rank 0 200B in all; the first is taken",
    )


def test_counts_are_whole_and_bytes_stay() -> None:
    found = to_workload([Recorded(0, "all-reduce", (0, 1), 100, 7)], 2, 2)
    (one,) = found.workload.communications
    assert (one.bytes, one.count) == (88, 4)  # 7 calls of 100 bytes in two steps are 350 bytes in one
    seldom = [Recorded(0, "all-reduce", (0, 1), 100, 6), Recorded(0, "all-reduce", (0, 1), 10**6, 2)]
    found = to_workload(seldom, 2, 3)
    assert [(one.bytes, one.count) for one in found.workload.communications] == [(100, 2)]
    assert [(one.bytes, one.reason) for one in found.left_out] == [
        (2 * 10**6, "seldom: less than one call in each of 3 steps")
    ]


def test_many_sizes_become_few_lines_with_the_same_bytes() -> None:
    calls = [Recorded(0, "all-to-all", (0, 1), 1000 + 7 * k, hidden=0.5) for k in range(300)]
    found = to_workload(calls, 2, 3)
    assert len(found.workload.lines) == 3
    sent = sum(one.bytes * one.count for one in found.workload.communications)
    assert sent == pytest.approx(sum(call.bytes for call in calls) / 3, rel=0.001)
    assert {one.hidden for one in found.workload.communications} == {0.5}
    assert found.workload.lines[0].formula.startswith("on average; ")


def test_what_has_no_goal_is_left_out_with_the_reason() -> None:
    calls = [Recorded(0, "all-reduce", (0, 1), 8), Recorded(0, "gather", (0, 1), 8), Recorded(0, "barrier", (0, 1), 0)]
    (one,) = to_workload(calls, 2).left_out
    assert str(one).startswith("gather in the group 0 1, 8B in all: no goal of a communication; those are all-reduce")
    with pytest.raises(MeshwrightError, match="nothing was recorded that a workload can express: gather in the group"):
        to_workload(calls[1:], 2)
    with pytest.raises(MeshwrightError, match=r"nothing was recorded that a workload can express\Z"):
        to_workload([], 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"ranks": (0, 0)}, "expected itself once"),
        ({"rank": 2}, "expected itself once"),
        ({"bytes": -1}, "numbers that no call can have"),
        ({"count": 0}, "numbers that no call can have"),
        ({"hidden": 2.0}, "expected a share from 0 to 1"),
    ],
)
def test_impossible_calls_are_refused(call: dict[str, object], message: str) -> None:
    valid: dict[str, object] = {"rank": 0, "kind": "all-reduce", "ranks": (0, 1), "bytes": 8}
    with pytest.raises(MeshwrightError, match=message):
        Recorded(**(valid | call))  # type: ignore[arg-type]


def test_what_does_not_fit_together_is_refused() -> None:
    calls = [Recorded(0, "all-reduce", (0, 5), 8)]
    with pytest.raises(MeshwrightError, match=r"the group \(0, 5\), but the program has 4 ranks"):
        to_workload(calls, 4)
    with pytest.raises(MeshwrightError, match="data=4 multiply to 4, but the program has 8 ranks"):
        to_workload(calls, 8, 1, {"data": 4})
    with pytest.raises(MeshwrightError, match="does not have each of 0 to 7 once"):
        to_workload(calls, 8, 1, {"data": 8}, [0, 0, 1, 2, 3, 4, 5, 6])


def test_a_recorded_workload_can_be_planned() -> None:
    axes = {"data": 4, "tensor": 2}
    calls = calls_of(axes, [("all-reduce", ("data",), 2**20, 1), ("all-gather", ("tensor",), 2**16, 8)], 1)
    found = to_workload(calls, 8).workload
    best = plan(load_system("node=2@1GB/s,gpu=4@8GB/s"), dict(found.axes), found).candidates[0]
    assert best.placement.sizes == {"axis1": 4, "axis2": 2}


def test_a_numbering_that_is_found_is_noted() -> None:
    groups = {(0, 3): 100, (1, 2): 100, (0, 1): 50, (2, 3): 70}
    calls = [Recorded(rank, "all-reduce", ranks, size) for rank in range(4) for ranks, size in groups.items()
             if rank in ranks]  # fmt: skip
    calls += [Recorded(0, "point-to-point", (0, 1, 2, 3), 9, to=2)]
    found = to_workload(calls, 4)
    assert [(one.axes, one.bytes) for one in found.workload.communications] == [(("axis2",), 100), (("axis1",), 70)]
    assert found.notes == (
        "the ranks are not numbered in row-major order over the axes; in that order they are 0 3 1 2",
        "all-reduce over axis1 differs between ranks: rank 2 sends 70B, rank 0 50B in all; the first is taken",
    )
    assert [(one.call.rank, one.call.to) for one in found.left_out] == [(0, 2)]  # numbered as in the program


def test_no_numbering_makes_a_grid_of_these() -> None:
    assert grid_order([[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]], 4) is None
    assert grid_order([[(0, 1, 2), (3,)]], 4) is None
    assert grid_order([[(0, 1)]], 4) is None
    assert grid_order([], 3) == (0, 1, 2)


def test_groups_with_the_most_bytes_decide_where_groups_contradict() -> None:
    assert axis_sizes([(0, 1, 2), (0, 1)], 6) == (2, 3)
    calls = [Recorded(0, "all-reduce", (0, 1), 10), Recorded(0, "all-reduce", (0, 1, 2), 20)]
    found = to_workload(calls, 6)
    assert found.workload.axes == {"axis1": 2, "axis2": 3}
    assert [one.call.ranks for one in found.left_out] == [(0, 1)]
