"""Pipelined programs: the payload in chunks that flow through the steps, so that links of all levels work at once.

The first chunk takes the time of all steps. Then one chunk comes out per period. A step takes its next chunk when it is
done with the last one. All steps that are under way share the links, and the processors where devices share those;
while the messages of one step wait, those of others are in flight. So the period is the longest of three times: of the
slowest step, of the link with the most to carry over all steps, and of the processors for all messages of a chunk.

For example, 4 chunks through three steps that take 2, 3 and 2 ms per chunk. The first chunk takes 7 ms. If the steps
use different links, the period is 3 ms, and all is done after 7 + 3 x 3 = 16 ms; without chunks it takes about 28 ms.
If the first and the third step use the same link, that link is busy for 4 ms per chunk: 7 + 3 x 4 = 19 ms.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil

import numpy as np

from meshwright.cost.model import CostModel, StepCost
from meshwright.language.goals import Goal
from meshwright.language.program import Pipelined, Program, Step
from meshwright.language.symbolic import State
from meshwright.language.synthesis import ProgramGraph

CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""The numbers of chunks that are tried."""

MIXED = 12
"""How many of the best programs a mix may draw on."""

WORTH = 0.03
"""A mix of programs is kept only if it gains this share of the time."""

GAINED = 0.05
"""A payload is cut into chunks only if that gains this share of the time of the best program without chunks."""

NEARLY = 0.02
"""Of numbers of chunks whose times differ by less than this share, the smallest is taken: every chunk costs a little
more than the model knows."""

MOST_WALKED = 3_000
"""How many programs a search looks at, at most."""


class Pipeline:
    """The times of programs in chunks, for one reduction."""

    def __init__(self, model: CostModel, goal: Goal, most: int = 1) -> None:
        """`most` is the largest number of chunks that a search tries."""
        self.model, self.goal, self.most = model, goal, most
        self._flowing = CostModel(model.layout, model.library.chunked, model.payload)
        self._models = {1: model}

    def costs(self, program: Program, chunks: int) -> list[StepCost]:
        """The steps of a program for one of `chunks` chunks."""
        if chunks not in self._models:
            payload = ceil(self.model.payload / chunks)
            self._models[chunks] = CostModel(self.model.layout, self._flowing.library, payload)
        return self._models[chunks].steps(program, self.goal)

    def seconds(self, pipelined: Pipelined) -> float:
        """The time of all chunks: that of the first chunk, then a period for each of the others."""
        chunks = pipelined.chunks
        every = [(self.costs(program, chunks), count) for program, count in pipelined.shares]
        first = max(sum((cost.seconds for cost in costs), 0.0) for costs, _ in every)
        if chunks == 1:
            return first
        slowest = max((count * cost.seconds for costs, count in every for cost in costs), default=0.0)
        loads = sum((count * _busy(costs, self.model) for costs, count in every), np.zeros(1))
        processing = sum(count * phase.processing for costs, count in every for cost in costs for phase in cost.phases)
        return first + (chunks - 1) / chunks * max(slowest, float(loads.max()), processing)

    def best(self, program: Program) -> tuple[float, Pipelined]:
        """A program with the best number of chunks; the fewest of those that are nearly as good."""
        options = [Pipelined.of(program, chunks) for chunks in CHUNKS if chunks <= self.most]
        timed = [(self.seconds(option), option) for option in options]
        good = min(seconds for seconds, _ in timed) * (1 + NEARLY)
        return next(found for found in timed if found[0] <= good)

    def search(self, graph: ProgramGraph, top: int = 1) -> list[Pipelined]:
        """The best programs with their numbers of chunks, the best mix among them.

        A program's pipelined time is at least the load that it puts on the busiest level, so at least the weighted mean
        of the loads, for any weights. The mean is a sum over the steps, so `ranked` can give the programs in the order
        of this lower bound; the walk ends when the bound passes the best time found. A library may use other algorithms
        where there are no chunks, so the best programs without chunks are added.
        """
        candidates: list[tuple[float, Pipelined]] = []
        for least, program in islice(graph.ranked(_Weighted(self._flowing, self._weights(graph))), MOST_WALKED):
            if len(candidates) >= top and least >= sorted(found[0] for found in candidates)[top - 1]:
                break
            candidates.append(self.best(program))
        if not candidates:
            return []
        plain = [(seconds, Pipelined.of(program)) for seconds, program in islice(graph.ranked(self.model), top)]
        walked = {one.program for _, one in candidates}
        candidates += [found for found in plain if found[1].program not in walked]
        candidates.sort(key=lambda found: (found[0], found[1].chunks, len(found[1].program.steps)))
        best = [one for _, one in candidates[:top]]
        mixed = self._mix([one.program for _, one in candidates[:MIXED]])
        if mixed is not None and self.seconds(mixed) < (1 - WORTH) * candidates[0][0]:
            best = [mixed, *best][:top]
        seconds, whole = plain[0]
        if best[0].chunks > 1 and self.seconds(best[0]) > (1 - GAINED) * seconds:
            best = [whole, *(one for one in best if one != whole)][:top]
        return best

    def _weights(self, graph: ProgramGraph) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        """Weights of the levels that make the lower bound of all programs high, so that the walk is short.

        A game of two players, played for some turns: one answers the weights with the program of the least bound, the
        other moves weight to the level that this program keeps busiest. For example, the levels node and gpu begin with
        (1/2, 1/2). If the program of the least bound loads node with 10 ms and gpu with 2 ms, its bound is 6 ms, and
        node gets more weight: (3/4, 1/4). A program that loads node with 4 ms and gpu with 8 ms may be next, with the
        bound 5 ms; then gpu gets some back. The weights with the highest bound are kept.
        """
        levels = len(self.model.layout.system.levels)
        weights = np.full(levels, 1 / levels)
        best, chosen = -1.0, weights
        for turn in range(1, 9):
            found = next(iter(graph.ranked(_Weighted(self._flowing, weights))), None)
            if found is None:
                return weights
            least, program = found
            if least > best:
                best, chosen = least, weights
            busy = _busy(self._flowing.steps(program, self.goal), self.model)
            if not busy.any():
                return weights
            target = np.zeros(levels)
            target[int(busy.argmax())] = 1.0
            weights = weights + (target - weights) / (turn + 1)
        return chosen

    def _mix(self, programs: Sequence[Program]) -> Pipelined | None:
        """The shares of programs that balance the links best, as a small linear program, rounded to chunks.

        For example, one program loads node with 10 ms and gpu with 2 ms, another node with 4 ms and gpu with 8 ms. If
        the first takes 1/3 of the chunks and the second 2/3, both levels are busy for 6 ms, less than the 10 ms or 8 ms
        of either program alone. In 6 chunks, 2 take the first program and 4 the second.
        """
        if self.most < 2 or len(programs) < 2:
            return None
        from scipy.optimize import linprog  # type: ignore[import-untyped]  # takes long to load, and is seldom needed

        loads = np.array([_busy(self._flowing.steps(program, self.goal), self.model) for program in programs]).T
        # Minimize the largest load over shares that add up to one.
        levels = len(loads)
        found = linprog(
            np.append(np.zeros(len(programs)), 1.0),
            A_ub=np.hstack([loads, -np.ones((levels, 1))]),
            b_ub=np.zeros(levels),
            A_eq=np.append(np.ones(len(programs)), 0.0)[None],
            b_eq=[1.0],
            method="highs",
        )
        if found.status != 0:
            return None
        options = []
        for chunks in CHUNKS:
            if 1 < chunks <= self.most:
                counts = zip(programs, _rounded(found.x[:-1], chunks), strict=True)
                shares = sorted((share for share in counts if share[1]), key=lambda share: -share[1])
                if len(shares) > 1:
                    options.append(Pipelined(tuple(shares)))
        return min(options, key=self.seconds, default=None)


def _rounded(shares: "np.ndarray[tuple[int], np.dtype[np.float64]]", chunks: int) -> list[int]:
    """Whole numbers of chunks nearest to some shares, which add up to one: of 8 chunks, 1/3 and 2/3 are 3 and 5.

    Every share is rounded down; the chunks that are left go to those that lost most.
    """
    exact = shares * chunks
    counts = [int(value) for value in np.floor(exact + 1e-9)]
    order = sorted(range(len(counts)), key=lambda k: counts[k] - exact[k])
    for k in order[: chunks - sum(counts)]:
        counts[k] += 1
    return counts


def _busy(costs: Sequence[StepCost], model: CostModel) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """For each level, the seconds that some steps keep its links busy."""
    names = {level.name: number for number, level in enumerate(model.layout.system.levels)}
    busy = np.zeros(len(names))
    for cost in costs:
        for phase in cost.phases:
            for load in phase.loads:
                busy[names[load.level]] += load.seconds
    return busy


@dataclass(frozen=True)
class _Weighted:
    """What a step adds to the weighted mean of the levels' loads: a cost for synthesis."""

    model: CostModel
    weights: "np.ndarray[tuple[int], np.dtype[np.float64]]"

    def __call__(self, state: State, step: Step) -> float:
        return float(_busy([self.model.step(state, step)], self.model) @ self.weights)
