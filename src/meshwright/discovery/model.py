"""What every topology file is read to: hosts, the groups that they are in, and the devices inside them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from meshwright.errors import SpecError
from meshwright.system.model import Link
from meshwright.text.spec import SHOWN, shown

MOST_HOSTS = 1_000_000
"""The most hosts in one topology."""


@dataclass(frozen=True, slots=True)
class Port:
    """How a place is attached to its siblings, and where the figures come from."""

    link: Link
    source: str


@dataclass(frozen=True, slots=True)
class Place:
    """A host, or something inside it: a NUMA node, a PCIe switch, a GPU. `kind` is the name of its level."""

    kind: str
    name: str
    children: tuple["Place", ...] = ()
    port: Port | None = None


@dataclass(frozen=True, slots=True)
class Tier:
    """One way to group things: which group each is in, and how the groups are attached to each other.

    nvlink: the hosts of one group are joined by NVLink, so their own ports are for what leaves the group.
    """

    kind: str
    groups: Mapping[str, str]
    ports: Mapping[str, Port] = field(default_factory=dict)
    nvlink: bool = False


@dataclass(frozen=True, slots=True)
class Topology:
    """What one file says.

    tiers: groups of hosts, in any order.
    hosts: those that are named, in the file's order, with what is known of their inside.
    every: what the one host is like that the file describes; name: that of this host, if the file has it.
    odd: devices and hosts that were left out already, each with the reason.
    notes: what a reader must know about the figures.
    """

    source: str
    tiers: tuple[Tier, ...] = ()
    hosts: Mapping[str, Place] = field(default_factory=dict)
    every: Place | None = None
    name: str = ""
    odd: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


SHOWN_NAMES = 8
"""How many names a message lists."""


def listed(names: Sequence[str]) -> str:
    """Names in a message, not too many of them, and nothing in them that cannot be printed."""
    some = [name if name.isprintable() and len(name) <= SHOWN else shown(name) for name in names[:SHOWN_NAMES]]
    more = f" and {len(names) - SHOWN_NAMES:,} more" if len(names) > SHOWN_NAMES else ""
    return ", ".join(some) + more


def wrong(source: str, line: int | None, message: str) -> SpecError:
    """An error at a line of a file."""
    return SpecError(f"{source}{'' if line is None else f' line {line}'}: {message}")


TIERS = ("leaf", "spine", "core")
"""What the tiers of a network are called, from the hosts upwards."""


def tier_name(height: int) -> str:
    """The name of a tier of switches; the tier that hosts are attached to has height 0.

    >>> tier_name(0), tier_name(3)
    ('leaf', 'tier4')
    """
    return TIERS[height] if height < len(TIERS) else f"tier{height + 1}"


def switch_tiers(
    paths: Mapping[str, tuple[str, ...]], ports: Mapping[str, Port]
) -> tuple[tuple[Tier, ...], dict[str, str]]:
    """Tiers from the path of switches above each host, outermost first; and hosts with fewer or more switches above
    them than the usual, with the reason.
    """
    depths, fewer = Counter(map(len, paths.values())), _without_chains(paths, ports)
    if max(Counter(map(len, fewer.values())).values()) > max(depths.values()):
        paths, depths = fewer, Counter(map(len, fewer.values()))
    usual = max(depths, key=lambda depth: (depths[depth], depth))
    odd = {}
    for host, path in paths.items():
        if len(path) != usual:
            above = f"{len(path)} switch{'es' * (len(path) != 1)} ({', '.join(path)[:80]})"
            odd[host] = f"is below {above}, the usual host below {usual}"
    tiers = []
    for depth in range(usual):
        groups = {host: path[depth] for host, path in paths.items() if host not in odd}
        names = set(groups.values())
        own = {name: port for name, port in ports.items() if name in names}
        tiers.append(Tier(tier_name(usual - 1 - depth), groups, own))
    return tuple(tiers), odd


def _without_chains(paths: Mapping[str, tuple[str, ...]], ports: Mapping[str, Port]) -> dict[str, tuple[str, ...]]:
    """Paths without switches that have only one other below them, unless their figures are known.

    They group nothing, and hosts may have more of them above them than others.
    """
    below: dict[str, set[str]] = {}
    for host, path in paths.items():
        for switch, inner in zip(path, [*path[1:], f"host {host}"], strict=True):
            below.setdefault(switch, set()).add(inner)
    chained = {switch for switch, inner in below.items() if len(inner) == 1 and switch not in ports}
    return {host: tuple(s for s in path[:-1] if s not in chained) + path[-1:] for host, path in paths.items()}
