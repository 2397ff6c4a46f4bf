"""Terms: the times of communications as functions of the rows that are chosen, axis by axis."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from meshwright.placement.matrices import Matrix

Row = tuple[int, ...]

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
