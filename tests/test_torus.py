"""Tori: every device has two links in each dimension. The links here are wired one by one, as in hardware, without the
levels, ports and columns of the cost model and of the naive router.
"""

from collections import defaultdict
from collections.abc import Callable
from itertools import permutations, product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import Collective, Fabric, Goal, Level, Link, Placement, Reduction, System, plan, preset
from meshwright.cost.library import Library, LibraryRule, library_names
from meshwright.cost.model import CostModel
from meshwright.language.goals import PROGRAM_GOALS, flat_program
from meshwright.placement.layout import layout_of

LINK = 1e9
Columns = dict[
    str, tuple[int, int, int]
]  # for each dimension, the factors of an axis outside, of `a`, and of one inside


def torus(counts: dict[str, int]) -> System:
    """Of the given dimensions, outermost first, with links of 1 GB/s between neighbours."""
    levels = []
    for number, (name, count) in enumerate(counts.items()):
        below = prod(list(counts.values())[number + 1 :])
        levels.append(Level(name, count, Link(LINK * below, per_device=LINK, fabric=Fabric.RING)))
    return System("torus", tuple(levels))


def placed(columns: Columns) -> Placement:
    system = torus({name: prod(column) for name, column in columns.items()})
    return Placement(system, ("out", "a", "in"), tuple(zip(*columns.values(), strict=True)))


@st.composite
def lines(draw: st.DrawFn) -> tuple[Columns, str]:
    """A torus with groups of `a` along one of its dimensions, at some distance from each other."""
    sizes = st.sampled_from([1, 2, 3, 4])
    columns = {name: (draw(sizes), 1, 1) for name in "xyz"[: draw(st.integers(1, 3))]}
    along = draw(st.sampled_from(sorted(columns)))
    columns[along] = (draw(sizes), draw(st.sampled_from([2, 3, 4, 6])), draw(sizes))
    return columns, along


SENDS: dict[str, Callable[[int], list[tuple[int, int, float]]]] = {
    "ring": lambda size: [(k, (k + 1) % size, 2 * (size - 1) / size) for k in range(size)],
    "two-way-ring": lambda size: [(k, (k + way) % size, (size - 1) / size) for k in range(size) for way in (1, -1)],
    "direct": lambda size: [(a, b, 2 / size) for a in range(size) for b in range(size) if a != b],
}
"""What the members of a group send each other for an all-reduce, in units of what one holds."""


def only(algorithm: str, rotates: bool) -> Library:
    """A library with one algorithm; rooted collectives are rings."""
    rules = tuple((collective, (LibraryRule((algorithm,), ("ring",)),)) for collective in Collective)
    return Library("one", rotates, rules)


@given(lines(), st.sampled_from(sorted(SENDS)), st.booleans())
@settings(max_examples=200)
def test_a_torus_carries_what_its_wires_carry(drawn: tuple[Columns, str], algorithm: str, rotates: bool) -> None:
    """Every message link by link, from a device to the next along its dimension; each link carries 1 GB/s."""
    columns, along = drawn
    placement = placed(columns)
    dimension, count = list(columns).index(along), prod(columns[along])
    devices = list(product(*map(range, placement.system.counts)))
    wires: dict[tuple[tuple[int, ...], int], float] = defaultdict(float)
    for group in placement.groups(["a"]):
        for sender, receiver, amount in SENDS[algorithm](len(group)):
            at, to = list(devices[group[sender]]), devices[group[receiver]]
            ahead = (to[dimension] - at[dimension]) % count
            way = 1 if ahead <= count - ahead else -1
            while tuple(at) != to:
                wires[tuple(at), way] += amount
                at[dimension] = (at[dimension] + way) % count
    model = CostModel(layout_of(placement, ["a"]), only(algorithm, rotates), 10**9)
    assert model.seconds(flat_program(Goal.ALL_REDUCE, 1)) == pytest.approx(max(wires.values()))


@given(lines(), st.sampled_from(PROGRAM_GOALS), st.sampled_from(library_names()))
@settings(max_examples=50)
def test_no_dimension_of_a_torus_is_special(drawn: tuple[Columns, str], goal: Goal, library: str) -> None:
    columns, _ = drawn
    seconds = set()
    for order in permutations(columns):
        placement = placed({name: columns[name] for name in order})
        what = [Reduction(("a",), 10**9, goal=goal)]
        found = plan(placement.system, placement.sizes, what, library=library, placement=placement, top=1, ranges=False)
        seconds.add(float(f"{found.candidates[0].seconds:.9g}"))
    assert len(seconds) == 1


@given(lines())
def test_a_single_device_of_each_row_has_only_its_own_links(drawn: tuple[Columns, str]) -> None:
    """Plain rings leave a row by its last device. Whatever their order, the links of that device carry all of it."""
    columns, along = drawn
    columns = {name: (out, a if name == along else 2, inside) for name, (out, a, inside) in columns.items()}
    seconds = set()
    for order in permutations(columns):
        placement = placed({name: columns[name] for name in order})
        model = CostModel(layout_of(placement, ["a"]), only("ring", False), 10**9)
        seconds.add(float(f"{model.seconds(flat_program(Goal.BROADCAST, len(order)), Goal.BROADCAST):.9g}"))
    assert len(seconds) == 1


def test_an_all_reduce_along_any_dimension_of_tpu_v4() -> None:
    """2 x 15/16 of 64 GiB over two links of 50 GB/s, each way round."""
    system, axes = preset("tpu-v4"), {"a": 16, "b": 256}
    for row in ((16, 1, 1), (1, 16, 1), (1, 1, 16)):
        matrix = (row, tuple(16 // factor for factor in row))
        placement = Placement(system, ("a", "b"), matrix)
        best = plan(
            system, axes, [Reduction(("a",), 64 * 2**30)], library="ideal", placement=placement, top=1, ranges=False
        )
        assert best.candidates[0].seconds == pytest.approx(2 * 15 / 16 * 64 * 2**30 / 100e9)


def test_a_device_has_two_links_in_a_ring() -> None:
    for per_device, seconds in ((None, 0.875), (1e9, 0.875), (0.5e9, 1.75)):
        link = Link(1e9, fabric=Fabric.RING, per_device=per_device)
        system = System("ring", (Level("x", 8, link),))
        best = plan(system, {"a": 8}, [Reduction(("a",), 10**9)], library="ideal").candidates[0]
        assert best.seconds == pytest.approx(seconds) == best.bound_seconds
