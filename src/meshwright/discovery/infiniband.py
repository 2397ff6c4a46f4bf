"""What ibnetdiscover prints: every switch with what is at the other end of each of its ports."""

import re
from collections import Counter
from dataclasses import dataclass, field

from meshwright.discovery.model import Place, Port, Topology, listed, switch_tiers, wrong
from meshwright.discovery.nominal import NETWORK_LATENCY, infiniband, network_port
from meshwright.errors import SpecError
from meshwright.system.model import Link

_SWITCH = re.compile(r'Switch\s+\d{1,6}\s+"S-([0-9a-fA-F]{1,32})"\s*#\s*"([^"]*)"')
_EXTERNAL = r"(?:\[ext \d{1,6}\])?"
_PORT = re.compile(
    rf'\[\d{{1,6}}\]{_EXTERNAL}\s*"([SHR])-([0-9a-fA-F]{{1,32}})"\[\d{{1,6}}\]{_EXTERNAL}(?:\([0-9a-fA-F]*\))?'
    r'\s*#\s*"([^"]*)"(.*)'
)
_RATE = re.compile(r"\b\d{1,2}x[A-Z]DR(?:10)?\b")
_HOST = re.compile(r"([A-Za-z0-9][\w.-]*)(?:[ /](?:mlx|mthca|HCA|hfi|ib|bnxt|irdma|qedr|rocep|roceo)[\w-]*)?")

MOST_TIERS, MOST_PORTS = 6, 2048
"""The most switches above one another, and the most ports of one."""

_Group = tuple[str, list[float]]
"""The name of a group of switches, and the rates of its links upwards."""


@dataclass
class _Fabric:
    """Switches by their GUID, with their names and links; hosts with theirs."""

    names: dict[str, str] = field(default_factory=dict)
    up: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    hosts: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    unnamed: list[str] = field(default_factory=list)


def parse_infiniband(text: str, source: str) -> Topology:
    """A topology from the output of ibnetdiscover.

    The cards of one host may hang on different leaves, one per rail. So hosts are grouped by their set of leaves, and
    leaves that share their spines are one group too.
    """
    fabric = _parse(text, source)
    if not fabric.hosts:
        raise wrong(source, None, "no host in it: no port of a switch leads to a card with the name of a host")
    notes = []
    if fabric.unnamed:
        notes.append(f"{source}: cards without the name of a host were skipped: {listed(fabric.unnamed)}")
    sets = {host: frozenset(leaf for leaf, _ in links) for host, links in fabric.hosts.items()}
    whole = _completed(sets)
    for host in sets:
        if whole[host] != sets[host]:
            notes.append(
                f"{source}: {host} has links to {len(sets[host])} of the {len(whole[host])} leaves of its group"
            )
    ranks = _ranks(fabric, set().union(*sets.values()))
    known: dict[frozenset[str], list[_Group]] = {}
    tiers_above = {leaves: _above(fabric, ranks, leaves, 0, known) for leaves in dict.fromkeys(whole.values())}
    ports: dict[str, Port] = {}
    for path in tiers_above.values():
        for group, uplinks in path:
            if uplinks:
                ports[group] = _bundle(uplinks)
    paths = {host: tuple(group for group, _ in reversed(tiers_above[whole[host]])) for host in sets}
    hosts = {host: Place("node", host, (), _host_port(links)) for host, links in fabric.hosts.items()}
    tiers, odd = switch_tiers(paths, ports)
    return Topology(source, tiers, hosts, odd=odd, notes=tuple(notes))


def _parse(text: str, source: str) -> _Fabric:
    fabric = _Fabric()
    switch, ports = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if match := _SWITCH.match(line):
            switch, ports = match[1].lower(), 0
            if switch in fabric.names:
                raise wrong(source, number, f"switch {switch} is listed twice")
            fabric.names[switch] = match[2].partition(";")[2] or match[2]
            fabric.up[switch] = []
        elif line.startswith(("Ca", "Rt", "vendid")):
            switch = ""
        elif switch and line.startswith("["):
            match = _PORT.match(line)
            if match is None:
                raise wrong(
                    source, number, f'{line[:60]!r}; expected a port like [1] "H-…"[1](…) # "host mlx5_0" lid 1 4xNDR'
                )
            ports += 1
            if ports > MOST_PORTS:
                raise wrong(source, number, f"more than {MOST_PORTS} ports of switch {switch}")
            _link(fabric, switch, match, source, number)
    return fabric


def _link(fabric: _Fabric, switch: str, match: re.Match[str], source: str, line: int) -> None:
    found = _RATE.search(match[4])
    rate = infiniband(found[0]) if found else None
    if rate is None:
        raise wrong(source, line, f"no rate like 4xNDR at the end of {match[4].strip()[-40:]!r}")
    if match[1] == "S":
        fabric.up[switch].append((match[2].lower(), rate))
    elif match[1] == "H" and "Aggregation Node" not in match[3]:
        host = _HOST.fullmatch(match[3].strip())
        if host is None:
            fabric.unnamed.append(match[2])
        else:
            fabric.hosts.setdefault(host[1], []).append((switch, str(found[0]) if found else ""))


def _completed(sets: dict[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """The leaves of each host, with those that it lacks, if it has a part of one set that other hosts have."""
    counted = Counter(sets.values())
    common: dict[str, list[frozenset[str]]] = {}
    for leaves, hosts in counted.items():
        for leaf in leaves if hosts > 1 else ():
            common.setdefault(leaf, []).append(leaves)
    whole: dict[frozenset[str], frozenset[str]] = {}
    for leaves in counted:
        larger = [other for other in common.get(min(leaves), []) if leaves < other]
        whole[leaves] = larger[0] if len(larger) == 1 else leaves
    return {host: whole[leaves] for host, leaves in sets.items()}


def _ranks(fabric: _Fabric, leaves: set[str]) -> dict[str, int]:
    """How many switches away from hosts each switch is: 0 for leaves, 1 for spines."""
    ranks = dict.fromkeys(leaves, 0)
    level = list(leaves)
    for rank in range(1, MOST_TIERS + 1):
        level = list({peer for switch in level for peer, _ in fabric.up.get(switch, []) if peer not in ranks})
        ranks |= dict.fromkeys(level, rank)
    return ranks


def _above(
    fabric: _Fabric, ranks: dict[str, int], group: frozenset[str], rank: int, known: dict[frozenset[str], list[_Group]]
) -> list[_Group]:
    """A group of switches of one rank and the groups above it, each with the rates of its links upwards."""
    if group not in known:
        if rank >= MOST_TIERS:
            raise SpecError(f"more than {MOST_TIERS} tiers of switches below {_label(fabric, group)}")
        links = [(peer, rate) for one in group for peer, rate in fabric.up.get(one, []) if ranks.get(peer) == rank + 1]
        here = (_label(fabric, group), [rate for _, rate in links])
        peers = frozenset(peer for peer, _ in links)
        known[group] = [here, *(_above(fabric, ranks, peers, rank + 1, known) if peers else [])]
    return known[group]


def _label(fabric: _Fabric, group: frozenset[str]) -> str:
    names = sorted(fabric.names.get(switch, switch) for switch in group)
    return names[0][:80] if len(names) == 1 else f"{names[0][:80]} and {len(names) - 1} more"


def _bundle(rates: list[float]) -> Port:
    rate = min(rates)
    return Port(Link(rate * len(rates), NETWORK_LATENCY), f"{len(rates)} uplinks of {rate * 8 / 1e9:g} Gbit/s")


def _host_port(links: list[tuple[str, str]]) -> Port:
    """All links of a host together; one device alone uses one of them."""
    names = Counter(rate for _, rate in links)
    rates = [infiniband(rate) or 0.0 for _, rate in links]
    return network_port(rates, len(rates), " and ".join(f"{count} x {name}" for name, count in names.items()))
