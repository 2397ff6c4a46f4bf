"""The model of a cluster: a system has levels, outermost first; each has a count and a link with its fabric."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from math import prod

from meshwright.errors import SpecError
from meshwright.text.spec import (
    MAX_PRODUCT,
    as_tuple,
    check_count,
    check_names,
    check_title,
    check_type,
    is_number,
    one_of,
    shown,
)

EXAMPLE = "node=4@8GB/s,gpu=16@270GB/s"

LEAST, MOST = 1e-30, 1e30
"""The limits of bandwidths and latencies: those that the units accept, and far from where times overflow."""


class Fabric(StrEnum):
    """How the children of one instance of a level are wired to each other."""

    SWITCH = "switch"
    RING = "ring"
    BUS = "bus"

    @property
    def neighbours_only(self) -> bool:
        """Whether only neighbours are linked. Then times depend on the order of the axes inside the level, and traffic
        that leaves the level does not use its links.
        """
        return self is Fabric.RING


@dataclass(frozen=True, slots=True)
class Link:
    """How the children of one instance of the level above are connected. Bandwidths are bytes per second.

    bandwidth: on a `switch`, of each child's port, in each direction; on a `ring`, of one link to a neighbour, in each
        direction; on a `bus`, of the whole bus.
    latency: seconds to start one message.
    per_device: the most that one device alone can send through a port, and receive. On a `ring`: the bandwidth, in each
        direction, of one link of a device's own, to the device in the same place below the next child.
    fabric: `switch`, `ring` (links between neighbours only) or `bus` (one bandwidth shared by all children).
    bypass: traffic that leaves the level does not use these ports; on a `ring` it never does.
    reduces: the switch itself adds up what passes through it.
    bits: whether people are shown its bandwidths in bits per second, as they wrote them; links that differ in nothing
        else are equal.

    For example, `node` with bandwidth 400 GB/s and per_device 50 GB/s is a node with eight network cards: all its
    devices together reach 400 GB/s, but one device alone uses only its own card. A torus of 16 x 16 chips with links
    of 50 GB/s is a ring of 16 rows with bandwidth 800 GB/s and per_device 50 GB/s, and in each row a ring of 16 chips.
    """

    bandwidth: float | None = None
    latency: float = 0.0
    per_device: float | None = None
    fabric: Fabric = Fabric.SWITCH
    bypass: bool = False
    reduces: bool = False
    bits: bool = field(default=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("bandwidth", "per_device"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and LEAST <= value <= MOST):
                raise SpecError(f"{name} must be bytes per second, greater than zero and finite, not {shown(value)}")
        if not (is_number(self.latency) and (self.latency == 0 or LEAST <= self.latency <= MOST)):
            raise SpecError(f"latency must be zero or more seconds, not {shown(self.latency)}")
        object.__setattr__(self, "fabric", one_of(Fabric, "fabric", self.fabric))
        for name in ("bypass", "reduces", "bits"):
            if type(getattr(self, name)) is not bool:
                raise SpecError(f"{name} must be True or False, not {shown(getattr(self, name))}")
        if self.reduces and self.fabric is not Fabric.SWITCH:
            raise SpecError(f"only a switch can reduce, not a {self.fabric}")


@dataclass(frozen=True, slots=True)
class Level:
    """One level: each instance of the level above has `count` children, which `link` connects."""

    name: str
    count: int
    link: Link = Link()

    def __post_init__(self) -> None:
        check_count(self.count, f"level {shown(self.name)}", EXAMPLE)
        check_type(self.link, Link, f"a Link for the level {shown(self.name)}")


@dataclass(frozen=True)
class System:
    """Levels, outermost first. Devices are numbered in mixed radix, the outermost level most significant.

    message_rate: how many messages per second all devices together can handle, if they share the processors of one
    machine; None if each has its own.
    library: the name of the library whose collectives usually run there; None if that is not known.

    >>> from meshwright import parse_system
    >>> system = parse_system("node=4@8GB/s,gpu=16@270GB/s")
    >>> system.devices, system.counts
    (64, (4, 16))
    """

    name: str
    levels: tuple[Level, ...]
    message_rate: float | None = None
    library: str | None = None

    def __post_init__(self) -> None:
        check_title(self.name, "the name of a system")
        object.__setattr__(self, "levels", as_tuple(self.levels, Level, "levels of a system"))
        if not self.levels:
            raise SpecError(f"a system needs at least one level, as in {EXAMPLE!r}")
        check_names([level.name for level in self.levels], f"system {shown(self.name)}", EXAMPLE)
        if self.devices > MAX_PRODUCT:
            raise SpecError(
                f"the system {shown(self.name)} has {self.devices:.1e} devices; at most {MAX_PRODUCT:.0e} are possible"
            )
        if self.message_rate is not None and not (is_number(self.message_rate) and LEAST < self.message_rate < 1e15):
            raise SpecError(
                f"the system {shown(self.name)} has message_rate={shown(self.message_rate)}; expected messages per "
                "second"
            )
        if self.library is not None:
            check_title(self.library, f"the library of the system {shown(self.name)}")

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The count of each level."""
        return tuple(level.count for level in self.levels)

    @property
    def devices(self) -> int:
        """The number of devices."""
        return prod(self.counts)

    @cached_property
    def order_matters(self) -> bool:
        """Whether times depend on the order of the axes inside a level."""
        return any(level.link.fabric.neighbours_only for level in self.levels)

    def with_outermost(self, count: int) -> "System":
        """The same system with another outermost count."""
        return replace(self, levels=(replace(self.levels[0], count=count), *self.levels[1:]))
