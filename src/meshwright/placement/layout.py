"""Layouts: how the groups of one reduction lie on a system; a predicted time depends on nothing else of a placement."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from math import prod

from meshwright.errors import SpecError
from meshwright.placement.hierarchy import Hierarchy, hierarchy_of
from meshwright.placement.placement import Placement
from meshwright.system.model import Link, System
from meshwright.text.spec import as_tuple, check_type

Column = tuple[tuple[int, bool], ...]
"""The factors of a level, outermost first, each with whether it is reduced over; neighbours that are alike are one."""


@dataclass(frozen=True)
class Layout:
    """How the groups of one reduction lie on a system.

    radices: for each level of the system, over how many children of one instance a group is spread.
    columns: for each level whose fabric links neighbours only, its column of the matrix. Empty for other levels. A
        column that multiplies to less than the level's count is open: it stands for all columns that begin so, and
        times are lower bounds.

    For example, data=4 and shard=16 on node=4,gpu=16 with the rows (2, 2) and (2, 8): a group over data has 2 nodes
    and 2 GPUs in each, so the radices are (2, 2). Below one node there are 16 / 2 = 8 such groups, below one GPU there
    is 1: `beside` is (8, 1). If gpu were a ring, its column would be ((2, True), (8, False)). With an axis of size 1 or
    with two axes instead of shard, it would be the same.
    """

    system: System
    radices: tuple[int, ...]
    columns: tuple[Column, ...]

    @cached_property
    def hierarchy(self) -> Hierarchy:
        """The reduction group's hierarchy."""
        return hierarchy_of([level.name for level in self.system.levels], self.radices)

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """For each level of the hierarchy, its number among the levels of the system."""
        return tuple(level for level, radix in enumerate(self.radices) if radix > 1)

    @property
    def open(self) -> bool:
        """Whether a column is open."""
        levels = zip(self.system.levels, self.columns, strict=True)
        return any(level.link.fabric.neighbours_only and prod(f for f, _ in c) < level.count for level, c in levels)

    @cached_property
    def beside(self) -> tuple[int, ...]:
        """For each level of the system, how many groups one of its children takes part in."""
        ratios = [count // radix for count, radix in zip(self.system.counts, self.radices, strict=True)]
        return tuple(prod(ratios[level + 1 :]) for level in range(len(ratios)))

    @cached_property
    def divisors(self) -> tuple[int, ...]:
        """For each set of levels of the hierarchy, as bits: how many parts what is scattered along it has."""
        found = [1]
        for level in self.levels:
            found += [number * self.radices[level] for number in found]
        return tuple(found)

    @cached_property
    def others(self) -> tuple[int, ...]:
        """For each set of levels of the hierarchy, as bits: how many members differ from the first in all of these.

        For example, with the radices 2 and 3, in 0b11 differ (2 - 1) * (3 - 1) = 2.
        """
        found = [1]
        for level in self.levels:
            found += [number * (self.radices[level] - 1) for number in found]
        return tuple(found)


def layout_of(placement: Placement, axes: Collection[str]) -> Layout:
    """The layout of a reduction over some axes of a placement.

    >>> from meshwright import parse_system
    >>> placement = Placement(parse_system("node=4@8GB/s,gpu=16@270GB/s"), ("data", "shard"), ((2, 2), (2, 8)))
    >>> layout_of(placement, ["data"]).radices
    (2, 2)
    """
    rows = set(placement.rows(axes))
    radices, columns = [], []
    for level, factors in zip(placement.system.levels, zip(*placement.matrix, strict=True), strict=True):
        radices.append(prod(factor for row, factor in enumerate(factors) if row in rows))
        column: Column = ()
        for row, factor in enumerate(factors if level.link.fabric.neighbours_only else ()):
            column = extended(column, factor, row in rows)
        columns.append(column)
    return Layout(placement.system, tuple(radices), tuple(columns))


def extended(column: Column, factor: int, reduced: bool) -> Column:
    """A column with one factor more, inside the others.

    >>> extended(((2, True), (4, False)), 2, False)
    ((2, True), (8, False))
    """
    if factor == 1:
        return column
    if column and column[-1][1] == reduced:
        return (*column[:-1], (column[-1][0] * factor, reduced))
    return (*column, (factor, reduced))


def reduction_hierarchy(placement: Placement, axes: Collection[str]) -> Hierarchy:
    """The hierarchy of a reduction group: the radix of a level is the product of the reduction axes' factors there.

    For example, data with the row (2, 2) is on 2 nodes and in each on 2 GPUs, so a group over data has the hierarchy
    node=2,gpu=2. Over data and shard, the radices are the products of both rows: node=2*2, gpu=2*8.

    >>> from meshwright import Placement, parse_system
    >>> placement = Placement(parse_system("node=4,gpu=16"), ("data", "shard"), ((2, 2), (2, 8)))
    >>> str(reduction_hierarchy(placement, ["data"])), str(reduction_hierarchy(placement, ["data", "shard"]))
    ('node=2,gpu=2', 'node=4,gpu=16')
    """
    check_type(placement, Placement, "a Placement")
    if not isinstance(axes, str) and not as_tuple(axes, object, "axes"):
        raise SpecError("a reduction needs at least one axis")
    return layout_of(placement, axes).hierarchy


def inner_only(link: Link) -> bool:
    """Whether a level's links carry nothing but traffic between its own children."""
    return link.bypass or link.fabric.neighbours_only


def check_links(system: System) -> None:
    """Refuse a system with a bandwidth missing, for which no time can be computed."""
    for level in system.levels:
        if level.link.bandwidth is None and level.count > 1:
            raise SpecError(
                f"level {level.name!r} of the system {system.name!r} has no bandwidth, so no time can be computed; add "
                f"one, like {level.name}={level.count}@8GB/s on the command line or 'bandwidth: 8GB/s' in a file"
            )
