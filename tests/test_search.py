from dataclasses import replace
from itertools import permutations
from math import prod

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright import (
    Constraint,
    Fabric,
    Level,
    Link,
    Placement,
    PlacementError,
    Reduction,
    System,
    TooLargeError,
    count_placements,
    fixed_row,
    inside,
    not_across,
    parse_system,
    placements,
    plan,
    program_graph,
)
from meshwright.cost.library import load_library
from meshwright.cost.model import CostModel
from meshwright.placement.layout import layout_of
from meshwright.planning import search as search_module
from meshwright.planning import sweep as sweep_module
from meshwright.planning import terms as terms_module
from meshwright.planning.planner import Planner
from meshwright.planning.search import search
from meshwright.planning.terms import Problem, Term
from meshwright.workload.communication import Communication
from tests.strategies import communications, links, systems_with_axes

MOST = 5_000


class BruteForce:
    """The time of every placement, one after the other."""

    def __init__(self, communications: list[Communication], library: str) -> None:
        self.communications, self.library = communications, load_library(library)
        self.known: dict[object, float] = {}

    def seconds(self, placement: Placement) -> float:
        """With the best order of the axes inside the levels, which matters on rings only."""
        rows = dict(zip(placement.axes, placement.matrix, strict=True))
        rings = any(level.link.fabric is Fabric.RING for level in placement.system.levels)
        orders = permutations(placement.axes) if rings else [placement.axes]
        return min(
            sum(self.one(number, at) for number in range(len(self.communications)))
            for at in (Placement(placement.system, order, tuple(rows[axis] for axis in order)) for order in orders)
        )

    def one(self, number: int, placement: Placement) -> float:
        what = self.communications[number]
        layout = layout_of(placement, what.axes)
        key = number, layout.radices, layout.columns
        if key not in self.known:
            model = CostModel(layout, self.library, what.bytes)
            if not what.goal.has_programs:
                seconds = model.transfer(what.goal).seconds
            else:
                programs = program_graph(len(layout.levels), what.goal, 3).programs()
                seconds = min(model.seconds(program, what.goal) for program in programs)
            self.known[key] = seconds * what.count * (1 - what.hidden)
        return self.known[key]


@st.composite
def large_problems(draw: st.DrawFn) -> tuple[System, dict[str, int], list[Communication], str]:
    """Up to thousands of placements of up to five axes."""
    rings = draw(st.booleans())  # times depend on radices alone where there are none
    system, axes = draw(systems_with_axes(max_devices=64 if rings else 4096, primes=6))
    assume(count_placements(system, axes) <= (50 if rings else MOST))
    some = draw(st.lists(links(), min_size=4, max_size=4))
    if not rings:
        some = [replace(link, fabric=Fabric.SWITCH) if link.fabric is Fabric.RING else link for link in some]
    system = System("drawn", tuple(replace(level, link=link) for level, link in zip(system.levels, some, strict=False)))
    return system, axes, draw(communications(axes)), draw(st.sampled_from(["ring", "ideal", "nccl"]))


@given(large_problems(), st.integers(1, 6))
@settings(max_examples=100)
def test_the_best_placements_are_those_of_brute_force(
    problem: tuple[System, dict[str, int], list[Communication], str], top: int
) -> None:
    system, axes, what, library = problem
    brute = BruteForce(what, library)
    expected = sorted(brute.seconds(placement) for placement in placements(system, axes))
    found = Planner(system, axes, what, library, 3, max_chunks=1).best(top)
    assert [c.seconds for c in found.candidates] == pytest.approx(expected[:top], rel=1e-9)
    assert found.placements == len(expected)
    assert 1 <= found.evaluated <= found.placements
    assert found.pruned == found.placements - found.evaluated
    rows = {frozenset(zip(c.placement.axes, c.placement.matrix, strict=True)) for c in found.candidates}
    assert len(rows) == len(found.candidates)


@st.composite
def constrained(draw: st.DrawFn) -> tuple[System, dict[str, int], list[Constraint]]:
    system, axes = draw(systems_with_axes(max_devices=256))
    assume(count_placements(system, axes) <= MOST)
    found = []
    for _ in range(draw(st.integers(1, 3))):
        axis = draw(st.sampled_from(list(axes)))
        level = draw(st.sampled_from(system.levels)).name
        rows = [p.matrix[list(axes).index(axis)] for p in placements(system, axes)]
        options = [inside(axis, level), not_across(axis, level), fixed_row(axis, draw(st.sampled_from(rows)))]
        found.append(draw(st.sampled_from(options)))
    return system, axes, found


def satisfies(placement: Placement, constraint: Constraint) -> bool:
    row = placement.matrix[placement.axes.index(constraint.axis)]
    if constraint.rule == "row":
        return row == constraint.row
    at = [level.name for level in placement.system.levels].index(constraint.level)
    return row[at] == 1 and (constraint.rule == "not-across" or prod(row[:at]) == 1)


@given(constrained())
def test_constraints_leave_exactly_what_satisfies_them(
    problem: tuple[System, dict[str, int], list[Constraint]],
) -> None:
    system, axes, constraints = problem
    what = [Reduction((next(iter(axes)),), 2**20)]
    left = [p.matrix for p in placements(system, axes) if all(satisfies(p, c) for c in constraints)]
    if not left:
        with pytest.raises(PlacementError, match=r"leaves no placement|contradict each other|removes the last"):
            plan(system, axes, what, constraints=constraints)
        return
    found = plan(system, axes, what, constraints=constraints, top=MOST)
    assert sorted(c.placement.matrix for c in found.candidates) == sorted(left)
    assert found.placements == len(left)


FOUR = parse_system("node=4@8GB/s,gpu=4@100GB/s")


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ([inside("data", "node")], "data has the size 8, which does not fit there"),
        ([inside("shard", "node"), fixed_row("shard", (2, 1))], r"--inside shard=node and --row shard=2,1 contradict"),
        (
            [fixed_row("data", (2, 4)), fixed_row("shard", (1, 2))],
            r"--row data=2,4 and --row shard=1,2 contradict each other",
        ),
        ([fixed_row("data", (2, 2))], "multiply to 4, but the axis has the size 8"),
        ([fixed_row("data", (8,))], "expected 2 positive factors, for node, gpu"),
        ([inside("dat", "node")], r"--inside dat=node: unknown axis 'dat'; did you mean 'data'"),
        ([not_across("data", "nod")], "unknown level 'nod'; did you mean 'node'"),
    ],
)
def test_constraints_that_cannot_be_had(constraints: list[Constraint], message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        plan(FOUR, {"data": 8, "shard": 2}, [Reduction(("data",), 8)], constraints=constraints)


def test_the_constraint_that_removes_the_last_placement_is_named() -> None:
    axes = {"a": 4, "b": 4, "c": 4}
    system = parse_system("node=8@1GB/s,gpu=8@1GB/s")
    three = [not_across("a", "node"), not_across("b", "node"), not_across("c", "node")]
    with pytest.raises(PlacementError, match=r"--not-across a=node and --not-across b=node contradict"):
        plan(system, axes, [Reduction(("a",), 8)], constraints=three)
    system = parse_system("node=4@1GB/s,gpu=16@1GB/s")
    with pytest.raises(PlacementError, match=r"a=node, --not-across b=node leave 1, and --not-across c=node removes"):
        plan(system, axes, [Reduction(("a",), 8)], constraints=three)


def test_a_million_devices_with_five_levels_and_five_axes() -> None:
    system = parse_system("pod=16@100GB/s,rack=16@100GB/s,node=16@50GB/s,board=16@200GB/s,gpu=16@450GB/s")
    axes = dict.fromkeys(("data", "shard", "tensor", "pipeline", "expert"), 16)
    what = [Reduction((axis,), 2**24, count) for axis, count in zip(axes, (1, 80, 320, 10, 40), strict=True)]
    found = Planner(system, axes, [*what, Reduction(("data", "expert"), 2**28)]).best(3)
    assert found.placements == 2_224_955
    assert found.evaluated < 100
    best = dict(zip(axes, found.candidates[0].placement.matrix, strict=True))
    assert best["tensor"][:3] == (1, 1, 1)  # the heaviest stays near


def test_a_search_that_grows_too_large_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "MAX_NODES", 2)
    monkeypatch.setattr(sweep_module, "MAX_PLACEMENTS", 0)
    with pytest.raises(TooLargeError, match=r"partial placements the best one is still not certain"):
        Planner(FOUR, {"data": 4, "shard": 4}, [Reduction(("data",), 8)]).best(10)


def test_a_dear_time_is_asked_for_only_where_the_bound_does_not_do() -> None:
    asked = []

    def exact(row: tuple[int, ...]) -> float:
        asked.append(row)
        return float(row[0])

    terms = [Term(frozenset({0}), lambda row: float(row[0]), exact)]
    found = search(Problem((4, 4), (4, 4), lambda _axis, _row: True, terms, 1))
    assert found.best == ((1.0, ((1, 4), (4, 1))),)
    assert asked == [(1, 4)]


def test_levels_of_one_and_axes_of_one_change_nothing() -> None:
    level = FOUR.levels
    system = System("more", (level[0], Level("board", 1, Link(bandwidth=1e9)), level[1]))
    plain = plan(FOUR, {"data": 4, "shard": 4}, [Reduction(("data",), 2**20)]).candidates[0]
    more = plan(system, {"one": 1, "data": 4, "shard": 4}, [Reduction(("data",), 2**20)]).candidates[0]
    assert more.seconds == pytest.approx(plain.seconds)


def test_too_many_ways_to_complete_placements_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terms_module, "MAX_WORK", 2)
    monkeypatch.setattr(search_module, "MAX_WORK", 2)
    with pytest.raises(TooLargeError, match="too many ways to place these axes"):
        Planner(FOUR, {"data": 4, "shard": 4}, [Reduction(("data",), 8)]).best(1)
    with pytest.raises(TooLargeError, match="too many placements to count those that the constraints leave"):
        plan(FOUR, {"data": 4, "shard": 4}, [Reduction(("data",), 8)], constraints=[not_across("data", "gpu")])


def test_what_has_too_many_bounds_is_left_to_a_sweep_or_refused_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "MAX_LOOKED", 0)
    planner = Planner(FOUR, {"data": 4, "shard": 4}, [Reduction(("data",), 2**20), Reduction(("shard",), 2**24)])
    assert planner.best(1).candidates[0].placement.matrix == ((4, 1), (1, 4))
    monkeypatch.undo()
    system = parse_system(",".join(f"l{k}=16@{k + 1}GB/s" for k in range(8)))
    what = [Reduction(pair, 2**30) for pair in (("w", "x"), ("y", "z"), ("x", "y"))]
    planner = Planner(system, dict.fromkeys("wxyz", 256), what)
    with pytest.raises(TooLargeError, match=r"too many ways to place these axes.* constraints on axes"):
        planner.best(1)
    assert len(planner.per_byte) < search_module.MAX_LOOKED
    assert not planner.models  # no layout was priced
