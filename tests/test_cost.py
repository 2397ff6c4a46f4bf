from dataclasses import replace
from functools import cache
from math import isclose, prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import (
    Collective,
    Fabric,
    InvalidProgramError,
    Level,
    Link,
    Placement,
    Program,
    Reduction,
    Step,
    System,
    load_library,
    parse_program,
    parse_system,
    placements,
    program_graph,
)
from meshwright.cost.algorithms import ALGORITHMS
from meshwright.cost.contention import step_family, step_kind
from meshwright.cost.library import Library, LibraryRule, library_names
from meshwright.cost.model import CostModel
from meshwright.language.goals import PROGRAM_GOALS, TRANSFER_GOALS, Goal, flat_program
from meshwright.language.semantics import apply_step, state_of
from meshwright.language.symbolic import NOTHING, scattered
from meshwright.placement.hierarchy import digits_of
from meshwright.placement.layout import Layout, layout_of
from tests.naive import Naive, applicable
from tests.strategies import links, problems, systems_with_axes


@st.composite
def cases(draw: st.DrawFn, max_devices: int) -> tuple[Placement, list[str]]:
    """A system with links of all kinds, a placement on it, and reduction axes that leave something to do."""
    system, axes = draw(systems_with_axes(max_devices).filter(lambda drawn: drawn[0].devices > 1))
    system = System("drawn", tuple(replace(level, link=draw(links())) for level in system.levels))
    placement = draw(st.sampled_from(list(placements(system, axes))))
    useful = [axis for axis, size in axes.items() if size > 1]
    first = draw(st.sampled_from(useful))
    others = draw(st.lists(st.sampled_from(list(axes)), unique=True))
    return placement, [axis for axis in axes if axis == first or axis in others]


def only(
    choices: dict[Collective, str], rotates: bool, handshake: bool = False, posted: bool = False, headers: int = 0
) -> Library:
    """A library with one algorithm for each collective."""
    rules = tuple((c, (LibraryRule((choices[c],), otherwise=("ring",), posted=posted),)) for c in Collective)
    return Library("drawn", rotates, rules, handshake=handshake, headers=headers)


def pick_program(data: st.DataObject, levels: int, goal: Goal, max_steps: int) -> Program:
    random = data.draw(st.randoms(use_true_random=False))
    programs = all_programs(levels, goal, max_steps)
    return programs[random.randrange(len(programs))]


@cache
def all_programs(levels: int, goal: Goal, max_steps: int) -> list[Program]:
    return list(program_graph(levels, goal, max_steps).programs())


@given(cases(max_devices=64), st.sampled_from(PROGRAM_GOALS), st.booleans(), st.data())
@settings(max_examples=1000)
def test_the_closed_form_equals_the_naive_router(
    case: tuple[Placement, list[str]], goal: Goal, rotates: bool, data: st.DataObject
) -> None:
    placement, axes = case
    layout = layout_of(placement, axes)
    program = pick_program(data, len(layout.levels), goal, 4)
    payload = data.draw(st.sampled_from([2**20, 10**6, 7]))
    choices = {c: data.draw(st.sampled_from(sorted(ALGORITHMS)), label=str(c)) for c in Collective}
    handshake = data.draw(st.booleans())
    # On fabrics that are rings, groups in other places do not count as others: the router does not tell them apart.
    ring_fabric = any(level.link.fabric is Fabric.RING for level in placement.system.levels)
    posted = handshake and not ring_fabric and data.draw(st.booleans())
    # Messages to switches and from them are of another size than those between nodes, and have no headers here.
    switched = {"switch", "switch-tree"}.intersection(choices.values())
    headers = 0 if switched else data.draw(st.sampled_from([0, 360]))
    model = CostModel(layout, only(choices, rotates, handshake, posted, headers), payload)
    naive = Naive(placement, axes, payload, rotates, handshake, posted, headers)

    state = state_of(goal.start, naive.hierarchy.size)
    for step, cost in zip(program.steps, model.steps(program, goal), strict=True):
        algorithm = usable(layout, step, choices[step.collective])
        chunks = [sum(1 for who in held if who) for held in state]
        assert cost.algorithm == algorithm
        assert cost.seconds == pytest.approx(naive.step(step, chunks, algorithm), rel=1e-9)
        state = apply_step(state, step, naive.hierarchy.radices)


@given(cases(max_devices=64), st.sampled_from(library_names()), st.integers(1, 2**36))
def test_a_reduce_never_takes_longer_than_an_all_reduce(
    case: tuple[Placement, list[str]], library: str, payload: int
) -> None:
    model = CostModel(layout_of(*case), load_library(library), payload)
    levels = len(model.layout.levels)
    reduce, both = (
        program_graph(levels, goal).least(step_family, model.all_seconds) for goal in (Goal.REDUCE, Goal.ALL_REDUCE)
    )
    assert reduce <= both * (1 + 1e-9)


@given(cases(max_devices=64), st.sampled_from([Goal.REDUCE, Goal.BROADCAST]), st.integers(1, 2**36), st.booleans())
def test_with_a_root_an_ideal_library_is_no_slower(
    case: tuple[Placement, list[str]], goal: Goal, payload: int, rings: bool
) -> None:
    """Nor are rings: each edge carries the payload once, which in an AllReduce is 2(g-1)/g of it."""
    model = CostModel(layout_of(*case), load_library("ring" if rings else "ideal"), payload)
    rooted, both = (
        model.seconds(flat_program(each, len(model.layout.levels)), each) for each in (goal, Goal.ALL_REDUCE)
    )
    assert rooted <= both * (1 + 1e-9)


@given(cases(max_devices=64), st.sampled_from(TRANSFER_GOALS), st.integers(1, 2**30))
def test_transfers_take_as_long_as_the_naive_router_says(
    case: tuple[Placement, list[str]], kind: Goal, payload: int
) -> None:
    placement, axes = case
    if kind is Goal.POINT_TO_POINT:
        axes = [axis for axis in axes if placement.sizes[axis] > 1][:1]
    model = CostModel(layout_of(placement, axes), load_library("ring"), payload)
    expected = Naive(placement, axes, payload, rotates=False).transfer(kind is Goal.ALL_TO_ALL)
    seconds = model.transfer(kind).seconds
    assert seconds == pytest.approx(expected)
    assert model.bound(kind) <= seconds * (1 + 1e-9)


def usable(layout: Layout, step: Step, wanted: str) -> str:
    """The wanted algorithm where it can be used, ring elsewhere."""
    span = layout.levels[step.grouping.first : step.grouping.last + 1]
    fans = [layout.radices[level] for level in span]
    links = [layout.system.levels[level].link for level in span]
    whole, inside = (
        bool(some) and all(link.reduces for link in some) and not any(link.bypass for link in some[1:])
        for some in (links, links[1:])
    )
    return wanted if applicable(wanted, step.collective, fans, whole, inside) else "ring"


def test_an_invalid_program_has_no_time() -> None:
    (placement,) = placements(parse_system("node=2@1GB/s,gpu=2@1GB/s"), {"a": 4})
    model = CostModel(layout_of(placement, ["a"]), load_library("ring"), 1)
    program = parse_program("AllReduce inside node; AllReduce inside node", model.layout.hierarchy)
    with pytest.raises(InvalidProgramError, match="step 2 is not allowed"):
        model.seconds(program)


KINDS = {
    "switch": Link(1e6),
    "reducing switch": Link(1e6, reduces=True),
    "bypassed switch": Link(1e6, bypass=True),
    "bus": Link(1e6, fabric=Fabric.BUS),
    "bypassed bus": Link(1e6, fabric=Fabric.BUS, bypass=True),
    "ring": Link(1e6, fabric=Fabric.RING),
    "ring of devices": Link(1e12, per_device=1e6, fabric=Fabric.RING),
    "device": Link(1e12, per_device=1e6),
    "bypassed device": Link(1e12, per_device=1e6, bypass=True),
}


@pytest.mark.parametrize("weak", range(3))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("counts", "matrix"),
    [((2, 2, 2), ((2, 2, 2),)), ((2, 3, 4), ((2, 3, 2), (1, 1, 2))), ((4, 2, 2), ((2, 1, 1), (2, 2, 2)))],
)
def test_every_algorithm_on_every_kind_of_link(
    counts: tuple[int, ...], matrix: tuple[tuple[int, ...], ...], kind: str, weak: int
) -> None:
    """Every step of every program, with each level in turn as the bottleneck, against the naive router."""
    names = ("pod", "node", "gpu")
    links = [KINDS[kind] if level == weak else Link(1e12, reduces=True) for level in range(3)]
    system = System("weak", tuple(Level(n, c, link) for n, c, link in zip(names, counts, links, strict=True)))
    placement = Placement(system, ("other", "data")[-len(matrix) :], matrix)
    layout = layout_of(placement, ["data"])
    levels = len(layout.levels)
    every = LibraryRule(tuple(sorted(ALGORITHMS)), otherwise=())
    for rotates in (False, True):
        naive = Naive(placement, ["data"], 2**20, rotates)
        radices = naive.hierarchy.radices
        zeros = [
            sum(1 << k for k, digit in enumerate(digits_of(d, radices)) if digit == 0) for d in range(prod(radices))
        ]
        model = CostModel(layout, only(dict.fromkeys(Collective, "ring"), rotates), 2**20)
        done = set()
        for state, edges in program_graph(levels).edges.items():
            chunks = [
                0
                if state[z] == NOTHING
                else prod(r for k, r in enumerate(radices) if not scattered(state[z], levels) >> k & 1)
                for z in zeros
            ]
            for step, _ in edges:
                held = tuple(chunks[group[0]] for group in naive.groups(step.grouping))
                if (step, held) in done:
                    continue
                done.add((step, held))
                costs = model.options(step_kind(levels, state, step), every)
                wanted = [name for name in every.algorithms if usable(layout, step, name) == name]
                assert [cost.algorithm for cost in costs] == wanted
                for cost in costs:
                    expected = naive.step(step, chunks, cost.algorithm)
                    assert isclose(cost.seconds, expected, rel_tol=1e-9), (step, cost.algorithm)


@pytest.mark.parametrize(
    ("program", "work"),
    [
        ("AllReduce all", 16 * 30 + 16),
        ("ReduceScatter all; AllGather all", 2 * (16 * 15 + 16)),
        ("ReduceScatter inside node; AllReduce across node; AllGather inside node", 4 * (12 + 4 + 24 + 4 + 12 + 4)),
        (
            "Reduce inside node; AllReduce masters of node; Broadcast inside node",
            4 * (12 + 3 + 4) + (24 + 4) + 4 * (3 + 4),
        ),
    ],
)
def test_shared_processors_work_on_every_message_and_every_call(program: str, work: int) -> None:
    """Counted by hand: rings of k send k(k-1) messages each way round, trees k-1, and each member makes a call."""
    system = replace(parse_system("node=4@1TB/s,gpu=4@1TB/s"), message_rate=1000.0)
    (placement,) = placements(system, {"data": 16})
    layout = layout_of(placement, ["data"])
    model = CostModel(layout, load_library("gloo"), 64)
    steps = model.steps(parse_program(program, layout.hierarchy))
    assert sum(phase.processing for step in steps for phase in step.phases) == pytest.approx(work / 1000)
    assert sum(step.seconds for step in steps) == pytest.approx(work / 1000)


@given(problems(), st.sampled_from([1, 9_999, 10_001, 16_384, 262_143, 262_144, 2**27 + 1]))
@settings(max_examples=60)
def test_times_from_the_prices_of_another_payload_are_those_of_the_steps(
    problem: tuple[System, dict[str, int], list[Reduction], str], payload: int
) -> None:
    """Also at the sizes where libraries change their algorithms, and where groups hold different amounts."""
    system, axes, reductions, library = problem
    placement = next(iter(placements(system, axes)))
    layout = layout_of(placement, reductions[0].axes)
    first = CostModel(layout, load_library(library), reductions[0].bytes)
    other, alone = first.at(layout, payload), CostModel(layout, load_library(library), payload)
    kinds, _ = program_graph(len(layout.levels), reductions[0].goal, 3).kinds(step_kind)
    for kind in kinds:
        first.kind_seconds(kind)
        step = min(alone.options(kind, alone.rule(kind)), key=lambda option: option.seconds)
        assert other.kind_seconds(kind) == pytest.approx(step.seconds, rel=1e-12)
