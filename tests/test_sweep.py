import random
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright import Level, Link, Reduction, System, count_placements
from meshwright.language.synthesis import rounded, rounded_one
from meshwright.placement.matrices import Matrix
from meshwright.planning import search as search_module
from meshwright.planning import sweep as sweep_module
from meshwright.planning import ways as ways_module
from meshwright.planning.planner import Planner
from meshwright.planning.ranking import Ranking
from meshwright.planning.search import search
from meshwright.planning.sweep import Sweep
from meshwright.planning.terms import Found, Problem, Row, Term
from meshwright.workload.communication import Communication
from tests.test_search import large_problems

ALWAYS: dict[str, Any] = {"PATIENCE": -1, "REPORTED": 1}
NEVER: dict[str, Any] = {"PATIENCE": 10**9}


@dataclass(frozen=True)
class Drawn:
    """A problem whose times are drawn at random, few different ones, so that many placements are equally fast."""

    sizes: Row
    counts: Row
    seed: int
    axes: tuple[frozenset[int], ...]
    grain: int
    forbidden: frozenset[tuple[int, int]]
    top: int
    whole: bool

    def problem(self) -> Problem:
        return Problem(self.sizes, self.counts, self.allowed, self.terms, self.top, self.total if self.whole else None)

    def allowed(self, axis: int, row: Row) -> bool:
        return not any((axis, level) in self.forbidden for level, factor in enumerate(row) if factor > 1)

    @property
    def terms(self) -> list[Term]:
        return [Term(axes, self._low(number), self._exact(number)) for number, axes in enumerate(self.axes)]

    def _low(self, number: int) -> Callable[[Row], float]:
        return lambda row: random.Random(f"{self.seed} {number} {row}").randint(0, self.grain) / 7

    def _exact(self, number: int) -> Callable[[Row], float]:
        more = random.Random(f"{self.seed} {number}").randint(0, 2)
        return lambda row: self._low(number)(row) + more * random.Random(f"{number} {row}").randint(0, self.grain) / 11

    def total(self, matrix: Matrix) -> float:
        lows = [
            self._low(number)(tuple(prod(column) for column in zip(*(matrix[axis] for axis in axes), strict=True)))
            for number, axes in enumerate(self.axes)
        ]
        return sum(lows) + random.Random(f"{self.seed} {matrix}").randint(0, 3) / 3


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    primes = draw(st.lists(st.sampled_from([2, 2, 2, 3]), max_size=8))

    def deal(parts: int) -> Row:
        found = [1] * parts
        for prime in primes:
            found[draw(st.integers(0, parts - 1))] *= prime
        return tuple(found)

    sizes, counts = deal(draw(st.integers(1, 5))), deal(draw(st.integers(1, 4)))
    some = st.sets(st.integers(0, len(sizes) - 1), min_size=1).map(frozenset)
    places = st.tuples(st.integers(0, len(sizes) - 1), st.integers(0, len(counts) - 1))
    return Drawn(
        sizes,
        counts,
        draw(st.integers(0, 10**6)),
        tuple(draw(st.lists(some, max_size=5))),
        draw(st.sampled_from([0, 1, 3, 100])),
        draw(st.frozensets(places, max_size=2)),
        draw(st.sampled_from([1, 2, 5, 30, 1000])),
        draw(st.sampled_from([False, False, True])),
    )


@given(drawn(), st.data())
@settings(max_examples=300)
def test_both_searches_find_the_same(one: Drawn, data: st.DataObject) -> None:
    with patch.multiple(search_module, **NEVER):
        expected = search(one.problem())
    small: dict[str, Any] = {
        name: data.draw(st.sampled_from([1, 7, 100]), name) for name in ("KEPT", "FRONT", "REPORTED")
    }
    small["MOST_IN_BRANCH"] = data.draw(st.sampled_from([1, 10, 1000]), "MOST_IN_BRANCH")
    kept = data.draw(st.sampled_from([0, 1, 10, 1000]), "MOST_KEPT")
    with patch.multiple(sweep_module, **small), patch.multiple(ways_module, MOST_KEPT=kept):
        every = list(Sweep(one.problem()).run())
    assert every[-1].best == expected.best
    assert [found.proven for found in every] == [False] * (len(every) - 1) + [True]
    assert len(every[-1].best) <= every[-1].complete
    for found in every:
        _bounds_hold(found, expected)


def _bounds_hold(found: Found, expected: Found) -> None:
    """What is found on the way is true: the times, and that nothing is faster than the bound."""
    for mine, theirs in zip(found.best, expected.best, strict=False):
        assert mine[0] >= theirs[0] - 1e-9
        assert found.at_least <= theirs[0] + 1e-9


@given(drawn())
def test_what_is_found_on_the_way_is_true(one: Drawn) -> None:
    with patch.multiple(search_module, PATIENCE=10**9, REPORTED=1):
        *_, expected = every = list(search_module.searching(one.problem()))
    assert [found.proven for found in every] == [False] * (len(every) - 1) + [True]
    for found in every:
        _bounds_hold(found, expected)


@given(large_problems(), st.integers(1, 6))
@settings(max_examples=40)
def test_the_planner_gives_the_same_plans_with_both(
    problem: tuple[System, dict[str, int], list[Communication], str], top: int
) -> None:
    system, axes, what, library = problem
    assume(count_placements(system, axes) <= 500)

    def best(how: dict[str, Any]) -> Ranking:
        with patch.multiple(search_module, **how):
            return Planner(system, axes, what, library, 3).best(top)

    assert best(ALWAYS).candidates == best(NEVER).candidates


def test_near_ties_are_left_to_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reductions over pairs of axes, all alike: the search that is best first looks at many partial placements."""
    rates = {"a": 25e9, "b": 50e9, "c": 50e9, "d": 200e9}
    system = System("drawn", tuple(Level(name, 8, Link(bandwidth=rate)) for name, rate in rates.items()))
    axes = dict.fromkeys("wxyz", 8)
    what = [Reduction(tuple(pair), 2**28 + number) for number, pair in enumerate(("wx", "xy", "yz", "wz", "wy"))]
    monkeypatch.setattr(search_module, "PATIENCE", 100)
    runs = []
    prepare = Sweep._prepare

    def spy(sweep: Sweep) -> None:
        runs.append(1)
        prepare(sweep)

    monkeypatch.setattr(Sweep, "_prepare", spy)
    swept = Planner(system, axes, what, max_chunks=1).best(3)
    assert (swept.placements, swept.evaluated, runs) == (2008, 3, [1])
    monkeypatch.setattr(sweep_module, "MAX_PLACEMENTS", 2007)  # too many for a sweep
    one_by_one = Planner(system, axes, what, max_chunks=1).best(3)
    assert one_by_one.candidates == swept.candidates
    assert one_by_one.evaluated > 3
    assert runs == [1]


def test_of_equally_fast_matrices_the_first_in_the_order_of_rows_is_found() -> None:
    """The bound of (1, 4) is lower than that of (4, 1), but both take 4 s."""
    low: dict[Row, float] = {(4, 1): 3.0, (2, 2): 5.0, (1, 4): 2.0}
    terms = [Term(frozenset({0}), lambda row: low[row], lambda row: max(low[row], 4.0))]
    for how in (ALWAYS, NEVER):
        with patch.multiple(search_module, **how):
            found = search(Problem((4, 4), (4, 4), lambda _axis, _row: True, terms, 2))
        assert found.best == ((4.0, ((4, 1), (1, 4))), (4.0, ((1, 4), (4, 1))))


@given(st.floats(1e-300, 1e300), st.integers(1, 9))
def test_equal_sums_are_equal_when_they_are_rounded_one(value: float, parts: int) -> None:
    assert rounded_one(value) == pytest.approx(value, rel=1e-12)
    assert rounded_one(rounded_one(value)) == rounded_one(value)
    assert rounded(np.array([value, 0.0])).tolist() == [rounded_one(value), 0.0]
    assert rounded_one(sum([value / parts] * parts)) == pytest.approx(rounded_one(value), rel=2e-12)
