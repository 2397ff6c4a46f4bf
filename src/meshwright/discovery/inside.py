"""The inside of a host: GPUs with their links to each other, and where they are attached to the machine."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from meshwright.discovery.model import Place, Port, Tier
from meshwright.discovery.nesting import grow, nest, united, usual
from meshwright.discovery.nominal import NVLINK_LATENCY, port
from meshwright.system.model import Fabric, Link

SWITCH = "switch"
"""How the names of peers begin that are no GPUs but NVSwitches; those that belong together are one peer."""


@dataclass(slots=True, eq=False)
class Gpu:
    """One GPU.

    attached: the NUMA node and the PCIe switch that it hangs on, by the kinds of these places.
    links: how many links lead to each peer, by the peer's name.
    rate: what one of its links carries, in GB/s; `wire` is what it is.
    """

    name: str
    attached: dict[str, str] = field(default_factory=dict)
    links: Counter[str] = field(default_factory=Counter)
    rate: float = 0.0
    wire: str = ""
    port: Port | None = None
    reduces: bool = False


def host(
    gpus: Sequence[Gpu], ports: Mapping[str, Mapping[str, Port]], own: Port | None
) -> tuple[Place, dict[str, str]]:
    """A host with its GPUs; those that were left out, with the reason.

    ports: of NUMA nodes and PCIe switches, by their kind and name. own: the host's port to the network.
    """
    largest = max(_components(gpus), key=len, default=[])
    if 2 * len(largest) > len(gpus) > 1:  # links join most of them, so it does not matter where they are attached
        links = usual(Counter(sum(gpu.links.values()) for gpu in largest))
        joined = {gpu.name for gpu in largest}
        odd = {
            gpu.name: f"has no link to the other GPUs, which have {links} each"
            for gpu in gpus
            if gpu.name not in joined
        }
        inside = tuple(Place("gpu", gpu.name, (), _linked(gpu, largest)) for gpu in largest)
        return Place("node", "", inside, own), odd
    pairs = [component for component in _components(gpus) if len(component) > 1]
    tiers = []
    for kind in ("numa", "pci"):
        groups = {gpu.name: gpu.attached[kind] for gpu in gpus if kind in gpu.attached}
        if all(len({groups.get(gpu.name) for gpu in pair}) == 1 for pair in pairs):  # else links matter more
            tiers.append(Tier(kind, groups, ports.get(kind, {})))
    if pairs:
        groups = {gpu.name: component[0].name for component in pairs for gpu in component}
        apart = {gpu.name: gpu.name for gpu in gpus}
        tiers.append(Tier("island", apart | groups, {gpu.name: gpu.port for gpu in gpus if gpu.port is not None}))
    leaves = {
        gpu.name: Place("gpu", gpu.name, (), _linked(gpu, pair) if (pair := _of(gpu, pairs)) else gpu.port)
        for gpu in gpus
    }
    nested = nest(list(leaves), tiers)
    return Place("node", "", grow(nested, leaves, "").children, own), nested.odd


def _components(gpus: Sequence[Gpu]) -> list[list[Gpu]]:
    """The GPUs that links join, directly or over others."""
    names = [gpu.name for gpu in gpus]
    names += {peer for gpu in gpus for peer in gpu.links} - set(names)
    group = united(names, ((gpu.name, peer) for gpu in gpus for peer in gpu.links))
    found: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        found.setdefault(group[gpu.name], []).append(gpu)
    return list(found.values())


def _of(gpu: Gpu, components: Sequence[list[Gpu]]) -> list[Gpu]:
    return next((component for component in components if gpu in component), [])


def _linked(gpu: Gpu, component: Sequence[Gpu]) -> Port:
    """The port of a GPU to those that it has links with: all of its links together.

    If neither a switch nor a link joins it to each of the others, it is a ring, with all links in one direction, as
    NCCL's rings use them.
    """
    count = sum(gpu.links.values())
    switched = any(peer.startswith(SWITCH) for peer in gpu.links)
    everywhere = switched or all(other.name in gpu.links for other in component if other is not gpu)
    fabric = Fabric.SWITCH if everywhere else Fabric.RING
    how = "" if switched else ", to each of the others" if everywhere else ", around a ring"
    source = f"{count} x {gpu.wire} of {gpu.rate:g} GB/s{how}"
    reduces = gpu.reduces and switched
    if not gpu.rate:
        return Port(
            Link(None, NVLINK_LATENCY, None, fabric, bypass=True), f"{count} x {gpu.wire} of unknown speed{how}"
        )
    return port(count * gpu.rate, NVLINK_LATENCY, source, fabric, bypass=True, reduces=reduces)
