"""The search for the best placements: best first, with bounds, over the rows of the parallelism matrix.

The time of a communication depends on the product of its axes' rows alone (its radices). So a placement's time is a sum
of terms, each a function of a few rows. Rows are chosen axis by axis, and each leaves less of the level counts. From
what is left, a lower bound on all that is still to come is computed backwards, once, as a shortest path: many
placements leave the same. A partial placement is never completed if its time so far plus that bound is no less than the
time of the last candidate. Where that takes long, because many placements are nearly as fast, `sweep` goes on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import inf, prod

from meshwright.errors import TooLargeError
from meshwright.language.synthesis import rounded_one
from meshwright.placement.matrices import Matrix, rows
from meshwright.planning.sweep import Sweep
from meshwright.planning.terms import (
    MAX_WORK,
    REPORTED,
    Found,
    Problem,
    Row,
    added,
    over,
    product,
    times,
    too_many_ways,
)

MAX_NODES = 1_000_000
"""More partial placements than this are not kept."""

PATIENCE = 2_000
"""When more partial placements than this were looked at, a sweep over all placements goes on."""

MAX_LOOKED = 100_000
"""Bounds that are minima over more products of rows than this, all together, are not computed."""


def search(problem: Problem) -> Found:
    """The `top` matrices with the least sums of terms; of equal ones, the first in the order of their rows."""
    *_, found = searching(problem)
    return found


def searching(problem: Problem) -> Iterator[Found]:
    """What is found so far, now and then; the last of all is proven."""
    first, sweep = _BestFirst(problem), Sweep(problem)
    try:
        for found in first.run():
            yield found
            if not found.proven and first.pushed > PATIENCE and sweep.fits():
                break
        else:
            return
    except TooLargeError:
        if not sweep.fits():
            raise
    for found in sweep.run():
        # What was known before counts until something better is.
        best, least = found.best or first.some, max(found.at_least, first.at_least)
        timed = max(found.complete, len(best))
        yield found if found.proven else replace(found, best=best, at_least=least, complete=timed)


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


@dataclass(frozen=True, slots=True)
class _Partial:
    """A partial placement: the rows chosen so far, what they leave of the counts, and the time of complete terms.

    exact: whether `spent` has the exact time of the terms that the last row completed; if not, it lacks them.
    """

    chosen: Matrix
    left: Row
    spent: float
    exact: bool


Node = tuple[float, tuple[int, ...], _Partial]
"""A partial placement behind its bound and the numbers of its rows: of equal bounds, the first in their order is less.

A partial placement comes before all that continue it. So of complete ones that are equally fast, the first in the order
of the rows is found first, whatever the bounds were on the way.
"""


class _BestFirst:
    """One search, and all bounds found so far."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.sizes, self.stages, self.rows = problem.sizes, problem.stages, problem.rows
        self.rest: dict[tuple[int, int, Row | None, Row], float] = {}
        self.best: list[tuple[float, Matrix]] = []
        self.some: tuple[tuple[float, Matrix], ...] = ()  # the best, or what was completed before that is known
        self.at_least = 0.0
        self.complete = self.expanded = self.pushed = self.looked = 0
        self.heap: list[Node] = []

    def least(self, position: int, row: Row) -> float:
        """A lower bound on the terms that are complete with an axis, if it has this row, whatever the others have."""
        known = self.stages[position].least
        if row not in known:
            least = 0.0
            for term in self.stages[position].closed:
                size = prod(self.sizes[k] for k in term.axes if k != position)
                options = list(rows(size, over(self.problem.counts, row)))
                self.looked += len(options)
                if self.looked > MAX_LOOKED:
                    raise too_many_ways()
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
                    self.least(position, row) + self.bound(position + 1, over(left, row))
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

    def run(self) -> Iterator[Found]:
        """Extend the partial placement that has the least bound, again and again; end early where a sweep goes on."""
        problem, end, heap = self.problem, len(self.sizes), self.heap
        visits: dict[object, int] = {}
        if self.bound(0, problem.counts) < inf:
            heap.append((self.bound(0, problem.counts), (), _Partial((), problem.counts, 0.0, True)))
        while heap and len(self.best) < problem.top:
            _, path, partial = heappop(heap)
            if not partial.exact:
                spent = problem.exactly(partial.chosen, partial.spent)
                partial = _Partial(partial.chosen, partial.left, spent, True)
                heappush(heap, (rounded_one(spent + self.bound_of(partial.chosen, partial.left)), path, partial))
                self.complete += len(path) == end
                continue
            if problem.total is None:
                # Of partial placements that can only be continued in the same ways, the first `top` are the best.
                state = self._state(partial)
                visits[state] = visits.get(state, 0) + 1
                if visits[state] > problem.top:
                    continue
            if len(path) == end:
                self.best.append((partial.spent + problem.constant, problem.matrix(partial.chosen)))
                continue
            self.expanded += 1
            for node in self._extended(path, partial):
                self.pushed += 1
                heappush(heap, node)
            if heap and self.expanded % REPORTED == 0:
                yield self._found(False)
            if len(heap) > MAX_NODES:
                raise TooLargeError(
                    f"after {self.expanded:,} partial placements the best one is still not certain; constraints on the "
                    "axes (an axis inside a level, or a fixed row) make the search smaller"
                )
        yield self._found(True)

    def _found(self, proven: bool) -> Found:
        constant = self.problem.constant
        if not self.best and not self.some and self.heap:
            self.some = (self._completed(*self.heap[0]),)
        self.some = tuple(self.best) or self.some
        self.at_least = self.best[0][0] if self.best else self.heap[0][0] + constant if self.heap else inf
        return Found(self.some, max(self.complete, len(self.some)), self.expanded, self.at_least, proven)

    def _completed(self, _bound: float, path: tuple[int, ...], partial: _Partial) -> tuple[float, Matrix]:
        """A partial placement with the row of the least bound, again and again, and its time."""
        while len(partial.chosen) < len(self.sizes):
            _, path, partial = min(self._extended(path, partial))
        return self.problem.seconds(partial.chosen) + self.problem.constant, self.problem.matrix(partial.chosen)

    def _extended(self, path: tuple[int, ...], partial: _Partial) -> Iterator[Node]:
        """A partial placement with every row that the next axis may have."""
        position = len(path)
        closed = self.stages[position].closed
        for number, row in enumerate(self.rows(position, partial.left)):
            chosen, left = (*partial.chosen, row), over(partial.left, row)
            ahead = self.bound_of(chosen, left)
            if ahead < inf:
                low = partial.spent + added([term.low(product(chosen, term.axes)) for term in closed])
                yield rounded_one(low + ahead), (*path, number), _Partial(chosen, left, partial.spent, False)

    def _state(self, partial: _Partial) -> object:
        """What the ways to continue a partial placement, and their times, depend on."""
        position = len(partial.chosen)
        begun = tuple(product(partial.chosen, term.axes) for term in self.stages[position].open)
        return position, partial.left, begun
