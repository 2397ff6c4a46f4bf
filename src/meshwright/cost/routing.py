"""Routing on ring fabrics: the most that any link between neighbours carries, for all devices and for a single one."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import prod

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.traffic import EVERYONE, Phase
from meshwright.errors import TooLargeError
from meshwright.placement.layout import Column, extended

MAX_RING = 512
"""Longer rings of children are not routed."""

MOST_COLUMNS = 256
"""Of an open column that can be completed in more ways, no least load is computed."""

_Whole = NDArray[np.int64]


@lru_cache(maxsize=65536)
def busiest_link(phase: Phase, level: int, column: Column) -> float:
    """The most that any link between neighbours carries, for one group in each place, going the shorter way round.

    For example, six children in a ring, with the column ((2, True), (3, False)): groups of two, and three of them side
    by side. Children 0 and 3 are one group, 1 and 4 the next, 2 and 5 the last, so that `places` is
    [[0, 1, 2], [3, 4, 5]]. If the first member of each group sends 1 to the second, that goes from 0 to 3, from 1 to 4
    and from 2 to 5, three links ahead each. The link from 2 to 3 carries all three: the result is 3.
    """
    return max((float(way.links().max()) for way in _both_ways(phase, level, column)), default=0.0)


@lru_cache(maxsize=65536)
def busiest_line(phase: Phase, level: int, column: Column, below: int) -> float:
    """The most that a link between two devices carries, where each device has links of its own.

    below: how many members a group has below one child. As in a torus, the devices in the same place below all children
    are a ring of their own. What a device sends takes up all links on its way along this ring, and arrives at the
    receiver over one of the receiver's two links.
    """
    most = 0.0
    for way in _both_ways(phase, level, column):
        for ends, carried in ((way.sender, way.links), (way.receiver, way.arriving)):
            evenly = carried(ends == EVERYONE) / below
            lines = [evenly + carried(ends == line) for line in np.unique(ends) if line != EVERYONE]
            if len(lines) < below:
                lines.append(evenly)
            most = max(most, *(float(line.max()) for line in lines))
    return most


@lru_cache(maxsize=65536)
def completions(column: Column, count: int, radix: int) -> tuple[Column, ...]:
    """All columns that begin with a given one, of a ring of `count` children with groups of `radix`.

    None of them if there are more than `MOST_COLUMNS`.

    >>> completions(((2, False),), 8, 2)
    (((2, False), (2, True), (2, False)), ((4, False), (2, True)))
    """
    groups = count // radix
    for factor, reduced in column:
        radix, groups = (radix // factor, groups) if reduced else (radix, groups // factor)
    if radix == groups == 1:
        return (column,)
    ways = (way for reduced in (True, False) for way in _completed(column, radix, groups, reduced))
    found = tuple(islice(ways, MOST_COLUMNS + 1))
    return found if len(found) <= MOST_COLUMNS else ()


def _completed(column: Column, radix: int, groups: int, reduced: bool) -> Iterator[Column]:
    """All ways to go on with a factor of the given kind, then one of the other kind, and so on, until none are left."""
    left = radix if reduced else groups
    for factor in (factor for factor in range(2, left + 1) if left % factor == 0):
        longer = extended(column, factor, reduced)
        rest = (radix // factor, groups) if reduced else (radix, groups // factor)
        if rest == (1, 1):
            yield longer
        else:
            yield from _completed(longer, *rest, not reduced)


@dataclass(frozen=True, eq=False)
class _Way:
    """What travels one way round a ring of `count` children.

    Each `amount` takes up `length` links from `start` on, comes from a `sender` and reaches a `receiver` below the
    child `end`.
    """

    count: int
    start: _Whole
    length: _Whole
    amount: NDArray[np.float64]
    end: _Whole
    sender: _Whole
    receiver: _Whole

    def links(self, own: NDArray[np.bool_] | slice = slice(None)) -> NDArray[np.float64]:
        """What each link carries of some of it."""
        start, length, amount = self.start[own], self.length[own], self.amount[own]
        # Where traffic begins and stops to flow, for two turns: summed up, what each link carries.
        changes = np.bincount(start, amount, 2 * self.count) - np.bincount(start + length, amount, 2 * self.count)
        turns = np.cumsum(changes)
        return turns[: self.count] + turns[self.count :]

    def arriving(self, own: NDArray[np.bool_]) -> NDArray[np.float64]:
        """What each child gets of some of it."""
        gets: NDArray[np.float64] = np.bincount(self.end[own], self.amount[own], self.count).astype(float)
        return gets


def _both_ways(phase: Phase, level: int, column: Column) -> list[_Way]:
    """What travels ahead, and what travels back; those of the two where there is something."""
    count = prod(factor for factor, _ in column)
    if count > MAX_RING:
        raise TooLargeError(f"a ring of {count:,} children is too long to route; at most {MAX_RING:,} can be")
    # For each member of a group, where it is in each of the groups.
    within = [row for row, (_, reduced) in enumerate(column) if reduced]
    others = [row for row, (_, reduced) in enumerate(column) if not reduced]
    places = np.arange(count).reshape([factor for factor, _ in column]).transpose(within + others)
    places = places.reshape(prod(column[row][0] for row in within), -1)
    sends = list(phase.pairs(level))
    if not sends:
        return []
    child, other, *each = (np.array(values) for values in zip(*sends, strict=True))
    a, b = places[child].reshape(-1), places[other].reshape(-1)
    amount, sender, receiver = (np.repeat(values, places.shape[1]) for values in each)
    ahead = (b - a) % count
    forward = ahead <= count - ahead
    ways = []
    for mine, start, length in ((forward, a, ahead), (~forward, b, count - ahead)):
        if mine.any():
            ways.append(_Way(count, *(values[mine] for values in (start, length, amount, b, sender, receiver))))
    return ways
