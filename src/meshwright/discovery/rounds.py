"""Rounds: transfers or round trips between ranks at the same time; who is paired with whom in them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

Group = tuple[int, ...]
"""Ranks that belong together."""

Partition = tuple[Group, ...]
"""Groups that share no rank."""


@dataclass(frozen=True, slots=True)
class Round:
    """Transfers at the same time: (sender, receiver) each, a rank sends to one other at most and receives from one.

    bytes: of each transfer; 0 for round trips of tiny messages, which the first of each pair begins.
    """

    pairs: tuple[tuple[int, int], ...]
    bytes: int


Seconds = Sequence[float]
"""How long each pair of a round took: for its bytes to arrive once they flow, or the shortest round trip."""


Pairing = list[tuple[int, int]]
"""Which things are paired, by their numbers."""


def tournament(order: Sequence[int]) -> list[Pairing]:
    """Rounds in which each meets each of the others once; of an odd number one pauses in each round.

    >>> tournament([0, 1, 2, 3])
    [[(0, 3), (1, 2)], [(0, 2), (3, 1)], [(0, 1), (2, 3)]]
    """
    ring: list[int | None] = [*order, *([None] if len(order) % 2 else [])]
    rounds = []
    for _ in range(len(ring) - 1):
        met = zip(ring[: len(ring) // 2], reversed(ring), strict=False)
        rounds.append([(one, other) for one, other in met if one is not None and other is not None])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return rounds


def all_met(blocks: Sequence[Sequence[int]], random: Random) -> Iterator[Pairing]:
    """Rounds in which, in every block at once, each meets each of the others."""
    drawn = [tournament(random.sample(list(block), len(block))) for block in blocks]
    for number in range(max((len(rounds) for rounds in drawn), default=0)):
        yield [pair for rounds in drawn if number < len(rounds) for pair in rounds[number]]


def inside(clusters: Sequence[Sequence[int]], random: Random) -> Pairing:
    """One round in which each meets another one of its cluster; of an odd number one pauses."""
    return [
        pair
        for cluster in clusters
        for drawn in [random.sample(list(cluster), len(cluster))]
        for pair in zip(drawn[::2], drawn[1::2], strict=False)
    ]


def across(blocks: Sequence[Sequence[Sequence[int]]], random: Random) -> Pairing:
    """One round in which each meets one of another cluster of its block, as far as there are partners.

    The clusters of a block are put in a row, and each meets the one that is half a row further: if no cluster has more
    than half of the block, that one is in another cluster.
    """
    found = []
    for clusters in blocks:
        drawn = [random.sample(list(cluster), len(cluster)) for cluster in random.sample(list(clusters), len(clusters))]
        row = [(one, number) for number, cluster in enumerate(drawn) for one in cluster]
        half = (len(row) + 1) // 2
        for (one, home), (other, there) in zip(row[: len(row) // 2], row[half:], strict=True):
            if home != there:
                found.append((one, other))
    return found


def exchange(met: Pairing, items: Partition, size: int, random: Random) -> Round:
    """The round in which all members of paired items send to each other, both ways, one to one.

    For example, the items (0, 1) and (4, 5) exchange by 0 <-> 5 and 1 <-> 4.
    """
    pairs = []
    for one, other in met:
        for here, there in zip(_drawn(items[one], random), _drawn(items[other], random), strict=False):
            pairs += [(here, there)] if not size else [(here, there), (there, here)]
    return Round(tuple(pairs), size)


def _drawn(item: Group, random: Random) -> list[int]:
    return random.sample(item, len(item))


def lone(met: Pairing, items: Partition, size: int, random: Random) -> Round:
    """The round in which one member of each paired item sends to one of the other, and no other member does."""
    return Round(tuple((random.choice(items[one]), random.choice(items[other])) for one, other in met), size)
