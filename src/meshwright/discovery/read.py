"""Topology files: which format it is, and the topology in it."""

import re
from collections.abc import Callable
from os import PathLike
from pathlib import Path

from meshwright.discovery.hwloc import parse_hwloc
from meshwright.discovery.infiniband import parse_infiniband
from meshwright.discovery.model import Topology, wrong
from meshwright.discovery.nccl import parse_nccl
from meshwright.discovery.records import parse_aws, parse_gcp, parse_kubernetes
from meshwright.discovery.slurm import parse_slurm, parse_slurm_yaml
from meshwright.discovery.smi import parse_smi
from meshwright.discovery.table import parse_table
from meshwright.text.spec import one_of
from meshwright.text.yamlfile import read_text

MOST_BYTES = 2**24
"""The most bytes of one file."""

FORMATS: dict[str, Callable[[str, str], Topology]] = {
    "nccl": parse_nccl,
    "nvidia-smi": parse_smi,
    "hwloc": parse_hwloc,
    "slurm": parse_slurm,
    "slurm-yaml": parse_slurm_yaml,
    "ibnetdiscover": parse_infiniband,
    "aws": parse_aws,
    "gcp": parse_gcp,
    "kubernetes": parse_kubernetes,
    "csv": parse_table,
}
"""How each format is read: from its text, and what messages call the file."""

_JSON = {
    "aws": ('"NetworkNodes"', '"NetworkNodeSet"', '"networkNodeSet"'),
    "gcp": ('"physicalHostTopology"',),
    "kubernetes": ('"metadata"',),
}
"""Keys that tell a format of JSON."""

_LINES = {
    "slurm-yaml": r"^[ \t]*-[ \t]*\{?[ \t]*['\"]?topology['\"]?[ \t]*:",
    "ibnetdiscover": r'^(vendid=|Switch[ \t]+\d+[ \t]+"S-)',
    "slurm": r"(?i)^[ \t]*(SwitchName|BlockName)=",
    "nvidia-smi": r"^[ \t]*(\x1b\[[0-9;]*m)?[ \t]*GPU0\b",
    "csv": r"^[ \t]*[\w.-]+[ \t]*(,|$)",
}
"""Lines that tell the other formats."""


def recognised(text: str, source: str) -> str:
    """The format of a file, by its content.

    >>> recognised("SwitchName=leaf1 Nodes=n[1-4]", "topology.conf")
    'slurm'
    """
    found: str | None = None
    first = text.lstrip()[:1]
    if first == "<":
        root = re.search(r"<(system|topology)\b", text)
        found = {"system": "nccl", "topology": "hwloc"}[root[1]] if root else None
    elif first in ("{", "["):
        found = next((form for form, keys in _JSON.items() if any(key in text for key in keys)), None)
    if not found:
        found = next((form for form, sign in _LINES.items() if re.search(sign, text, re.MULTILINE)), None)
    if not found:
        raise wrong(source, 1, f"no format that is known ({', '.join(FORMATS)}); --format says which it is")
    return found


def parse_topology(text: str, source: str, form: str | None = None) -> Topology:
    """A topology from the text of a file; `source` is what messages call it.

    >>> len(parse_topology("SwitchName=leaf1 Nodes=n[1-4]", "topology.conf").hosts)
    4
    """
    read = FORMATS[one_of(FORMATS, "format", form) if form else recognised(text, source)]
    return read(text, source)


def read_topology(path: str | PathLike[str], form: str | None = None) -> Topology:
    """A topology from a file."""
    file = Path(path)
    return parse_topology(read_text(file, "topology", MOST_BYTES).removeprefix("\ufeff"), str(file), form)
