import json
from pathlib import Path

import pytest
from benchmarks.bounds import KINDS, examine, table
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import (
    Fabric,
    Goal,
    Level,
    Link,
    Placement,
    Reduction,
    System,
    parse_system,
    placements,
    plan,
    preset,
    program_graph,
)
from meshwright.cost.bound import bound
from meshwright.cost.library import load_library
from meshwright.cost.model import CostModel
from meshwright.language.goals import PROGRAM_GOALS, flat_program
from meshwright.measure.records import SEND, read_measurements
from meshwright.placement.layout import Layout, layout_of
from meshwright.system.read import parse_system_yaml
from meshwright.testbed.network import BURST
from tests.strategies import problems

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"


@given(problems(), st.data())
@settings(max_examples=300)
def test_no_program_is_faster_than_the_bound(
    problem: tuple[System, dict[str, int], list[Reduction], str], data: st.DataObject
) -> None:
    system, axes, reductions, library = problem
    placement = data.draw(st.sampled_from(list(placements(system, axes))))
    for reduction in reductions:
        model = CostModel(layout_of(placement, reduction.axes), load_library(library), reduction.bytes)
        bound = model.bound(reduction.goal)
        for program in program_graph(len(model.layout.levels), reduction.goal, 4).programs():
            assert bound <= model.seconds(program, reduction.goal) * (1 + 1e-9)


def test_no_plan_in_chunks_is_below_the_bound() -> None:
    """The first of the problems that `python -m benchmarks.bounds` draws."""
    found = {"cases": 300, **examine(1, 0, 300)}
    assert not found["below"]
    assert len(table(found)) == 2 + len(KINDS) + 2


@pytest.mark.parametrize("goal", PROGRAM_GOALS)
def test_the_bound_is_reached_where_it_can_be(goal: Goal) -> None:
    """On one switch without latency, a flat ring of the goal's collective is optimal."""
    system = parse_system("gpu=8@1GB/s")
    (placement,) = placements(system, {"a": 8})
    model = CostModel(layout_of(placement, ["a"]), load_library("ring"), 8_000_000)
    assert model.bound(goal) == pytest.approx(model.seconds(flat_program(goal, 1), goal))


@pytest.mark.parametrize(
    ("levels", "matrix", "goal", "seconds"),
    [
        # A switch that reduces helps only groups that meet in it.
        ([(1, Link(1e9, reduces=True)), (8, Link(1e9))], ((1, 8),), Goal.ALL_REDUCE, 1.75),
        ([(8, Link(1e9, reduces=True))], ((8,),), Goal.ALL_REDUCE, 1.0),
        # A bus carries what comes in from outside as well.
        ([(4, Link(1e12)), (4, Link(1e9, fabric=Fabric.BUS))], ((4, 4),), Goal.ALL_REDUCE, 9.0),
        # A device whose own card is its second way out, but only to members of its group.
        ([(2, Link(8e9, per_device=1e9)), (8, Link(1e9, bypass=True))], ((2, 8),), Goal.REDUCE, 0.5),
        ([(2, Link(8e9, per_device=1e9)), (8, Link(1e9, bypass=True))], ((1, 8), (2, 1)), Goal.REDUCE, 1.0),
        ([(4, Link(1e12)), (4, Link(1e9, fabric=Fabric.RING))], ((1, 4), (4, 1)), Goal.ALL_REDUCE, 0.75),
        # No two members have the ring between them: all must go through the ports of the outer level.
        ([(2, Link(1e9)), (4, Link(1e12, fabric=Fabric.RING))], ((2, 1), (1, 4)), Goal.ALL_REDUCE, 4.0),
        # On a ring both neighbours can be sent to; what goes four children far takes up four links.
        ([(8, Link(1e9, fabric=Fabric.RING))], ((8,),), Goal.ALL_REDUCE, 0.875),
        ([(8, Link(1e9, fabric=Fabric.RING))], ((2,), (4,)), Goal.ALL_REDUCE, 2.0),
        ([(8, Link(1e9, fabric=Fabric.RING))], ((4,), (2,)), Goal.ALL_REDUCE, 1.5),
        # An axis that is not reduced over lies between two that are: pairs of neighbours, 31 links apart.
        ([(64, Link(1e9, fabric=Fabric.RING))], ((2,), (16,), (2,)), Goal.ALL_REDUCE, 16 * (2 * 31 + 4) / 128),
        ([(64, Link(1e9, fabric=Fabric.RING))], ((2,), (16,), (2,)), Goal.BROADCAST, 16 / 2),
        # Each device has its own links, and what goes four children far takes up four of them.
        ([(8, Link(8e9, per_device=1e9, fabric=Fabric.RING))], ((2,), (4,)), Goal.ALL_REDUCE, 2.0),
        ([(8, Link(8e9, per_device=1e9, fabric=Fabric.RING)), (2, Link(1e12))], ((2, 1), (4, 2)), Goal.ALL_REDUCE, 2.0),
        # Four neighbours in a ring of eight: what the first of them needs must cross one link.
        ([(8, Link(1e9, fabric=Fabric.RING))], ((1,), (2,), (4,)), Goal.REDUCE_SCATTER, 0.75),
        ([(8, Link(1e9, fabric=Fabric.RING))], ((1,), (2,), (4,)), Goal.ALL_REDUCE, 1.0),
        # Switches at both levels add up.
        ([(4, Link(1e9, reduces=True)), (4, Link(1e9, reduces=True))], ((4, 4),), Goal.ALL_REDUCE, 1.0),
        # Two nodes of eight devices each send 15/8 of the payload; what the outer switch adds up counts twice.
        ([(2, Link(1e9, reduces=True)), (8, Link(1e9, bypass=True))], ((2, 8),), Goal.ALL_REDUCE, 15 / 10),
    ],
)
def test_bounds_by_hand(
    levels: list[tuple[int, Link]], matrix: tuple[tuple[int, ...], ...], goal: Goal, seconds: float
) -> None:
    system = System("hand", tuple(Level(f"l{k}", count, link) for k, (count, link) in enumerate(levels)))
    placement = Placement(system, ("data", "other", "last")[: len(matrix)], matrix)
    assert bound(layout_of(placement, ["data", "last"][: 1 + len(matrix) // 3]), goal, 10**9) == pytest.approx(seconds)


@pytest.mark.parametrize("goal", PROGRAM_GOALS)
def test_plans_on_nodes_with_a_network_card_for_each_device_come_near_the_bound(goal: Goal) -> None:
    what = [Reduction(("data",), 2**36, goal=goal)]
    best = plan(preset("dgx-h100:4"), {"data": 32}, what, library="nccl", top=1, max_chunks=16)
    assert best.candidates[0].seconds < 1.2 * best.candidates[0].bound_seconds


@pytest.mark.parametrize("goal", PROGRAM_GOALS)
def test_a_ring_whose_order_is_not_known_as_a_whole_has_the_bound_of_the_best_order(goal: Goal) -> None:
    """The search asks for it before all axes have their place."""
    system = System("ring", (Level("ring", 16, Link(1e9, fabric=Fabric.RING)),))
    whole = ((2, True), (2, False), (2, True), (2, False))
    times = [bound(Layout(system, (4,), (whole[:known],)), goal, 10**9) for known in range(len(whole) + 1)]
    assert times[-1] > 1.5 * times[0]
    assert all(time <= times[-1] for time in times)


def test_nothing_that_was_measured_beats_the_bound() -> None:
    """Every program of the studies, on real links; but for the bytes that token buckets let through at once."""
    measured = 0
    for file in sorted(RESULTS.glob("*.jsonl")):
        for one in read_measurements(file):
            if not one.seconds or one.failed or one.alone or one.program == SEND:
                continue
            system = parse_system_yaml(json.dumps(one.system), file.name)
            placement = Placement(system, tuple(one.axes), tuple(tuple(row) for row in one.matrix))
            free = BURST / (system.levels[-1].link.bandwidth or 0)
            least = bound(layout_of(placement, one.over), Goal(one.goal), one.bytes)
            assert min(one.seconds) + free >= least, f"{file.name}: {one.program}"
            measured += 1
    assert measured > 800
