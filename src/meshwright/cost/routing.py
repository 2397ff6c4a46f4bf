"""Routing on ring fabrics: the most that any link between neighbours carries."""

from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.traffic import Phase
from meshwright.errors import TooLargeError

MAX_RING = 512
"""Longer rings of children are not routed."""


@lru_cache(maxsize=65536)
def busiest_link(phase: Phase, level: int, column: tuple[tuple[int, bool], ...]) -> float:
    """The most that any link between neighbours carries, for one group in each place, going the shorter way round.

    For example, six children in a ring, with the column ((2, True), (3, False)): groups of two, and three of them side
    by side. Children 0 and 3 are one group, 1 and 4 the next, 2 and 5 the last, so that `places` is
    [[0, 1, 2], [3, 4, 5]]. If the first member of each group sends 1 to the second, that goes from 0 to 3, from 1 to 4
    and from 2 to 5, three links ahead each. The link from 2 to 3 carries all three: the result is 3.
    """
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
        return 0.0
    child, target, amount = (np.array(values) for values in zip(*sends, strict=True))
    a, b = places[child].reshape(-1), places[target].reshape(-1)
    amounts = np.repeat(amount, places.shape[1])
    ahead = (b - a) % count
    forward = ahead <= count - ahead
    loads = [
        _flows(a[forward], ahead[forward], amounts[forward], count),
        _flows(b[~forward], (count - ahead)[~forward], amounts[~forward], count),
    ]
    return float(max(load.max() for load in loads))


_Whole = NDArray[np.int64]


def _flows(start: _Whole, length: _Whole, amount: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """What each link of a ring carries when each amount travels `length` links from `start`, all the same way round."""
    # Where traffic begins and stops to flow, for two turns: summed up, what each link carries.
    changes = np.bincount(start, amount, 2 * count) - np.bincount(start + length, amount, 2 * count)
    turns = np.cumsum(changes)
    return turns[:count] + turns[count:]
