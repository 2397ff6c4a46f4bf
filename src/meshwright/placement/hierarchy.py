"""The hierarchy of a reduction group: its levels and radices, all that programs and synthesis know of a placement."""

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

from meshwright.errors import SpecError
from meshwright.placement.placement import Placement
from meshwright.text.spec import MAX_PRODUCT, as_tuple, check_names, check_type, format_counts, parse_counts, shown

HIERARCHY_EXAMPLE = "node=4,gpu=16"


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Named levels with radices of at least 2, outermost first. Devices are numbered in mixed radix.

    >>> Hierarchy(("node", "gpu"), (4, 16)).size
    64
    """

    names: tuple[str, ...]
    radices: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse bad names and radices below 2."""
        object.__setattr__(self, "names", as_tuple(self.names, object, "names of levels"))
        object.__setattr__(self, "radices", as_tuple(self.radices, object, "radices"))
        if len(self.names) != len(self.radices):
            raise SpecError(f"{len(self.names)} names and {len(self.radices)} radices: one of each per level")
        check_names(self.names, "hierarchy", HIERARCHY_EXAMPLE)
        for name, radix in zip(self.names, self.radices, strict=True):
            if type(radix) is not int or radix < 2:
                raise SpecError(f"level {name!r} of the hierarchy has the radix {shown(radix)}; expected 2 or more")
        if self.size > MAX_PRODUCT:
            raise SpecError(f"the hierarchy has {self.size:.1e} devices; at most {MAX_PRODUCT:.0e} are possible")

    @property
    def size(self) -> int:
        """The number of devices in the group."""
        return prod(self.radices)

    def __str__(self) -> str:
        """The text that `parse_hierarchy` reads."""
        return format_counts(dict(zip(self.names, self.radices, strict=True)))


def hierarchy_of(names: Collection[str], radices: Collection[int]) -> Hierarchy:
    """The hierarchy of the given levels; those of radix 1 are left out, as there is nothing to reduce over."""
    kept = [(name, radix) for name, radix in zip(names, radices, strict=True) if radix != 1]
    return Hierarchy(tuple(name for name, _ in kept), tuple(radix for _, radix in kept))


def parse_hierarchy(text: str) -> Hierarchy:
    """A hierarchy from `NAME=RADIX,…`, outermost first; levels of radix 1 are left out.

    >>> parse_hierarchy("rack=1,node=4,gpu=16")
    Hierarchy(names=('node', 'gpu'), radices=(4, 16))
    """
    pairs = parse_counts(text, "hierarchy", HIERARCHY_EXAMPLE)
    return hierarchy_of([name for name, _ in pairs], [radix for _, radix in pairs])


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
    rows = [placement.matrix[row] for row in placement.rows(axes)]
    radices = [prod(column) for column in zip(*rows, strict=True)]
    return hierarchy_of([level.name for level in placement.system.levels], radices)
