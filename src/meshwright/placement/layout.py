"""How the groups of one reduction sit on a system: all that a time depends on."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from math import prod

from meshwright.errors import SpecError
from meshwright.placement.hierarchy import Hierarchy, hierarchy_of
from meshwright.placement.placement import Placement
from meshwright.system.model import Fabric, Link, System


@dataclass(frozen=True)
class Layout:
    """How the groups of one reduction sit on a system: all that a cost depends on.

    radices: per level of the system, into how many children of one instance a reduction group fans out.
    columns: per level with a ring fabric, the column of the matrix as (factor, whether it is reduced over); else empty.
    """

    system: System
    radices: tuple[int, ...]
    columns: tuple[tuple[tuple[int, bool], ...], ...]

    @cached_property
    def hierarchy(self) -> Hierarchy:
        """The reduction group's hierarchy."""
        return hierarchy_of([level.name for level in self.system.levels], self.radices)

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """For each level of the hierarchy, which level of the system it is."""
        return tuple(level for level, radix in enumerate(self.radices) if radix > 1)

    @cached_property
    def beside(self) -> tuple[int, ...]:
        """Per level of the system, how many reduction groups run side by side below one child."""
        ratios = [count // radix for count, radix in zip(self.system.counts, self.radices, strict=True)]
        return tuple(prod(ratios[level + 1 :]) for level in range(len(ratios)))


def layout_of(placement: Placement, axes: Collection[str]) -> Layout:
    """The layout of a reduction over some axes of a placement.

    >>> from meshwright import parse_system
    >>> placement = Placement(parse_system("node=4@8GB/s,gpu=16@270GB/s"), ("data", "shard"), ((2, 2), (2, 8)))
    >>> layout_of(placement, ["data"]).radices
    (2, 2)
    """
    rows = set(placement.rows(axes))
    columns = list(zip(*placement.matrix, strict=True))
    return Layout(
        placement.system,
        tuple(prod(factor for row, factor in enumerate(column) if row in rows) for column in columns),
        tuple(
            tuple((factor, row in rows) for row, factor in enumerate(column) if factor > 1)
            if level.link.fabric is Fabric.RING
            else ()
            for level, column in zip(placement.system.levels, columns, strict=True)
        ),
    )


def inner_only(link: Link) -> bool:
    """Whether the level's links carry only traffic between its own children."""
    return link.bypass or link.fabric is Fabric.RING


def check_links(system: System) -> None:
    """Refuse a system that a time cannot be computed for."""
    for level in system.levels:
        if level.link.bandwidth is None and level.count > 1:
            raise SpecError(
                f"level {level.name!r} of the system {system.name!r} has no bandwidth, so no time can be computed; add "
                f"one, like {level.name}={level.count}@8GB/s on the command line or 'bandwidth: 8GB/s' in a file"
            )
