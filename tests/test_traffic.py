from dataclasses import replace

import pytest

from meshwright import (
    Fabric,
    Goal,
    Level,
    Link,
    Reduction,
    System,
    TooLargeError,
    parse_system,
    placements,
    plan,
)
from meshwright.cost.library import load_library
from meshwright.cost.model import CostModel
from meshwright.language.goals import flat_program
from meshwright.placement.layout import layout_of


def test_the_latency_of_a_ring_counts_its_slowest_chunk() -> None:
    """2 x 4 devices, 10 us and 1 us: two outer and six inner edges, less one inner, twice round."""
    system = parse_system("node=2@1TB/s+10us,gpu=4@1TB/s+1us")
    (placement,) = placements(system, {"a": 8})
    model = CostModel(layout_of(placement, ["a"]), load_library("ring"), 1)
    assert model.seconds(flat_program(Goal.ALL_REDUCE, 2)) == pytest.approx(50e-6, rel=1e-3)


@pytest.mark.parametrize("goal", [Goal.REDUCE, Goal.BROADCAST])
def test_a_root_uses_all_network_cards_of_its_node(goal: Goal) -> None:
    """As in NCCL, whose channels have a ring each: 64 GiB out of a node with eight cards of 50 GB/s."""
    best = plan("dgx-h100:4", {"data": 32}, [Reduction(("data",), 2**36, goal=goal)], library="nccl").candidates[0]
    assert best.default_seconds == pytest.approx(2**36 / 400e9, rel=1e-3)
    assert best.bound_seconds == pytest.approx(best.default_seconds, rel=1e-3)


def test_of_two_nodes_some_rings_come_back_to_that_of_the_root() -> None:
    """Two nodes with two GPUs on buses. The bus of node 1 carries half of the payload from GPU to GPU in each ring, all
    of it coming in, and half going out: the ring 0, 1, 2, 3 ends there, the ring 0, 3, 2, 1 goes back to node 0.
    """
    bus = Link(1e9, fabric=Fabric.BUS)
    system = System("buses", (Level("node", 2, Link(1e12)), Level("gpu", 2, bus)))
    for goal in (Goal.REDUCE, Goal.BROADCAST):
        best = plan(system, {"a": 4}, [Reduction(("a",), 10**9, goal=goal)], library="ring").candidates[0]
        assert best.default_seconds == pytest.approx(2.5)


@pytest.mark.parametrize("goal", [Goal.REDUCE, Goal.BROADCAST])
def test_a_root_on_a_ring_sends_both_ways(goal: Goal) -> None:
    system = System("ring", (Level("x", 8, Link(1e9, fabric=Fabric.RING)),))
    best = plan(system, {"a": 8}, [Reduction(("a",), 10**9, goal=goal)], library="ideal").candidates[0]
    assert best.seconds == pytest.approx(0.5)
    assert best.bound_seconds == pytest.approx(0.5)


def test_switches_add_up_over_several_levels() -> None:
    reducing = Link(1e9, reduces=True)
    # NVLS reaches 0.604 of the bandwidth. Where it cannot pass its sums on, trees between the nodes carry them.
    for inner, seconds in ((reducing, 1 / 0.604), (replace(reducing, bypass=True), 1.5), (Link(1e9), 1.875)):
        system = System("sharp", (Level("node", 4, reducing), Level("gpu", 4, inner)))
        best = plan(system, {"a": 16}, [Reduction(("a",), 10**9)], library="nccl").candidates[0]
        assert best.default_seconds == pytest.approx(seconds, rel=1e-4)  # and the call


def test_a_ring_that_runs_both_ways_reaches_the_bound_on_a_ring() -> None:
    system = System("ring", (Level("x", 8, Link(1e9, fabric=Fabric.RING)),))
    best = plan(system, {"a": 8}, [Reduction(("a",), 10**9)], library="ideal").candidates[0]
    assert best.seconds == pytest.approx(best.bound_seconds)
    one_way = plan(system, {"a": 8}, [Reduction(("a",), 10**9)], library="ring").candidates[0]
    assert one_way.seconds == pytest.approx(2 * best.seconds)


def test_long_rings_are_refused() -> None:
    system = System("long", (Level("x", 4096, Link(1e9, fabric=Fabric.RING)),))
    with pytest.raises(TooLargeError, match="a ring of 4,096 children is too long"):
        plan(system, {"a": 4096}, [Reduction(("a",), 1)])


def test_ring_fabrics_tell_neighbours_from_strangers() -> None:
    """On a ring of 8, groups of neighbours do not meet; groups of strangers share every link."""
    system = System("ring", (replace(parse_system("gpu=8@1GB/s").levels[0], link=Link(1e9, fabric=Fabric.RING)),))
    seconds = {}
    for axes in ({"far": 4, "near": 2}, {"near": 2, "far": 4}):
        for axis in axes:
            (placement,) = placements(system, axes)
            model = CostModel(layout_of(placement, [axis]), load_library("ring"), 10**9)
            seconds[tuple(axes), axis] = model.seconds(flat_program(Goal.ALL_REDUCE, 1))
    # The last axis of a level holds neighbours: pairs exchange over one link, while pairs four apart cross four.
    assert seconds[("far", "near"), "near"] == pytest.approx(1.0)
    assert seconds[("near", "far"), "near"] == pytest.approx(4.0)
