"""A hierarchical system: levels, outermost first, each with a count and a link."""

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.resources import files
from math import prod
from pathlib import Path

from meshwright.errors import SpecError
from meshwright.spec import check_count, check_names, parse_count, split_items, unknown
from meshwright.units import parse_bandwidth, parse_seconds

EXAMPLE = "node=4@8GB/s,gpu=16@270GB/s"


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
            if value is not None and not (_is_number(value) and 0 < value < float("inf")):
                raise SpecError(f"{name} must be bytes per second, greater than zero and finite, not {value!r}")
        if not (_is_number(self.latency) and 0 <= self.latency < float("inf")):
            raise SpecError(f"latency must be zero or more seconds, not {self.latency!r}")
        if self.fabric not in list(Fabric):
            raise SpecError(unknown("fabric", str(self.fabric), [str(fabric) for fabric in Fabric]))
        object.__setattr__(self, "fabric", Fabric(self.fabric))
        for name in ("bypass", "reduces"):
            if type(getattr(self, name)) is not bool:
                raise SpecError(f"{name} must be True or False, not {getattr(self, name)!r}")
        if self.reduces and self.fabric is not Fabric.SWITCH:
            raise SpecError(f"only a switch can reduce, not a {self.fabric}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Level:
    """One level: `count` children in each instance of the level above, joined by `link`."""

    name: str
    count: int
    link: Link = Link()

    def __post_init__(self) -> None:
        """Refuse counts that are not positive whole numbers of a sane size."""
        check_count(self.count, f"level {self.name!r}", EXAMPLE)


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
        object.__setattr__(self, "levels", tuple(self.levels))
        if not self.levels:
            raise SpecError(f"a system needs at least one level, as in {EXAMPLE!r}")
        check_names([level.name for level in self.levels], f"system {self.name!r}", EXAMPLE)
        if self.message_rate is not None and not (_is_number(self.message_rate) and 0 < self.message_rate < 1e15):
            raise SpecError(
                f"the system {self.name!r} has message_rate={self.message_rate!r}; expected messages per second"
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
                f"{item!r} in the system {text!r} is not NAME=COUNT[@BANDWIDTH[+LATENCY]], as in {EXAMPLE!r}"
            )
        count, at, link_text = rest.partition("@")
        bandwidth, *latency = re.split(r"(?<![eE])\+", link_text, maxsplit=1)
        link = Link(
            bandwidth=parse_bandwidth(bandwidth) if at else None,
            latency=parse_seconds(latency[0]) if latency else 0.0,
        )
        name = name.strip()
        levels.append(Level(name, parse_count(count.strip(), name, "system", EXAMPLE), link))
    return System(text, tuple(levels))


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

    base, colon, count = name.partition(":")
    if base not in preset_names():
        raise SpecError(unknown("preset", base, preset_names()))
    path = files("meshwright").joinpath("systems", f"{base}.yaml")
    system = read_system_text(path.read_text(encoding="utf-8"), f"{base}.yaml")
    if not colon:
        return system
    outermost = parse_count(count, system.levels[0].name, f"preset {name!r}", f"{base}:4")
    return replace(system.with_outermost(outermost), name=name)


def load_system(spec: str | Path) -> System:
    """A system from what a user may write: inline text, a preset, or the path of a YAML file.

    >>> load_system("dgx-h100:2").counts
    (2, 8)
    """
    from meshwright.systemfile import read_system

    spec = str(spec)
    if spec.partition(":")[0] in preset_names():
        return preset(spec)
    if spec.lower().endswith((".yaml", ".yml")):
        return read_system(Path(spec))
    if "=" in spec:
        return parse_system(spec)
    if "/" in spec or Path(spec).is_file():
        return read_system(Path(spec))
    raise SpecError(
        f"{unknown('preset', spec.partition(':')[0], preset_names())}; a system is a preset, "
        f"a description like {EXAMPLE!r}, or the path of a .yaml file"
    )
