"""The search for the best placements: best first, with bounds, over the rows of the parallelism matrix.

The time of a communication depends on the product of its axes' rows alone (its radices). So a placement's time is a sum
of terms, each a function of a few rows. Rows are chosen axis by axis; what is left of the level counts is the residual.
From a residual, a lower bound on all that is still to come is computed backwards, once, as a shortest path: there are
few residuals, however many placements there are. A partial placement whose time so far plus that bound is no less than
the last candidate's time is never completed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import permutations
from math import inf, prod

from meshwright.errors import TooLargeError
from meshwright.placement.matrices import Matrix, rows

Row = tuple[int, ...]

MAX_NODES = 4_000_000
"""More partial placements than this are not kept."""

MAX_WORK = 2_000_000
"""Nor are more ways than this to complete a partial placement looked at, nor rows counted."""

MOST_ORDERED = 7
"""With at most this many axes, all their orders are tried, to find the one in which terms are complete soonest."""


@dataclass(frozen=True)
class Term:
    """One communication, as the search sees it: which axes it is over, and its time as a function of its radices.

    low: a lower bound, cheap. exact: the time itself, dear; it is asked for only where the bound alone does not do.
    """

    axes: frozenset[int]
    low: Callable[[Row], float]
    exact: Callable[[Row], float]


@dataclass(frozen=True)
class Found:
    """The best matrices with their times, the fastest first.

    complete: how many matrices were built up to their last row; expanded: how many partial ones were continued.
    """

    best: tuple[tuple[float, Matrix], ...]
    complete: int
    expanded: int


def search(
    sizes: Sequence[int],
    counts: Row,
    allowed: Callable[[int, Row], bool],
    terms: Sequence[Term],
    top: int,
    total: Callable[[Matrix], float] | None = None,
) -> Found:
    """The `top` matrices with the smallest sums of terms.

    `allowed` says whether an axis may have a row. With `total`, the time of a whole matrix is what that says, and the
    terms are bounds only: where times depend on more than radices.
    """
    return _Search(sizes, counts, allowed, terms, total).run(top)


def count_allowed(sizes: Sequence[int], counts: Row, allowed: Callable[[int, Row], bool]) -> int:
    """How many matrices have only rows that are allowed."""
    ways = {counts: 1}
    work = 0
    for axis, size in enumerate(sizes):
        after: dict[Row, int] = {}
        for left, number in ways.items():
            for row in [left] if axis == len(sizes) - 1 else rows(size, left):
                work += 1
                if work > MAX_WORK:
                    raise TooLargeError("there are too many placements to count those that the constraints leave")
                if allowed(axis, row):
                    rest = _over(left, row)
                    after[rest] = after.get(rest, 0) + number
        ways = after
    return sum(ways.values())


class _Search:
    def __init__(
        self,
        sizes: Sequence[int],
        counts: Row,
        allowed: Callable[[int, Row], bool],
        terms: Sequence[Term],
        total: Callable[[Matrix], float] | None,
    ) -> None:
        every = frozenset(range(len(sizes)))
        simple = [_smaller(term, every, counts) for term in terms]
        self.order = _order(len(sizes), [term.axes for term in simple])
        self.sizes = [sizes[axis] for axis in self.order]
        self.counts, self.allowed, self.total = counts, allowed, total
        self.constant = sum(term.exact(()) for term in simple if not term.axes)
        # By position in the order: the terms that are complete with that axis, and those that are then still open.
        place = {axis: position for position, axis in enumerate(self.order)}
        placed = [
            Term(frozenset(place[axis] for axis in term.axes), _kept(term.low), _kept(term.exact))
            for term in simple
            if term.axes
        ]
        self.closed = [[term for term in placed if max(term.axes) == k] for k in range(len(sizes))]
        self.open = [[term for term in placed if min(term.axes) < k <= max(term.axes)] for k in range(len(sizes) + 1)]
        self.work = 0
        self.choices: dict[tuple[int, Row], list[Row]] = {}
        self.least: list[dict[Row, float]] = [{} for _ in sizes]
        self.ahead: list[dict[Row, float]] = [{} for _ in range(len(sizes) + 1)]
        self.alone: list[dict[Row, float]] = [{} for _ in range(len(sizes) + 1)]
        # By position: the terms over several axes that are not complete before it.
        several = [term for term in placed if len(term.axes) > 1]
        self.several = [[term for term in several if max(term.axes) >= k] for k in range(len(sizes) + 1)]
        self.rest: dict[tuple[int, int, Row | None, Row], float] = {}

    def rows(self, position: int, left: Row) -> list[Row]:
        """The rows that the axis at a position may have when so much of the counts is left."""
        key = position, left
        if key not in self.choices:
            axis = self.order[position]
            self.count(1)
            options: Iterable[Row] = [left] if position == len(self.sizes) - 1 else rows(self.sizes[position], left)
            self.choices[key] = [row for row in options if self.allowed(axis, row)]
            self.count(len(self.choices[key]))
        return self.choices[key]

    def at_least(self, position: int, row: Row) -> float:
        """A lower bound on the terms that are complete with an axis, if it has this row, whatever the others have."""
        known = self.least[position]
        if row not in known:
            least = 0.0
            for term in self.closed[position]:
                size = prod(self.sizes[k] for k in term.axes if k != position)
                options = list(rows(size, _over(self.counts, row)))
                self.count(len(options))
                least += min([term.low(_times(row, others)) for others in options])
            known[row] = least
        return known[row]

    def count(self, work: int) -> None:
        """Give up where there is too much to look at."""
        self.work += work
        if self.work > MAX_WORK:
            raise TooLargeError(
                "there are too many ways to place these axes to find the best; constraints on axes (an axis inside a "
                "level, or a fixed row) make the search smaller"
            )

    def bound(self, position: int, left: Row) -> float:
        """A lower bound on all terms that are complete from a position on; infinite if nothing can be completed."""
        if position == len(self.sizes):
            return 0.0
        known = self.ahead[position]
        if left not in known:
            known[left] = min(
                (
                    self.at_least(position, row) + self.bound(position + 1, _over(left, row))
                    for row in self.rows(position, left)
                ),
                default=inf,
            )
        return known[left]

    def bound_of(self, chosen: Matrix, left: Row) -> float:
        """The better of two lower bounds on all terms that are not complete yet, after some rows.

        One joins all axes, but takes terms over several axes for as small as the last of their rows allows. The other
        knows the rows that such terms have already, but takes each term for itself.
        """
        position = len(chosen)
        joined = self.bound(position, left)
        if joined == inf or not self.several[position]:
            return joined
        apart = self._alone(position, left)
        for number, term in enumerate(self.several[position]):
            known = _product(chosen, term.axes) if min(term.axes) < position else None
            key = position, number, known, left
            if key not in self.rest:
                size = prod(self.sizes[k] for k in term.axes if k >= position)
                options = rows(size, left)
                self.rest[key] = min(term.low(row if known is None else _times(known, row)) for row in options)
            apart += self.rest[key]
        return max(joined, apart)

    def _alone(self, position: int, left: Row) -> float:
        """A lower bound on the terms over one axis from a position on."""
        if position == len(self.sizes):
            return 0.0
        known = self.alone[position]
        if left not in known:
            own = [term for term in self.closed[position] if len(term.axes) == 1]
            known[left] = min(
                (
                    sum([term.low(row) for term in own]) + self._alone(position + 1, _over(left, row))
                    for row in self.rows(position, left)
                ),
                default=inf,
            )
        return known[left]

    def run(self, top: int) -> Found:
        end = len(self.sizes)
        best: list[tuple[float, Matrix]] = []
        complete = expanded = pushed = 0
        visits: dict[object, int] = {}
        # (bound, rows still to choose, number, time so far, exact?, what is left, rows)
        heap: list[tuple[float, int, int, float, bool, Row, Matrix]] = []
        if self.bound(0, self.counts) < inf:
            heap.append((self.bound(0, self.counts), end, 0, 0.0, True, self.counts, ()))
        while heap and len(best) < top:
            _, to_go, number, spent, exact, left, chosen = heappop(heap)
            position = end - to_go
            if not exact:
                spent = self._exactly(spent, chosen)
                ahead = self.bound_of(chosen, left)
                heappush(heap, (_rounded(spent + ahead), to_go, number, spent, True, left, chosen))
                complete += to_go == 0
                continue
            if self.total is None:
                # Of partial placements with the same rest to come, only the first `top` can be among the best.
                state = (position, left, tuple(_product(chosen, term.axes) for term in self.open[position]))
                visits[state] = visits.get(state, 0) + 1
                if visits[state] > top:
                    continue
            if to_go == 0:
                best.append((spent + self.constant, tuple(chosen[self.order.index(a)] for a in range(end))))
                continue
            expanded += 1
            for row in self.rows(position, left):
                rest = _over(left, row)
                so_far = (*chosen, row)
                ahead = self.bound_of(so_far, rest)
                if ahead == inf:
                    continue
                low = spent + sum([term.low(_product(so_far, term.axes)) for term in self.closed[position]])
                pushed += 1
                heappush(heap, (_rounded(low + ahead), to_go - 1, pushed, spent, False, rest, so_far))
            if len(heap) > MAX_NODES:
                raise TooLargeError(
                    f"after {expanded:,} partial placements the best one is still not certain; constraints on the axes "
                    "(an axis inside a level, or a fixed row) make the search smaller"
                )
        return Found(tuple(best), complete, expanded)

    def _exactly(self, spent: float, chosen: Matrix) -> float:
        """The time so far with that of the terms that the last row completes."""
        position = len(chosen) - 1
        if self.total is None:
            return spent + sum([term.exact(_product(chosen, term.axes)) for term in self.closed[position]])
        if len(chosen) == len(self.sizes):
            matrix = tuple(chosen[self.order.index(axis)] for axis in range(len(chosen)))
            return self.total(matrix) - self.constant
        return spent + sum([term.low(_product(chosen, term.axes)) for term in self.closed[position]])


def _smaller(term: Term, every: frozenset[int], counts: Row) -> Term:
    """The same term as a function of the other axes' rows, where those are fewer: they leave what its axes have."""
    others = every - term.axes
    if len(others) >= len(term.axes):
        return term

    def turned(function: Callable[[Row], float]) -> Callable[[Row], float]:
        return lambda row: function(_over(counts, row) if row else counts)

    return Term(others, turned(term.low), turned(term.exact))


def _order(count: int, terms: Sequence[frozenset[int]]) -> tuple[int, ...]:
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
    known: dict[Row, float] = {}

    def look_up(row: Row) -> float:
        if row not in known:
            known[row] = function(row)
        return known[row]

    return look_up


def _over(counts: Row, row: Row) -> Row:
    return tuple([count // factor for count, factor in zip(counts, row, strict=True)])


def _times(a: Row, b: Row) -> Row:
    return tuple([x * y for x, y in zip(a, b, strict=True)])


def _product(chosen: Matrix, axes: frozenset[int]) -> Row:
    """The product of some of the rows, of those that are chosen already."""
    found: Row | None = None
    for position in axes:
        if position < len(chosen):
            found = chosen[position] if found is None else _times(found, chosen[position])
    assert found is not None
    return found


def _rounded(value: float) -> float:
    """To twelve digits: equal sums that were added in another order are equal, and the longer partial goes first."""
    return float(f"{value:.12g}")
