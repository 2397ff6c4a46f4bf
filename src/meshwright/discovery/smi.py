"""The matrix that `nvidia-smi topo -m` prints: how each pair of GPUs is connected."""

import re

from meshwright.discovery.inside import SWITCH, Gpu, host
from meshwright.discovery.model import Topology, wrong
from meshwright.discovery.nesting import united
from meshwright.discovery.nominal import nvlink

MOST_GPUS = 576

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ENTRY = re.compile(r"X|SYS|SOC|NODE|PHB|PXB|PIX|PSB|NV[0-9]{1,2}")
_SAME_SWITCH = ("PIX", "PXB", "PSB")
_SAME_NUMA = ("PHB", "NODE", *_SAME_SWITCH)

MOST_LINKS = 18
"""The most NVLinks of a GPU, up to Blackwell: more in a row of the matrix lead through switches."""


def parse_smi(text: str, source: str) -> Topology:
    """A topology from the matrix; colours, the legend and the columns of network cards are skipped."""
    lines = [_COLOURS.sub("", line) for line in text.splitlines()]
    head = next((number for number, line in enumerate(lines) if re.match(r"\s*GPU0\b(?!\s+X)", line)), None)
    if head is None:
        raise wrong(source, 1, "no line with the columns GPU0, GPU1, …, as `nvidia-smi topo -m` prints it")
    names = re.findall(r"\bGPU[0-9]{1,4}\b", lines[head])
    if len(names) > MOST_GPUS or len(set(names)) < len(names):
        raise wrong(source, head + 1, f"{len(names)} columns of GPUs; expected up to {MOST_GPUS}, all different")
    rows: dict[str, list[str]] = {}
    for number, line in enumerate(lines[head + 1 :], head + 2):
        name, *entries = line.split() or [""]
        if name in names:
            rows[name] = _entries(entries[: len(names)], len(names), source, number)
    if missing := [name for name in names if name not in rows]:
        raise wrong(source, None, f"there is no row of {missing[0]}; the matrix is cut off")
    for k, one in enumerate(names):
        for m, other in enumerate(names):
            if (rows[one][m] == "X") != (k == m) or rows[one][m] != rows[other][k]:
                raise wrong(
                    source, None, f"{one} and {other}: {rows[one][m]!r} one way and {rows[other][k]!r} the other"
                )
    near = {kind: _united(names, rows, entries) for kind, entries in (("pci", _SAME_SWITCH), ("numa", _SAME_NUMA))}
    gpus = [_gpu(name, names, rows) for name in names]
    for name, gpu in zip(names, gpus, strict=True):
        gpu.attached = {kind: groups[name] for kind, groups in near.items()}
    place, odd = host(gpus, {}, None)
    note = f"{source} does not say how fast PCIe is; a topology file of NCCL does"
    if any(gpu.links for gpu in gpus):
        note = f"{source} does not say which GPUs these are: with NVLink 5 (Blackwell), links carry twice as much"
    return Topology(source, every=place, odd=odd, notes=(note,))


def _entries(entries: list[str], count: int, source: str, line: int) -> list[str]:
    for entry in entries:
        if not _ENTRY.fullmatch(entry):
            raise wrong(source, line, f"{entry[:40]!r}; expected X, SYS, NODE, PHB, PXB, PIX or NV and a number")
    if len(entries) < count:
        raise wrong(source, line, f"{len(entries)} entries in the row; expected {count}")
    return entries


def _united(names: list[str], rows: dict[str, list[str]], near: tuple[str, ...]) -> dict[str, str]:
    """Which GPUs hang on one switch or NUMA node; what links hide between two, others tell that are near to both."""
    return united(
        names, ((one, other) for one in names for other, entry in zip(names, rows[one], strict=True) if entry in near)
    )


def _gpu(name: str, names: list[str], rows: dict[str, list[str]]) -> Gpu:
    row = dict(zip(names, rows[name], strict=True))
    gpu = Gpu(name.lower(), rate=nvlink(80)[0], wire="NVLink")
    links = {other: int(entry[2:]) for other, entry in row.items() if entry.startswith("NV")}
    if sum(links.values()) > MOST_LINKS:
        gpu.links[f"{SWITCH} of {min([name, *links])}"] = max(links.values())
    else:
        gpu.links.update({other.lower(): count for other, count in links.items()})
    return gpu
