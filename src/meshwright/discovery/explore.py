"""Discovery by measurement: what to measure next, given the results so far; in the end, the levels with confidences.

It knows nothing of networks: it gives rounds and gets how long they took. One transfer alone shows the slowest link on
its way. A link that a group shares shows only when many of its members send out at once. So in all rounds as many ranks
send as can: in a tournament each meets each of the others, and pairs that are near stay fast while the links between
groups are full. The groups that this suggests are then tested by rounds made for it, all inside groups and all across.

For example, 8 ranks are on two nodes whose ports carry as much as one rank's. A transfer alone is as fast inside a node
as across. In a round of a tournament two or four ranks of a node send out, and get a half or a quarter of that each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log

import numpy as np

from meshwright.discovery.evidence import ENOUGH, Closest, Evidence, Nearnesses, certain, slow_share, weigh
from meshwright.discovery.nearness import Clusters, Nearness, is_regular, ranked_clusters
from meshwright.discovery.probes import MOST_MET, Prober, Probing
from meshwright.discovery.rounds import Pairing, Partition, across, all_met, inside, lone

Blocks = list[list[int]]
"""Items by their numbers: only those of the same block meet."""

PAIRS = 24
"""The fewest rounds in which items are compared, if they are few: tournaments are repeated up to it."""

TRIALS, MOST_TRIALS = 4, 16
"""How many trials test a level: at first, and at most."""

ALIKE, CERTAIN = 1.15, 0.999
"""Where all rates are within this factor, there is nothing to find, and how sure that is."""

TRIED, MOST_TRIED = 2, 4
"""How many ways to cluster items are tested: at least, and if some items fit none."""

SETTLING = 8
"""How many levels are tested again, at most."""

FULL = 0.8
"""A link that carries more than this share of what the groups inside can send together does not hold them back."""

SLOW_SHARE = 0.12
"""Above this share of slow pairs that no groups explain, the measurements do not decide."""


@dataclass(frozen=True, slots=True)
class Found:
    """Groups that belong together. by: what told it, "rate", "latency" or "told". between: the finer and the coarser
    groups between which they were tested.
    """

    groups: Partition
    by: str
    evidence: Evidence
    between: tuple[Partition, Partition]


@dataclass(frozen=True, slots=True)
class Tied:
    """A level that was found: groups of ranks, and the link of each to the others.

    rate: what the link of one group carries, in bytes per second; alone: what one rank gets if it alone sends across.
    latency: seconds that a message to another group takes.
    by: "told" if the ranks said it, else "rate" or "latency", which told it. evidence: for these groups.
    """

    groups: Partition
    rate: float
    alone: float
    latency: float
    by: str
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Measured:
    """The levels, outermost first; the last one has groups of one rank.

    missed: the evidence that there are no more levels; its confidence is low where measurements do not decide.
    """

    levels: tuple[Tied, ...]
    missed: Evidence
    rounds: int

    @property
    def confidence(self) -> float:
        """The lowest of all."""
        return min(self.missed.confidence, *(level.evidence.confidence for level in self.levels))


class Explorer:
    """Explores how ranks are connected.

    told: groups of ranks that are known already, like those on one host, from the finest to the coarsest.
    seconds: how long a transfer may take.
    """

    def __init__(self, ranks: int, told: Sequence[Partition] = (), seconds: float = 0.2, seed: int = 0) -> None:
        self.alone: Partition = tuple((rank,) for rank in range(ranks))
        self.everyone: Partition = (tuple(range(ranks)),)
        self.told = [groups for groups in told if 1 < len(groups) < ranks]
        self.probes = Prober(seconds, seed)
        self.flat: list[Evidence] = []

    def explore(self) -> Probing[Measured]:
        """Find the levels, and then what their links carry."""
        yield from self.probes.all_trips(self.everyone[0])
        yield from self.probes.find_volume(self.alone)
        marks = [self.alone, *self.told, self.everyone]
        found: list[Found] = []
        for fine, coarse in pairwise(marks):
            levels = yield from self._between(fine, coarse)
            found += yield from self._settled(levels, fine, coarse)
            found.append(Found(coarse, "told", certain(), (fine, coarse)))
        inner = Found(self.alone, "told", certain(), (self.alone, self.alone))
        tied = []
        for level, around in pairwise([inner, *found]):
            tied.append((yield from self._tied(level, around.groups)))
        missed = min(self.flat, key=lambda evidence: evidence.confidence, default=certain())
        return Measured(tuple(reversed(_checked(tied))), missed, self.probes.rounds)

    def _between(self, fine: Partition, coarse: Partition) -> Probing[list[Found]]:
        """The levels between groups and those around them, from the inside out; by rates, or else by round trips."""
        blocks = _blocks(fine, coarse)
        if all(len(block) < 3 for block in blocks):
            return []
        for by in ("rate", "latency"):
            clusters, evidence = yield from self._clusters(fine, blocks, by)
            if clusters is None or not evidence.exists or (by == "latency" and not evidence.decided):
                if by == "rate":
                    self.flat.append(evidence)
                continue
            middle = tuple(tuple(sorted(rank for k in cluster for rank in fine[k])) for cluster in clusters)
            below = yield from self._between(fine, middle)
            above = yield from self._between(middle, coarse)
            return [*below, Found(middle, by, _by_rank(evidence, fine), (fine, coarse)), *above]
        return []

    def _settled(self, levels: list[Found], fine: Partition, coarse: Partition) -> Probing[list[Found]]:
        """Levels that are tested between their neighbours: their groups are told apart when the groups inside them are
        the items, and only those inside the same group around them meet.

        A level may have been only the shadow of others. For example, any two ranks of a rack seem to belong together
        as long as nobody knows the racks.
        """
        for _ in range(SETTLING):
            marks = [fine, *(level.groups for level in levels), coarse]
            wrong = [k for k, level in enumerate(levels) if level.between != (marks[k], marks[k + 2])]
            if not wrong:
                return levels
            at = wrong[0]
            old, items, around = levels[at], marks[at], marks[at + 2]
            blocks = _blocks(items, around)
            clusters = tuple(tuple(block) for block in _blocks(items, old.groups))
            trials = yield from self._tested(items, blocks, clusters, old.by)
            evidence = _judged(weigh(trials, ENOUGH[old.by, is_regular(clusters)]), [])
            if evidence.exists and not evidence.doubtful:
                levels[at] = Found(old.groups, old.by, _by_rank(evidence, items), (items, around))
            else:
                levels[at : at + 1] = yield from self._between(items, around)
        return [replace(level, evidence=replace(level.evidence, confidence=0.5)) for level in levels]

    def _clusters(self, items: Partition, blocks: Blocks, by: str) -> Probing[tuple[Clusters | None, Evidence]]:
        """The best clusters of items. Those of two sizes are tested, as parts of the real ones are near too."""
        rounds, waiting = yield from self._compared(items, blocks, by)
        if by == "rate" and _spread(_average(len(items), rounds)) < log(ALIKE):
            return None, Evidence(1.0, False, True, CERTAIN)
        ranked = ranked_clusters(_average(len(items), rounds), blocks)
        if waiting and not (ranked and is_regular(ranked[0])):  # those that have met so far are not enough
            rounds += yield from self.probes.near(waiting, items, by)
            ranked = ranked_clusters(_average(len(items), rounds), blocks)
        best: tuple[Clusters | None, Evidence] = None, certain()
        tried: list[Clusters] = []
        while len(tried) < MOST_TRIED and (untried := [clusters for clusters in ranked if _is_new(clusters, tried)]):
            clusters = untried[0]
            tried.append(clusters)
            trials = yield from self._tested(items, blocks, clusters, by)
            evidence = weigh(trials, ENOUGH[by, is_regular(clusters)])
            if best[0] is None or _is_better((clusters, evidence), (best[0], best[1])):
                best = clusters, evidence
            rounds += [values for trial in trials for values in trial]
            if len(tried) >= TRIED:
                if not best[1].doubtful or best[1].ratio < ALIKE:
                    break
                ranked = ranked_clusters(_average(len(items), rounds), blocks)  # the tests have shown more
        return best[0], _judged(best[1], rounds if by == "rate" else [])

    def _compared(self, items: Partition, blocks: Blocks, by: str) -> Probing[tuple[list[Nearnesses], list[Pairing]]]:
        """How near each item is to others of its block, and the rounds that are left until all have met."""
        if by == "latency":
            pairs = [(k, m) for block in blocks for k in block for m in block if k < m]
            return [{pair: -log(trip) for pair in pairs if (trip := self.probes.trip(items, *pair))}], []
        most = max(len(block) for block in blocks) - 1
        met = [pairing for _ in range(max(1, min(3, PAIRS // most))) for pairing in all_met(blocks, self.probes.random)]
        rounds = yield from self.probes.near(met[:MOST_MET], items, by)
        return rounds, met[MOST_MET:]

    def _tested(
        self, items: Partition, blocks: Blocks, clusters: Clusters, by: str
    ) -> Probing[list[tuple[Nearnesses, Nearnesses]]]:
        """Rounds inside clusters and across, in turns, until they decide."""
        grouped = [[cluster for cluster in clusters if cluster[0] in set(block)] for block in blocks]
        trials: list[tuple[Nearnesses, Nearnesses]] = []
        while len(trials) < MOST_TRIALS:
            met = [
                pairing
                for _ in range(TRIALS)
                for pairing in (inside(clusters, self.probes.random), across(grouped, self.probes.random))
            ]
            rounds = yield from self.probes.near(met, items, by)
            trials += zip(rounds[::2], rounds[1::2], strict=True)
            if weigh(trials, ENOUGH[by, is_regular(clusters)]).decided:
                break
        return trials

    def _tied(self, level: Found, around: Partition) -> Probing[Tied]:
        """What the links of groups carry, between groups inside those around them."""
        groups = level.groups
        blocks = _blocks(groups, around)
        met = [pairing for _ in range(2) for pairing in list(all_met(blocks, self.probes.random))[:3]]
        yield from self.probes.near(met[:1], groups, "rate")  # for the bytes to be adapted
        # The link is busy until the last transfer ends, so that one tells what it carries.
        shared = yield from self.probes.near(met, groups, "rate", lambda rates: len(rates) * min(rates))
        rates = [value for each in shared for value in each.values()]
        first = [pairing for pairing in (_first_of_blocks(each, blocks) for each in met) if pairing]
        volume, random = self.probes.volume, self.probes.random
        singles = yield from self.probes.carry_out([lone(each, groups, volume, random) for each in first])
        alone = [value for each in singles for value in each]
        pairs = [(k, m) for block in blocks for k in block for m in block if k < m]
        trips = [trip for pair in pairs if (trip := self.probes.trip(groups, *pair))]
        return Tied(
            groups,
            float(np.exp(np.median(rates))) if rates else 0.0,
            float(np.median(alone)) if alone else 0.0,
            float(np.quantile(trips, 0.25)) / 2 if trips else 0.0,
            level.by,
            level.evidence,
        )


def _blocks(fine: Partition, coarse: Partition) -> Blocks:
    """Which of the fine groups are in each of the coarse ones, by their numbers."""
    home = {rank: number for number, group in enumerate(coarse) for rank in group}
    blocks: Blocks = [[] for _ in coarse]
    for number, item in enumerate(fine):
        blocks[home[item[0]]].append(number)
    return blocks


def _by_rank(evidence: Evidence, items: Partition) -> Evidence:
    """The evidence with the first rank of each item in place of its number."""

    def ranks(closest: Closest | None) -> Closest | None:
        return closest and ((items[closest[0][0]][0], items[closest[0][1]][0]), closest[1])

    doubtful = tuple(rank for number in evidence.doubtful for rank in items[number])
    return replace(evidence, doubtful=doubtful, inside=ranks(evidence.inside), across=ranks(evidence.across))


def _first_of_blocks(met: Pairing, blocks: Blocks) -> Pairing:
    """One pair of each block."""
    found: dict[int, tuple[int, int]] = {}
    home = {one: number for number, block in enumerate(blocks) for one in block}
    for pair in met:
        found.setdefault(home[pair[0]], pair)
    return list(found.values())


def _average(count: int, rounds: Sequence[Nearnesses]) -> Nearness:
    """The average nearness of each pair."""
    sums, counts = np.zeros((count, count)), np.zeros((count, count))
    for each in rounds:
        for (one, other), value in each.items():
            for at in ((one, other), (other, one)):
                sums[at] += value
                counts[at] += 1
    found: Nearness = np.full((count, count), np.nan)
    np.divide(sums, counts, out=found, where=counts > 0)
    return found


def _spread(average: Nearness) -> float:
    """How far apart the nearest and the farthest pairs are."""
    return float(np.nanmax(average) - np.nanmin(average))


def _is_new(clusters: Clusters, tried: Sequence[Clusters]) -> bool:
    """Whether clusters are worth a test: the first, then those of equal but other size, then all that are different."""
    if 0 < len(tried) < TRIED:
        return is_regular(clusters) and len(clusters) not in {len(each) for each in tried}
    return clusters not in tried


def _is_better(one: tuple[Clusters, Evidence], other: tuple[Clusters, Evidence]) -> bool:
    """Whether clusters that were tested later are better: that there is a level counts most, then that sizes are equal.

    Then, how much nearer things are inside, less for those that do not fit: it must be clearly more, as the others fit
    the tournament better.
    """
    kinds = [(evidence.exists, is_regular(clusters)) for clusters, evidence in (one, other)]
    if kinds[0] != kinds[1]:
        return kinds[0] > kinds[1]
    merits = [
        log(evidence.ratio) * (1.0 - len(evidence.doubtful) / sum(map(len, clusters)))
        for clusters, evidence in (one, other)
    ]
    return merits[0] > merits[1] + log(ENOUGH["rate", True])


def _checked(levels: Sequence[Tied]) -> list[Tied]:
    """Levels from the inside out, with little confidence in those that rates showed, but whose links carry nearly all
    that the groups inside can send.
    """
    checked = list(levels[:1])
    for inner, level in pairwise(levels):
        most = len(inner.groups) / len(level.groups) * inner.rate
        if level.by == "rate" and level.rate > FULL * most:
            level = replace(level, evidence=replace(level.evidence, confidence=min(level.evidence.confidence, 0.6)))
        checked.append(level)
    return checked


def _judged(evidence: Evidence, rounds: Sequence[Nearnesses]) -> Evidence:
    """The evidence, with less confidence where things do not fit, or where slow pairs are not explained by groups."""
    doubt = bool(evidence.exists and evidence.doubtful)
    if not evidence.exists and slow_share(rounds) > SLOW_SHARE:
        doubt = True
    confidence = min(evidence.confidence, 0.6) if doubt else evidence.confidence
    return replace(evidence, confidence=confidence)
