"""The sweep: the bounds of all placements are added up in arrays, and replaced by times where they decide.

Some workloads have a hundred thousand placements that are nearly as fast as the best, but few layouts. Then it takes
less time to look at every placement than to choose among partial ones. Each term has a table with an entry for every
product of rows: at first the lower bound, later the time. The sum of a placement's entries is a lower bound on its
time, and the time itself when all entries are times.

A sweep adds up all placements, one branch after the other, and keeps those with the least sums. A branch is the
placements that begin with the same rows. The first of those kept that has a bound among its entries gets the time
instead, which makes its sum larger, and those of many others; and so on, until the first `top` have nothing but times.
If their sums are no larger than those that the sweep did not keep, they are the best of all. If not, there is another
sweep, with all times that are known by now.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from meshwright.language.synthesis import KEPT_BITS, rounded
from meshwright.placement.matrices import Matrix, rows
from meshwright.planning.terms import REPORTED, Found, Problem, Row, over
from meshwright.planning.ways import Codes, Ways, later

MAX_PLACEMENTS = 200_000_000
"""Sweeps over more placements than this would take minutes."""

MAX_ENTRIES = 2**24
"""The tables of all terms have at most this many entries together."""

MOST_IN_BRANCH = 2**18
"""The most placements in one branch."""

KEPT = 2**17
"""How many placements a sweep keeps; at least twice as many as are asked for."""

FRONT = 1024
"""Of those, how many are added up again after each change; at least twice as many as are asked for."""

SLACK = 1 + 2.0 ** (2 - KEPT_BITS)
"""Sums within this factor may be equal when they are rounded."""

Times = NDArray[np.float64]
Numbers = NDArray[np.int64]

Place = tuple[float, int]
"""Where a placement stands among the others: its sum, and its key."""


@dataclass(frozen=True)
class _Pool:
    """Some placements in the order of their rows: their sums, their keys, and for each term the codes of its products.

    A key has the number of the branch, times 2^32, and the placement's number in the branch.
    """

    sums: Times
    keys: Numbers
    codes: Codes

    def first(self, count: int, beyond: Place) -> "tuple[_Pool, Place]":
        """The `count` placements with the least sums, and a place: no other placement comes before it.

        `beyond` is such a place for the placements that are not in this pool.
        """
        if len(self.sums) <= count:
            return self, beyond
        last = np.partition(self.sums, count - 1)[count - 1]
        which = self.sums < last
        equal = np.nonzero(self.sums == last)[0][: count - np.count_nonzero(which)]
        which[equal] = True
        found = _Pool(self.sums[which], self.keys[which], self.codes[:, which])
        return found, min(beyond, (float(last), int(self.keys[equal[-1]])))


class Sweep:
    """One search."""

    def __init__(self, problem: Problem) -> None:
        """`fits` says whether the search can be run."""
        self.problem, self.end, self.top = problem, len(problem.sizes), problem.top
        self.terms = [term for stage in problem.stages for term in stage.closed]
        self.positions = [sum(1 << k for k in term.axes) for term in self.terms]
        self.ways = Ways(problem, self.positions)
        self.tables: list[Times] = []
        self.known: list[NDArray[np.bool_]] = []
        self.products: list[dict[int, Row]] = []
        self.branches: list[tuple[Matrix, Row]] = []
        self._none = _Pool(np.zeros(0), np.zeros(0, np.int64), np.zeros((len(self.terms), 0), np.int32))
        self.pool = self.front = self._none
        self.beyond: Place = (inf, 0)
        self.timed: dict[int, float] = {}
        self.at_least, self.enough, self.proven = 0.0, inf, False

    def fits(self) -> bool:
        """Whether there are few enough placements and products of rows."""
        if self.ways.space * len(self.terms) > MAX_ENTRIES:
            return False
        if self.problem.placements is None:
            self.problem.placements = self.ways.number(0, self.problem.counts)
        return self.problem.placements <= MAX_PLACEMENTS

    def run(self) -> Iterator[Found]:
        """Sweep and refine until the best are proven."""
        self._prepare()
        while not self.proven:
            for work in (self._sweep, self._refine):
                for _ in work():
                    yield self._found()
        yield self._found()

    def _found(self) -> Found:
        """What is found so far: of the placements at the front, those that have nothing but times."""
        known = np.nonzero(self._are_known(self.front))[0]
        first = known[np.argsort(self.front.sums[known], kind="stable")[: self.top]]
        keys = self.front.keys[first].tolist()
        best = [(self._seconds(key) + self.problem.constant, self.problem.matrix(self._chosen(key))) for key in keys]
        at_least = best[0][0] if self.proven and best else self.at_least + self.problem.constant
        return Found(tuple(best), len(self.timed), 0, at_least, self.proven)

    def _prepare(self) -> None:
        """Fill the tables with bounds, and choose how many rows the placements of a branch have in common."""
        problem = self.problem
        for term in self.terms:
            size = prod(problem.sizes[k] for k in term.axes)
            products = {self.ways.code(row): row for row in rows(size, problem.counts)}
            table = np.full(self.ways.space, inf)
            table[list(products)] = [term.low(row) for row in products.values()]
            self.tables.append(table)
            self.known.append(np.full(self.ways.space, problem.total is not None))
            self.products.append(products)
        begun: list[tuple[Matrix, Row]] = [((), problem.counts)]
        while max([self.ways.number(len(chosen), left) for chosen, left in begun], default=0) > MOST_IN_BRANCH:
            begun = [
                ((*chosen, row), over(left, row))
                for chosen, left in begun
                for row in problem.rows(len(chosen), left)
                if self.ways.number(len(chosen) + 1, over(left, row))
            ]
        self.branches, self.floors = begun, np.zeros(len(begun))
        self.ways.keep(len(begun[0][0]) if begun else 0, {left for _, left in begun})

    def _sweep(self) -> Iterator[None]:
        """Keep the placements with the least sums, of all branches that may have one of the best."""
        most = max(KEPT, 2 * self.top)
        pieces, pending, self.beyond = [self._none], 0, (inf, 0)
        for done, (number, codes) in enumerate(self._visited(), 1):
            starts, besides = self._codes(number, codes)
            sums = self._sums(len(codes[0]), [self.tables[k][start:] for k, start in enumerate(starts)], besides)
            self.floors[number] = sums.min(initial=inf)
            which = np.nonzero(sums <= min(self.beyond[0], self.enough) * SLACK)[0]
            if len(which):
                chosen = [start + each[which] for start, each in zip(starts, besides, strict=True)]
                table = np.array(chosen, np.int32).reshape(len(chosen), len(which))
                pieces.append(_Pool(sums[which], which + (number << 32), table))
                pending += len(which)
            if pending > most:
                self.pool, self.beyond = self._added_up(_joined(pieces)).first(most, self.beyond)
                pieces, pending = [self.pool], 0
            if done % REPORTED == 0:
                yield
        self.pool, self.beyond = self._added_up(_joined(pieces)).first(most, self.beyond)

    def _visited(self) -> Iterator[tuple[int, dict[int, Codes]]]:
        """The numbers of the branches that may have one of the best, each with the codes of the ways to complete it.

        Branches that leave the same of the counts are completed in the same ways, so they come after one another. Those
        with the least sums come first, because all others are compared with these.
        """
        alike: dict[Row, list[int]] = {}
        many = np.count_nonzero(self.floors <= self.enough * SLACK)
        for number in np.argsort(self.floors, kind="stable")[:many].tolist():
            alike.setdefault(self.branches[number][1], []).append(number)
        for left, numbers in alike.items():
            codes = self.ways.codes(len(self.branches[0][0]), left)
            for number in numbers:
                yield number, codes

    def _refine(self) -> Iterator[None]:
        """Replace bounds by times until the first placements have nothing else, or until others may be before them."""
        while True:
            self.pool = self._added_up(self.pool)
            self.front, beyond = self.pool.first(max(FRONT, 2 * self.top), self.beyond)
            changes = 0
            while True:
                sums, keys = self.front.sums, self.front.keys
                order = np.argsort(sums, kind="stable")[: self.top]
                bounded = order[~self._are_known(self.front)[order]]
                if not len(order):
                    self.proven = True
                    return
                self.at_least = max(self.at_least, min(float(sums[order[0]]), beyond[0]))
                last = bounded[0] if len(bounded) else order[-1]
                if (float(sums[last]), int(keys[last])) > beyond:
                    break
                if not len(bounded):
                    self.proven = True
                    return
                self._time(int(last))
                self.front = self._added_up(self.front)
                changes += 1
                if changes % REPORTED == 0:
                    yield
            if not changes:  # what the sweep did not keep may be before them
                known = self.pool.sums[self._are_known(self.pool)]
                if len(known) >= self.top:
                    self.enough = float(np.partition(known, self.top - 1)[self.top - 1])
                return

    def _time(self, at: int) -> None:
        """Time a placement at the front; of its terms, only the one whose bound is largest."""
        key = int(self.front.keys[at])
        if self.problem.total is not None:
            self.timed[key] = self._seconds(key)
            return
        codes = [int(code) for code in self.front.codes[:, at]]
        bounds = [(self.tables[k][code], k) for k, code in enumerate(codes) if not self.known[k][code]]
        _, number = max(bounds)
        code = codes[number]
        self.tables[number][code] = self.terms[number].exact(self.products[number][code])
        self.known[number][code] = True
        if len(bounds) == 1:
            self.timed[key] = self._seconds(key)

    def _seconds(self, key: int) -> float:
        """The time of a placement, without the constant."""
        if key not in self.timed:
            self.timed[key] = self.problem.seconds(self._chosen(key))
        return self.timed[key]

    def _chosen(self, key: int) -> Matrix:
        """The rows of a placement."""
        return self.ways.chosen(*self.branches[key >> 32], key & (1 << 32) - 1)

    def _codes(self, number: int, codes: dict[int, Codes]) -> tuple[list[int], list[Codes]]:
        """For each term the code of what its axes have in all placements of a branch, and the codes of what they have
        besides in each.
        """
        chosen, _ = self.branches[number]
        begun, depth = [self.ways.code(row) for row in chosen], len(chosen)
        starts = [sum([begun[k] for k in term.axes if k < depth]) for term in self.terms]
        return starts, [codes[later(positions, depth)] for positions in self.positions]

    def _sums(self, many: int, tables: Sequence[Times], codes: Sequence[Codes]) -> Times:
        """The sums of the terms' entries for `many` placements, added in the order of the search that is best first."""
        spent, number = np.zeros(many), 0
        for stage in self.problem.stages:
            closed = np.zeros(1)
            for _ in stage.closed:
                closed = closed + tables[number].take(codes[number])
                number += 1
            spent += closed
        return spent

    def _added_up(self, pool: _Pool) -> _Pool:
        """The placements with their sums as the tables are now; the time itself where it is known of the whole."""
        sums = rounded(self._sums(len(pool.keys), self.tables, list(pool.codes)))
        if self.problem.total is not None:
            times = self._times(pool.keys)
            sums = np.where(np.isnan(times), sums, rounded(times))
        return _Pool(sums, pool.keys, pool.codes)

    def _times(self, keys: Numbers) -> Times:
        """The times of whole placements, where they are known; elsewhere not a number."""
        if not self.timed:
            return np.full(len(keys), np.nan)
        known = np.fromiter(self.timed, np.int64)
        order = np.argsort(known)
        at = order[np.minimum(np.searchsorted(known, keys, sorter=order), len(known) - 1)]
        return np.where(known[at] == keys, np.fromiter(self.timed.values(), np.float64)[at], np.nan)

    def _are_known(self, pool: _Pool) -> NDArray[np.bool_]:
        """Which placements have nothing but times."""
        if self.problem.total is not None:
            return ~np.isnan(self._times(pool.keys))
        found = np.full(len(pool.keys), True)
        for known, codes in zip(self.known, pool.codes, strict=True):
            found &= known.take(codes)
        return found


def _joined(pools: Sequence[_Pool]) -> _Pool:
    """The placements of several pools, in the order of their rows."""
    keys = np.concatenate([pool.keys for pool in pools])
    order = np.argsort(keys)
    codes = np.concatenate([pool.codes for pool in pools], axis=1)
    return _Pool(np.concatenate([pool.sums for pool in pools])[order], keys[order], codes[:, order])
