"""A hierarchical system: levels, outermost first, each with a count and a link."""

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.resources import files
from math import prod
from os import PathLike
from pathlib import Path

from meshwright.errors import SpecError
from meshwright.spec import (
    MAX_PRODUCT,
    as_tuple,
    check_count,
    check_names,
    check_path,
    check_title,
    check_type,
    is_number,
    parse_count,
    shown,
    split_items,
    unknown,
)
from meshwright.units import parse_bandwidth, parse_seconds

EXAMPLE = "node=4@8GB/s,gpu=16@270GB/s"

LEAST, MOST = 1e-30, 1e30
"""What bandwidths and latencies lie between: as in units, and so that no time overflows."""


class Fabric(StrEnum):
    """How the children of one instance of a level are wired to each other."""

    SWITCH = "switch"
    RING = "ring"
    BUS = "bus"


@dataclass(frozen=True, slots=True)
class Link:
    """What connects the children of one level: bytes per second and direction of one child's port, and more.

    bandwidth: of one child's port into the fabric, full duplex, per direction; for a `ring` of one link to a
        neighbour, for a `bus` of the whole bus.
    latency: seconds to start one message.
    per_device: the most that one device alone can push through the port; on a `ring`, over one link.
    fabric: `switch`, `ring` (neighbour links only) or `bus` (one bandwidth for all children).
    bypass: traffic that leaves the level does not use these ports; on a `ring` it never does.
    reduces: the switch adds up what passes through it.
    """

    bandwidth: float | None = None
    latency: float = 0.0
    per_device: float | None = None
    fabric: Fabric = Fabric.SWITCH
    bypass: bool = False
    reduces: bool = False

    def __post_init__(self) -> None:
        """Refuse what no link can have."""
        for name in ("bandwidth", "per_device"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and LEAST <= value <= MOST):
                raise SpecError(f"{name} must be bytes per second, greater than zero and finite, not {shown(value)}")
        if not (is_number(self.latency) and (self.latency == 0 or LEAST <= self.latency <= MOST)):
            raise SpecError(f"latency must be zero or more seconds, not {shown(self.latency)}")
        if not isinstance(self.fabric, str) or self.fabric not in list(Fabric):
            raise SpecError(unknown("fabric", self.fabric, [str(fabric) for fabric in Fabric]))
        object.__setattr__(self, "fabric", Fabric(self.fabric))
        for name in ("bypass", "reduces"):
            if type(getattr(self, name)) is not bool:
                raise SpecError(f"{name} must be True or False, not {shown(getattr(self, name))}")
        if self.reduces and self.fabric is not Fabric.SWITCH:
            raise SpecError(f"only a switch can reduce, not a {self.fabric}")


@dataclass(frozen=True, slots=True)
class Level:
    """One level: `count` children in each instance of the level above, joined by `link`."""

    name: str
    count: int
    link: Link = Link()

    def __post_init__(self) -> None:
        """Refuse counts that are not positive whole numbers of a sane size."""
        check_count(self.count, f"level {shown(self.name)}", EXAMPLE)
        check_type(self.link, Link, f"a Link for the level {shown(self.name)}")


@dataclass(frozen=True, slots=True)
class System:
    """Levels, outermost first. Devices are numbered in mixed radix, the outermost level most significant.

    message_rate: how many messages per second all devices together can handle, where they share one machine's
    processors; None where each has its own.

    >>> system = parse_system("node=4@8GB/s,gpu=16@270GB/s")
    >>> system.devices, system.counts
    (64, (4, 16))
    """

    name: str
    levels: tuple[Level, ...]
    message_rate: float | None = None

    def __post_init__(self) -> None:
        """Refuse an empty list of levels and names that are malformed or appear twice."""
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

    @property
    def counts(self) -> tuple[int, ...]:
        """The count of each level."""
        return tuple(level.count for level in self.levels)

    @property
    def devices(self) -> int:
        """The number of devices."""
        return prod(self.counts)

    def with_outermost(self, count: int) -> "System":
        """The same system with another outermost count."""
        return replace(self, levels=(replace(self.levels[0], count=count), *self.levels[1:]))


def parse_system(text: str) -> System:
    """A system from `NAME=COUNT[@BANDWIDTH[+LATENCY]],…`, outermost first.

    >>> [str(level.link.latency) for level in parse_system("node=2@100Gbit/s+20us,gpu=8").levels]
    ['2e-05', '0.0']
    """
    levels = []
    for item in split_items(text, "system", EXAMPLE):
        name, equals, rest = item.partition("=")
        if not equals:
            raise SpecError(
                f"{shown(item)} in the system {shown(text)} is not NAME=COUNT[@BANDWIDTH[+LATENCY]], as in {EXAMPLE!r}"
            )
        count, at, link_text = rest.partition("@")
        bandwidth, *latency = re.split(r"(?<![eE])\+", link_text, maxsplit=1)
        link = Link(
            bandwidth=parse_bandwidth(bandwidth) if at else None,
            latency=parse_seconds(latency[0]) if latency else 0.0,
        )
        name = name.strip()
        levels.append(Level(name, parse_count(count.strip(), name, "system", EXAMPLE), link))
    return System(" ".join(text.split()), tuple(levels))


def preset_names() -> tuple[str, ...]:
    """The names of the built-in systems, sorted."""
    names = (entry.name for entry in files("meshwright").joinpath("systems").iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


def preset(name: str) -> System:
    """A built-in system, `NAME` or `NAME:COUNT` for another outermost count.

    >>> preset("gcp-a100:2").devices
    32
    """
    from meshwright.systemfile import read_system_text

    check_type(name, str, "the name of a preset")
    base, colon, count = name.partition(":")
    if base not in preset_names():
        raise SpecError(unknown("preset", base, preset_names()))
    path = files("meshwright").joinpath("systems", f"{base}.yaml")
    system = read_system_text(path.read_text(encoding="utf-8"), f"{base}.yaml")
    if not colon:
        return system
    outermost = parse_count(count, system.levels[0].name, f"preset {shown(name)}", f"{base}:4")
    return replace(system.with_outermost(outermost), name=name)


def as_system(system: "System | str | PathLike[str]") -> System:
    """A system, also from what `load_system` reads."""
    return system if isinstance(system, System) else load_system(system)


def load_system(spec: str | PathLike[str]) -> System:
    """A system from what a user may write: inline text, a preset, or the path of a YAML file.

    >>> load_system("dgx-h100:2").counts
    (2, 8)
    """
    from meshwright.systemfile import read_system

    spec = str(check_path(spec, "system")) if isinstance(spec, PathLike) else spec
    check_type(spec, str, f"a System, a preset, a description like {EXAMPLE!r}, or the path of a .yaml file")
    if spec.partition(":")[0] in preset_names():
        return preset(spec)
    if spec.lower().endswith((".yaml", ".yml")):
        return read_system(Path(spec))
    if "=" in spec:
        return parse_system(spec)
    if "/" in spec or _is_file(spec):
        return read_system(Path(spec))
    raise SpecError(
        f"{unknown('preset', spec.partition(':')[0], preset_names())}; a system is a preset, "
        f"a description like {EXAMPLE!r}, or the path of a .yaml file"
    )


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # no name of a file, such as one that is too long
        return False
