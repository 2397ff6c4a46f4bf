"""The search for programs in chunks: a lower bound from a linear program, a walk in its order, and mixes of programs.

In `n` chunks, a program takes the time of its first chunk and n - 1 periods, and a period is at least the busiest
level's load. So it takes at least its first chunk and n - 1 times the weighted mean of the levels' loads, for any
weights. This is a sum over the steps: the program with the least bound is a shortest path, and `ranked` gives all
programs in the order of their bounds. The same holds for chunks that take different programs.

Which weights make the bound highest is a linear program, and its dual says in which shares programs balance the levels
best. There are too many programs to list them in it. So it begins with one; with the weights that the linear program
gives, a shortest path finds the program that helps most; and so on until none helps: column generation.

For example, one program keeps the level node busy for 10 ms and the level gpu for 2 ms; its bound is 10 ms, with all
weight on node. With these weights a program of 4 ms and 8 ms has the least bound, so it helps: if it takes 2/3 of the
chunks and the first 1/3, both levels are busy for 6 ms. The weights are then (3/5, 2/5), and if no program has a bound
below 6 ms with these, no mix of any programs takes less.
"""

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, permutations
from math import inf

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.contention import step_family, step_kind
from meshwright.cost.pipeline import NEVER, Pipeline, fewest
from meshwright.language.program import Pipelined, Program
from meshwright.language.synthesis import ProgramGraph

WORTH = 0.03
"""A mix of programs is kept only if it gains this share of the time."""

GAINED = 0.05
"""A payload is cut into chunks only if that gains this share of the time of the best program without chunks."""

MOST_WALKED = 3_000
"""How many programs a search looks at, at most."""

LANES = 3
"""How many of the best programs a mix may draw on beside those that balance the levels best: a step takes one chunk at
a time, so two programs of few messages may be faster together than one, although they load the levels no better."""

MOST_COLUMNS = 50
"""How many programs the linear program may have."""

CLOSE = 1e-4
"""No more programs are added to the linear program when its bound is within this share of what they reach."""

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Searched:
    """The best programs with their numbers of chunks, the fastest first.

    least: no program in any of the numbers of chunks, and no mix of programs, takes fewer seconds. gap: by which share
    a program that was not looked at might be faster; 0 where the search ended with a proof.
    """

    programs: tuple[Pipelined, ...]
    least: float
    gap: float = 0.0


def search(pipeline: Pipeline, graph: ProgramGraph, top: int = 1) -> Searched:
    """The best programs with their numbers of chunks, the best mix among them."""
    first = next(graph.programs(), None)
    if first is None or not first.steps or len(pipeline.counts) == 1:
        families, index = graph.kinds(step_family)
        prices = np.array(pipeline.model.all_seconds(families))
        plain = list(islice(graph.ranked_by(prices[index]), top))
        least = plain[0][0] if plain else 0.0
        return Searched(tuple(Pipelined.of(program) for _, program in plain), least)
    bounds = Bounds(pipeline, graph)
    plain = list(islice(graph.ranked_by(bounds.whole), top))
    whole, best_whole = plain[0][0], Pipelined.of(plain[0][1])
    # A single winner in chunks has to gain something over the best program without chunks.
    enough = (1 - GAINED) * whole if top == 1 else inf
    found = {program: pipeline.best(program) for program in [*bounds.programs, *(program for _, program in plain)]}
    times = sorted(seconds for seconds, _ in found.values())
    left = inf
    for least, program in bounds.ranked(min([enough, *times[top - 1 : top]])):
        if least >= min([enough, *times[top - 1 : top]]):
            break
        if len(found) >= MOST_WALKED:
            left = least
            break
        if program not in found:
            found[program] = pipeline.best(program)
            insort(times, found[program][0])
    ordered = sorted(found.values(), key=lambda each: (each[0], each[1].chunks, len(each[1].program.steps)))
    best = [one for _, one in ordered[:top]]
    mixed = bounds.mix((1 - WORTH) * ordered[0][0], [one.program for _, one in ordered[:LANES]])
    best = [mixed, *best][:top] if mixed is not None else best
    if best[0].chunks > 1 and pipeline.seconds(best[0]) > (1 - GAINED) * whole:
        best = [best_whole, *(one for one in best if one != best_whole)][:top]
    return Searched(tuple(best), min(bounds.least, whole), max(0.0, pipeline.seconds(best[0]) / left - 1))


def least_seconds(pipeline: Pipeline, graph: ProgramGraph) -> float:
    """No program in any of the numbers of chunks, and no mix of programs, takes fewer seconds: `Searched.least`."""
    whole = graph.least(step_family, pipeline.model.all_seconds)
    return min(whole, Bounds(pipeline, graph).least) if 0 < whole < inf and len(pipeline.counts) > 1 else whole


class Bounds:
    """Lower bounds on the time of all programs of a graph in two or more chunks, and of all mixes of them.

    least: the bound of all of them. programs, shares: those that balance the levels best.
    """

    def __init__(self, pipeline: Pipeline, graph: ProgramGraph) -> None:
        """Of programs in the numbers of chunks that the pipeline tries; the graph has at least one step."""
        self.pipeline, self.graph = pipeline, graph
        self.kinds, self.index = graph.kinds(step_kind)
        # For each kind of step, number of chunks and algorithm: the seconds of the first chunk, and what all others
        # keep the processors and the levels busy for.
        tables = [pipeline.options(kind, pipeline.counts).table for kind in self.kinds]
        self.whole = np.array([table[0, :, 0].min() for table in tables])[self.index]  # of each edge, without chunks
        tables = [table[1:] for table in tables]
        later = np.array(pipeline.counts[1:]) - 1.0
        every = [np.dstack([table[:, :, :1], table[:, :, 2:] * later[:, None, None]]) for table in tables]
        flat = [each.reshape(-1, each.shape[2]) for each in every]
        self.starts = np.cumsum([0, *(len(each) for each in flat)])[:-1]
        self.rows = np.vstack(flat)
        self.chunks = np.concatenate([np.repeat(pipeline.counts[1:], table.shape[1]) for table in tables])
        self.rows[self.rows[:, 0] >= NEVER] = NEVER
        self._generate()

    def _generate(self) -> None:
        """Column generation: the weights with the highest bound, and the programs that balance the levels best."""
        width = self.rows.shape[1] - 1
        self.least, self.weights = -1.0, np.full(width, 1 / width)
        programs: list[Program] = []
        columns: list[Values] = []
        weights, reached = self.weights, inf
        shares = np.ones(0)
        for _ in range(MOST_COLUMNS):
            values = self._values(weights)
            least, path = self.graph.cheapest(np.minimum.reduceat(values, self.starts)[self.index])
            if least > self.least:
                self.least, self.weights = least, weights
            if self.least >= (1 - CLOSE) * reached:
                break
            steps = [int(self.index[edge]) for edge in path]
            ends = [*self.starts[1:], len(values)]
            picked = [self.starts[k] + values[self.starts[k] : ends[k]].argmin() for k in steps]
            programs.append(Program(tuple(self.kinds[k].step for k in steps)))
            columns.append(self.rows[picked].sum(axis=0))
            reached, weights, shares = _balanced(np.array(columns))
        self.programs = list(dict.fromkeys(programs))
        self.shares = np.array([sum(x for p, x in zip(programs, shares, strict=True) if p == q) for q in self.programs])

    def _values(self, weights: Values) -> Values:
        """What each row of the table adds to the bound."""
        values: Values = self.rows @ np.append(1.0, weights)
        return values

    def ranked(self, limit: float) -> Iterator[tuple[float, Program]]:
        """All programs with lower bounds below `limit`, the least bound first."""
        values = self._values(self.weights)
        counts = self._counts(limit)
        if not counts:
            return
        values = np.where(np.isin(self.chunks, counts), values, inf)
        yield from self.graph.ranked_by(np.minimum.reduceat(values, self.starts)[self.index])

    def _counts(self, limit: float) -> list[int]:
        """The numbers of chunks in which a program or a mix may take less than `limit`."""
        values = self._values(self.weights)

        def least(chunks: int) -> float:
            only = np.where(self.chunks == chunks, values, inf)
            return self.graph.cheapest(np.minimum.reduceat(only, self.starts)[self.index])[0]

        return [count for count in self.pipeline.counts[1:] if least(count) < limit] if self.least < limit else []

    def mix(self, limit: float, others: Sequence[Program] = ()) -> Pipelined | None:
        """The best mix in whole chunks of the programs that balance the levels best, and of some others, where it takes
        less than `limit`."""
        shares = {program: share for program, share in zip(self.programs, self.shares, strict=True) if share > 0}
        shares |= {program: 0.0 for program in others if program not in shares}
        if len(shares) < 2:
            return None
        timed = [self._in_chunks(count, shares) for count in self._counts(limit)]
        timed = [found for found in timed if found[0] < limit and len(found[1].shares) > 1]
        return fewest(timed)[1] if timed else None

    def _in_chunks(self, chunks: int, shares: dict[Program, float]) -> tuple[float, Pipelined]:
        """The shares in whole chunks: rounded, and then one chunk after the other moves to where it helps most."""
        counts = _rounded(np.array(list(shares.values())), chunks)
        best = self._timed(list(shares), counts)
        for _ in range(chunks):
            moves = [
                [count - (k == i) + (k == j) for k, count in enumerate(counts)]
                for i, j in permutations(range(len(counts)), 2)
                if counts[i]
            ]
            better = min((self._timed(list(shares), move)[0], move) for move in moves)
            if better[0] >= best[0]:
                break
            counts, best = better[1], self._timed(list(shares), better[1])
        return best

    def _timed(self, programs: Sequence[Program], counts: Sequence[int]) -> tuple[float, Pipelined]:
        """The time of the programs, each with a number of chunks; those with none are left out."""
        shares = sorted(zip(programs, counts, strict=True), key=lambda share: -share[1])
        pipelined = Pipelined(tuple(share for share in shares if share[1]))
        return self.pipeline.seconds(pipelined), pipelined


def _balanced(columns: Values) -> tuple[float, Values, Values]:
    """What programs reach together: their time, the weights of the levels, and the shares of the programs.

    Each column is a program: the seconds of its first chunk, and those that it keeps each level busy for. The time is
    the mean first chunk and the busiest level.
    """
    first, loads = columns[:, 0], columns[:, 1:].T
    many, levels = len(first), len(loads)
    if many == 1:
        busiest = int(loads[:, 0].argmax())
        return float(first[0] + loads[busiest, 0]), np.eye(levels)[busiest], np.ones(1)
    from scipy.optimize import linprog  # type: ignore[import-untyped]  # takes long to load, and is seldom needed

    scale = columns.max()  # the solver's tolerances are absolute
    found = linprog(
        np.append(first / scale, 1.0),
        A_ub=np.hstack([loads / scale, -np.ones((levels, 1))]),
        b_ub=np.zeros(levels),
        A_eq=np.append(np.ones(many), 0.0)[None],
        b_eq=[1.0],
        method="highs",
    )
    weights = np.maximum(-found.ineqlin.marginals, 0.0)
    return float(found.fun * scale), weights / weights.sum(), np.maximum(found.x[:-1], 0.0)


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
