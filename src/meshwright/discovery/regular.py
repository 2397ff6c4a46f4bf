"""The largest regular part of a tree: the same number of children everywhere on a level, as a system has it."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from meshwright.discovery.model import Place, listed
from meshwright.discovery.nesting import usual

MOST_TRIES = 3000
"""The most choices of counts that are tried; a tree needs as many only if hardly two of its groups are alike."""


@dataclass(frozen=True, slots=True)
class Part:
    """A regular part: its places level by level, outermost first, in order.

    largest: whether it is proved that no other regular part has more devices.
    """

    levels: tuple[tuple[Place, ...], ...]
    counts: tuple[int, ...]
    largest: bool


def depth_of(place: Place) -> tuple[str, ...]:
    """The kinds of what is inside a place, down to its first device."""
    kinds = []
    while place.children:
        place = place.children[0]
        kinds.append(place.kind)
    return tuple(kinds)


def irregularities(root: Place) -> list[str]:
    """What differs from the usual, level by level: which places have how many children instead of how many."""
    found = []
    level = [root]
    while level and level[0].children:
        counts = Counter(len(place.children) for place in level)
        most = usual(counts)
        others: dict[int, list[str]] = defaultdict(list)
        for place in level:
            if len(place.children) != most:
                others[len(place.children)].append(place.name)
        kind = level[0].children[0].kind
        for count, names in sorted(others.items()):
            have = "has" if len(names) == 1 else "have"
            found.append(f"{listed(names)} {have} {_counted(count, kind)}, the usual {level[0].kind} has {most}")
        level = [child for place in level for child in place.children]
    return found


def _counted(count: int, kind: str) -> str:
    return f"{count} {kind if count == 1 else 'leaves' if kind == 'leaf' else f'{kind}s'}"


def largest_part(root: Place) -> Part:
    """The regular part with the most devices, of a tree in which all devices are equally deep.

    From the devices upwards: for each number of children that places of a level have, take those places that have at
    least as many, and look one level further up. For example, with nodes of 8, 8 and 7 GPUs: 8 leaves two nodes, 16
    devices; 7 leaves three nodes, 21 devices. A choice is skipped if even all places that it leaves have too few.
    """
    levels, parents = _flattened(root)
    best: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    tries = [MOST_TRIES]

    def search(depth: int, good: NDArray[np.bool_], devices: int, counts: tuple[int, ...]) -> None:
        if depth == 0:
            best[0] = (devices, counts)
            return
        there = np.bincount(parents[depth][good], minlength=len(levels[depth - 1]))
        choices = [
            (int((there >= count).sum()) * count * devices, count) for count in map(int, np.unique(there)) if count
        ]
        for bound, count in sorted(choices, reverse=True):
            if bound <= best[0][0] or not tries[0]:
                continue
            tries[0] -= 1
            search(depth - 1, there >= count, devices * count, (count, *counts))

    search(len(levels) - 1, np.ones(len(levels[-1]), dtype=bool), 1, ())
    return Part(_chosen(root, best[0][1]), best[0][1], tries[0] > 0)


def _flattened(root: Place) -> tuple[list[list[Place]], list[NDArray[np.int64]]]:
    """The places of each depth, and for each the number of its parent in the list before."""
    levels, parents = [[root]], [np.zeros(1, dtype=np.int64)]
    while levels[-1][0].children:
        parents.append(np.repeat(np.arange(len(levels[-1])), [len(place.children) for place in levels[-1]]))
        levels.append([child for place in levels[-1] for child in place.children])
    return levels, parents


def _chosen(root: Place, counts: tuple[int, ...]) -> tuple[tuple[Place, ...], ...]:
    """Of every place the first children that have enough inside them."""
    levels: list[tuple[Place, ...]] = [(root,)]
    for depth in range(len(counts)):
        chosen: list[Place] = []
        for place in levels[-1]:
            fitting = (child for child in place.children if _fits(child, counts[depth + 1 :]))
            chosen += islice(fitting, counts[depth])
        levels.append(tuple(chosen))
    return tuple(levels[1:])


def _fits(place: Place, counts: tuple[int, ...]) -> bool:
    if not counts:
        return True
    if len(place.children) < counts[0]:
        return False
    return sum(_fits(child, counts[1:]) for child in place.children) >= counts[0]


def leaves(place: Place) -> Iterator[Place]:
    """The devices of a place, in order."""
    if not place.children:
        yield place
    for child in place.children:
        yield from leaves(child)
