"""hwloc's XML, as `lstopo --of xml` writes it: sockets, NUMA nodes, cores, and GPUs behind PCIe bridges."""

import re
from collections.abc import Iterator

from meshwright.discovery.inside import Gpu, host
from meshwright.discovery.model import Place, Tier, Topology, wrong
from meshwright.discovery.nesting import grow, nest
from meshwright.discovery.nominal import PCIE_LATENCY, port
from meshwright.discovery.xmlfile import Element, parse_xml

GPU_CLASSES = ("0302", "1200")
"""PCI classes of GPUs; a VGA controller, 0300, counts if hwloc found a co-processor behind it."""

COPROCESSOR = ("5", "coproc", "CoProc")
"""Values of osdev_type that mean one."""

MOST_CORES = 4096


def parse_hwloc(text: str, source: str) -> Topology:
    """A topology from hwloc's XML: of GPUs if there are any, else of cores."""
    root = parse_xml(text, source)
    machine = next(iter(root.each("object")), None)
    if root.tag != "topology" or machine is None:
        raise wrong(source, root.line, "expected <topology> with an <object> in it")
    infos = {info.get("name"): info.get("value") for info in machine.each("info")}
    name = infos.get("HostName", "").partition(".")[0]
    gpus: list[Gpu] = []
    cores: list[tuple[str, dict[str, str]]] = []
    for element, around in _objects(machine):
        if element.get("type") == "PCIDev" and _is_gpu(element):
            gpu = Gpu(f"gpu{len(gpus)}", {kind: around[kind] for kind in ("numa", "pci") if kind in around})
            rate = _rate(element)
            gpu.port = port(rate, PCIE_LATENCY, f"pci_link_speed in {source}") if rate else None
            gpus.append(gpu)
        elif element.get("type") == "Core":
            cores.append((f"core{len(cores)}", around))
            if len(cores) > MOST_CORES:
                raise wrong(source, element.line, f"more than {MOST_CORES} cores")
    if gpus:
        place, odd = host(gpus, {}, None)
        notes: tuple[str, ...] = ()
    elif cores:
        place, odd = _of_cores(cores)
        notes = (f"{source} does not say what memory and sockets carry",)
    else:
        raise wrong(source, machine.line, "neither a GPU nor a core in it")
    return Topology(source, every=place, name=name, odd=odd, notes=notes)


def _objects(machine: Element) -> Iterator[tuple[Element, dict[str, str]]]:
    """All objects, each with the socket, the NUMA node and the PCIe bridge around it."""
    waiting: list[tuple[Element, dict[str, str]]] = [(machine, {})]
    while waiting:
        element, around = waiting.pop()
        yield element, around
        key = element.get("gp_index") or str(element.line)
        kind = element.get("type")
        if kind in ("Package", "Socket"):
            around = around | {"socket": key}
        elif kind == "Bridge" and element.get("bridge_type") == "1-1":  # not the host bridge
            around = around | {"pci": around.get("pci", key)}
        memory = [child for child in element.each("object") if child.get("type") == "NUMANode"]
        if memory:  # hwloc 2 has the memory beside what is near to it, hwloc 1 around it
            around = around | {"numa": memory[0].get("gp_index") or str(memory[0].line)}
        elif kind == "NUMANode":
            around = around | {"numa": key}
        waiting += [(child, around) for child in reversed(list(element.each("object")))]


def _is_gpu(element: Element) -> bool:
    kind = element.get("pci_type")[:4]
    inside = [child for child in element.each("object") if child.get("type") == "OSDev"]
    return kind in GPU_CLASSES or (kind == "0300" and any(one.get("osdev_type") in COPROCESSOR for one in inside))


def _rate(element: Element) -> float:
    """GB/s of a PCIe link."""
    text = element.get("pci_link_speed")
    return float(text) if re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,9})?", text) else 0.0


def _of_cores(cores: list[tuple[str, dict[str, str]]]) -> tuple[Place, dict[str, str]]:
    tiers = [
        Tier(kind, {name: around[kind] for name, around in cores if kind in around}) for kind in ("socket", "numa")
    ]
    leaves = {name: Place("core", name) for name, _ in cores}
    nested = nest(list(leaves), tiers)
    return Place("node", "", grow(nested, leaves, "").children), nested.odd
