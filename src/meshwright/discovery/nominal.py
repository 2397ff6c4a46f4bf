"""What links carry by their type: one table, with the source of every figure. `calibrate` replaces these figures.

Bandwidths are in GB/s each way; vendors mostly give both directions together.
"""

import re
from dataclasses import dataclass

from meshwright.discovery.model import Place, Port
from meshwright.errors import SpecError
from meshwright.system.model import Fabric, Link
from meshwright.text.spec import unknown

NVLINK_LATENCY, PCIE_LATENCY, NETWORK_LATENCY = 1.9e-6, 2.5e-6, 4e-6
"""The constants of NCCL's tuning table (src/graph/tuning.cc) for ring and LL128."""

NVLINK = {
    60: (20.0, "NVLink 1"),  # NVIDIA Tesla P100 whitepaper: 4 links of 40 GB/s
    70: (25.0, "NVLink 2"),  # NVIDIA Tesla V100 whitepaper: 6 links of 50 GB/s
    80: (25.0, "NVLink 3"),  # NVIDIA A100 whitepaper: 12 links of 50 GB/s
    86: (14.0625, "NVLink 3 bridge"),  # NVIDIA RTX A6000 datasheet: 112.5 GB/s in 4 links
    90: (25.0, "NVLink 4"),  # NVIDIA H100 whitepaper: 18 links of 50 GB/s
    100: (50.0, "NVLink 5"),  # NVIDIA Blackwell architecture brief: 18 links of 100 GB/s
}
"""Of one link, by the compute capability from which on it holds."""

XGMI = {
    "gfx906": 46.0,  # AMD Instinct MI50 datasheet: 92 GB/s per link
    "gfx908": 46.0,  # AMD Instinct MI100 datasheet: 92 GB/s per link
    "gfx90a": 50.0,  # AMD Instinct MI250X datasheet: 100 GB/s per link
    "gfx940": 64.0,
    "gfx942": 64.0,  # AMD Instinct MI300X datasheet: 128 GB/s per link
    "gfx950": 76.8,  # AMD Instinct MI355X datasheet: 153.6 GB/s per link
}
"""Of one xGMI (Infinity Fabric) link, by the GPU's architecture."""

PCIE = {2.5: 0.25, 5.0: 0.5, 8.0: 0.985, 16.0: 1.969, 32.0: 3.938, 64.0: 7.563}
"""Of one lane, by GT/s: PCI Express Base Specification, after 8b/10b, 128b/130b and FLIT encoding."""

INFINIBAND = {
    "SDR": 2.0,
    "DDR": 4.0,
    "QDR": 8.0,
    "FDR10": 10.0,
    "FDR": 13.64,
    "EDR": 25.0,
    "HDR": 50.0,
    "NDR": 100.0,
    "XDR": 200.0,
}
"""Gbit/s of data on one lane: InfiniBand Trade Association, roadmap."""

_BETWEEN_SOCKETS = "between sockets, as NCCL takes it (src/graph/topo.h)"


@dataclass(frozen=True, slots=True)
class NodeType:
    """A machine that can be bought or rented: GPUs, GB/s of each to the others, and its network in Gbit/s and cards.

    joins: NVLink joins it with other hosts too.
    """

    gpus: int
    gpu: float
    network: float
    cards: int
    source: str
    fabric: Fabric = Fabric.SWITCH
    reduces: bool = False
    joins: bool = False

    def place(self) -> Place:
        """A host of this type."""
        said = f"{self.gpu:g} GB/s each ({self.source})"
        gpu = port(self.gpu, NVLINK_LATENCY, said, self.fabric, bypass=True, reduces=self.reduces)
        each = self.network / self.cards
        said = f"{self.cards} x {each:g} Gbit/s ({self.source})"
        cards = network_port([each * 1e9 / 8] * self.cards, self.gpus, said)
        return Place("node", "", tuple(Place("gpu", f"gpu{k}", (), gpu) for k in range(self.gpus)), cards)


def port(
    rate: float,
    latency: float,
    source: str,
    fabric: Fabric = Fabric.SWITCH,
    bypass: bool = False,
    reduces: bool = False,
) -> Port:
    """A port of `rate` GB/s."""
    return Port(Link(rate * 1e9, latency, fabric=fabric, bypass=bypass, reduces=reduces), source)


def network_port(cards: list[float], devices: int, source: str) -> Port:
    """The port of a host with network cards, given in bytes per second: a device uses its nearest card, or its share of
    several.
    """
    total = sum(cards)
    each = max(max(cards), total / max(devices, 1))
    return Port(Link(total, NETWORK_LATENCY, None if each >= total else each), source)


def nvlink(capability: int) -> tuple[float, str]:
    """GB/s of one NVLink of a GPU with this compute capability, and what the link is.

    >>> nvlink(90)
    (25.0, 'NVLink 4')
    """
    return NVLINK[max((key for key in NVLINK if key <= capability), default=60)]


def pcie(speed: str, width: str) -> tuple[float, str] | None:
    """GB/s of a PCIe link from what the kernel says of it, like "16.0 GT/s PCIe" and "16".

    >>> pcie("16.0 GT/s PCIe", "16")
    (31.504, 'PCIe 16 GT/s x16')
    """
    match = re.match(r"([0-9.]{1,6}) *GT/s", speed)
    rate = PCIE.get(float(match[1]), 0.0) if match and match[1].count(".") < 2 and match[1] != "." else 0.0
    lanes = int(width) if re.fullmatch(r"[0-9]{1,2}", width) else 0
    if not rate or not lanes:  # virtual machines say width 0
        return None
    return rate * lanes, f"PCIe {float(match[1]):g} GT/s x{lanes}" if match else ""


def infiniband(text: str) -> float | None:
    """Bytes per second of a link like 4xNDR.

    >>> infiniband("4xNDR")
    50000000000.0
    """
    match = re.fullmatch(r"(1|2|4|8|12)x([A-Z]DR(?:10)?)", text)
    return int(match[1]) * INFINIBAND[match[2]] * 1e9 / 8 if match and match[2] in INFINIBAND else None


def between_sockets(vendor: str, family: str, model: str, architecture: str) -> Port:
    """The port of a socket to the others."""
    generation = int(model) if model.isascii() and model.isdigit() and len(model) < 6 else 0
    if vendor == "AuthenticAMD":
        rate = {"26": 32.0, "191": 32.0, "25": 24.0, "175": 24.0}.get(family, 16.0)
    elif vendor == "GenuineIntel":
        rate = next(rate for least, rate in ((207, 40.0), (143, 22.0), (85, 10.0), (0, 6.0)) if generation >= least)
    else:
        rate = {"ppc64": 32.0}.get(architecture, 6.0)
    return port(rate, PCIE_LATENCY, f"{rate:g} GB/s {_BETWEEN_SOCKETS}")


_EC2 = "Amazon EC2 documentation, accelerated computing instances"
_GCE = "Google Cloud documentation, accelerator-optimized machines, the cards of the GPUs"
_AZURE = "Microsoft Azure documentation, ND family"
_DGX = "NVIDIA DGX user guides"

NODE_TYPES = {
    "p3dn.24xlarge": NodeType(8, 150, 100, 1, _EC2, Fabric.RING),
    "p4d.24xlarge": NodeType(8, 300, 400, 4, _EC2),
    "p4de.24xlarge": NodeType(8, 300, 400, 4, _EC2),
    "p5.48xlarge": NodeType(8, 450, 3200, 32, _EC2, reduces=True),
    "p5e.48xlarge": NodeType(8, 450, 3200, 32, _EC2, reduces=True),
    "p5en.48xlarge": NodeType(8, 450, 3200, 16, _EC2, reduces=True),
    "p6-b200.48xlarge": NodeType(8, 900, 3200, 8, _EC2, reduces=True),
    "p6e-gb200.36xlarge": NodeType(4, 900, 1600, 4, _EC2, reduces=True, joins=True),
    "a2-highgpu-8g": NodeType(8, 300, 100, 1, _GCE),
    "a2-ultragpu-8g": NodeType(8, 300, 100, 1, _GCE),
    "a2-megagpu-16g": NodeType(16, 300, 100, 1, _GCE),
    "a3-highgpu-8g": NodeType(8, 450, 800, 4, _GCE, reduces=True),
    "a3-megagpu-8g": NodeType(8, 450, 1600, 8, _GCE, reduces=True),
    "a3-ultragpu-8g": NodeType(8, 450, 3200, 8, _GCE, reduces=True),
    "a4-highgpu-8g": NodeType(8, 900, 3200, 8, _GCE, reduces=True),
    "a4x-highgpu-4g": NodeType(4, 900, 1600, 4, _GCE, reduces=True, joins=True),
    "standard_nd96asr_v4": NodeType(8, 300, 1600, 8, _AZURE),
    "standard_nd96amsr_a100_v4": NodeType(8, 300, 1600, 8, _AZURE),
    "standard_nd96isr_h100_v5": NodeType(8, 450, 3200, 8, _AZURE, reduces=True),
    "standard_nd96isr_h200_v5": NodeType(8, 450, 3200, 8, _AZURE, reduces=True),
    "standard_nd96isr_mi300x_v5": NodeType(8, 448, 3200, 8, _AZURE),
    "standard_nd128isr_ndr_gb200_v6": NodeType(4, 900, 1600, 4, _AZURE, reduces=True, joins=True),
    "dgx-1": NodeType(8, 150, 400, 4, _DGX, Fabric.RING),
    "dgx-a100": NodeType(8, 300, 1600, 8, _DGX),
    "dgx-h100": NodeType(8, 450, 3200, 8, _DGX, reduces=True),
    "dgx-h200": NodeType(8, 450, 3200, 8, _DGX, reduces=True),
    "dgx-b200": NodeType(8, 900, 3200, 8, _DGX, reduces=True),
    "gb200-nvl72": NodeType(
        4, 900, 1600, 4, "NVIDIA DGX GB200 reference architecture, one tray", reduces=True, joins=True
    ),
}
"""By their names in lower case."""


def joins(kind: str) -> bool:
    """Whether NVLink joins hosts of a type with each other."""
    return kind.lower() in NODE_TYPES and NODE_TYPES[kind.lower()].joins


def node_type(name: str) -> Place:
    """A host of a type in the table."""
    if name.lower() not in NODE_TYPES:
        raise SpecError(unknown("node type", name, NODE_TYPES))
    return NODE_TYPES[name.lower()].place()


_PRODUCTS = (
    (r"(GB[23]00|B[23]00)", 900.0, True),
    (r"(H100-80GB-HBM3|H100-SXM|H20\b|H200(?!-NVL)|GH200)", 450.0, True),
    (r"(A100-SXM|A800-SXM)", 300.0, False),
    (r"P100-SXM", 80.0, False),
    (r"V100-SXM", 150.0, False),
)
"""GB/s of a GPU's NVLinks by the name of the product, and whether its switches reduce: NVIDIA's datasheets."""


def product(name: str) -> tuple[float, bool] | None:
    """GB/s of a GPU's NVLinks by the name of the product, and whether its switches reduce; None if it has none.

    >>> product("NVIDIA-H100-80GB-HBM3")
    (450.0, True)
    """
    return next(((rate, reduces) for pattern, rate, reduces in _PRODUCTS if re.search(pattern, name)), None)


def gpus(name: str, count: int) -> tuple[Place, ...]:
    """The GPUs of a host by the name of the product, as in the label nvidia.com/gpu.product."""
    known, found = product(name), None
    if known is not None:
        found = port(known[0], NVLINK_LATENCY, f"NVLink of {name}", bypass=True, reduces=known[1])
    return tuple(Place("gpu", f"gpu{k}", (), found) for k in range(count))
