"""The search for programs in chunks: a lower bound from a linear program, and a walk in its order.

In `n` chunks, a program takes the time of its first chunk and n - 1 periods, and a period is at least the busiest
level's load. So it takes at least its first chunk and n - 1 times the weighted mean of the levels' loads, for any
weights. This is a sum over the steps: the program with the least bound is a shortest path, and `ranked` gives all
programs in the order of their bounds. The same holds for chunks that take different programs.

Which weights make the bound highest is a linear program, as for mixes (see `mixing`), but without the slowest steps,
and for all numbers of chunks at once: a bound that takes little work.
"""

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from math import inf
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.contention import families_of
from meshwright.cost.mixing import MOST_ROUNDS, Mixes, balanced
from meshwright.cost.pipeline import NEARLY, NEVER, Pipeline, fewest
from meshwright.language.program import Pipelined
from meshwright.language.synthesis import ProgramGraph, rounded_one

WORTH = 0.03
"""A mix of programs is kept only if it gains this share of the time."""

GAINED = 0.05
"""A payload is cut into chunks only if that gains this share of the time of the best program without chunks."""

MARGIN = (1 + NEARLY) ** 2 / (1 - WORTH) / (1 - GAINED)
"""How many times the least possible the best may take for its few chunks and few programs. Squared, as each program
takes the fewest chunks that are nearly as good, and then the program in the fewest is taken."""

MOST_WALKED = 3_000
"""How many programs a search looks at, at most."""

CLOSE = 1e-4
"""No more programs are added to the linear program when its bound is within this share of what they reach."""

AT_ONCE = 64
"""How many programs a walk times at once, at most."""

Values = NDArray[np.float64]

Path = tuple[int, ...]
"""A program as edges of the graph, by their numbers."""

Timed = tuple[float, int]
"""A time, and the number of chunks in which a program takes it."""


@dataclass(frozen=True)
class Searched:
    """The best programs with their numbers of chunks, the fastest first; but before them the one in the fewest chunks
    of those that are nearly as fast as the best, or one without chunks.

    least: no program in any of the numbers of chunks takes fewer seconds, and no mix of different ones where mixes are
    planned: under libraries that adapt. gap: by which share of the best possible time the first may be slower; 0 where
    it is proven to be the best, but for `MARGIN`.
    """

    programs: tuple[Pipelined, ...]
    least: float
    gap: float = 0.0


def search(pipeline: Pipeline, graph: ProgramGraph, top: int = 1) -> Searched:
    """The best programs with their numbers of chunks, the best mix among them."""
    first = next(graph.programs(), None)
    if first is None or not first.steps or len(pipeline.counts) == 1:
        families, index = families_of(graph)
        prices = pipeline.model.all_seconds(families)
        ranked = list(islice(graph.ranked_by(prices[index]), top))
        least = ranked[0][0] if ranked else 0.0
        return Searched(tuple(Pipelined.of(program) for _, program in ranked), least)
    bounds = Bounds(pipeline, graph)
    plain = list(islice(graph.ranked_paths(bounds.whole), top))
    whole, best_whole = plain[0][0], Pipelined.of(graph.program(plain[0][1]))
    # A single winner in chunks has to gain something over the best program without chunks.
    enough = (1 - GAINED) * whole if top == 1 else inf
    known = list(dict.fromkeys([*bounds.paths, *(path for _, path in plain)]))
    found = dict(zip(known, bounds.best(known), strict=True))
    times = sorted(seconds for seconds, _ in found.values())
    left = inf
    for least, path, timed in bounds.walk(lambda: min([enough, *times[top - 1 : top]])):
        if least >= min([enough, *times[top - 1 : top]]):
            break
        if len(found) >= MOST_WALKED:
            left = least
            break
        if path not in found:
            found[path] = timed
            insort(times, timed[0])
    order = {path: (rounded_one(seconds), chunks, len(path)) for path, (seconds, chunks) in found.items()}
    ordered = sorted(found, key=order.__getitem__)
    # Of those that are nearly as good, and gain enough if the best does, few chunks come first; then the better image.
    limit = min(times[0] * (1 + NEARLY), max(times[0], (1 - GAINED) * whole))
    nearly = [path for path in ordered if found[path][0] <= limit]
    leading = min(nearly, key=lambda path: (found[path][1], order[path]))
    chunks, program = found[leading][1], graph.program(leading)
    both = [path for path in nearly if found[path][1] == chunks and graph.program(path) in (program, program.mirrored)]
    leading = min(both, key=lambda path: bounds.late(path, chunks))
    ordered = [leading, *(path for path in ordered[:top] if path != leading)][:top]
    best = [Pipelined.of(graph.program(path), found[path][1]) for path in ordered]
    adapts = pipeline.model.library.adapts
    # Real libraries let the programs of a mix wait for each other: mixes took up to twice as long as predicted.
    walked = min(enough, times[0] / (1 + NEARLY), left)
    mixed_least, mixed = bounds.mix(min(enough, (1 - WORTH) * times[0])) if adapts else (walked, None)
    best = [mixed, *best][:top] if mixed is not None else best
    if best[0].chunks > 1 and pipeline.seconds(best[0]) > (1 - GAINED) * whole:
        best = [best_whole, *(one for one in best if one != best_whole)][:top]
    seconds, least = pipeline.seconds(best[0]), min(mixed_least, whole)
    gap = max(seconds / left - 1, seconds / least - 1 if adapts and seconds > MARGIN * least else 0.0, 0.0)
    return Searched(tuple(best), least, gap)


def least_seconds(pipeline: Pipeline, graph: ProgramGraph) -> float:
    """A bound as `Searched.least`, which is lower and takes far less work."""
    families, index = families_of(graph)
    whole = graph.least_by(pipeline.model.all_seconds(families)[index])
    return min(whole, Bounds(pipeline, graph).least) if 0 < whole < inf and len(pipeline.counts) > 1 else whole


class Bounds:
    """Lower bounds on the time of all programs of a graph in two or more chunks, and of all mixes of them.

    least: the bound of all of them. weights: of the first chunk and the levels. paths: those that balance the levels
    best.
    """

    def __init__(self, pipeline: Pipeline, graph: ProgramGraph) -> None:
        """Of programs in the numbers of chunks that the pipeline tries; the graph has at least one step."""
        self.pipeline, self.graph = pipeline, graph
        self.kinds, self.index = families_of(graph)
        tables = [options.table for options in pipeline.options(self.kinds, pipeline.counts)]
        many = [table.shape[1] for table in tables]
        self.table = np.concatenate(tables, axis=1)
        self.firsts = np.cumsum(many, dtype=np.int64) - many
        self.whole = np.minimum.reduceat(self.table[0, :, 0], self.firsts)[self.index]  # of each edge, without chunks
        # For each kind of step, algorithm and number of chunks: the seconds of the first chunk, and what all others
        # keep the processors and the levels busy for.
        later = np.array(pipeline.counts[1:]) - 1.0
        every = np.dstack([self.table[1:, :, :1], self.table[1:, :, 2:] * later[:, None, None]])
        self.rows = every.transpose(1, 0, 2).reshape(-1, every.shape[2])
        self.starts = self.firsts * len(later)
        self.chunks = np.tile(pipeline.counts[1:], len(self.table[0]))
        self.rows[self.rows[:, 0] >= NEVER] = NEVER
        self._generate()

    def _generate(self) -> None:
        """Column generation: the weights with the highest bound, and the programs that balance the levels best."""
        width = self.rows.shape[1] - 1
        self.least, self.weights = -1.0, np.append(1.0, np.full(width, 1 / width))
        self.paths: list[Path] = []
        columns: list[Values] = []
        weights, reached = self.weights, inf
        ends = [*self.starts[1:], len(self.rows)]
        for _ in range(MOST_ROUNDS):
            values = self._values(weights, self.pipeline.counts[1:])
            least, path = self.graph.cheapest(np.minimum.reduceat(values, self.starts)[self.index])
            if least > self.least:
                self.least, self.weights = least, weights
            if self.least >= (1 - CLOSE) * reached:
                break
            steps = [int(self.index[edge]) for edge in path]
            picked = [self.starts[k] + values[self.starts[k] : ends[k]].argmin() for k in steps]
            self.paths.append(tuple(path))
            columns.append(self.rows[picked].sum(axis=0))
            found = balanced(np.insert(columns, 1, 0.0, axis=1), np.arange(len(columns)), len(columns))
            reached, weights = found.seconds, np.append(1.0, found.levels)

    def _values(self, weights: Values, counts: Sequence[int]) -> Values:
        """What each row of the table adds to the bound, in some numbers of chunks."""
        values: Values = self.rows @ weights
        every = len(counts) == len(self.pipeline.counts) - 1
        return values if every else np.where(np.isin(self.chunks, counts), values, inf)

    def _prices(self, weights: Values, counts: Sequence[int]) -> Values:
        """What each edge of the graph adds to the bound, in some numbers of chunks."""
        found: Values = np.minimum.reduceat(self._values(weights, counts), self.starts)[self.index]
        return found

    def walk(self, limit: Callable[[], float]) -> Iterator[tuple[float, Path, Timed]]:
        """All programs with lower bounds below `limit`, which may fall on the way, the least bound first.

        With each its bound, its edges, and what `best` says of it.
        """
        counts = self._counts(limit())
        if not counts:
            return
        ranked = self.graph.ranked_paths(self._prices(self.weights, counts))
        while some := list(islice(takewhile(lambda one: one[0] < limit(), ranked), AT_ONCE)):
            timed = self.best([path for _, path in some])
            yield from [(least, path, one) for (least, path), one in zip(some, timed, strict=True)]

    def best(self, paths: Sequence[Path]) -> list[Timed]:
        """The time of each program in the best number of chunks, and that number."""
        if self.pipeline.model.library.adapts:
            best = [self.pipeline.best(self.graph.program(path)) for path in paths]
            return [(seconds, pipelined.chunks) for seconds, pipelined in best]
        return self.pipeline.all_best(self.table, [self.index[list(path)].tolist() for path in paths])

    def late(self, path: Path, chunks: int) -> float:
        """How late the long steps of a program come: the sum of the first chunk's seconds, times the numbers of steps.

        A program and its mirror image are predicted to take as long, or nearly. On gloo, the one that begins with the
        longer steps was up to 9% faster.
        """
        seconds = np.minimum.reduceat(self.table[self.pipeline.counts.index(chunks), :, 0], self.firsts)
        return float(seconds[self.index[list(path)]] @ np.arange(len(path)))

    def _counts(self, limit: float) -> list[int]:
        """The numbers of chunks in which a program or a mix may take less than `limit`."""
        if self.least >= limit:
            return []
        counts = self.pipeline.counts[1:]
        return [count for count in counts if self.graph.cheapest(self._prices(self.weights, [count]))[0] < limit]

    def mixes(self, chunks: int) -> Mixes:
        """The mixes in a number of chunks."""
        return Mixes(self.pipeline, self.graph, chunks, partial(self._prices, counts=[chunks]))

    def mix(self, limit: float) -> tuple[float, Pipelined | None]:
        """Below which time no mix comes; and the best mix that is found, if it takes less than `limit`."""
        least, timed = limit, list[tuple[float, Pipelined]]()
        for chunks in self._counts(limit):
            enough = min([limit, *(seconds for seconds, _ in timed)])  # of equally good ones, fewer chunks are better
            mixes = self.mixes(chunks)
            low, shares = mixes.balance(self.weights[1:], enough)
            least = min(least, low)
            found = [mixes.in_chunks(each) for each in shares]
            timed += sorted([one for one in found if one[0] < enough and len(one[1].shares) > 1], key=itemgetter(0))[:1]
        return max(least, self.least), fewest(timed)[1] if timed else None
