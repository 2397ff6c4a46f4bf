"""JSON of clouds and Kubernetes: where each instance is in the network, and what it is."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from meshwright.discovery.model import MOST_HOSTS, Place, Tier, Topology, tier_name, wrong
from meshwright.discovery.nominal import NODE_TYPES, gpus, joins
from meshwright.text.spec import no_constant, shown


def parse_json(text: str, source: str) -> Any:
    """A JSON document."""
    try:
        return json.loads(text, parse_constant=no_constant)
    except json.JSONDecodeError as error:
        raise wrong(source, error.lineno, f"malformed JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise wrong(source, None, f"malformed JSON: {str(error)[:80] or 'nested far too deeply'}") from None


def _records(document: Any, keys: Iterable[str], source: str) -> list[Mapping[str, Any]]:
    """The records of a document: a list, or one below the first of the keys that there is."""
    for key in keys:
        if isinstance(document, dict) and key in document:
            document = document[key]
            break
    found = document if isinstance(document, list) else [document]
    if len(found) > MOST_HOSTS:
        raise wrong(source, None, f"{len(found):,} entries; at most {MOST_HOSTS:,} hosts can be read")
    for number, record in enumerate(found, 1):
        if not isinstance(record, dict):
            raise wrong(source, None, f"entry {number} is {shown(record)}; expected an object")
    return found


def _text(record: Mapping[str, Any], *keys: str) -> str:
    """The first of these that is a text or a number; empty if there is none. AWS's tools write "null" for none."""
    for key in keys:
        value = record.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "null":
            return str(value)
    return ""


def _inside(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = record.get(key)
    return value if isinstance(value, dict) else {}


def _named(names: Iterator[str], source: str) -> list[str]:
    found = list(names)
    for number, name in enumerate(found, 1):
        if not name:
            raise wrong(source, None, f"entry {number} has no name")
    name, times = Counter(found).most_common(1)[0] if found else ("", 1)
    if times > 1:
        raise wrong(source, None, f"{shown(name)} is there {times} times")
    return found


@lru_cache(maxsize=1000)
def _place(kind: str) -> Place:
    """A host of a type, with its devices if the type is known. Hosts of one type share them."""
    return NODE_TYPES[kind.lower()].place() if kind.lower() in NODE_TYPES else Place("node", "")


def _unknown_types(kinds: Iterable[str], source: str) -> tuple[str, ...]:
    strange = sorted({kind for kind in kinds if kind and kind.lower() not in NODE_TYPES})
    return (f"{source}: nothing is known of the type {', '.join(strange)[:80]}",) if strange else ()


def parse_aws(text: str, source: str) -> Topology:
    """A topology from `aws ec2 describe-instance-topology`: the network nodes of each instance, from the top down."""
    records = _records(parse_json(text, source), ("Instances", "InstanceSet", "instanceSet"), source)
    names = _named((_text(record, "InstanceId", "instanceId") for record in records), source)
    groups: dict[int, dict[str, str]] = {}
    domains: dict[str, str] = {}
    for name, record in zip(names, records, strict=True):
        nodes = record.get("NetworkNodes", record.get("NetworkNodeSet", record.get("networkNodeSet")))
        if not isinstance(nodes, list) or not all(isinstance(node, str) for node in nodes):
            raise wrong(source, None, f"instance {shown(name)} has no list NetworkNodes; is it running?")
        for height, node in enumerate(reversed(nodes[:10])):
            groups.setdefault(height, {})[name] = node
        if domain := _text(record, "CapacityBlockId", "capacityBlockId"):
            domains[name] = domain
    tiers = [Tier(tier_name(height), found) for height, found in groups.items()]
    if domains:
        tiers.append(Tier("ultraserver", domains, nvlink=True))
    kinds = [_text(record, "InstanceType", "instanceType") for record in records]
    hosts = {name: _place(kind) for name, kind in zip(names, kinds, strict=True)}
    return Topology(source, tuple(tiers), hosts, notes=_unknown_types(kinds, source))


def parse_gcp(text: str, source: str) -> Topology:
    """A topology from `gcloud compute instances list --format json`: cluster, block and subblock of each instance."""
    records = _records(parse_json(text, source), ("items", "instances"), source)
    names = _named((_text(record, "name", "instanceId") for record in records), source)
    tiers: dict[str, dict[str, str]] = {kind: {} for kind in ("cluster", "block", "subblock")}
    for name, record in zip(names, records, strict=True):
        where = _inside(_inside(record, "resourceStatus"), "physicalHostTopology") or _inside(
            record, "physicalHostTopology"
        )
        if not where:
            raise wrong(source, None, f"instance {shown(name)} has no resourceStatus.physicalHostTopology")
        for kind, groups in tiers.items():
            if group := _text(where, kind, kind.replace("subb", "subB")):
                groups[name] = group
    kinds = [_text(record, "machineType").rpartition("/")[2] for record in records]
    nvlink = all(joins(kind) for kind in kinds)  # then a subblock is an NVLink domain
    found = tuple(Tier(kind, groups, nvlink=nvlink and kind == "subblock") for kind, groups in tiers.items() if groups)
    hosts = {name: _place(kind) for name, kind in zip(names, kinds, strict=True)}
    return Topology(source, found, hosts, notes=_unknown_types(kinds, source))


LABELS = (
    ("topology.kubernetes.io/region", "region"),
    ("topology.kubernetes.io/zone", "zone"),
    *((f"fabric.topograph.run/tier-{height}", tier_name(height)) for height in reversed(range(8))),
    *((f"network.topology.nvidia.com/{kind}", kind) for kind in ("core", "spine", "leaf")),
    *((f"topology.k8s.aws/network-node-layer-{layer}", f"layer{layer}") for layer in range(1, 5)),
    *((f"cloud.google.com/gce-topology-{kind}", kind) for kind in ("block", "subblock")),
    ("oci.oraclecloud.com/host.network_block_id", "block"),
    ("oci.oraclecloud.com/host.rack_id", "rack"),
    ("topology.k8s.aws/capacity-block-id", "ultraserver"),
    ("accelerator.topograph.run/domain", "domain"),
    ("network.topology.nvidia.com/accelerator", "domain"),
    ("accelerator.topograph.run/sub-domain", "clique"),
    ("nvidia.com/gpu.clique", "clique"),
)
"""Labels of nodes that tell where they are, and the kind of the group."""

DOMAINS = ("domain", "clique", "ultraserver")
"""Kinds of groups whose hosts NVLink may join."""

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")


def parse_kubernetes(text: str, source: str) -> Topology:
    """A topology from `kubectl get nodes -o json`: labels of topograph, clouds and the GPU operator."""
    records = _records(parse_json(text, source), ("items",), source)
    _named((_text(_inside(record, "metadata"), "name") for record in records), source)
    nodes = {}
    for record in records:
        labels = _inside(_inside(record, "metadata"), "labels")
        nodes[_text(_inside(record, "metadata"), "name")] = (labels, _gpu_count(record, labels, source))
    notes = []
    if any(count for _, count in nodes.values()) and not all(count for _, count in nodes.values()):
        without = [name for name, (_, count) in nodes.items() if not count]
        notes.append(f"{source}: {len(without)} of {len(nodes)} nodes have no GPU and are not looked at")
        nodes = {name: node for name, node in nodes.items() if node[1]}
    tiers = []
    for label, kind in LABELS:
        groups = {name: found for name, (labels, _) in nodes.items() if (found := _text(labels, label))}
        if groups:
            tiers.append(Tier(kind, groups, nvlink=kind in DOMAINS and all(_joins(nodes[name][0]) for name in groups)))
    hosts = {name: _kubernetes_host(labels, count) for name, (labels, count) in nodes.items()}
    return Topology(source, tuple(tiers), hosts, notes=tuple(notes))


def _joins(labels: Mapping[str, Any]) -> bool:
    """Whether NVLink joins a node with others. Only then it has a clique; a domain may be any group."""
    product, kind = _text(labels, "nvidia.com/gpu.product"), _text(labels, "node.kubernetes.io/instance-type")
    return "nvidia.com/gpu.clique" in labels or re.search(r"G[BH][0-9]00", product) is not None or joins(kind)


def _gpu_count(record: Mapping[str, Any], labels: Mapping[str, Any], source: str) -> int:
    status = _inside(record, "status")
    texts = [_text(_inside(status, kind), *GPU_RESOURCES) for kind in ("capacity", "allocatable")]
    text = next((text for text in (*texts, _text(labels, "nvidia.com/gpu.count")) if text), "0")
    if not re.fullmatch(r"[0-9]{1,3}", text):
        raise wrong(source, None, f"{shown(text)} GPUs on a node; expected a number below 1000")
    return int(text)


def _kubernetes_host(labels: Mapping[str, Any], count: int) -> Place:
    place = _place(_text(labels, "node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"))
    if place.children and (not count or len(place.children) == count):
        return place
    return _gpu_host(_text(labels, "nvidia.com/gpu.product"), count)


@lru_cache(maxsize=1000)
def _gpu_host(product: str, count: int) -> Place:
    return Place("node", "", gpus(product, count))
