"""Several topologies of one cluster, assembled to a system, the order of its hosts, and what does not fit into it."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from meshwright.discovery.hosts import HOST, described, host_names, linked, with_nvlink
from meshwright.discovery.model import Place, Port, Topology, listed
from meshwright.discovery.nesting import Nested, grow, nest
from meshwright.discovery.nominal import joins, node_type
from meshwright.discovery.regular import Part, depth_of, irregularities, largest_part, leaves
from meshwright.errors import SpecError, TooLargeError
from meshwright.system.model import Level, Link, System
from meshwright.text.units import format_bandwidth

_NO_LINKS = (
    "no NVLink or xGMI joins the GPUs in these files. Vendors' files leave them out, because NCCL looks for them "
    "itself: if there are any, add the output of `nvidia-smi topo -m`, or say --node-type"
)

MOST_DEVICES = 2**21
"""The most devices of a cluster."""


BLOCKS = ("block", "subblock", "domain", "clique", "ultraserver")
"""Kinds of groups that are NVLink domains, if the type of the hosts has such domains at all."""


@dataclass(frozen=True, slots=True)
class Discovery:
    """What was found.

    sources: for each level of the system where its figures come from.
    hosts: in the order of the system's devices; each has as many devices as the others.
    left_out: hosts, and devices as host/device, that are not in the system; irregular says why.
    """

    system: System
    sources: Mapping[str, str]
    hosts: tuple[str, ...]
    left_out: tuple[str, ...]
    irregular: tuple[str, ...]
    notes: tuple[str, ...]


def assemble(
    topologies: Sequence[Topology],
    only: Sequence[str] | None = None,
    kind: str | None = None,
    name: str = "discovered",
) -> Discovery:
    """The system that topologies describe together.

    only: the hosts to look at; if no topology names hosts, these are the hosts.
    kind: the type of every host, in the table of types; it counts instead of what the topologies say.
    """
    tree = _tree(topologies, host_names(topologies, only), kind)
    root = grow(tree.nested, tree.hosts, "the cluster")
    part, tiers = largest_part(root), len(tree.nested.tiers)
    levels, differing = _levels(part, tree.nested)
    notes = [note for topology in topologies for note in topology.notes] + tree.notes
    if len(tree.nested.members) == 1 and (port := tree.hosts[tree.nested.members[0]].port) is not None:
        notes.append(f"the host's network: {port.source}; --hosts makes a cluster of such hosts")
    if len(part.levels[-1]) > 1 and all(place.kind == "gpu" and not linked(place) for place in part.levels[-1]):
        notes.append(_NO_LINKS)
    if not part.largest:
        notes.append("this is the largest regular part that was found, not proved to be the largest")
    gpus = all(place.kind == "gpu" for place in part.levels[-1])
    found = tuple(Level(level, count, port.link if port else Link()) for level, count, port in levels)
    return Discovery(
        System(name, found, library="nccl" if gpus else None),
        {level: port.source if port else "" for level, _, port in levels},
        tuple(host.name for host in part.levels[tiers]),
        tuple(dict.fromkeys([*tree.odd, *_left_out(part, tiers, tree.hosts)])),
        (*(f"{what} {why}" for what, why in _together(tree.odd)), *irregularities(root), *differing),
        tuple(dict.fromkeys(notes)),
    )


@dataclass(frozen=True, slots=True)
class _Tree:
    """Hosts of the same shape in tiers that nest; odd are those that are not, and devices, each with the reason."""

    nested: Nested
    hosts: dict[str, Place]
    odd: dict[str, str]
    notes: list[str]


def _tree(topologies: Sequence[Topology], names: list[str], kind: str | None) -> _Tree:
    known, wanted = {host for topology in topologies for host in topology.hosts}, set(names)
    odd = {
        what: why
        for topology in topologies
        for what, why in topology.odd.items()
        if (host := what.partition("/")[0]) in wanted or host not in known
    }
    names = [host for host in names if host not in odd]
    hosts, notes = described(topologies, names, None if kind is None else node_type(kind))
    tiers = [tier for topology in topologies for tier in topology.tiers]
    if kind is not None and joins(kind):
        tiers = [replace(tier, nvlink=tier.nvlink or tier.kind in BLOCKS) for tier in tiers]
    nested = nest(names, tiers)
    odd |= nested.odd
    if not nested.members:
        raise SpecError(f"no host is left: {'; '.join(f'{what} {why}' for what, why in _together(odd)[:3])}")
    shapes = Counter(depth_of(hosts[host]) for host in nested.members)
    shape = max(shapes, key=lambda kinds: (shapes[kinds], kinds))
    for host in nested.members:
        if depth_of(hosts[host]) != shape:
            odd[host] = f"has {_inside(depth_of(hosts[host]))} inside, the usual {HOST} {_inside(shape)}"
    nested = replace(nested, members=tuple(host for host in nested.members if host not in odd))
    devices = sum(1 for host in nested.members for _ in leaves(hosts[host]))
    if devices > MOST_DEVICES:
        raise TooLargeError(f"{devices:,} devices on {len(names):,} hosts; at most {MOST_DEVICES:,} can be looked at")
    return _Tree(with_nvlink(nested, hosts), hosts, odd, notes)


def _levels(part: Part, nested: Nested) -> tuple[list[tuple[str, int, Port | None]], list[str]]:
    """The levels of a part, and which ports differ from the usual. A level of one child everywhere is no level of its
    own: it and the one above become one. Tiers without a figure get the sum of what is below.
    """
    found: list[tuple[str, int, Port | None]] = []
    differing: list[str] = []
    ports = []
    for places in part.levels:
        port, said = _port(places)
        ports.append(port)
        differing += said
    device = next(
        (port.link for port in reversed(ports[: len(nested.tiers) + 1]) if port and not port.link.bypass), None
    )
    for depth, tier in reversed(list(enumerate(nested.tiers))):
        if not tier.nvlink:
            ports[depth] = _uplink(ports[depth], ports[depth + 1], part.counts[depth + 1], device)
    for depth, places in enumerate(part.levels):
        kind, count, port = places[0].kind, part.counts[depth], ports[depth]
        if count == 1 and found:
            _, count, above = found.pop()
            port = above if above is not None and not _slower(port, above) else port
        elif count == 1 and depth + 1 < len(part.levels) and prod(part.counts) > 1:
            continue
        found.append((_name(kind, [level[0] for level in found]), count, port))
    return found, differing


def _slower(one: Port | None, other: Port) -> bool:
    if one is None or one.link.bandwidth is None or other.link.bandwidth is None:
        return False
    return one.link.bandwidth < other.link.bandwidth


def _port(places: Sequence[Place]) -> tuple[Port | None, list[str]]:
    """The slowest port of the places, and which are slower than the usual."""
    known = [
        (place, place.port) for place in places if place.port is not None and place.port.link.bandwidth is not None
    ]
    if not known:
        return next((place.port for place in places if place.port is not None), None), []
    unknown = [place.name for place in places if place.port is None]
    said = (
        [f"nothing is known of the link of {listed(unknown)} ({places[0].kind}), unlike the others"] if unknown else []
    )
    rates = Counter(port.link.bandwidth for _, port in known)
    slowest = min((port for _, port in known), key=lambda port: port.link.bandwidth or 0.0)
    if len(rates) == 1:
        return slowest, said
    most, _ = rates.most_common(1)[0]
    names = [place.name for place, port in known if port.link.bandwidth != most]
    return slowest, [
        *said,
        f"{listed(list(dict.fromkeys(names)))} ({places[0].kind}) have other bandwidths than the usual "
        f"{format_bandwidth(most or 0.0)}; the smallest is taken for all: "
        f"{format_bandwidth(slowest.link.bandwidth or 0.0)}",
    ]


def _uplink(port: Port | None, below: Port | None, count: int, device: Link | None) -> Port | None:
    """The port of a tier above hosts; without a figure of its own, it is assumed to carry all that is below."""
    if below is None or below.link.bandwidth is None:
        return port
    alone = None if device is None else device.per_device or device.bandwidth
    if port is None:
        link = Link(below.link.bandwidth * count, below.link.latency)
        port = Port(link, f"assumed: no oversubscription, {count} x {format_bandwidth(below.link.bandwidth)}")
    if port.link.per_device is None and alone is not None and port.link.bandwidth and alone < port.link.bandwidth:
        port = replace(port, link=replace(port.link, per_device=alone))
    return port


def _name(kind: str, taken: Sequence[str]) -> str:
    """A kind as the name of a level: letters, digits, '_' and '-', and unlike the others."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", kind)[:90]
    name = name if re.match("[A-Za-z_]", name) else f"_{name}"
    return next(one for k in range(len(taken) + 1) if (one := f"{name}{k + 1}" if k else name) not in taken)


def _left_out(part: Part, tiers: int, hosts: Mapping[str, Place]) -> Iterable[str]:
    """Hosts that are not in the part; and the devices that are not, of hosts that are."""
    chosen = {host.name for host in part.levels[tiers]}
    yield from (host for host in hosts if host not in chosen)
    if len(part.levels) > tiers + 1:
        each = prod(part.counts[tiers + 1 :])
        for number, host in enumerate(part.levels[tiers]):
            kept = {id(device) for device in part.levels[-1][number * each : (number + 1) * each]}
            yield from (f"{host.name}/{device.name}" for device in leaves(host) if id(device) not in kept)


def _inside(kinds: Sequence[str]) -> str:
    return "/".join(kinds) or "nothing"


def _together(odd: Mapping[str, str]) -> list[tuple[str, str]]:
    """The odd ones with the same reason in one line; reasons begin with "is" or "has", which several are and have."""
    reasons: dict[str, list[str]] = {}
    for what, why in odd.items():
        reasons.setdefault(why, []).append(what)
    many = {"is": "are", "has": "have"}
    return [
        (listed(names), why if len(names) == 1 else " ".join([many.get(verb, verb), *rest]))
        for why, names in reasons.items()
        for verb, *rest in [why.split(" ")]
    ]
