"""The best order of the axes on ring fabrics, where it matters who is a neighbour: a search over orders, with bounds.

A placement has one order of axes for all levels. Only the order of axes that share a ring counts: those that have a
factor on it. So orders are built axis by axis, outermost first, and two beginnings are the same if they leave the same
axes and give every communication the same columns so far. The time of a communication is bounded by its best time over
all ways to complete its columns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from meshwright.language.synthesis import rounded_one
from meshwright.placement.layout import Column, extended
from meshwright.placement.matrices import Matrix

MOST_EXPANDED = 20_000
"""More beginnings of orders than this are not continued."""

Columns = tuple[Column, ...]
"""The columns of one communication, one for each level; on a ring whose axes are not all placed yet, what is known."""


@dataclass(frozen=True)
class Sharing:
    """A communication on a matrix: the rows that it reduces over, and its time, or a bound where columns are open."""

    rows: frozenset[int]
    seconds: Callable[[Columns], float]


@dataclass(frozen=True)
class Order:
    """The rows of a matrix in the best order that was found, its time, and a time that no order is faster than.

    rows: none where every order takes longer than was asked for; `seconds` is a bound then.
    """

    rows: tuple[int, ...]
    seconds: float
    least: float

    @property
    def proven(self) -> bool:
        """Whether no other order is faster."""
        return self.least >= self.seconds


@dataclass(frozen=True)
class _Beginning:
    """The first axes of an order, those that are left, and what is known of the columns of each communication."""

    chosen: tuple[int, ...]
    left: tuple[int, ...]
    columns: tuple[Columns, ...]


def best_order(matrix: Matrix, rings: Sequence[bool], what: Sequence[Sharing], longest: float = inf) -> Order:
    """The order of a matrix's rows in which the communications take the least time; `rings` tells the ring levels.

    Rows that share no ring with another one stay where they are. The search ends when it is certain that every order
    takes longer than `longest`.
    """
    search = _Orders(matrix, rings, what)
    found, least = search.run(longest)
    if found is None:
        return Order((), least, least)
    moved = iter(found.chosen)
    rows = tuple(next(moved) if row in search.shared else row for row in range(len(matrix)))
    return Order(rows, search.seconds(found), least)


class _Orders:
    """One search, best first."""

    def __init__(self, matrix: Matrix, rings: Sequence[bool], what: Sequence[Sharing]) -> None:
        self.what = what
        self.factors = [tuple(f if ring else 1 for f, ring in zip(row, rings, strict=True)) for row in matrix]
        crowded = [sum(factor > 1 for factor in column) > 1 for column in zip(*self.factors, strict=True)]
        self.shared = [
            row
            for row, factors in enumerate(self.factors)
            if any(factor > 1 and several for factor, several in zip(factors, crowded, strict=True))
        ]
        # Rows of the same kind can change places.
        self.kinds = [(factors, tuple(row in one.rows for one in what)) for row, factors in enumerate(self.factors)]

    def begin(self) -> _Beginning:
        """With the rows that have their rings to themselves."""
        empty = _Beginning((), tuple(self.shared), (((),) * len(self.factors[0]),) * len(self.what))
        for row in range(len(self.factors)):
            if row not in self.shared:
                empty = _Beginning((), empty.left, self.columns(empty, row))
        return empty

    def columns(self, beginning: _Beginning, row: int) -> tuple[Columns, ...]:
        """The columns with one row more."""
        factors = self.factors[row]
        return tuple(
            tuple(extended(column, factor, row in one.rows) for column, factor in zip(columns, factors, strict=True))
            for one, columns in zip(self.what, beginning.columns, strict=True)
        )

    def seconds(self, beginning: _Beginning) -> float:
        """The time of a whole order; of a beginning, a bound on those of all that begin so."""
        return sum([one.seconds(columns) for one, columns in zip(self.what, beginning.columns, strict=True)])

    def longer(self, beginning: _Beginning) -> list[_Beginning]:
        """A beginning with each of the rows that are left, one of each kind."""
        firsts = {self.kinds[row]: row for row in reversed(beginning.left)}
        return [
            _Beginning(
                (*beginning.chosen, row),
                tuple(other for other in beginning.left if other != row),
                self.columns(beginning, row),
            )
            for row in sorted(firsts.values())
        ]

    def run(self, longest: float) -> tuple[_Beginning | None, float]:
        """The best order, and a time that none is faster than: its own, unless the search was cut short."""
        start = self.begin()
        heap = [(self.seconds(start), len(start.left), 0, start)]
        seen, pushed, expanded = set(), 0, 0
        while True:
            least, _, _, beginning = heappop(heap)
            if not beginning.left:
                return beginning, self.seconds(beginning)
            if least > longest * (1 + 1e-9):  # more than by rounding
                return None, least
            if expanded == MOST_EXPANDED:
                return self._finished(beginning), least
            expanded += 1
            for one in self.longer(beginning):
                state = tuple(sorted(self.kinds[row] for row in one.left)), one.columns
                if state not in seen:
                    seen.add(state)
                    pushed += 1
                    heappush(heap, (rounded_one(self.seconds(one)), len(one.left), pushed, one))

    def _finished(self, beginning: _Beginning) -> _Beginning:
        """An order that begins so, by taking the best next row each time."""
        while beginning.left:
            beginning = min(self.longer(beginning), key=self.seconds)
        return beginning
