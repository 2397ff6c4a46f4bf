"""Hierarchies: the levels and radices of a reduction group, all that programs know of a placement; numbers in them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod

from meshwright.errors import SpecError
from meshwright.text.spec import MAX_PRODUCT, as_tuple, check_names, format_counts, parse_counts, shown

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


def digits_of(number: int, radices: Sequence[int]) -> tuple[int, ...]:
    """The digits of a number: device 37 of 4 nodes with 16 GPUs each is GPU 5 of node 2.

    >>> digits_of(37, (4, 16))
    (2, 5)
    """
    digits = []
    for radix in reversed(radices):
        number, digit = divmod(number, radix)
        digits.append(digit)
    return tuple(reversed(digits))


def number_of(digits: Sequence[int], radices: Sequence[int]) -> int:
    """The number with the given digits.

    >>> number_of((2, 5), (4, 16))
    37
    """
    number = 0
    for digit, radix in zip(digits, radices, strict=True):
        number = number * radix + digit
    return number
