"""A plan on Kubernetes: the host of every rank, and what Kueue must know to keep pods of one level together."""

import json
from collections.abc import Iterator
from math import prod
from typing import Any

import yaml

from meshwright.errors import SpecError
from meshwright.export.hosts import devices_per_host, seats_of
from meshwright.export.request import Exported, Request
from meshwright.placement.placement import Placement

PREFIX = "kueue.x-k8s.io/podset-slice-"
HOSTNAME = "kubernetes.io/hostname"
MOST_LAYERS = 3


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def kubernetes(request: Request) -> Exported:
    """A Job with one pod for each host, to be merged with one's own; with hosts also a ConfigMap with the ranks."""
    placement, each = request.plan.placement, devices_per_host(request)
    if each is None:
        raise SpecError(
            "no level of the system is called node, so it is unknown what a pod is: say --hosts or --hostfile"
        )
    levels = list(_levels(placement, each))
    hosts = placement.system.devices // each
    annotations = _annotations(request, levels)
    template: dict[str, Any] = {"metadata": {"annotations": annotations}} if annotations else {}
    documents: list[dict[str, Any]] = []
    if request.hosts:
        seats = seats_of(request)
        ranks = "".join(f"{seat.rank} {seat.host} {seat.position}\n" for seat in seats)
        documents.append(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "meshwright-ranks"},
                "data": {"ranks": ranks},
            }
        )
        wanted = [{"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": list(request.hosts)}]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": wanted}}
        template["spec"] = {"affinity": {"nodeAffinity": required}}
    spec = {"completionMode": "Indexed", "completions": hosts, "parallelism": hosts, "template": template}
    documents.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "training"}, "spec": spec})
    about = "".join(f"# {line}\n" for line in _about(placement, levels, hosts, each))
    text = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, explicit_start=True, width=1000)
    return Exported(about + text, tuple(_notes(request, levels)))


def _levels(placement: Placement, each: int) -> Iterator[tuple[int, int]]:
    """The levels whose instances are several of several hosts: their numbers, and the hosts of one instance."""
    counts = placement.system.counts
    for k in range(len(counts)):
        inside = prod(counts[k + 1 :])
        if inside > each and prod(counts[: k + 1]) > 1 and counts[k] > 1:
            yield k, inside // each


def _annotations(request: Request, levels: list[tuple[int, int]]) -> dict[str, str]:
    names = [request.plan.placement.system.levels[k].name for k, _ in levels]
    for name in request.labels:
        if name not in names:
            raise SpecError(f"--label {name}=…: the levels above hosts are {', '.join(names) or 'none'}")
    for name in names:
        if name not in request.labels:
            raise SpecError(
                f"which label of the nodes says what {name} they are in? Say it like --label "
                f"{name}=cloud.provider.com/topology-{name}"
            )
    if not levels:
        return {}
    if len(levels) > MOST_LAYERS:
        raise SpecError(f"Kueue takes at most {MOST_LAYERS} levels above hosts, and the system has {len(levels)}")
    if len(levels) == 1:
        return {f"{PREFIX}required-topology": request.labels[names[0]], f"{PREFIX}size": str(levels[0][1])}
    layers = [{"topology": request.labels[name], "size": size} for name, (_, size) in zip(names, levels, strict=True)]
    return {f"{PREFIX}required-topology-constraints": json.dumps(layers)}


def _about(placement: Placement, levels: list[tuple[int, int]], hosts: int, each: int) -> Iterator[str]:
    """What the pods are, and which axes stay inside what."""
    yield f"{hosts} pods of {each} ranks each. Pod k is host k in the order of the plan's devices."
    for axis, row in zip(placement.axes, placement.matrix, strict=True):
        first = next((k for k, factor in enumerate(row) if factor > 1), len(row))
        if prod(placement.system.counts[first:]) <= each:
            yield f"{axis} stays inside one pod."
        elif first and any(k == first - 1 for k, _ in levels):
            yield f"{axis} stays inside one {placement.system.levels[first - 1].name}."


def _notes(request: Request, levels: list[tuple[int, int]]) -> Iterator[str]:
    if levels:
        yield "Kueue keeps consecutive pods together, but decides itself which of the hosts a pod gets"
    else:
        yield "the hosts of this system are all alike, so Kueue needs no annotation"
    if len(levels) > 1:
        yield "several levels above hosts need Kueue's feature gate TASMultiLayerTopology"
    if request.hosts:
        yield "Kubernetes does not start ranks by the ConfigMap: the program or its launcher has to read it"
