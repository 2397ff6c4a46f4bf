"""NCCL's topology files, which NCCL_TOPO_DUMP_FILE names and vendors ship; also RCCL's, with xGMI links."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from meshwright.discovery.inside import SWITCH, Gpu, host
from meshwright.discovery.model import Place, Port, Tier, Topology, wrong
from meshwright.discovery.nominal import PCIE_LATENCY, XGMI, between_sockets, network_port, nvlink, pcie, port
from meshwright.discovery.xmlfile import Element, parse_xml
from meshwright.text.units import format_bandwidth

GPU_CLASSES = ("0x0302", "0x1200")
"""PCI classes of GPUs, 3D controllers and AMD's accelerators; a VGA controller may be the server's console."""

CARD_CLASSES = ("0x0200", "0x0207")
"""PCI classes of network cards: Ethernet and InfiniBand."""

SWITCH_CLASS = "0x0680"
"""The PCI class of NVSwitches, in the attribute tclass of a link."""


MOST_GPUS = 576
"""The most GPUs of one host."""


@dataclass
class _Host:
    """What is found of one host while its elements are read."""

    gpus: dict[str, Gpu] = field(default_factory=dict)
    buses: dict[str, str] = field(default_factory=dict)
    links: list[tuple[Gpu, Element]] = field(default_factory=list)
    ports: dict[str, dict[str, Port]] = field(default_factory=lambda: {"numa": {}, "pci": {}})
    nets: dict[str, float] = field(default_factory=dict)
    cards: int = 0


def parse_nccl(text: str, source: str) -> Topology:
    """A topology from a file of NCCL."""
    root = parse_xml(text, source)
    if root.tag != "system":
        raise wrong(source, root.line, f"expected the element <system>, not <{root.tag[:40]}>")
    tagged = any(element.tag == "gpu" for element in root.walk())
    hosts: dict[str, _Host] = {}
    for cpu in root.each("cpu"):
        found = hosts.setdefault(cpu.get("host_hash"), _Host())
        numa = cpu.get("numaid") or str(len(found.ports["numa"]))
        sockets = [cpu.get(name) for name in ("vendor", "familyid", "modelid", "arch")]
        found.ports["numa"][numa] = between_sockets(*sockets)
        for pci in cpu.each("pci"):
            _pci(found, pci, {"numa": numa}, tagged, source)
        _nets(found, cpu)
    if not any(found.gpus for found in hosts.values()):
        raise wrong(source, root.line, "no GPU in it: neither a <gpu> nor a <pci> of class 0x0302 or 0x1200")
    places: list[Place] = []
    odd: dict[str, str] = {}
    notes: list[str] = []
    for number, found in enumerate(hosts.values()):
        if found.gpus:
            place, left, said = _place(found, source)
            name = f"host{number}" if len(hosts) > 1 else ""
            places.append(Place("node", name, place.children, place.port))
            odd |= {f"{name}/{gpu}" if name else gpu: why for gpu, why in left.items()}
            notes += said
    if len(places) == 1:
        return Topology(source, every=places[0], odd=odd, notes=tuple(notes))
    groups = {place.name: "one NVLink domain" for place in places if _switched(place)}
    tiers = (Tier("domain", groups, nvlink=True),) if len(groups) == len(places) else ()
    return Topology(source, tiers, {place.name: place for place in places}, odd=odd, notes=tuple(notes))


def _switched(place: Place) -> bool:
    return all(gpu.kind == "gpu" and gpu.port is not None and gpu.port.link.bypass for gpu in place.children)


def _pci(found: _Host, root: Element, attached: dict[str, str], tagged: bool, source: str) -> None:
    """Read a PCIe device and those behind it; the switch nearest to the CPU counts as the one they hang on."""
    for pci, above in _behind(root):
        inside = attached | ({"pci": above[0].get("busid")} if above else {"pci": pci.get("busid")})
        link = pcie(pci.get("link_speed"), pci.get("link_width"))
        if above and above[0].get("busid") not in found.ports["pci"]:
            uplink = pcie(above[0].get("link_speed"), above[0].get("link_width"))
            if uplink:
                found.ports["pci"][above[0].get("busid")] = port(uplink[0], PCIE_LATENCY, uplink[1])
        elements = list(pci.each("gpu"))
        if not elements and not tagged and pci.get("class").startswith(GPU_CLASSES):
            elements = [pci]
        for element in elements:
            if len(found.gpus) >= MOST_GPUS:
                raise wrong(source, element.line, f"more than {MOST_GPUS} GPUs in one host")
            gpu = _gpu(element, f"gpu{element.get('dev') or len(found.gpus)}", source)
            while gpu.name in found.gpus:  # several ranks on one GPU
                gpu.name += "'"
            gpu.attached, gpu.port = inside, port(link[0], PCIE_LATENCY, link[1]) if link else None
            found.gpus[gpu.name] = gpu
            found.links += [(gpu, wire) for wire in element.each("nvlink", "xgmi")]
            found.buses[pci.get("busid").lower()] = gpu.name
        _nets(found, pci)
        found.cards += pci.get("class").startswith(CARD_CLASSES)


def _behind(root: Element) -> Iterator[tuple[Element, list[Element]]]:
    """A PCIe device and those behind it, each with the devices above it."""
    waiting: list[tuple[Element, list[Element]]] = [(root, [])]
    while waiting:
        pci, above = waiting.pop()
        yield pci, above
        waiting += [(child, [*above[:1], pci][:1]) for child in reversed(list(pci.each("pci")))]


def _gpu(element: Element, name: str, source: str) -> Gpu:
    capability = element.get("sm")
    if element.get("gcn") or any(True for _ in element.each("xgmi")):
        return Gpu(name, rate=XGMI.get(f"gfx{element.get('gcn').removeprefix('gfx')}", 0.0), wire="xGMI")
    if capability and not (capability.isascii() and capability.isdigit() and len(capability) < 5):
        raise wrong(source, element.line, f"sm={capability[:40]!r}; expected a compute capability like 90")
    rate, wire = nvlink(int(capability or 80))
    return Gpu(name, rate=rate, wire=wire, reduces=int(capability or 0) >= 90)


def _nets(found: _Host, element: Element) -> None:
    for nic in element.each("nic"):
        for net in nic.each("net"):
            speed = net.get("speed")
            megabits = int(speed) if speed.isascii() and speed.isdigit() and len(speed) < 10 else 0
            if megabits:  # a card of the host's own network is listed below each CPU
                found.nets[net.get("name") or net.get("dev") or str(net.line)] = megabits * 1e6 / 8


def _place(found: _Host, source: str) -> tuple[Place, dict[str, str], list[str]]:
    for gpu, wire in found.links:
        count = wire.get("count")
        if not (count.isascii() and count.isdigit() and 0 < int(count[:5]) < 1000):
            raise wrong(source, wire.line, f"count={count[:40]!r}; expected how many links there are")
        peer = found.buses.get(wire.get("target").lower())
        if peer is None and wire.get("tclass").startswith(SWITCH_CLASS):
            peer = SWITCH
        if peer is not None:  # else the links lead to a CPU
            gpu.links[peer] += int(count)
    fastest = max(found.nets.values(), default=0.0)
    cards = [speed for speed in found.nets.values() if speed == fastest]
    notes = []
    own = None
    if cards:
        said = f"{len(cards)} x {format_bandwidth(fastest)}, speed of the cards in {source}"
        own = network_port(cards, len(found.gpus), said)
        if len(cards) < len(found.nets):
            notes.append(f"{source}: {len(found.nets) - len(cards)} slower network cards are not counted")
    elif found.cards:
        notes.append(f"{source} has {found.cards} network cards, but not their speed")
    return *host(list(found.gpus.values()), found.ports, own), notes
