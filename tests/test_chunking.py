"""The search for programs in chunks, beside trying everything."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product
from math import ceil

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright import (
    Collective,
    Goal,
    Level,
    Link,
    Placement,
    Reduction,
    System,
    load_system,
    parse_pipelined,
    parse_program,
    parse_system,
    placements,
    plan,
    program_graph,
)
from meshwright.cost import chunking
from meshwright.cost.chunking import GAINED, MARGIN, WORTH, Bounds, search
from meshwright.cost.contention import step_kind
from meshwright.cost.games import balanced_shares
from meshwright.cost.library import Library, LibraryRule, load_library
from meshwright.cost.mixing import NEAR, balanced
from meshwright.cost.model import CostModel, StepCost
from meshwright.cost.pipeline import CHUNKS, NEARLY, NEVER, Pipeline
from meshwright.language.goals import PROGRAM_GOALS, flat_program
from meshwright.language.program import Pipelined, Program, device_groups
from meshwright.language.symbolic import run_symbolically
from meshwright.placement.layout import layout_of
from tests.test_cost import cases, pick_program

ALGORITHMS = {
    Collective.ALL_REDUCE: ("ring", "two-way-ring", "tree", "direct", "recursive", "doubling", "switch"),
    Collective.REDUCE_SCATTER: ("ring", "two-way-ring", "direct", "halving"),
    Collective.ALL_GATHER: ("ring", "two-way-ring", "direct", "halving"),
    Collective.REDUCE: ("ring", "binomial"),
    Collective.BROADCAST: ("ring", "binomial"),
}


@st.composite
def rules(draw: st.DrawFn, collective: Collective, payload: int, handshake: bool) -> tuple[LibraryRule, ...]:
    """Rules for one collective, with limits at what a device holds of some chunk."""
    held = st.builds(
        lambda chunks, parts, more: ceil(payload / chunks) // parts + more,
        st.sampled_from(CHUNKS),
        st.sampled_from([1, 2, 3, 4, 8]),
        st.sampled_from([-1, 0, 1]),
    ).filter(lambda limit: limit >= 0)
    limits = sorted(draw(st.sets(held, max_size=2)))
    some = st.lists(st.sampled_from(ALGORITHMS[collective]), min_size=1, max_size=3, unique=True).map(tuple)
    efficiencies, posting = st.sampled_from([1.0, 1.0, 0.5, 0.1]), st.booleans() if handshake else st.just(False)
    return tuple(
        LibraryRule(draw(some), otherwise=("ring",), up_to=limit, efficiency=draw(efficiencies), posted=draw(posting))
        for limit in [*limits, None]
    )


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """A reduction on a system with links of all kinds, and a library whose rules change inside of its chunks."""
    placement, axes = draw(cases(max_devices=16))
    rate = draw(st.sampled_from([None, None, 1e4]))
    placement = replace(placement, system=replace(placement.system, message_rate=rate))
    payload = draw(st.sampled_from([7, 1000, 10**6, 2**20, 10**8]))
    rotates, handshake, adapts = (draw(st.booleans()) for _ in range(3))
    of = {collective: draw(rules(collective, payload, handshake)) for collective in Collective}
    some = draw(st.sets(st.sampled_from(Collective)))
    chunked = {collective: draw(rules(collective, payload, handshake)) for collective in some}
    call = draw(st.sampled_from([0.0, 1e-5, 1e-3]))
    library = Library("drawn", rotates, tuple(of.items()), tuple(chunked.items()), handshake, adapts, call=call)
    layout = layout_of(placement, axes)
    assume(len(layout.levels) <= 3)
    model = CostModel(layout, library, payload)
    return Pipeline(model, draw(st.sampled_from(PROGRAM_GOALS)), draw(st.sampled_from([2, 8, 64])))


def slowly(found: Pipeline, pipelined: Pipelined) -> float:
    """The time of programs in chunks by the words of the docs, with every choice of algorithms tried."""
    model, goal, chunks = found.model, found.goal, pipelined.chunks
    library = model.library.chunked if chunks > 1 else model.library
    chunk = CostModel(model.layout, library, ceil(model.payload / chunks))
    options: list[list[StepCost]] = []
    owners: list[int] = []
    posts: list[bool] = []  # whether receives are posted ahead in each step
    called: list[int] = []  # how many devices call each step
    for owner, (program, _) in enumerate(pipelined.shares):
        states = run_symbolically(program, len(model.layout.levels), goal)
        for state, step in zip(states, program.steps, strict=False):
            kind = step_kind(len(model.layout.levels), state, step)
            several = chunk.options(kind, chunk.rule(kind))
            options.append(several if library.adapts else [min(several, key=lambda cost: cost.seconds)])
            owners.append(owner)
            posts.append(chunk.rule(kind).posted)
            groups = device_groups(step.grouping, model.layout.hierarchy.radices)
            called.append(sum(map(len, groups)) * model.layout.system.devices // model.layout.hierarchy.size)
    counts = [count for _, count in pipelined.shares]
    best = float("inf")
    for costs in product(*options):
        firsts = [0.0] * len(counts)
        period = 0.0
        processing = 0.0
        loads: dict[str, float] = {}
        rate = model.layout.system.message_rate
        busiest: list[tuple[dict[str, float], int]] = []
        for owner, cost, callers, posted in zip(owners, costs, called, posts, strict=True):
            firsts[owner] += cost.seconds
            processing += counts[owner] * cost.call
            period = max(period, counts[owner] * flowing(cost, library, posted))
            processing += counts[owner] * sum(phase.processing for phase in cost.phases)
            busiest.append((worked(cost, cost.call if rate is None else callers / rate), counts[owner]))
            for level, busy in busiest[-1][0].items():
                loads[level] = loads.get(level, 0.0) + counts[owner] * busy
        period = max(period, processing, *loads.values(), 0.0)
        if not library.adapts:
            period = max(period, crowded(busiest))
        best = min(best, max(firsts) + (chunks - 1) / chunks * period)
    return best


def flowing(cost: StepCost, library: Library, posted: bool) -> float:
    """The time of a step whose links work for other groups while those wait that have the most to do."""
    if not library.handshake:
        return cost.seconds
    seconds = cost.call
    for phase in cost.phases:
        most = max(load.seconds for load in phase.loads)
        groups = [max(load.groups, 1) if load.limit in ("port", "bus") else 1 for load in phase.loads]
        share = max(load.seconds / many for load, many in zip(phase.loads, groups, strict=True)) / most
        if posted:
            share = min(share, phase.apart)  # that of a slice on its way
        elif phase.apart < 1:
            share /= 2
        work = max(phase.processing, most)
        seconds += max(work * share + phase.latency, work + phase.message) + phase.filling
    return seconds


def worked(cost: StepCost, calling: float) -> dict[str, float]:
    """How long a step keeps the links of each level busy; those that limit it wait while it is called besides."""
    loads: dict[str, float] = {}
    for phase in cost.phases:
        for load in phase.loads:
            loads[load.level] = loads.get(load.level, 0.0) + load.seconds
    most = max(loads.values(), default=0.0)
    return {level: busy + (calling if 0 < most < busy * (1 + 1e-9) else 0.0) for level, busy in loads.items()}


def crowded(steps: Sequence[tuple[dict[str, float], int]]) -> float:
    """The period where steps meet on links that do not limit them, pair of levels by pair of levels; see the docs."""
    by_limit: dict[str, list[dict[str, float]]] = {}
    for busy, count in steps:
        loads = {level: count * seconds for level, seconds in busy.items()}
        if any(loads.values()):
            by_limit.setdefault(max(loads, key=lambda level: loads[level]), []).append(loads)
    longest = 0.0
    for slow, waiting in by_limit.items():
        for shared, others in by_limit.items():
            needed = sum(loads.get(shared, 0.0) for loads in waiting)
            if slow == shared or not needed:
                continue
            alone = sum(loads[slow] for loads in waiting)
            gets = 0.73 / (0.73 + len(others))
            together = sum(loads[shared] for loads in others) / (1 - gets)
            done = together * gets / (needed / alone)  # of what the waiting steps have to do, in seconds
            longest = max(longest, alone + max(0.0, together - done))
    return longest


@given(pipelines(), st.lists(st.integers(1, 5), min_size=1, max_size=2), st.data())
@settings(max_examples=100, deadline=None)
def test_the_time_of_chunks_is_that_of_every_choice_tried(
    found: Pipeline, counts: list[int], data: st.DataObject
) -> None:
    levels = len(found.model.layout.levels)
    programs = [(pick_program(data, levels, found.goal, 4 - len(counts)), count) for count in counts]
    pipelined = Pipelined(tuple(programs))
    seconds, best = found.seconds(pipelined), slowly(found, pipelined)
    if len(programs) == 1 or not found.model.library.adapts:
        assert seconds == pytest.approx(best, rel=1e-9)
    else:  # programs that share the chunks choose one after the other
        model = found.model
        alone = Pipeline(CostModel(model.layout, replace(model.library, adapts=False), model.payload), found.goal)
        assert best * (1 - 1e-9) <= seconds <= alone.seconds(pipelined) * (1 + 1e-9)
    if len(programs) == 1:
        costs = found.costs(pipelined)
        assert len(costs) == len(pipelined.program.steps)
        assert found.seconds(pipelined) >= sum(cost.seconds for cost in costs) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("groups", "held", "posted", "first", "period"),
    [
        (4, 1000, False, 12 + 2, 12 + 1),  # links work all the time, but for one latency
        (4, 10, False, 0.06 + 3 * 2, 0.12 / 8 + 3 * 2),  # other groups' messages fill the time, in halves
        (4, 10, True, 0.03 + 3 * 1 + 1, 0.12 / 4 + 3 * 1 + 1),
        (1, 1000, True, 3 + 3 * 1 + 1, 3 + 3 * 1 + 1),  # nothing fills it
    ],
)
def test_between_chunks_the_groups_of_a_step_do_not_wait_for_each_other(
    groups: int, held: int, posted: bool, first: float, period: float
) -> None:
    (at, *_) = placements(parse_system(f"node=4@1kB/s+1s,gpu={groups}@1TB/s"), {"a": 4, "b": groups})
    rule = LibraryRule(("ring",), posted=posted)
    library = Library("drawn", False, tuple((each, (rule,)) for each in Collective), handshake=True)
    model = CostModel(layout_of(at, ("a",)), library, 3 * 4 * held)
    program = flat_program(Goal.ALL_GATHER, 1)
    seconds = Pipeline(model, Goal.ALL_GATHER, 3).seconds(Pipelined.of(program, 3))
    assert seconds == pytest.approx(first + 2 * period, rel=1e-6)


def tried(found: Pipeline, programs: list[Program]) -> tuple[float, float]:
    """The best time without chunks and with them, of all programs and numbers of chunks."""
    times = {n: min(found.seconds(Pipelined.of(program, n)) for program in programs) for n in found.counts}
    return times[1], min(times[n] for n in found.counts if n > 1)


@given(pipelines(), st.data())
@settings(max_examples=100, deadline=None)
def test_nothing_beats_what_the_search_finds(found: Pipeline, data: st.DataObject) -> None:
    graph = program_graph(len(found.model.layout.levels), found.goal, 3)
    programs = list(graph.programs())
    assume(programs and programs[0].steps)
    searched = search(found, graph)
    (best,) = searched.programs
    seconds = found.seconds(best)
    whole, chunked = tried(found, programs)
    tiny = 1 + 1e-9
    assert seconds <= max(MARGIN, 1 + searched.gap) * searched.least * tiny
    assert searched.least <= min(whole, chunked, seconds) * tiny
    if best.chunks == 1:
        assert seconds == pytest.approx(whole)
        assert chunked * (1 + NEARLY) ** 2 * tiny >= (1 - GAINED) * whole
    else:
        assert seconds <= min(chunked * (1 + NEARLY) ** 2, (1 - GAINED) * whole) * tiny
    # No mix of different programs is faster than the bound says; it counts mixes only where they are planned.
    random = data.draw(st.randoms(use_true_random=False))
    for chunks in found.counts[1:] if len(programs) > 1 and found.model.library.adapts else ():
        first = random.randrange(1, chunks)
        one, other = random.sample(programs, 2)
        mix = Pipelined(((one, first), (other, chunks - first)))
        assert found.seconds(mix) * tiny >= searched.least


@given(pipelines())
@settings(max_examples=30, deadline=None)
def test_the_best_ten_are_the_best_ten(found: Pipeline) -> None:
    graph = program_graph(len(found.model.layout.levels), found.goal, 3)
    every = {program: found.best(program)[0] for program in graph.programs()}
    ten = [one for one in search(found, graph, top=10).programs if len(one.shares) == 1]
    first, others = ten[0], [found.seconds(one) for one in ten[1:]]
    # The first may be in fewer chunks and nearly as good as the best, or the best without chunks.
    whole = min(found.seconds(Pipelined.of(program, 1)) for program in every)
    assert found.seconds(first) <= max(whole, min(every.values()) * (1 + NEARLY)) * (1 + 1e-9)
    assert others == pytest.approx(sorted(every[each] for each in every if each != first.program)[: len(others)])


def test_of_nearly_equal_programs_the_one_in_the_fewest_chunks_is_taken() -> None:
    # Reduce and Broadcast in 16 chunks are predicted to take 0.2% less than this in 4; measured, they took 6% more.
    found = plan("node=2@2.5Mbit/s,gpu=8@25Mbit/s", {"d": 16}, [Reduction(("d",), 1 << 20)], library="gloo", top=1)
    best = found.candidates[0]
    steps = "ReduceScatter inside node; ReduceScatter across node; AllGather across node; AllGather inside node"
    assert best.program_text(best.reductions[0]) == f"{steps}, in 4 chunks"
    (at,) = placements(best.placement.system, {"d": 16})
    pipeline = Pipeline(CostModel(layout_of(at, ("d",)), load_library("gloo"), 1 << 20), Goal.ALL_REDUCE, 16)
    every = program_graph(2, Goal.ALL_REDUCE, 5).programs()
    least, fastest = min((pipeline.best(program) for program in every), key=lambda one: one[0])
    assert fastest.chunks == 16
    assert least < best.seconds < least * (1 + NEARLY)


def test_of_mirror_images_the_one_with_the_longer_steps_first_is_taken() -> None:
    system = "rack=2@3.125Mbit/s,node=2@7.5Mbit/s,gpu=3@18.75Mbit/s"
    best = plan(system, {"d": 12}, [Reduction(("d",), 100 << 10)], library="gloo", top=1).candidates[0]
    first = "ReduceScatter inside rack; ReduceScatter across rack; AllGather across rack; "
    last = "AllGather across node within rack; AllGather inside node, in 4 chunks"
    mirrored = (
        "ReduceScatter inside node; ReduceScatter across node within rack; ReduceScatter across rack; "
        "AllGather across rack; AllGather inside rack, in 4 chunks"
    )
    assert best.program_text(best.reductions[0]) == first + last
    model = CostModel(layout_of(best.placement, ("d",)), best.library, 100 << 10)
    seconds = Pipeline(model, Goal.ALL_REDUCE).seconds(parse_pipelined(mirrored, model.layout.hierarchy))
    assert seconds == pytest.approx(best.seconds)


def test_more_steps_are_never_slower_where_chunks_meet_other_rules() -> None:
    # Whole, 47 MB are above the limit of the rule with the tree; half of it is below.
    system = parse_system("node=2@5.6GB/s+100us,gpu=8@10.5GB/s")
    one, three = (
        plan(
            system, {"d": 16}, [Reduction(("d",), 47_000_000)], library="nccl", max_chunks=64, max_steps=steps
        ).candidates[0]
        for steps in (1, 3)
    )
    assert three.seconds <= one.seconds


def test_a_search_that_is_cut_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    system = parse_system("rack=4@4GB/s+20us,node=4@8GB/s+20us,gpu=8@270GB/s+5us")
    what = [Reduction(("d",), 2**28)]
    proven = plan(system, {"d": 128}, what, max_chunks=64)
    assert (proven.gap, "best found" in proven.certificate()) == (0.0, False)
    monkeypatch.setattr(chunking, "MOST_WALKED", 2)
    cut = plan(system, {"d": 128}, what, max_chunks=64)
    assert 0 < cut.gap < 0.1
    assert f"best found, not proven: a plan may be up to {cut.gap:.1%} faster" in cut.certificate()
    # The gap is true, and so is the bound.
    assert cut.least_seconds is not None
    assert cut.least_seconds <= proven.candidates[0].seconds
    assert (1 - WORTH) * proven.candidates[0].seconds <= cut.candidates[0].seconds  # which may be a mix
    assert proven.candidates[0].seconds * (1 + cut.gap) >= cut.candidates[0].seconds


def test_chunks_move_several_at_once_where_one_does_not_help() -> None:
    # 13 chunks of one program and 3 of another; from 8 and 8, moving one chunk is worse either way.
    levels = (
        Level("pod", 6, Link(bandwidth=1e9, per_device=1e6)),
        Level("rack", 4, Link(bandwidth=1e6, latency=2e-5, bypass=True)),
    )
    what = [Reduction(("d",), 1_938_790)]
    found = plan(System("s", levels), {"d": 24}, what, library="ideal", max_steps=3, top=1)
    assert found.least_seconds is not None
    assert sorted(count for _, count in found.candidates[0].reductions[0].shares) == [3, 13]
    assert found.candidates[0].seconds < 1.005 * found.least_seconds


def test_a_mix_comes_near_the_bound_of_all_mixes() -> None:
    # Every axis of a torus has links of its own, so programs that begin with different axes share them best.
    system = load_system("tpu-v4")
    found = plan(system, {"d": 4096}, [Reduction(("d",), 2**36)], library="ideal", max_chunks=64, max_steps=6, top=1)
    assert found.least_seconds is not None
    assert len(found.candidates[0].reductions[0].shares) > 1
    assert found.candidates[0].seconds < 1.05 * found.least_seconds


@given(st.data())
@settings(max_examples=200)
def test_balanced_shares_are_those_of_the_linear_program(data: st.DataObject) -> None:
    """Also with many equal numbers, with zeros, and with numbers that differ by little more than rounding does."""
    from scipy.optimize import linprog  # type: ignore[import-untyped]

    rows, columns = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 12))
    numbers = st.one_of(st.sampled_from([0.0, 1.0, 2.0, 1e-3, 1e-9, 1 + 1e-9, 1e-10, 1e-8]), st.floats(0, 1))
    scale = data.draw(st.sampled_from([1.0, 1e-6, 1e6]))
    matrix = scale * np.array(data.draw(st.lists(numbers, min_size=rows * columns, max_size=rows * columns)))
    matrix = matrix.reshape(rows, columns)
    value, weights, shares = balanced_shares(matrix)
    for each in (weights, shares):
        assert each.min() >= 0
        assert each.sum() == pytest.approx(1)
    near = 1e-7 * matrix.max()  # as promised: where numbers are nearly equal, a pivot between them is left out
    assert value - near <= (weights @ matrix).min() <= (matrix @ shares).max() + near
    best = linprog(
        np.append(np.zeros(columns), 1.0),
        A_ub=np.hstack([matrix / scale, -np.ones((rows, 1))]),
        b_ub=np.zeros(rows),
        A_eq=[[1.0] * columns + [0.0]],
        b_eq=[1.0],
    ).fun
    assert value / scale == pytest.approx(best, abs=1e-6)


def test_the_bound_is_what_the_best_mix_of_all_programs_reaches() -> None:
    from scipy.optimize import linprog

    levels = (Level("node", 4, Link(bandwidth=100e6)), Level("gpu", 4, Link(bandwidth=50e6, bypass=True)))
    (placement,) = placements(System("two ways", levels), {"data": 16})
    # One that adapts: with others, programs that meet on a link may have to wait for each other.
    library = replace(load_library("ring"), adapts=True)
    model = CostModel(layout_of(placement, ["data"]), library, 100_000_000)
    found, graph = Pipeline(model, Goal.ALL_REDUCE, 64), program_graph(2)
    programs = list(graph.programs())
    chunk = CostModel(model.layout, model.library, ceil(model.payload / 64))
    costs = [chunk.steps(program) for program in programs]
    firsts = [sum(cost.seconds for cost in each) for each in costs]
    loads = [
        [
            63
            * sum(load.seconds for cost in each for phase in cost.phases for load in phase.loads if load.level == name)
            for each in costs
        ]
        for name in ("node", "gpu")
    ]
    best = linprog(
        [*firsts, 1.0],
        A_ub=np.hstack([np.array(loads), -np.ones((2, 1))]),
        b_ub=[0.0, 0.0],
        A_eq=[[1.0] * len(programs) + [0.0]],
        b_eq=[1.0],
    ).fun
    bounds = Bounds(found, graph)
    assert best * (1 - 2e-4) <= bounds.least <= best * (1 + 1e-6)
    assert len(bounds.paths) < 10
    least, mixed = bounds.mix(float("inf"))
    assert mixed is not None
    assert best * (1 - 2e-4) <= least <= found.seconds(mixed) < 1.05 * best


@given(pipelines(), st.sampled_from([2, 3, 8, 64]))
@settings(max_examples=60, deadline=None)
def test_shares_balance_levels_and_slowest_steps_of_all_programs(found: Pipeline, chunks: int) -> None:
    """The linear program of all programs, listed; and no pair of them is faster than it says."""
    assume(chunks in found.counts)
    graph = program_graph(len(found.model.layout.levels), found.goal, 3)
    programs = list(graph.programs())
    assume(programs and programs[0].steps)
    tables = [found.chosen(program, (chunks,)).table[0] for program in programs]
    owners = np.repeat(np.arange(len(programs)), [len(table) for table in tables])
    columns = np.vstack(tables)
    columns[:, 1:] *= chunks - 1
    usable = columns[:, 0] < NEVER
    assume(usable.any())
    best = balanced(columns[usable], owners[usable], len(programs)).seconds
    bounds = Bounds(found, graph)
    least, shares = bounds.mixes(chunks).balance(bounds.weights[1:], float("inf"))
    assert best * (1 - 2 * NEAR) <= least <= best * (1 + 1e-6)
    assert [sum(each.values()) for each in shares] == pytest.approx([1.0] * len(shares))
    if len(programs) <= 30:
        for one, other in combinations(programs, 2):
            assert found.seconds(Pipelined(((one, 1), (other, chunks - 1)))) >= least * (1 - 1e-9)


def test_programs_whose_steps_are_slow_take_turns() -> None:
    # No level is busy for long, but a step waits for its messages: another program's steps wait at the same time.
    system = parse_system("rack=8@10GB/s+1us,node=8@100GB/s+200us,gpu=2@25GB/s")
    (placement,) = placements(system, {"d": 128})
    library = replace(load_library("openmpi"), adapts=True)
    model = CostModel(layout_of(placement, ["d"]), library, 1 << 20)
    found = Pipeline(model, Goal.REDUCE, 64)
    searched = search(found, program_graph(3, Goal.REDUCE, 4))
    (best,) = searched.programs
    assert len(best.shares) > 1
    assert found.seconds(best) < 0.98 * min(found.best(program)[0] for program, _ in best.shares)
    assert found.seconds(best) < 1.02 * searched.least


@given(cases(max_devices=32), st.integers(10, 10**9), st.sampled_from(PROGRAM_GOALS), st.data())
@settings(max_examples=50, deadline=None)
def test_faster_links_never_make_an_ideal_plan_slower(
    case: tuple[Placement, list[str]], payload: int, goal: Goal, data: st.DataObject
) -> None:
    """Only the margins may: those of few chunks, of no chunks, and of a single program."""
    placement, axes = case
    number = data.draw(st.integers(0, len(placement.system.levels) - 1))
    level = placement.system.levels[number]
    link = level.link
    assert link.bandwidth is not None
    factor = data.draw(st.sampled_from([1.1, 2.0, 4.0, 100.0]))
    better = data.draw(
        st.sampled_from(
            [
                replace(link, bandwidth=link.bandwidth * factor),
                replace(link, latency=link.latency / factor),
                replace(link, per_device=None if link.per_device is None else link.per_device * factor),
            ]
        )
    )
    levels = placement.system.levels
    faster = replace(placement.system, levels=(*levels[:number], replace(level, link=better), *levels[number + 1 :]))
    times, gap = [], 0.0
    for system in (placement.system, faster):
        model = CostModel(layout_of(replace(placement, system=system), axes), load_library("ideal"), payload)
        found = Pipeline(model, goal, 64)
        searched = search(found, program_graph(len(model.layout.levels), goal, 4))
        times.append(found.seconds(searched.programs[0]))
        gap = searched.gap
    assert times[1] <= times[0] * max(MARGIN, 1 + gap)


def test_four_times_the_bandwidth_is_not_slower_in_chunks() -> None:
    # With it, what is fastest for each step alone takes 1.89 times as long in 16 chunks.
    def seconds(bandwidth: float) -> float:
        levels = (
            Level("rack", 8, Link(bandwidth=2e9)),
            Level("node", 8, Link(bandwidth=bandwidth)),
            Level("gpu", 4, Link(bandwidth=4e9, latency=1e-5)),
        )
        (placement,) = placements(System("wide", levels), {"data": 256})
        layout = layout_of(placement, ["data"])
        text = "Reduce inside rack; AllReduce masters of rack; Broadcast inside rack"
        program = parse_program(text, layout.hierarchy)
        found = Pipeline(CostModel(layout, load_library("ideal"), 1 << 20), Goal.ALL_REDUCE)
        return found.seconds(Pipelined.of(program, 16))

    assert seconds(16e9) <= seconds(4e9)
