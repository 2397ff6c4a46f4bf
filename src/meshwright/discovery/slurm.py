"""Slurm's topology.conf and topology.yaml: trees of switches, or blocks of nodes."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from meshwright.discovery.model import MOST_HOSTS, Place, Port, Tier, Topology, switch_tiers, wrong
from meshwright.discovery.nominal import NETWORK_LATENCY
from meshwright.errors import SpecError
from meshwright.system.model import Link
from meshwright.text.hostlist import parse_hosts
from meshwright.text.spec import shown
from meshwright.text.units import parse_bandwidth
from meshwright.text.yamlfile import compose, items, problem, word

KEYS = ("switchname", "switches", "nodes", "linkspeed", "blockname", "blocksizes")

SHOWN_TOO = ("level", "blockindex", "blocksize", "aggregatedblock")
"""What `scontrol show topology` says beside what is in the file."""

UNSAID = "1"
"""The LinkSpeed that scontrol shows where the file has none."""

MOST_TIERS = 12
"""The most switches above one another."""


@dataclass(frozen=True, slots=True)
class _Group:
    """A switch or a block: where it is defined, and its children as text."""

    name: str
    line: int | None
    switches: str = ""
    nodes: str = ""
    speed: str = ""


def parse_slurm(text: str, source: str) -> Topology:
    """A topology from a topology.conf."""
    switches: list[_Group] = []
    blocks: list[_Group] = []
    notes = []
    for line, values in _lines(text, source):
        if "switchname" in values:
            switches.append(_group(values, "switchname", line))
        elif "blockname" in values:
            blocks.append(_group(values, "blockname", line))
        elif "blocksizes" in values:
            notes.append(_sizes_note(source, values["blocksizes"]))
        elif "aggregatedblock" not in values:
            raise wrong(source, line, "expected SwitchName=… or BlockName=… first")
    if switches and blocks:
        raise wrong(source, blocks[0].line, "blocks and switches in one file: Slurm's plugins take one or the other")
    return _topology(switches, blocks, source, notes)


def _group(values: Mapping[str, str], name: str, line: int) -> _Group:
    if "level" in values and "switches" in values:  # scontrol repeats the nodes of all switches below
        values = {**values, "nodes": ""}
    return _Group(values[name], line, *(values.get(key, "") for key in ("switches", "nodes", "linkspeed")))


def _sizes_note(source: str, sizes: str) -> str:
    return f"{source}: BlockSizes {sizes[:80]} is what Slurm plans with, not a tier of the network, so it is not used"


def _lines(text: str, source: str) -> Iterator[tuple[int, dict[str, str]]]:
    """The settings of each line, by their names in lower case; a backslash continues a line."""
    first, whole = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        first = first if whole else number
        whole += line.partition("#")[0].rstrip()
        if whole.endswith("\\"):
            whole = whole[:-1] + " "
            continue
        values: dict[str, str] = {}
        for item in re.sub(r"\s*=\s*", "=", whole).split():  # Slurm takes spaces there, and quotes
            key, equals, quoted = item.partition("=")
            value = quoted.strip('"')
            if not equals or not value or key.lower() not in (*KEYS, *SHOWN_TOO) or key.lower() in values:
                raise wrong(
                    source, first, f"{shown(item)}; expected each of {', '.join(KEYS)} at most once, as KEY=VALUE"
                )
            values[key.lower()] = value
        if values:
            yield first, values
        whole = ""


def _topology(switches: list[_Group], blocks: list[_Group], source: str, notes: list[str]) -> Topology:
    groups = switches or blocks
    if not groups:
        raise wrong(source, None, "no switch and no block in it")
    by_name = {group.name: group for group in groups}
    if len(by_name) < len(groups):
        twice = next(group for group in groups if by_name[group.name] is not group)
        raise wrong(source, by_name[twice.name].line, f"{shown(twice.name)} is defined a second time")
    above = _parents(groups, by_name, source)
    leaves: dict[str, str] = {}
    for group in groups:
        for name in _expanded(group.nodes, group, source, len(leaves)):
            if leaves.setdefault(name, group.name) != group.name:
                other = by_name[leaves[name]]
                where = "" if other.line is None else f" (line {other.line})"
                raise wrong(
                    source,
                    group.line,
                    f"host {shown(name)} is in {shown(group.name)} and in {shown(other.name)}{where}",
                )
    if not leaves:
        raise wrong(source, groups[0].line, "no hosts: no Nodes=… anywhere")
    paths = {group.name: _path(group.name, above, by_name, source) for group in groups}
    tiers: tuple[Tier, ...]
    odd: dict[str, str]
    ports: dict[str, Port] = {}
    for group in groups:
        port = _port(group.speed, source)
        if port is not None:
            ports[group.name] = port
        elif group.speed not in ("", UNSAID):
            notes.append(
                f"{source}: LinkSpeed={group.speed[:40]} has no unit, as Slurm asks for, so it is not used; write "
                "one into a copy of the file, like 100Gbit/s"
            )
    if blocks:
        tiers, odd = (Tier("block", leaves, ports),), {}
    else:
        tiers, odd = switch_tiers({host: paths[leaf] for host, leaf in leaves.items()}, ports)
    hosts = dict.fromkeys(leaves, _BARE)
    return Topology(source, tiers, hosts, odd=odd, notes=tuple(dict.fromkeys(notes)))


_BARE = Place("node", "")


def _expanded(text: str, group: _Group, source: str, so_far: int) -> list[str]:
    if not text:
        return []
    try:
        names = parse_hosts(text, MOST_HOSTS - so_far)
    except SpecError as error:
        raise wrong(source, group.line, str(error)) from None
    if not all(names):
        raise wrong(source, group.line, f"a name is empty in {shown(text)}")
    return names


def _parents(groups: list[_Group], by_name: Mapping[str, _Group], source: str) -> dict[str, str]:
    """The switch above each. Switches with the same switches below them, as the spines of a fat tree, count as one."""
    above: dict[str, str] = {}
    below: dict[frozenset[str], str] = {}
    for group in groups:
        names = _expanded(group.switches, group, source, 0)
        same = below.setdefault(frozenset(names), group.name)
        for name in names:
            if name not in by_name:
                raise wrong(
                    source, group.line, f"{shown(group.name)} has the switch {shown(name)}, which is not defined"
                )
            if above.setdefault(name, same) != same:
                raise wrong(
                    source, group.line, f"switch {shown(name)} is below {shown(above[name])} and {shown(group.name)}"
                )
    return above


def _path(name: str, above: Mapping[str, str], by_name: Mapping[str, _Group], source: str) -> tuple[str, ...]:
    """The switches from the outermost down to this one."""
    path = [name]
    while path[-1] in above:
        path.append(above[path[-1]])
        if len(path) > MOST_TIERS:
            line = by_name[name].line
            circle = "is above itself" if len(set(path)) < len(path) else f"has more than {MOST_TIERS} tiers above it"
            raise wrong(source, line, f"switch {shown(name)} {circle}")
    return tuple(reversed(path))


def _port(speed: str, source: str) -> Port | None:
    try:
        return Port(Link(parse_bandwidth(speed), NETWORK_LATENCY), f"LinkSpeed={speed[:40]} in {source}")
    except SpecError:
        return None


def parse_slurm_yaml(text: str, source: str) -> Topology:
    """A topology from a topology.yaml; of several that group hosts the cluster's default, or else the first."""
    root = compose(text, source, "- {topology: t, tree: {switches: [{switch: s1, nodes: 'n[1-4]'}]}}")
    notes = []
    topologies = [_mapping(node, source) for node in items(root, source, "the list of topologies")]
    telling = [each for each in topologies if "tree" in each or "block" in each] or topologies
    chosen = next((each for each in telling if _is_true(each.get("cluster_default"))), telling[0])
    if len(topologies) > 1:
        names = ", ".join(_word(each.get("topology"), source)[:80] for each in topologies[:8])
        notes.append(f"{source} has several topologies: {names}; this is {_word(chosen.get('topology'), source)[:80]}")
    if "tree" in chosen:
        tree = _mapping(chosen["tree"], source)
        return _topology(_members(tree, "switches", "switch", source), [], source, notes)
    if "block" in chosen:
        block = _mapping(chosen["block"], source)
        if "block_sizes" in block:
            sizes = items(block["block_sizes"], source, "block_sizes")
            notes.append(_sizes_note(source, ",".join(word(size, source) for size in sizes)))
        return _topology([], _members(block, "blocks", "block", source), source, notes)
    raise problem(root, source, "this topology has neither a tree nor blocks, so it tells nothing about the hosts")


def _mapping(node: yaml.Node, source: str) -> dict[str, Any]:
    if not isinstance(node, yaml.MappingNode):
        raise problem(node, source, "expected a mapping here")
    return {word(key, source): value for key, value in node.value}


def _is_true(node: yaml.Node | None) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.value.lower() in ("true", "yes", "on")


def _word(node: yaml.Node | None, source: str) -> str:
    return "" if node is None else word(node, source)


def _members(holder: Mapping[str, Any], key: str, kind: str, source: str) -> list[_Group]:
    found = []
    if key not in holder:
        raise wrong(source, None, f"the topology needs {key!r}")
    for node in items(holder[key], source, key):
        values = _mapping(node, source)
        if kind not in values:
            raise problem(node, source, f"this one of the {key} needs its name, {kind!r}")
        name, switches, nodes = (_word(values.get(one), source) for one in (kind, "children", "nodes"))
        found.append(_Group(name, node.start_mark.line + 1, switches, nodes))
    return found
