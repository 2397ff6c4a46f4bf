"""The hosts of several topologies: which there are, and one description of each from all that is said of it."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from meshwright.discovery.model import Place, Port, Topology, listed
from meshwright.discovery.nesting import Nested
from meshwright.discovery.regular import depth_of, leaves
from meshwright.errors import SpecError

_HOST_NAME = re.compile(r"\w[\w.@:+-]{0,254}", re.ASCII)

HOST = "node"
"""The kind of a place that is a host, and the name of its level."""


def host_names(topologies: Sequence[Topology], only: Sequence[str] | None) -> list[str]:
    """The names of the hosts. Refuses those of `only` that no topology has, if any topology names hosts."""
    names = list(dict.fromkeys(name for topology in topologies for name in topology.hosts))
    names = names or list(dict.fromkeys(topology.name for topology in topologies if topology.name))
    if only is None and not names:
        if all(topology.every is None for topology in topologies):
            raise SpecError("no hosts and no devices were found")
        return ["host"]
    wanted = list(dict.fromkeys(only if only is not None else names))
    if strange := [name for name in wanted if not _HOST_NAME.fullmatch(name)]:
        raise SpecError(f"{listed(strange)}: not the name of a host")
    if not names or only is None:
        return wanted
    known, chosen = set(names), set(wanted)
    if missing := [name for name in wanted if name not in known]:
        files = ", ".join(topology.source for topology in topologies if topology.hosts)
        raise SpecError(f"{listed(missing)}: not among the {len(names):,} hosts of {files}")
    return [name for name in names if name in chosen]


def described(
    topologies: Sequence[Topology], names: Sequence[str], node: Place | None
) -> tuple[dict[str, Place], list[str]]:
    """What each host is like, with notes; from all that is said of it, or of every host. A file that is named like a
    host, and describes one without a name, is of that host.
    """
    known = set(names)
    tables = [topology.hosts for topology in topologies if topology.hosts]
    every: list[Place] = []
    for topology in topologies:
        if topology.every is not None:
            stem = topology.name or Path(topology.source).stem
            if stem in known:
                tables.append({stem: topology.every})
            else:
                every.append(topology.every)
    made: dict[tuple[int, ...], Place] = {}  # hosts that are described by the same things are the same
    hosts = {}
    for name in names:
        own = [table[name] for table in tables if name in table]
        key = tuple(map(id, own))
        if key not in made:
            made[key] = _combined(own, every, node)
        hosts[name] = Place(HOST, name, made[key].children, made[key].port)
    return hosts, _alike(hosts)


def _alike(hosts: dict[str, Place]) -> list[str]:
    """Take hosts of whose inside nothing is said for what the others are, if those are all alike; and say so."""
    known = [host for host in hosts.values() if host.children]
    unknown = [name for name, host in hosts.items() if not host.children]
    if not known or not unknown or any(host.children != known[0].children for host in known):
        return []
    for name in unknown:
        hosts[name] = replace(hosts[name], children=known[0].children, port=hosts[name].port or known[0].port)
    return [f"{listed(unknown)}: nothing is said of their inside, so they are taken to be like {known[0].name}"]


def _combined(own: Sequence[Place], every: Sequence[Place], node: Place | None) -> Place:
    """One host from what is said of it: the devices with the fastest links known, and the first port known. What is
    said of every host counts where nothing is said of this one.
    """
    sure = _with_gpus([*own, node] if node is not None else own) or _with_gpus(every)
    counts = [sum(1 for _ in leaves(place)) for place in sure]
    if other := [count for count in counts if count != counts[0]]:
        raise SpecError(
            f"one source says that a host has {counts[0]} devices, another {other[0]}; if hosts differ, name the file "
            "of a host like the host, as in HOST.xml"
        )
    best = node if node is not None else max(sure, key=_speed, default=None)
    if best is not None and not _speed(best):  # the same devices, with figures
        best = max([best, *(place for place in every if [sum(1 for _ in leaves(place))] == counts[:1])], key=_speed)
    bare = [place for place in own if not place.children]  # what the network itself says of this host
    ports = [
        place.port for place in (*bare, *([node] if node is not None else [*own, *every])) if place.port is not None
    ]
    return Place(HOST, "", best.children if best is not None else (), ports[0] if ports else None)


def _with_gpus(places: Iterable[Place]) -> list[Place]:
    """Those with GPUs in them, or else those with cores."""
    inside = [place for place in places if place.children]
    return [place for place in inside if depth_of(place)[-1] != "core"] or inside


def _speed(place: Place) -> float:
    """The bandwidth of its first device, 0 if it is not known."""
    device = next(leaves(place))
    return (device.port.link.bandwidth or 0.0) if device.port else 0.0


def with_nvlink(nested: Nested, hosts: dict[str, Place]) -> Nested:
    """Where NVLink joins the hosts of a group, it is their port; what they had to the network is the group's port.

    Of several such tiers the innermost counts: between the cliques of a domain there is no NVLink.
    """
    depth = max((depth for depth, tier in enumerate(nested.tiers) if tier.nvlink), default=None)
    if depth is None:
        return nested
    tier = nested.tiers[depth]
    groups: dict[str, list[str]] = {}
    for host in nested.members:
        groups.setdefault(tier.groups[host], []).append(host)
    ports = dict(tier.ports)
    for group, members in groups.items():
        known = [port for host in members if (port := hosts[host].port) is not None]
        if known and len(known) == len(members):
            ports.setdefault(group, bundle(known))
        for host in members:
            hosts[host] = replace(hosts[host], port=_joined(hosts[host]))
    tiers = [replace(each, nvlink=False) for each in nested.tiers]
    tiers[depth] = replace(tier, ports=ports)
    return replace(nested, tiers=tuple(tiers))


def linked(device: Place) -> bool:
    """Whether it has links to other devices, as of NVLink, that traffic to elsewhere does not use."""
    return device.port is not None and device.port.link.bypass


def _joined(host: Place) -> Port | None:
    ports = [device.port for device in leaves(host) if device.port is not None and linked(device)]
    return bundle(ports) if ports else None


def bundle(ports: Sequence[Port]) -> Port:
    """Several equal ports as one; one device alone uses only one of them."""
    link = min((port.link for port in ports), key=lambda link: link.bandwidth or 0.0)
    if len(ports) == 1 or link.bandwidth is None:
        return ports[0]
    each = link.bandwidth if link.per_device is None else link.per_device
    return Port(
        replace(link, bandwidth=link.bandwidth * len(ports), per_device=each), f"{len(ports)} x {ports[0].source}"
    )
