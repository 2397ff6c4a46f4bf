"""Traces: what every file of a rank is read to, and the words that PyTorch has for kinds of calls and types."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.errors import SpecError
from meshwright.text.spec import shown
from meshwright.workload.recorded import Recorded

SEND, RECEIVE = "point-to-point", "receive"

_KINDS = {
    "allreducebarrier": None,
    "allreduce": "all-reduce",
    "reducescatter": "reduce-scatter",
    "allgather": "all-gather",
    "alltoall": "all-to-all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "send": SEND,
    "recv": RECEIVE,
    **dict.fromkeys(("gather", "scatter"), ""),  # these have no goal, but do send something
}
"""The kinds by how the names of calls begin, longer ones first; None sends nothing, and neither do other names."""

_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short", "UInt16"), 2),
    **dict.fromkeys(("Float", "Int", "UInt32", "QInt32"), 4),
    **dict.fromkeys(("Double", "Long", "UInt64", "ComplexFloat"), 8),
    "ComplexDouble": 16,
    "ComplexHalf": 4,
}
"""The bytes of a value, by the names that PyTorch has for types."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a rank: in which group, by its name; `to` is the other rank of a message."""

    kind: str
    group: str
    bytes: int
    hidden: float = 0.0
    to: int | None = None
    label: str = ""


@dataclass(frozen=True)
class Trace:
    """What one file tells: of which rank, how many there are, the ranks of groups, calls, and steps; None if unknown.

    cut: whether older calls were overwritten.
    """

    source: str
    rank: int | None
    world: int | None
    groups: Mapping[str, tuple[int, ...]]
    calls: tuple[Call, ...]
    steps: int | None = None
    cut: bool = False


@dataclass(frozen=True)
class Recording:
    """The calls of all ranks, how many ranks the program has, the steps if they are known, and what is odd."""

    calls: tuple[Recorded, ...]
    world: int
    steps: int | None
    notes: tuple[str, ...]


def wrong(source: str, what: str) -> SpecError:
    """The error for a file that cannot be used."""
    return SpecError(f"{source}: {what}")


def kind_of(name: str) -> str | None:
    """The kind of a call by its name; None if it sends nothing, as a barrier, or a wait.

    >>> kind_of("_allgather_base"), kind_of("all_to_allv"), kind_of("gather"), kind_of("wait")
    ('all-gather', 'all-to-all', 'gather', None)
    """
    plain = re.sub("[^a-z]", "", name.lower())
    for beginning, kind in _KINDS.items():
        if plain.startswith(beginning):
            return beginning if kind == "" else kind
    return None


def bytes_of(dtype: Any, source: str) -> int:
    """The bytes of one value of a type."""
    known = _BYTES.get(dtype) if isinstance(dtype, str) else None
    if known is None and isinstance(dtype, str) and dtype.startswith("Float8"):
        known = 1
    if known is None:
        what = shown(dtype) if isinstance(dtype, str) else f"a {type(dtype).__name__}"
        raise wrong(source, f"a call has values of the type {what}, whose size is not known; expected one like Float")
    return known


def label_of(description: Any) -> str:
    """What a program calls a group: PyTorch's DeviceMesh writes `mesh_data` for its dimension data."""
    if not isinstance(description, str) or description in ("default_pg", "undefined"):
        return ""
    return description.removeprefix("mesh_")


def ranks_of(given: Any) -> tuple[int, ...] | None:
    """The ranks of a group, from a list or a text like "[0, 1]"; None if they are cut off, as in "[0, 1, ...]"."""
    if isinstance(given, str):
        if not re.fullmatch(r"\[[0-9, ]*\]", given):
            return None
        given = [int(number) for number in re.findall(r"[0-9]{1,12}", given)]
    if not isinstance(given, list | tuple) or not given or not all(type(rank) is int and rank >= 0 for rank in given):
        return None
    return tuple(given) if len(set(given)) == len(given) else None


def rank_of(source: str, groups: Mapping[str, tuple[int, ...]]) -> int | None:
    """The rank that wrote a file which does not say it: by the file's name, or the smallest that is in all groups.

    >>> rank_of("nccl_trace_rank_3.json", {}), rank_of("2026-11-16.json", {"0": (0, 1, 2, 3), "1": (2, 3)})
    (3, 2)
    """
    common = set.intersection(*map(set, groups.values())) if groups else set()
    plain = re.sub(r"(\.(pt|trace|json|pkl|pickle|gz))+$", "", source)
    for found in re.findall(r"rank[_.-]?([0-9]{1,9})(?![0-9])", plain) + re.findall(r"(?<![0-9])([0-9]{1,9})$", plain):
        if not groups or int(found) in common:
            return int(found)
    return min(common, default=None)
