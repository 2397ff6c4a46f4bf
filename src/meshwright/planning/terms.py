"""Terms: the times of communications as functions of the rows that are chosen, axis by axis."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from meshwright.errors import TooLargeError
from meshwright.placement.matrices import Matrix, rows

Row = tuple[int, ...]

MAX_WORK = 2_000_000
"""A search gives up when it has looked at more rows than this."""

REPORTED = 64
"""After each time this many partial placements, branches or changes, a search says what it has found."""

MOST_ORDERED = 7
"""With at most this many axes, all their orders are tried, to find the one in which terms are complete soonest."""


@dataclass(frozen=True)
class Term:
    """One communication, as the search sees it: which axes it is over, and its time as a function of its radices.

    low: a lower bound, which is cheap to compute. exact: the time itself, which is not: the search asks for it only
    where the bound does not decide.
    """

    axes: frozenset[int]
    low: Callable[[Row], float]
    exact: Callable[[Row], float]


@dataclass(frozen=True)
class Stage:
    """The terms at one position of the order of the axes, and what is known there.

    closed: the terms that are complete with the axis at this position. open: those that have an axis before it, and one
    at it or after it. several: those over several axes that are not complete before it.
    least, ahead, alone: bounds that were computed already (see `at_least`, `bound`, `bound_alone`).
    """

    closed: list[Term]
    open: list[Term]
    several: list[Term]
    least: dict[Row, float] = field(default_factory=dict)
    ahead: dict[Row, float] = field(default_factory=dict)
    alone: dict[Row, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """The best matrices so far with their times, the fastest first; equally fast ones in the order of their rows.

    complete: how many matrices were built up to their last row and timed; expanded: how many partial ones were
    continued. proven: whether no other matrix is faster than the last of them. at_least: no matrix at all is faster.
    """

    best: tuple[tuple[float, Matrix], ...]
    complete: int
    expanded: int
    at_least: float
    proven: bool


class Problem:
    """What is searched: the axes in the order in which their rows are chosen, and the terms at each position."""

    def __init__(
        self,
        sizes: Sequence[int],
        counts: Row,
        allowed: Callable[[int, Row], bool],
        terms: Sequence[Term],
        top: int,
        total: Callable[[Matrix], float] | None = None,
        placements: int | None = None,
    ) -> None:
        """`allowed` says whether an axis may have a row. With `total`, the time of a whole matrix is what that says,
        and the terms are bounds only: where times depend on more than radices. placements: how many matrices there
        are, where that is known.
        """
        if total is not None:  # then the terms are bounds, and nothing else
            terms = [Term(term.axes, term.low, term.low) for term in terms]
        simple = [smaller(term, frozenset(range(len(sizes))), counts) for term in terms]
        self.order = best_order(len(sizes), [term.axes for term in simple])
        self.sizes = [sizes[axis] for axis in self.order]
        self.counts, self.allowed, self.top, self.total = counts, allowed, top, total
        self.placements = placements
        self.constant = sum(term.exact(()) for term in simple if not term.axes)
        self.stages = stages(self.order, [term for term in simple if term.axes])
        self.work = 0
        self.choices: dict[tuple[int, Row], list[Row]] = {}

    def rows(self, position: int, left: Row) -> list[Row]:
        """The rows that the axis at a position may have when `left` is left of the counts."""
        key = position, left
        if key not in self.choices:
            axis = self.order[position]
            options: Iterable[Row] = [left] if position == len(self.sizes) - 1 else rows(self.sizes[position], left)
            self.choices[key] = [row for row in options if self.allowed(axis, row)]
            self.work += 1 + len(self.choices[key])
            if self.work > MAX_WORK:
                raise too_many_ways()
        return self.choices[key]

    def exactly(self, chosen: Matrix, spent: float) -> float:
        """The time of the complete terms with that of those that the last row completes; `spent` is without these.

        Where the terms are bounds only, they are added; the time itself is known when the last row is chosen.
        """
        if self.total is not None and len(chosen) == len(self.sizes):
            return self.total(self.matrix(chosen)) - self.constant
        return spent + added([term.exact(product(chosen, term.axes)) for term in self.stages[len(chosen) - 1].closed])

    def seconds(self, chosen: Matrix) -> float:
        """The time of a whole matrix, without the constant."""
        if self.total is not None:
            return self.exactly(chosen, 0.0)
        spent = 0.0
        for position in range(len(chosen)):
            spent = self.exactly(chosen[: position + 1], spent)
        return spent

    def matrix(self, chosen: Matrix) -> Matrix:
        """The rows in the order of the axes as they were given."""
        return tuple(chosen[self.order.index(axis)] for axis in range(len(chosen)))


def too_many_ways() -> TooLargeError:
    """The refusal of what cannot be searched."""
    return TooLargeError(
        "there are too many ways to place these axes to find the best; constraints on axes (an axis inside a level, or "
        "a fixed row) make the search smaller"
    )


def stages(order: Sequence[int], terms: Sequence[Term]) -> list[Stage]:
    """A stage for each position of the order, and one for the end. The axes of their terms are positions."""
    place = {axis: position for position, axis in enumerate(order)}
    placed = [Term(frozenset(place[axis] for axis in term.axes), _kept(term.low), _kept(term.exact)) for term in terms]
    return [
        Stage(
            closed=[term for term in placed if max(term.axes) == k],
            open=[term for term in placed if min(term.axes) < k <= max(term.axes)],
            several=[term for term in placed if len(term.axes) > 1 and max(term.axes) >= k],
        )
        for k in range(len(order) + 1)
    ]


def smaller(term: Term, every: frozenset[int], counts: Row) -> Term:
    """The same term as a function of the other axes' rows, where those are fewer: they leave what its axes have.

    For example, a term over three of four axes is a function of the fourth axis's row alone: with the counts (4, 8) and
    the row (2, 2), the product of the other three rows can only be (2, 4).
    """
    others = every - term.axes
    if len(others) >= len(term.axes):
        return term

    def turned(function: Callable[[Row], float]) -> Callable[[Row], float]:
        return lambda row: function(over(counts, row) if row else counts)

    return Term(others, turned(term.low), turned(term.exact))


def best_order(count: int, terms: Sequence[frozenset[int]]) -> tuple[int, ...]:
    """The order of the axes in which terms over several stay open for the shortest time; unused axes come last."""
    used = [axis for axis in range(count) if any(axis in axes for axes in terms)]
    rest = [axis for axis in range(count) if axis not in used]
    several = [axes for axes in terms if len(axes) > 1]
    if not several or len(used) > MOST_ORDERED:
        return (*used, *rest)

    def openness(order: tuple[int, ...]) -> int:
        return sum(max(map(order.index, axes)) - min(map(order.index, axes)) for axes in several)

    return (*min(permutations(used), key=openness), *rest)


def _kept(function: Callable[[Row], float]) -> Callable[[Row], float]:
    """The same function, computed once for each row."""
    known: dict[Row, float] = {}

    def look_up(row: Row) -> float:
        if row not in known:
            known[row] = function(row)
        return known[row]

    return look_up


def added(values: Sequence[float]) -> float:
    """The sum, from left to right. (From Python 3.12 on, `sum` rounds differently than arrays that are added.)"""
    total = 0.0
    for value in values:
        total += value
    return total


def over(counts: Row, row: Row) -> Row:
    """What a row leaves of the counts."""
    return tuple([count // factor for count, factor in zip(counts, row, strict=True)])


def times(a: Row, b: Row) -> Row:
    """The product of two rows."""
    return tuple([x * y for x, y in zip(a, b, strict=True)])


def product(chosen: Matrix, axes: frozenset[int]) -> Row:
    """The product of the rows at some positions, as far as they are chosen already."""
    found: Row | None = None
    for position in axes:
        if position < len(chosen):
            found = chosen[position] if found is None else times(found, chosen[position])
    assert found is not None
    return found
