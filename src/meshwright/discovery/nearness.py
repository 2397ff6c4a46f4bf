"""Nearness: which things belong together, from how near each pair of them is."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import gcd

import numpy as np
from numpy.typing import NDArray

Nearness = NDArray[np.float64]
"""How near each is to each other: the logarithm of a rate, or of a time with the sign changed; NaN is not known."""

GAPS = 16
"""How many of the largest gaps between the heights of merges are tried as cuts."""

REGULAR = 0.1
"""What counts for clusters of equal size: clusters of machines mostly are, those of noise are not."""

EXCHANGES = 100
"""The most exchanges between clusters of equal size."""

FAR = -1e6
"""The nearness of clusters of which no pair has met."""

Clusters = tuple[tuple[int, ...], ...]

Merge = tuple[float, tuple[int, ...], tuple[int, ...]]
"""Two clusters that were merged, and how near they were on average."""


def ranked_clusters(near: Nearness, blocks: Sequence[Sequence[int]]) -> list[Clusters]:
    """Clusters of the things in blocks, those first that are nearest inside and farthest between each other; none if
    there is no way to cut.

    In every block, the two clusters that are nearest on average are merged, again and again. All merges above one
    height are then kept, the same height in all blocks, as links of a level are alike. Clusters of equal size are tried
    too: things in the order in which they were merged, a number at a time, and then exchanged as long as that helps.
    All these are ranked by their silhouettes.
    """
    merges = [_merges(near, block) for block in blocks]
    tried = dict.fromkeys([*_cuts(blocks, [merge for each in merges for merge in each]), *_equal(near, blocks, merges)])
    scores = {
        clusters: silhouette(near, blocks, clusters) + REGULAR * is_regular(clusters)
        for clusters in tried
        if len(clusters) > len(blocks) and any(len(cluster) > 1 for cluster in clusters)
    }
    return sorted(scores, key=scores.__getitem__, reverse=True)


def is_regular(clusters: Clusters) -> bool:
    """Whether all clusters have the same size."""
    return len({len(cluster) for cluster in clusters}) == 1


def _cuts(blocks: Sequence[Sequence[int]], merges: Sequence[Merge]) -> Iterator[Clusters]:
    """The clusters that are left when merges below some height are undone, at the largest gaps between heights."""
    heights = np.sort(np.array([height for height, _, _ in merges]))
    gaps = np.argsort(np.diff(heights))[::-1][:GAPS]
    for cut in sorted({float(heights[gap] + heights[gap + 1]) / 2 for gap in gaps}):
        home: dict[int, tuple[int, ...]] = {one: (one,) for block in blocks for one in block}
        for height, one, other in merges:
            if height > cut:
                home.update(dict.fromkeys((*one, *other), (*one, *other)))
        yield tuple(dict.fromkeys(tuple(sorted(home[one])) for block in blocks for one in block))


def _equal(near: Nearness, blocks: Sequence[Sequence[int]], merges: Sequence[Sequence[Merge]]) -> Iterator[Clusters]:
    """Clusters of each size that divides all blocks."""
    whole = gcd(*(len(block) for block in blocks))
    rows = [
        list(block) if not each else [*each[-1][1], *each[-1][2]] for block, each in zip(blocks, merges, strict=True)
    ]
    for size in range(2, whole):
        if whole % size == 0:
            found = [
                tuple(sorted(cluster))
                for row in rows
                for cluster in _exchanged(near, [row[k : k + size] for k in range(0, len(row), size)])
            ]
            yield tuple(sorted(found))


def _exchanged(near: Nearness, clusters: list[list[int]]) -> list[list[int]]:
    """Clusters after exchanges of two things, as long as that brings near ones together."""
    known = np.nan_to_num(near, nan=float(np.nanmean(near)))
    np.fill_diagonal(known, 0.0)
    for _ in range(EXCHANGES):
        # What each thing would gain in each cluster, and the best of all exchanges.
        sums = np.array([known[:, cluster].sum(axis=1) for cluster in clusters])
        best = (1e-9, 0, 0, 0, 0)
        for k, m in combinations(range(len(clusters)), 2):
            here, there = clusters[k], clusters[m]
            gain = (sums[m][here] - sums[k][here])[:, None] + (sums[k][there] - sums[m][there])[None, :]
            gain = gain - 2 * known[np.ix_(here, there)]
            at = int(np.argmax(gain))
            best = max(best, (float(gain.flat[at]), k, m, *divmod(at, len(there))))
        gained, k, m, one, other = best
        if gained <= 1e-9:
            break
        clusters[k][one], clusters[m][other] = clusters[m][other], clusters[k][one]
    return clusters


def _merges(near: Nearness, block: Sequence[int]) -> list[Merge]:
    """What is merged with what, at which average nearness; a merge is never nearer than those inside it."""
    here = near[np.ix_(block, block)]
    known = (~np.isnan(here)).astype(float)  # of how many pairs of two clusters the nearness is known
    total = np.nan_to_num(here)  # the sum of these
    alive = np.ones(len(block), dtype=bool)
    members: list[tuple[int, ...]] = [(one,) for one in block]
    found: list[Merge] = []
    height = np.inf
    for _ in range(len(block) - 1):
        average = np.where(known > 0, total / np.maximum(known, 1), FAR)
        average[~alive], average[:, ~alive] = -np.inf, -np.inf
        np.fill_diagonal(average, -np.inf)
        one, other = divmod(int(np.argmax(average)), len(block))
        height = min(height, float(average[one, other]))
        found.append((height, members[one], members[other]))
        for sums in (total, known):
            sums[one] += sums[other]
            sums[:, one] = sums[one]
        alive[other] = False
        members[one] += members[other]
    return found


def silhouette(near: Nearness, blocks: Sequence[Sequence[int]], clusters: Clusters) -> float:
    """How well things fit their clusters, from -1 to 1, on average: how much farther the nearest other cluster of the
    block is than their own. Those that have met none of their own count 0.
    """
    home = {one: number for number, cluster in enumerate(clusters) for one in cluster}
    member = np.zeros((len(near), len(clusters)))
    for one, number in home.items():
        member[one, number] = 1.0
    known = ~np.isnan(near)
    np.fill_diagonal(known, False)
    counts = known @ member
    distance = float(np.nanmax(near)) - np.where(
        counts > 0, (np.where(known, near, 0.0) @ member) / counts.clip(1), FAR
    )
    scores = []
    for block in blocks:
        here = sorted({home[one] for one in block})
        if len(here) == 1:  # nothing is farther, and nothing is told apart
            scores += [0.0] * len(block)
            continue
        for one in block:
            own = home[one]
            if not counts[one, own]:
                scores.append(0.0)
                continue
            mine, others = distance[one, own], min(distance[one, there] for there in here if there != own)
            scores.append((others - mine) / max(others, mine, 1e-9))
    return float(np.mean(scores))
