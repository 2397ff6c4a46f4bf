"""hwloc's XML, as `lstopo --of xml` writes it: sockets, NUMA nodes, cores, and GPUs behind PCIe bridges."""

import re
from collections.abc import Iterator, Mapping
from math import gcd

from meshwright.discovery.inside import SWITCH, Gpu, host
from meshwright.discovery.model import Place, Tier, Topology, wrong
from meshwright.discovery.nesting import grow, nest
from meshwright.discovery.nominal import PCIE_LATENCY, port, product
from meshwright.discovery.xmlfile import Element, parse_xml

GPU_CLASSES = ("0302", "1200")
"""PCI classes of GPUs; a VGA controller, 0300, counts if hwloc found a co-processor behind it."""

COPROCESSOR = ("5", "8", "12", "coproc", "CoProc")
"""Values of osdev_type that mean one, in versions 2, 3 and 1."""

MOST_CORES = 4096

MATRICES = {"NVLinkBandwidth": "NVLink", "XGMIBandwidth": "xGMI"}
"""The matrices of links between GPUs, in MB/s each way, and what the links are."""


def parse_hwloc(text: str, source: str) -> Topology:
    """A topology from hwloc's XML: of GPUs if there are any, else of cores."""
    root = parse_xml(text, source)
    machine = next(iter(root.each("object")), None)
    if root.tag != "topology" or machine is None:
        raise wrong(source, root.line, "expected <topology> with an <object> in it")
    infos = _infos(root) | _infos(machine)  # hwloc 3 has those of the machine beside it
    name = infos.get("HostName", "").partition(".")[0]
    gpus: list[Gpu] = []
    cores: list[tuple[str, dict[str, str]]] = []
    numbered: dict[str, Gpu | str] = {}  # GPUs and switches, by the numbers that matrices have for them
    models: list[str] = []
    for element, around in _objects(machine):
        if element.get("type") == "PCIDev" and _is_gpu(element):
            gpu = Gpu(f"gpu{len(gpus)}", {kind: around[kind] for kind in ("numa", "pci") if kind in around})
            rate = _rate(element)
            gpu.port = port(rate, PCIE_LATENCY, f"pci_link_speed in {source}") if rate else None
            gpus.append(gpu)
            numbered |= {one.get("gp_index"): gpu for one in [element, *element.each("object")]}
            models += [model for one in element.each("object") if (model := _infos(one).get("GPUModel"))][:1]
        elif element.get("subtype") == "NVSwitch":
            numbered[element.get("gp_index")] = SWITCH
        elif element.get("type") == "Core":
            cores.append((f"core{len(cores)}", around))
            if len(cores) > MOST_CORES:
                raise wrong(source, element.line, f"more than {MOST_CORES} cores")
    notes: tuple[str, ...] = ()
    if gpus:
        _link(root, numbered, product(models[0].replace(" ", "-")) if models else None, source)
        place, odd = host(gpus, {}, None)
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


def _infos(element: Element) -> dict[str, str]:
    return {info.get("name"): info.get("value") for info in element.each("info")}


def _link(root: Element, numbered: Mapping[str, Gpu | str], known: tuple[float, bool] | None, source: str) -> None:
    """Give GPUs the links that a matrix of hwloc tells. known: what is known of the GPUs.

    The matrix says what all links of a pair carry together, and for a GPU and a CPU too, which is not used.
    """
    for matrix in root.each("distances2", "distances2hetero"):
        if matrix.get("name") not in MATRICES:
            continue
        objects = [numbered.get(word.rpartition(":")[2]) for word in _words(matrix, "indexes")]
        values = [int(word) for word in _words(matrix, "u64values") if re.fullmatch("[0-9]{1,9}", word)]
        if len(values) != len(objects) ** 2 or str(len(objects)) != matrix.get("nbobjs"):
            raise wrong(
                source, matrix.line, f"{len(values)} values for {len(objects)} objects; expected one for each pair"
            )
        pairs = [
            (one, other if isinstance(other, str) else other.name, value)
            for one, row in zip(objects, range(0, len(values), len(objects) or 1), strict=True)
            for other, value in zip(objects, values[row : row + len(objects)], strict=True)
            if isinstance(one, Gpu) and other is not None and other is not one and value
        ]
        each = _one_link([value for *_, value in pairs], known)
        for gpu, peer, value in pairs:
            gpu.links[peer] += value // each
            gpu.rate, gpu.wire = each / 1000, MATRICES[matrix.get("name")]
            gpu.reduces = known is not None and known[1]


def _words(matrix: Element, tag: str) -> list[str]:
    """The words of a list, which hwloc cuts into several elements."""
    return [word for part in matrix.each(tag) for word in part.text.split()]


def _one_link(values: list[int], known: tuple[float, bool] | None) -> int:
    """MB/s of one link, if pairs have these: those of NVLink 5, 2 to 4 or 1, or what all are multiples of.

    >>> _one_link([125_000, 100_000], None), _one_link([40_000], None), _one_link([64_000], None)
    (25000, 20000, 64000)
    """
    rates = [50_000] * (known is not None and known[0] == 900) + [25_000, 20_000]
    return next((rate for rate in rates if not any(value % rate for value in values)), gcd(*values))


def _of_cores(cores: list[tuple[str, dict[str, str]]]) -> tuple[Place, dict[str, str]]:
    tiers = [
        Tier(kind, {name: around[kind] for name, around in cores if kind in around}) for kind in ("socket", "numa")
    ]
    leaves = {name: Place("core", name) for name, _ in cores}
    nested = nest(list(leaves), tiers)
    return Place("node", "", grow(nested, leaves, "").children), nested.odd
