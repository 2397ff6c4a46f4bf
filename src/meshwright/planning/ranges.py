"""Ranges of payloads: which program in how many chunks is best for which size, from crossings of their times.

The best program is searched for a few payloads, each 16 times the one before. Between them, the programs that are best
somewhere are priced in all numbers of chunks, which takes far less work, and so is the best program without chunks.
While the library keeps its algorithms, the time of a program is nearly a straight line. The best times are then the
lower envelope of lines, which lies above the chord between any two of its points. So where the best programs of two
neighbouring payloads cross and are far above the chord, another program may be faster, and that crossing is searched.

For example, one program takes 1 ms + 10 ns/KiB and is best at 64 MiB, another takes 3 ms + 2 ns/KiB and is best at 1
GiB. They cross at 244 MiB, where both take 3.5 ms; the chord is at 2.3 ms there. A third program that takes 2 ms +
4 ns/KiB takes 3 ms at the crossing: the search finds it, and its crossings with the other two are looked at next.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, combinations_with_replacement, pairwise
from math import inf
from operator import mul

from meshwright.cost.chunking import GAINED, WORTH, search
from meshwright.cost.model import CostModel
from meshwright.cost.pipeline import NEARLY, Pipeline
from meshwright.language.goals import flat_program
from meshwright.language.program import Collective, Grouping, Pipelined, Program
from meshwright.language.synthesis import ProgramGraph
from meshwright.planning.plan import Timed

SMALLEST, LARGEST = 2**10, 2**30
"""Programs are sought for payloads from the first to the second, or to the largest that is planned."""

SEARCHED, PRICED = 16, 2
"""The best program is searched, and known ones are priced, for payloads that grow by these factors."""

NEAR = 0.02
"""A program is kept for further payloads as long as it is slower than the best one by this share at most."""

FIXED = 0.04
"""The same, for the programs that are fixed for some payload: without it, they would be best for that one alone where
chunks gain a little less than the search demands there, and a little more elsewhere."""

MOST = 16
"""How many crossings are searched, at most."""

EQUAL = 1e-9
"""Times that differ by this share at most are the same but for rounding."""

ALTERNATIVES = 5
"""How many other programs a plan holds for its own payload."""

CUTS = 2
"""In how many numbers of chunks the same programs are held or measured, at most."""


class Envelope:
    """The best programs of a reduction for all payloads, as far as they are known.

    fixed: the programs that were chosen for some payloads.
    """

    def __init__(self, pipeline: Pipeline, graph: ProgramGraph, fixed: Mapping[int, Pipelined]) -> None:
        """Search some payloads, price others, among them both sides of where rules of the library end, and search
        crossings, the one that may gain most first."""
        self.graph, self.fixed = graph, fixed
        self.own = Pipelined.of(flat_program(pipeline.goal, len(pipeline.model.layout.levels)))
        self.pipelines = {pipeline.model.payload: pipeline}
        self.times: dict[tuple[Pipelined, int], float] = {}
        self.best = dict(fixed)
        least, most = min(SMALLEST, *fixed), max(LARGEST, *fixed)
        for payload in (*_between(least, most, SEARCHED), most):
            if payload not in self.best:
                self.best[payload] = self._searched(payload)
        ends = rule_ends(pipeline.model)
        sides = [side for end in ends for side in (end, end + 1) if least < side < most]
        self._price({*sides, *_between(least, most, PRICED), *self.best})
        for _ in range(MOST):
            crossings = [self._crossing(low, high) for low, high in pairwise(sorted(self.best))]
            gap, crossing = max(crossings)
            if gap <= 1 + NEAR:
                break
            before = {*self.best.values()}
            self.best[crossing] = self._searched(crossing)
            if self.best[crossing] not in before:
                self._price(self.best)

    def at(self, payload: int) -> Pipeline:
        """The times for a payload."""
        if payload not in self.pipelines:
            self.pipelines[payload] = next(iter(self.pipelines.values())).at(payload)
        return self.pipelines[payload]

    def seconds(self, pipelined: Pipelined, payload: int) -> float:
        """The time of programs for a payload."""
        key = pipelined, payload
        if key not in self.times:
            self.times[key] = self.at(payload).seconds(pipelined)
        return self.times[key]

    def _searched(self, payload: int) -> Pipelined:
        return search(self.at(payload), self.graph).programs[0]

    def _price(self, payloads: Iterable[int]) -> None:
        """Take the best that is known for some payloads."""
        self.best |= {payload: self._known(payload) for payload in sorted(payloads) if payload not in self.fixed}

    def _plain(self, payload: int, count: int = 1) -> tuple[Pipelined, ...]:
        """The best programs without chunks, which take far less work to find."""
        pipeline = self.at(payload)
        return search(Pipeline(pipeline.model, pipeline.goal), self.graph, count).programs

    def _known(self, payload: int) -> Pipelined:
        """The best of the programs without chunks and of those that are best elsewhere, in any number of chunks.

        Chunks, and then a mix of programs, have to gain a little, and few chunks are better, as in the search.
        """
        pipeline = self.at(payload)
        shares = {frozenset(program for program, _ in one.shares): one for one in self.best.values()}
        (plain,) = self._plain(payload)
        known = [self.best.get(payload, plain), *(_recut(pipeline, one) for one in shares.values())]
        best = plain
        for mixed, gain in ((False, GAINED), (True, WORTH)):
            some = [one for one in known if (len(one.shares) > 1) is mixed]
            enough = (1 - gain) * self.seconds(best, payload)
            least = min([self.seconds(one, payload) for one in some], default=inf)
            if least <= enough:
                nearly = [one for one in some if self.seconds(one, payload) <= min((1 + NEARLY) * least, enough)]
                best = min(nearly, key=lambda one: (one.chunks, self.seconds(one, payload)))
        return best

    def _crossing(self, low: int, high: int) -> tuple[float, int]:
        """Where the best programs of two payloads cross, behind how far above the chord they are there."""
        one, other = self.best[low], self.best[high]
        if one == other or high <= low + 1:
            return 1.0, low
        crossing = self._meet(one, other, low, high)
        first, last = self.seconds(one, low), self.seconds(other, high)
        chord = first + (crossing - low) / (high - low) * (last - first)
        return (self.seconds(one, crossing) / chord, crossing) if low < crossing < high else (1.0, low)

    def _meet(self, one: Pipelined, other: Pipelined, low: int, high: int) -> int:
        """The first payload above `low` and up to `high` from which on the `other` is faster, or nearly so."""
        lead = self.seconds(other, low) - self.seconds(one, low)
        lag = self.seconds(one, high) - self.seconds(other, high)
        if lead <= 0 or lag <= 0:
            return high if lag <= 0 else low + 1
        for _ in range(MOST):
            middle = low + 1 + int((high - low) * (lead / (lead + lag)))
            if middle >= high:
                break
            time = self.seconds(one, middle)
            ahead = self.seconds(other, middle) - time
            if abs(ahead) <= NEAR / 4 * time:
                return middle
            low, lead, high, lag = (middle, ahead, high, lag) if ahead > 0 else (low, lead, middle, -ahead)
        return high

    def ranges(self) -> tuple[Timed, ...]:
        """Few ranges, each with programs that are near the best wherever the best are known; from its bytes on."""
        for _ in range(MOST):
            found = self._covered()
            far = [each.bytes for each in found if self._far(each)]
            if not far:
                break
            self.best |= {payload: self._known(payload) for payload in far}
        return tuple(found)

    def _far(self, at: Timed) -> bool:
        """Whether, where a range begins, programs that are best on either side of it are faster."""
        if at.bytes in self.best:
            return False
        low = max(payload for payload in self.best if payload < at.bytes)
        high = min(payload for payload in self.best if payload > at.bytes)
        return at.seconds > (1 + NEAR) * min(self.seconds(self.best[side], at.bytes) for side in (low, high))

    def _covered(self) -> list[Timed]:
        """As few ranges as possible."""
        payloads = sorted(self.best)
        found: list[Timed] = []
        start = 0
        while start < len(payloads):
            runs = [(self._run(one, payloads[start:]), -one.chunks, one) for one in dict.fromkeys(self.best.values())]
            length, _, one = max(runs, key=lambda run: run[:2])
            first = payloads[0]
            if found:
                first = self._meet(found[-1].pipelined, one, payloads[start - 1], payloads[start])
            found.append(Timed(first, one, self.seconds(one, first)))
            start += length
        return found

    def _run(self, one: Pipelined, payloads: Sequence[int]) -> int:
        """For how many of the payloads, from the first on, programs are near the best."""
        for number, payload in enumerate(payloads):
            best = self.best[payload]
            if one == best:
                continue
            near = FIXED if one in self.fixed.values() else NEAR
            most = min((1 + near) * self.seconds(best, payload), (1 + EQUAL) * self.seconds(self.own, payload))
            if payload in self.fixed or self.seconds(one, payload) > most:
                return number
        return len(payloads)

    def alternatives(self, payload: int) -> tuple[Timed, ...]:
        """The best others for a payload, varied, beside what is fixed for it; the library's own is one of them."""
        pipeline = self.at(payload)
        own = self.own
        every = [own, *self._plain(payload, ALTERNATIVES + 1), *self.best.values()]
        every += search(pipeline, self.graph, ALTERNATIVES + 1).programs
        alone = [one.program for one in every if len(one.shares) == 1]
        every += [pipeline.best(program)[1] for program in alone]
        every += [Pipelined.of(program) for program in alone]
        others = [one for one in dict.fromkeys(every) if one not in (self.fixed[payload], own)]
        timed = [Timed(payload, one, self.seconds(one, payload)) for one in others]
        timed.sort(key=lambda each: (each.seconds, each.pipelined.chunks, len(each.pipelined.program.steps)))
        timed = varied([self.fixed[payload]], timed)
        if own == self.fixed[payload]:
            return tuple(timed[:ALTERNATIVES])
        kept = [*timed[: ALTERNATIVES - 1], Timed(payload, own, self.seconds(own, payload))]
        return tuple(sorted(kept, key=lambda each: each.seconds))


def varied(taken: Iterable[Pipelined], others: Iterable[Timed]) -> list[Timed]:
    """Those of some programs, the fastest first, that differ enough from those that are taken, and from each other.

    Predictions of the same program in different numbers of chunks are wrong by about the same, so none is cut in more
    than `CUTS`. And mirror images take the same time, as `ReduceScatter inside node; ReduceScatter across node;
    AllGather all` does what `ReduceScatter all; AllGather across node; AllGather inside node` does, backwards.
    """
    cuts: dict[frozenset[Program], set[int]] = defaultdict(set)
    for one in taken:
        cuts[_both_ways(one)].add(one.chunks)
    found = []
    for each in others:
        known, chunks = cuts[_both_ways(each.pipelined)], each.pipelined.chunks
        if chunks not in known and (chunks == 1 or len(known - {1}) < CUTS):
            known.add(chunks)
            found.append(each)
    return found


def _both_ways(one: Pipelined) -> frozenset[Program]:
    """The programs and their mirror images."""
    return frozenset([each for program, _ in one.shares for each in (program, program.mirrored)])


def rule_ends(model: CostModel) -> list[int]:
    """The payloads up to which rules of a library hold, or its pieces grow, where nothing or some of the innermost
    levels are scattered, in groups that span some levels."""
    radices = model.layout.hierarchy.radices
    divisors = {1, *accumulate(reversed(radices), mul)}
    groupings = [Grouping(*span) for span in combinations_with_replacement(range(len(radices)), 2)]
    met = [each for collective in Collective for grouping in groupings for each in model.choices(collective, grouping)]
    ends = {end for end, _ in met if end} | {2 * rule.piece for _, rule in met if rule.piece is not None}
    return sorted({end * divisor for end in ends for divisor in divisors})


def _between(least: int, most: int, factor: int) -> Iterator[int]:
    """The payloads from the least on, each a multiple of the one before, below the largest."""
    while least < most:
        yield least
        least *= factor


def _recut(pipeline: Pipeline, one: Pipelined) -> Pipelined:
    """Programs in the best number of chunks; several share the chunks as before."""
    if len(one.shares) == 1:
        return pipeline.best(one.program)[1]
    cuts = [
        Pipelined(tuple((program, max(1, round(count * chunks / one.chunks))) for program, count in one.shares))
        for chunks in pipeline.counts
        if chunks >= len(one.shares)
    ]
    return min(cuts, key=pipeline.seconds)
