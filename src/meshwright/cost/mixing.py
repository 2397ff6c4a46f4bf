"""Mixes: chunks that take different programs, so that links and steps which one program leaves idle have work.

In `n` chunks a mix takes its longest first chunk and n - 1 periods. If the program p takes the share x(p) of the
chunks, a period is the longest of the busiest level's load, which all programs add to by their shares, and of x(p)
times the slowest step of p, for each p: a step takes one chunk after the other, but those of different programs run at
once.

The best shares are a linear program. It has a row for each level, and one for each program that has a share. There are
too many programs to list them in it, so it begins with one; with the weights that the linear program gives the levels,
the cheapest program that it does not have yet is the one that helps most; and so on until none helps: column
generation. A program without a share needs no row, so the cheapest ones are shortest paths, as without these rows.

For example, one program keeps the level node busy for 10 ms and the level gpu for 2 ms; all weight is on node then.
With these weights a program of 4 ms and 8 ms is the cheapest, so it helps: if it takes 2/3 of the chunks and the first
1/3, both levels are busy for 6 ms. The weights are then 3/5 and 2/5, and if no program costs less than 6 ms with these,
no mix of any programs takes less. But if a step of the second program takes 14 ms, 2/3 of the chunks take 9.3 ms there:
with 1/2 of them all take 7 ms.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import inf

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.games import balanced_shares
from meshwright.cost.pipeline import NEVER, Pipeline
from meshwright.language.program import Pipelined, Program
from meshwright.language.synthesis import ProgramGraph

MOST_ROUNDS = 50
"""How often programs are added to a linear program, at most."""

NEAR = 1e-3
"""No more programs are added to a linear program when its bound is within this share of what they reach."""

ADDED = 4
"""How many programs are added to a linear program at once, at most."""

MOST_MIXED = 6
"""How many programs a mix has at most: each needs groups and buffers of its own."""

Values = NDArray[np.float64]
Shares = dict[Program, float]


@dataclass(frozen=True)
class Balanced:
    """What programs reach together: their time, the weights of the levels and of the programs, and the shares."""

    seconds: float
    levels: Values
    programs: Values
    shares: Values


class Mixes:
    """The mixes of a graph's programs in one number of chunks.

    prices: what every edge of the graph costs, given the weight of the first chunk and those of the levels.
    """

    def __init__(
        self, pipeline: Pipeline, graph: ProgramGraph, chunks: int, prices: Callable[[Values], Values]
    ) -> None:
        self.pipeline, self.graph, self.chunks, self.prices = pipeline, graph, chunks, prices
        self.programs: list[Program] = []
        self.owners: list[int] = []  # of each column, the number of its program
        self.columns: list[Values] = []

    def balance(self, weights: Values, limit: float) -> tuple[float, list[Shares]]:
        """Below which time no mix comes, or `limit`; and shares in which programs balance levels and steps best.

        weights: those of the levels to begin with. The linear program counts the mean of the first chunks, but the
        longest one counts. So if the other chunks of any mix take at least some time, mixes that take less than `limit`
        have no program whose first chunk takes longer than the rest of it, and these programs are left out.
        """
        least, with_first = self._generate(Balanced(inf, weights, np.zeros(0), np.zeros(0)), limit)
        if least >= limit:
            return least, []
        others, without = self._generate(with_first, inf, counted=0.0)
        better, short = self._generate(with_first, limit, longest=limit - others)
        if better >= limit:
            return limit, []
        return max(least, better), [self._shares(found.shares) for found in (short, without)]

    def _shares(self, columns: Values) -> Shares:
        """The programs with the largest shares, given the share of each column."""
        shares = dict.fromkeys(self.programs, 0.0)
        for owner, share in zip(self.owners, columns, strict=False):
            shares[self.programs[owner]] += share
        largest = [share for share in sorted(shares.items(), key=lambda share: -share[1]) if share[1] > 1e-9]
        total = sum(share for _, share in largest[:MOST_MIXED])
        return {program: share / total for program, share in largest[:MOST_MIXED]}

    def _generate(
        self, found: Balanced, limit: float, counted: float = 1.0, longest: float = inf
    ) -> tuple[float, Balanced]:
        """Column generation, from some weights on, until it is known that nothing takes less than `limit`.

        counted: the weight of the first chunk. longest: programs with a longer first chunk are left out.
        """
        least, found = 0.0, replace(found, seconds=inf)
        for _ in range(MOST_ROUNDS):
            cost, more = self._cheapest(found, counted, longest)
            least = max(least, cost)
            if not more or least >= min(limit, (1 - NEAR) * found.seconds):
                break
            for owner, column in more:
                self.owners.append(owner)
                self.columns.append(column)
            columns, owners = np.array(self.columns), np.array(self.owners)
            short = columns[:, 0] <= longest
            columns[:, 0] *= counted
            found = balanced(columns[short], owners[short], len(self.programs))
            shares = np.zeros(len(columns))
            shares[short] = found.shares
            found = replace(found, shares=shares)
        return least, found

    def _cheapest(self, found: Balanced, counted: float, longest: float) -> tuple[float, list[tuple[int, Values]]]:
        """The cost of the cheapest program, and programs that help: their numbers, and what they take."""
        weights = np.concatenate([[counted, 0.0], found.levels])
        costs: list[float] = []
        helpful: list[tuple[int, Values]] = []
        known = list(self.programs)
        for number, program in enumerate(known):
            weights[1] = found.programs[number] if number < len(found.programs) else 0.0
            cost, column = self._priced(program, weights, longest)
            costs.append(cost)
            helpful += [(number, column)] if cost < (1 - NEAR) * found.seconds else []
        weights[1] = 0.0
        for looked_at, (cost, program) in enumerate(self.graph.ranked_by(self.prices(np.delete(weights, 1)))):
            if cost >= min(found.seconds, NEVER) or len(helpful) >= ADDED or looked_at >= MOST_ROUNDS:
                costs.append(cost)
                break
            if program not in known:
                exact, column = self._priced(program, weights, longest)
                costs.append(exact)
                if exact < NEVER:
                    helpful.append((len(self.programs), column))
                    self.programs.append(program)
        return min(costs), helpful

    def _priced(self, program: Program, weights: Values, longest: float) -> tuple[float, Values]:
        """The least cost of a program, given the weights of its first chunk, its slowest step and the levels, and what
        it takes then; never, where its first chunk takes too long."""
        table: Values = self.pipeline.chosen(program, (self.chunks,)).table[0].copy()
        table[:, 1:] *= self.chunks - 1
        costs = np.where(table[:, 0] > longest, NEVER, table @ weights)
        return float(costs.min()), table[costs.argmin()]

    def in_chunks(self, shares: Shares) -> tuple[float, Pipelined]:
        """The shares in whole chunks: rounded, and then chunks move to where they help most, one at a time.

        Where no single chunk helps, two may, or four, as the programs choose other algorithms then. For example, two
        programs took 2.15 s with 8 of 16 chunks each, not less with 9 and 7, and 1.94 s with 13 and 3.
        """
        programs, counts = list(shares), _rounded(np.array(list(shares.values())), self.chunks)
        best, many = self._timed(programs, counts), 1
        while many < self.chunks and len(programs) > 1:
            moves = [
                [count - many * (k == i) + many * (k == j) for k, count in enumerate(counts)]
                for i, j in permutations(range(len(counts)), 2)
                if counts[i] >= many
            ]
            timed = [(self._timed(programs, move), move) for move in moves]
            after, moved = min(timed, key=lambda one: one[0][0], default=(best, counts))
            if after[0] < best[0]:
                counts, best, many = moved, after, 1
            else:
                many *= 2
        return best

    def _timed(self, programs: Sequence[Program], counts: Sequence[int]) -> tuple[float, Pipelined]:
        """The time of the programs, each with a number of chunks; those with none are left out."""
        shares = sorted(zip(programs, counts, strict=True), key=lambda share: -share[1])
        pipelined = Pipelined(tuple(share for share in shares if share[1]))
        return self.pipeline.seconds(pipelined), pipelined


def balanced(columns: Values, owners: NDArray[np.int64], programs: int) -> Balanced:
    """The linear program.

    Each column is a program with a choice of algorithms: the seconds of its first chunk, those of its slowest step, and
    those that it keeps each level busy for. owners: the number of each column's program; programs: how many there are.
    The time is the mean first chunk, and the busiest level or program.
    """
    many, width = len(columns), columns.shape[1] - 2
    slowest = np.zeros((programs, many))
    slowest[owners, np.arange(many)] = columns[:, 1]
    busy = np.vstack([columns[:, 2:].T, slowest])
    seconds, weights, shares = balanced_shares(columns[:, 0] + busy)
    return Balanced(seconds, weights[:width], weights[width:], shares)


def _rounded(shares: Values, chunks: int) -> list[int]:
    """Whole numbers of chunks nearest to some shares, which add up to one: of 8 chunks, 1/3 and 2/3 are 3 and 5.

    Every share is rounded down; the chunks that are left go to those that lost most.
    """
    exact = shares * chunks
    counts = [int(value) for value in np.floor(exact + 1e-9)]
    order = sorted(range(len(counts)), key=lambda k: counts[k] - exact[k])
    for k in order[: chunks - sum(counts)]:
        counts[k] += 1
    return counts
