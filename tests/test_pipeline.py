from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import (
    Collective,
    Fabric,
    Goal,
    Hierarchy,
    Level,
    Link,
    MeshwrightError,
    Placement,
    Reduction,
    SpecError,
    System,
    parse_hierarchy,
    parse_program,
    parse_system,
    placements,
    plan,
    program_graph,
    read_plan,
    write_plan,
)
from meshwright.cost.bound import bound
from meshwright.cost.chunking import search
from meshwright.cost.library import LibraryRule, load_library
from meshwright.cost.model import CostModel
from meshwright.cost.pipeline import CHUNKS, Pipeline
from meshwright.language.goals import PROGRAM_GOALS, flat_program
from meshwright.language.parse import parse_pipelined
from meshwright.language.program import Pipelined
from meshwright.placement.layout import layout_of
from meshwright.runtime.role import role_of
from tests.engines import pipelined_plan
from tests.flows import Simulation
from tests.strategies import hierarchies
from tests.test_cost import cases, only, pick_program, usable

H = parse_hierarchy("node=4,gpu=4")
INSIDE = parse_program("ReduceScatter inside node; AllReduce across node; AllGather inside node", H)
FLAT = parse_program("AllReduce all", H)


def pipeline(spec: str, payload: int = 1 << 22, most: int = 16, library: str = "ring") -> Pipeline:
    system = parse_system(spec)
    (placement,) = placements(system, {"data": system.devices})
    return Pipeline(CostModel(layout_of(placement, ["data"]), load_library(library), payload), Goal.ALL_REDUCE, most)


def test_a_pipelined_time_by_hand() -> None:
    found = pipeline("node=4@50MB/s+1ms,gpu=4@100MB/s+1ms", payload=100_000_000)
    # One of 4 chunks of 25 MB: 18.75 MB inside a node, 4 groups of 9.375 MB each across, 18.75 MB inside again.
    inside, across = 0.1875 + 0.003, 4 * 9.375 / 50 + 0.006
    assert found.seconds(Pipelined(((INSIDE, 1),))) == pytest.approx(4 * (2 * 0.1875 + 0.75) + 2 * 0.003 + 0.006)
    assert found.seconds(Pipelined(((INSIDE, 4),))) == pytest.approx(2 * inside + across + 3 * across)
    # Where links inside are the slow ones, both steps inside share them, and so does what goes across.
    found = pipeline("node=4@1GB/s,gpu=4@100MB/s", payload=100_000_000)
    one = 2 * 0.1875 + 0.09375
    assert found.seconds(Pipelined(((INSIDE, 4),))) == pytest.approx(one + 3 * one)


def test_a_library_may_do_collectives_otherwise_in_chunks() -> None:
    plain = pipeline("node=4@50MB/s,gpu=4@100MB/s", payload=100_000_000)
    slow = (LibraryRule(("ring",), efficiency=0.5),)
    library = replace(plain.model.library, in_chunks=((Collective.ALL_REDUCE, slow),))
    found = Pipeline(CostModel(plain.model.layout, library, 100_000_000), Goal.ALL_REDUCE, 16)
    assert found.seconds(Pipelined(((INSIDE, 1),))) == plain.seconds(Pipelined(((INSIDE, 1),)))
    # Across nodes a chunk takes twice the time, and that is the period.
    assert found.seconds(Pipelined(((INSIDE, 4),))) == pytest.approx(2 * 0.1875 + 4 * 1.5)
    assert plain.seconds(Pipelined(((INSIDE, 4),))) == pytest.approx(2 * 0.1875 + 4 * 0.75)


def test_messages_of_steps_overlap_unless_devices_share_processors() -> None:
    found = pipeline("node=4@1GB/s+10ms,gpu=4@1GB/s+10ms", payload=4000)
    messages = 3 + 6 + 3
    assert found.seconds(Pipelined(((INSIDE, 4),))) == pytest.approx((messages + 3 * 6) * 0.010, rel=0.01)
    layout = found.model.layout
    shared = replace(layout, system=replace(parse_system("node=4@1GB/s,gpu=4@1GB/s"), message_rate=1000.0))
    found = Pipeline(CostModel(shared, found.model.library, 4000), Goal.ALL_REDUCE)
    work = 4 * (12 + 4) + 4 * (24 + 4) + 4 * (12 + 4)
    assert found.seconds(Pipelined(((INSIDE, 4),))) == pytest.approx(4 * work / 1000)


def test_one_chunk_is_the_program_itself() -> None:
    found = pipeline("node=4@50MB/s+1ms,gpu=4@100MB/s+1ms")
    for program in program_graph(2).programs():
        assert found.seconds(Pipelined(((program, 1),))) == pytest.approx(found.model.seconds(program))


@pytest.mark.parametrize(
    "spec",
    [
        "node=4@20Mbit/s+1ms,gpu=4@200Mbit/s+1ms",
        "node=4@50Mbit/s+1ms,gpu=4@100Mbit/s+1ms",
        "node=2@1GB/s,gpu=8@1GB/s",
        "rack=2@20Mbit/s+1ms,node=2@50Mbit/s+2ms,gpu=2@200Mbit/s+1ms",
    ],
)
@pytest.mark.parametrize("payload", [1 << 12, 1 << 22])
@pytest.mark.parametrize("library", ["ring", "openmpi"])
def test_the_walk_finds_what_trying_all_programs_finds(spec: str, payload: int, library: str) -> None:
    found = pipeline(spec, payload, library=library)
    graph = program_graph(spec.count(",") + 1, max_steps=4)
    every = sorted(found.best(program)[0] for program in graph.programs())
    best = search(found, graph, top=3).programs
    plain = min(found.model.seconds(program) for program in graph.programs())
    if every[0] > 0.95 * plain:  # cutting the payload gains too little
        assert best[0].chunks == 1
        assert found.seconds(best[0]) == pytest.approx(plain)
        return
    if len(best[0].shares) > 1:  # a mix comes first, and gains at least 3%
        assert found.seconds(best[0]) < 0.97 * every[0]
        best = best[1:]
    assert [found.seconds(one) for one in best] == pytest.approx(every[: len(best)])


def test_small_payloads_are_not_cut() -> None:
    system = parse_system("node=4@50Mbit/s+1ms,gpu=4@100Mbit/s+1ms")
    small, large = (
        plan(system, {"data": 16}, [Reduction(("data",), size)], library="gloo", max_chunks=16).candidates[0]
        for size in (1 << 12, 1 << 22)
    )
    assert small.reductions[0].chunks == 1
    assert large.reductions[0].chunks > 1
    assert large.seconds < 1.1 * large.bound_seconds


def test_a_mix_of_programs_balances_links() -> None:
    # Ports inside a node are slow, and what leaves it goes by a way of its own: programs that start inside load one,
    # programs that start across the other.
    levels = (Level("node", 4, Link(bandwidth=100e6)), Level("gpu", 4, Link(bandwidth=50e6, bypass=True)))
    (placement,) = placements(System("two ways", levels), {"data": 16})
    library = replace(load_library("ring"), adapts=True)
    model = CostModel(layout_of(placement, ["data"]), library, 100_000_000)
    found = Pipeline(model, Goal.ALL_REDUCE, 64)
    best, *others = search(found, program_graph(2), top=2).programs
    assert len(best.shares) > 1
    assert best.chunks in CHUNKS
    assert found.seconds(best) < 0.97 * found.seconds(others[0])
    assert found.seconds(best) >= model.bound()
    # Under other libraries the programs of a mix would wait for each other.
    alone = Pipeline(CostModel(model.layout, load_library("ring"), 100_000_000), Goal.ALL_REDUCE, 64)
    assert all(len(one.shares) == 1 for one in search(alone, program_graph(2), top=2).programs)
    # With too few chunks there is nothing to balance.
    assert len(search(Pipeline(model, Goal.ALL_REDUCE, 1), program_graph(2)).programs[0].shares) == 1


@given(cases(max_devices=16), st.sampled_from(PROGRAM_GOALS), st.data())
@settings(max_examples=150, deadline=None)
def test_the_bound_is_never_above_a_simulated_schedule(
    case: tuple[Placement, list[str]], goal: Goal, data: st.DataObject
) -> None:
    placement, axes = case
    layout = layout_of(placement, axes)
    levels = len(layout.levels)
    shares = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
    pipelined = Pipelined(tuple((pick_program(data, levels, goal, 3), count) for count in shares))
    wanted = {collective: data.draw(st.sampled_from(("ring", "two-way-ring", "direct"))) for collective in Collective}
    if data.draw(st.booleans()):
        wanted[Collective.ALL_REDUCE] = "switch"
    rotates = data.draw(st.booleans())
    simulated = Simulation(placement, axes, 1 << 20, rotates).seconds(
        pipelined, goal, lambda step: usable(layout, step, wanted[step.collective])
    )
    assert bound(layout, goal, 1 << 20) <= simulated * (1 + 1e-6)


@given(cases(max_devices=16), st.sampled_from(PROGRAM_GOALS), st.data())
@settings(max_examples=150, deadline=None)
def test_the_bound_is_never_above_what_reducing_switches_take(
    case: tuple[Placement, list[str]], goal: Goal, data: st.DataObject
) -> None:
    """Switches that add up, and send to several at once: no library has it for every goal, but a bound is for all."""
    placement, axes = case
    levels = tuple(
        replace(level, link=replace(level.link, fabric=Fabric.SWITCH, bypass=False, reduces=True))
        for level in placement.system.levels
    )
    placement = replace(placement, system=System("reducing", levels))
    layout = layout_of(placement, axes)
    flat = flat_program(goal, len(layout.levels))
    chunks = data.draw(st.integers(1, 4))
    found = Simulation(placement, axes, 1 << 20, False).seconds(Pipelined(((flat, chunks),)), goal, lambda _: "switch")
    least = bound(layout, goal, 1 << 20)
    assert least <= found * (1 + 1e-6)
    if goal is Goal.ALL_REDUCE and all(level.link.per_device is None for level in levels):
        assert least == pytest.approx(found)  # it is what they take


@given(cases(max_devices=16), st.integers(1, 6), st.data())
@settings(max_examples=100, deadline=None)
def test_the_model_is_near_the_simulation(case: tuple[Placement, list[str]], chunks: int, data: st.DataObject) -> None:
    placement, axes = case
    plain = tuple(
        replace(level, link=Link(bandwidth=level.link.bandwidth, bypass=level.link.bypass))
        for level in placement.system.levels
    )
    placement = replace(placement, system=System("plain", plain))
    layout = layout_of(placement, axes)
    program = pick_program(data, len(layout.levels), Goal.ALL_REDUCE, 3)
    model = CostModel(layout, only(dict.fromkeys(Collective, "ring"), False), 1 << 20)
    pipelined = Pipelined(((program, chunks),))
    predicted = Pipeline(model, Goal.ALL_REDUCE).seconds(pipelined)
    simulated = Simulation(placement, axes, 1 << 20, False).seconds(pipelined, Goal.ALL_REDUCE, lambda _: "ring")
    # Where chunks wait for each other, the model is too slow or too fast by less than the fill.
    assert simulated <= predicted * 1.5
    assert predicted <= simulated * 2.0


def test_text_of_pipelined_programs() -> None:
    for text in (
        "AllReduce all",
        "ReduceScatter inside node; AllReduce across node; AllGather inside node, in 16 chunks",
        "AllReduce all, in 3 chunks | Reduce all; Broadcast all, in 1 chunk",
    ):
        assert parse_pipelined(text, H).text(H) == text
    for text, message in (
        ("AllReduce all | Reduce all; Broadcast all, in 2 chunks", "say how many it takes"),
        ("AllReduce all, in 0 chunks", "from 1 to 1024 each, not"),
        ("AllReduce all, in 2000 chunks", "from 1 to 1024 each, not"),
        ("AllReduce all, in many chunks", "expected ';' or the end of the program"),
    ):
        with pytest.raises(MeshwrightError, match=message):
            parse_pipelined(text, H)


@given(
    hierarchies(64), st.sampled_from(PROGRAM_GOALS), st.lists(st.integers(1, 1024), min_size=1, max_size=3), st.data()
)
def test_a_pipelined_program_is_what_its_text_says(
    hierarchy: Hierarchy, goal: Goal, shares: list[int], data: st.DataObject
) -> None:
    pipelined = Pipelined(tuple((pick_program(data, len(hierarchy.names), goal, 3), count) for count in shares))
    assert parse_pipelined(pipelined.text(hierarchy), hierarchy) == pipelined


def test_a_pipelined_plan_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    system = parse_system("node=4@50Mbit/s+1ms,gpu=4@100Mbit/s+1ms")
    best = plan(system, {"data": 16}, [Reduction(("data",), 1 << 22)], library="gloo", max_chunks=16).candidates[0]
    assert best.reductions[0].chunks > 1
    write_plan(best, path)
    assert read_plan(path) == best
    (planned,) = best.reductions
    mixed = replace(planned, pipelined=Pipelined(((planned.program, planned.chunks - 1), (FLAT, 1))), ranges=())
    assert mixed.chunks == planned.chunks
    path.write_text(path.read_text().replace(" chunks", "0 chunks"))
    with pytest.raises(SpecError, match="takes"):
        read_plan(path)


@pytest.mark.parametrize("goal", PROGRAM_GOALS)
def test_chunks_cover_the_payload_without_overlap(goal: Goal) -> None:
    best = pipelined_plan(goal, chunks=5)
    role = role_of(best, 0, 0)
    for length in (1, 2, 7, 100, 1001):
        cut = role.cut(length, 4)
        whole = length if goal in (Goal.ALL_REDUCE, Goal.REDUCE, Goal.BROADCAST) else -(-length // 4)
        assert cut[0][1] == 0
        assert cut[-1][2] == whole
        assert all(a[2] == b[1] for a, b in pairwise(cut))
        assert 1 <= len(cut) <= 5


def test_chunks_are_not_smaller_than_planned() -> None:
    best = pipelined_plan(Goal.ALL_REDUCE, chunks=8)
    planned = best.reductions[0]
    large = replace(planned, communication=replace(planned.communication, bytes=8000))
    role = role_of(replace(best, communications=(large,)), 0, 0)
    assert [len(role.cut(length, 4)) for length in (10, 250, 500, 1000, 2000, 100_000)] == [1, 1, 2, 4, 8, 8]


def test_shares_are_dealt_out_evenly() -> None:
    best = pipelined_plan(Goal.ALL_REDUCE, chunks=8)
    planned = best.reductions[0]
    (first, _), (other, _) = planned.shares
    uneven = replace(planned, pipelined=Pipelined(((first, 6), (other, 2))))
    role = role_of(replace(best, communications=(uneven,)), 0, 0)
    (flows,) = role.flows.values()
    order = [flows.index(flow) for flow, _, _ in role.cut(10_000, 4)]
    assert order.count(1) == 2
    assert order[0] == 0
    assert order not in ([0] * 6 + [1] * 2, [1] * 2 + [0] * 6)


def test_bad_numbers_of_chunks() -> None:
    for chunks in (0, 65, 1.5):
        with pytest.raises(SpecError, match="payloads can be cut into 1 to 64 chunks"):
            plan(parse_system("gpu=4@1GB/s"), {"a": 4}, [Reduction(("a",), 8)], max_chunks=chunks)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="chunks"):
        Pipelined(())
