"""The search for the best placements: best first, with bounds, over the rows of the parallelism matrix.

The time of a communication depends on the product of its axes' rows alone (its radices). So a placement's time is a sum
of terms, each a function of a few rows. Rows are chosen axis by axis, and each leaves less of the level counts. From
what is left, a lower bound on all that is still to come is computed backwards, once, as a shortest path: many
placements leave the same. A partial placement is never completed if its time so far plus that bound is no less than the
time of the last candidate.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf, prod

from meshwright.errors import TooLargeError
from meshwright.placement.matrices import Matrix, rows
from meshwright.planning.terms import Row, Term, best_order, over, product, smaller, stages, times

MAX_NODES = 4_000_000
"""More partial placements than this are not kept."""

MAX_WORK = 2_000_000
"""The search and the count of placements give up when they have looked at more rows than this."""


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
                    rest = over(left, row)
                    after[rest] = after.get(rest, 0) + number
        ways = after
    return sum(ways.values())


@dataclass(frozen=True)
class _Partial:
    """A partial placement: the rows chosen so far, what they leave of the counts, and the time of complete terms.

    exact: whether `spent` has the exact time of the terms that the last row completed; if not, it lacks them.
    """

    chosen: Matrix
    left: Row
    spent: float
    exact: bool


class _Search:
    """One search: the axes in the order in which their rows are chosen, the terms, and all bounds found so far."""

    def __init__(
        self,
        sizes: Sequence[int],
        counts: Row,
        allowed: Callable[[int, Row], bool],
        terms: Sequence[Term],
        total: Callable[[Matrix], float] | None,
    ) -> None:
        simple = [smaller(term, frozenset(range(len(sizes))), counts) for term in terms]
        self.order = best_order(len(sizes), [term.axes for term in simple])
        self.sizes = [sizes[axis] for axis in self.order]
        self.counts, self.allowed, self.total = counts, allowed, total
        self.constant = sum(term.exact(()) for term in simple if not term.axes)
        self.stages = stages(self.order, [term for term in simple if term.axes])
        self.work = 0
        self.choices: dict[tuple[int, Row], list[Row]] = {}
        self.rest: dict[tuple[int, int, Row | None, Row], float] = {}

    def rows(self, position: int, left: Row) -> list[Row]:
        """The rows that the axis at a position may have when `left` is left of the counts."""
        key = position, left
        if key not in self.choices:
            axis = self.order[position]
            self.count(1)
            options: Iterable[Row] = [left] if position == len(self.sizes) - 1 else rows(self.sizes[position], left)
            self.choices[key] = [row for row in options if self.allowed(axis, row)]
            self.count(len(self.choices[key]))
        return self.choices[key]

    def count(self, work: int) -> None:
        """Give up where there is too much to look at."""
        self.work += work
        if self.work > MAX_WORK:
            raise TooLargeError(
                "there are too many ways to place these axes to find the best; constraints on axes (an axis inside a "
                "level, or a fixed row) make the search smaller"
            )

    def at_least(self, position: int, row: Row) -> float:
        """A lower bound on the terms that are complete with an axis, if it has this row, whatever the others have."""
        known = self.stages[position].least
        if row not in known:
            least = 0.0
            for term in self.stages[position].closed:
                size = prod(self.sizes[k] for k in term.axes if k != position)
                options = list(rows(size, over(self.counts, row)))
                self.count(len(options))
                least += min([term.low(times(row, others)) for others in options])
            known[row] = least
        return known[row]

    def bound(self, position: int, left: Row) -> float:
        """A lower bound on all terms that are complete from a position on; infinite if nothing can be completed.

        For example, two axes of size 4 on the counts (4, 4). Say that the first takes 8 s with the row (4, 1), 4 s with
        (2, 2) and 1 s with (1, 4), and the second 6 s, 3 s and 1 s. The second has the row that the first leaves, so
        that the bound is the least of 8 + 1, 4 + 3 and 1 + 6: it is 7 s, where each axis for itself would give 2 s.
        """
        if position == len(self.sizes):
            return 0.0
        known = self.stages[position].ahead
        if left not in known:
            known[left] = min(
                (
                    self.at_least(position, row) + self.bound(position + 1, over(left, row))
                    for row in self.rows(position, left)
                ),
                default=inf,
            )
        return known[left]

    def bound_of(self, chosen: Matrix, left: Row) -> float:
        """The better of two lower bounds on all terms that are not complete yet, after some rows.

        For example, axes a, b and c with a term over b and one over a and c, when a has its row. One bound (`bound`)
        chooses rows for b and c that fit together, but takes the term over a and c for as small as any row of a makes
        it. The other knows the row of a, but chooses the best row of c for the one term and the best row of b for the
        other, even if both need the same factors of what is left.
        """
        position = len(chosen)
        joined = self.bound(position, left)
        several = self.stages[position].several
        if joined == inf or not several:
            return joined
        apart = self.bound_alone(position, left)
        for number, term in enumerate(several):
            known = product(chosen, term.axes) if min(term.axes) < position else None
            key = position, number, known, left
            if key not in self.rest:
                size = prod(self.sizes[k] for k in term.axes if k >= position)
                options = rows(size, left)
                self.rest[key] = min(term.low(row if known is None else times(known, row)) for row in options)
            apart += self.rest[key]
        return max(joined, apart)

    def bound_alone(self, position: int, left: Row) -> float:
        """A lower bound on the terms over one axis from a position on."""
        if position == len(self.sizes):
            return 0.0
        known = self.stages[position].alone
        if left not in known:
            own = [term for term in self.stages[position].closed if len(term.axes) == 1]
            known[left] = min(
                (
                    sum([term.low(row) for term in own]) + self.bound_alone(position + 1, over(left, row))
                    for row in self.rows(position, left)
                ),
                default=inf,
            )
        return known[left]

    def run(self, top: int) -> Found:
        """The `top` best matrices, by extending the partial placement that has the least bound, again and again."""
        end = len(self.sizes)
        best: list[tuple[float, Matrix]] = []
        complete = expanded = pushed = 0
        visits: dict[object, int] = {}
        # By bound, then by how many rows are still to choose; the number keeps the order of equal ones.
        heap: list[tuple[float, int, int, _Partial]] = []
        if self.bound(0, self.counts) < inf:
            heap.append((self.bound(0, self.counts), end, 0, _Partial((), self.counts, 0.0, True)))
        while heap and len(best) < top:
            _, to_go, number, partial = heappop(heap)
            if not partial.exact:
                partial = self._exactly(partial)
                ahead = self.bound_of(partial.chosen, partial.left)
                heappush(heap, (_rounded(partial.spent + ahead), to_go, number, partial))
                complete += to_go == 0
                continue
            if self.total is None:
                # Of partial placements that can only be continued in the same ways, the first `top` are the best.
                state = self._state(partial)
                visits[state] = visits.get(state, 0) + 1
                if visits[state] > top:
                    continue
            if to_go == 0:
                best.append((partial.spent + self.constant, self._matrix(partial.chosen)))
                continue
            expanded += 1
            for bound, longer in self._extended(partial):
                pushed += 1
                heappush(heap, (bound, to_go - 1, pushed, longer))
            if len(heap) > MAX_NODES:
                raise TooLargeError(
                    f"after {expanded:,} partial placements the best one is still not certain; constraints on the axes "
                    "(an axis inside a level, or a fixed row) make the search smaller"
                )
        return Found(tuple(best), complete, expanded)

    def _extended(self, partial: _Partial) -> Iterator[tuple[float, _Partial]]:
        """A partial placement with every row that the next axis may have, each with its bound."""
        position = len(partial.chosen)
        closed = self.stages[position].closed
        for row in self.rows(position, partial.left):
            chosen, left = (*partial.chosen, row), over(partial.left, row)
            ahead = self.bound_of(chosen, left)
            if ahead < inf:
                low = partial.spent + sum([term.low(product(chosen, term.axes)) for term in closed])
                yield _rounded(low + ahead), _Partial(chosen, left, partial.spent, False)

    def _state(self, partial: _Partial) -> object:
        """What the ways to continue a partial placement, and their times, depend on."""
        position = len(partial.chosen)
        begun = tuple(product(partial.chosen, term.axes) for term in self.stages[position].open)
        return position, partial.left, begun

    def _exactly(self, partial: _Partial) -> _Partial:
        """With the exact time of the terms that the last row completes."""
        chosen = partial.chosen
        closed = self.stages[len(chosen) - 1].closed
        if self.total is None:
            spent = partial.spent + sum([term.exact(product(chosen, term.axes)) for term in closed])
        elif len(chosen) == len(self.sizes):
            spent = self.total(self._matrix(chosen)) - self.constant
        else:
            spent = partial.spent + sum([term.low(product(chosen, term.axes)) for term in closed])
        return _Partial(chosen, partial.left, spent, True)

    def _matrix(self, chosen: Matrix) -> Matrix:
        """The rows in the order of the axes as they were given."""
        return tuple(chosen[self.order.index(axis)] for axis in range(len(chosen)))


def _rounded(value: float) -> float:
    """To twelve digits: equal sums that were added in another order are equal, and the longer partial goes first."""
    return float(f"{value:.12g}")
