"""Numberings: the order of ranks in which groups are products of axes, where it is not the order of their numbers.

A family of groups divides the ranks: the data groups, the tensor groups. Let's use a concrete example, which the
comments below refer to: 4 ranks, the data groups 0 3 and 1 2, the tensor groups 0 1 and 2 3. On a grid, the rows are
one family and the columns the other. So the grid is 0 3 over 1 2, and the order 0 3 1 2.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Division = NDArray[np.int64]
"""For each point the number of its part; parts are numbered by their first points."""


def grid_order(families: Iterable[Sequence[tuple[int, ...]]], world: int) -> tuple[int, ...] | None:
    """The ranks in row-major order over axes of which all groups are products; None if that cannot be.

    An axis is found as the smallest groups that are left; then each of these groups becomes one point, and so on.

    >>> grid_order([[(0, 3), (1, 2)], [(0, 1), (2, 3)]], 4)
    (0, 3, 1, 2)
    """
    divisions = []
    for groups in families:
        listed = [rank for group in groups for rank in group]
        if sorted(listed) != list(range(world)):
            return None
        parts = np.empty(world, dtype=np.int64)
        for number, group in enumerate(groups):
            parts[list(group)] = number
        divisions.append(_numbered(parts))
    points = np.arange(world)  # the point of each rank
    coordinates: list[Division] = []
    while (count := int(points.max()) + 1) > 1:
        axis = _smallest(divisions, count)
        along = _along(axis, divisions, count)
        if along is None:
            return None
        coordinates.append(along[points])
        divisions = [_merged(_joined(division, axis), axis) for division in divisions]
        points = axis[points]
    order = np.lexsort(coordinates) if coordinates else points
    return tuple(order.tolist())


def _numbered(parts: Division) -> Division:
    """The same division with its parts numbered by their first points."""
    _, first, inverse = np.unique(parts, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def _met(one: Division, other: Division) -> Division:
    """The division into what is common to a part of the one and a part of the other."""
    return _numbered(one * (int(other.max()) + 1) + other)


def _joined(one: Division, other: Division) -> Division:
    """The finest division whose parts are made of whole parts of both."""
    found = one
    while True:
        # Every point takes the smallest number in its part of the other, then in its part of the one.
        lowest = np.full(len(found), len(found))
        np.minimum.at(lowest, other, found)
        new = lowest[other]
        lowest = np.full(len(found), len(found))
        np.minimum.at(lowest, one, new)
        new = lowest[one]
        if np.array_equal(new, found):
            return _numbered(found)
        found = new


def _merged(division: Division, axis: Division) -> Division:
    """A division of points as one of the parts of an axis, which lie inside its parts."""
    _, first = np.unique(axis, return_index=True)
    return _numbered(division[first])


def _smallest(divisions: Sequence[Division], count: int) -> Division:
    """The points divided into the smallest groups: those of all families that have more than one point in common."""
    found = np.zeros(count, dtype=np.int64)
    for division in divisions:
        common = _met(found, division)
        if common.max() + 1 < count:
            found = common
    return found


def _along(axis: Division, divisions: Sequence[Division], count: int) -> Division | None:
    """The coordinate of each point on an axis: the same for all points of a group that does not go along the axis."""
    # In the example the axis is data, 0 3 and 1 2. The tensor groups go across: 0 and 1 have the same coordinate on
    # data, and so have 2 and 3.
    across = np.arange(count)
    for division in divisions:
        if _met(axis, division).max() + 1 == count:
            across = _joined(across, division)
    whole = _joined(across, axis)
    found = np.empty(count, dtype=np.int64)
    for part in range(int(whole.max()) + 1):
        inside = np.flatnonzero(whole == part)
        found[inside] = _numbered(across[inside])
    sizes = np.bincount(axis)
    places = set(zip(axis.tolist(), found.tolist(), strict=True))
    return found if len(places) == count and (sizes == sizes[0]).all() and found.max() + 1 == sizes[0] else None
