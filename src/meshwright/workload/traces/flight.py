"""PyTorch's Flight Recorder: the last calls of a rank, which it dumps on a timeout or when it is asked to."""

import io
import pickle
import re
from math import prod
from typing import Any, NoReturn

from meshwright.text.spec import shown
from meshwright.workload.traces.trace import (
    RECEIVE,
    SEND,
    Call,
    Trace,
    bytes_of,
    kind_of,
    label_of,
    rank_of,
    ranks_of,
    wrong,
)

MOST_DIMENSIONS = 64
"""The most dimensions of a tensor, as in PyTorch."""


class _Plain(pickle._Unpickler):
    """Reads lists, dicts, tuples, texts and numbers, and nothing else: a pickle could otherwise run any code.

    The unpickler that is written in Python: the other takes as much memory as a number in the file says.
    """

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {shown(f'{module}.{name}')}, which no dump of Flight Recorder does")


def unpickled(data: bytes, source: str) -> Any:
    """The plain data in a pickle; everything else is refused."""
    try:
        return _Plain(io.BytesIO(data)).load()
    except Exception as error:  # the unpickler raises whatever goes wrong inside it
        why = str(error) if isinstance(error, pickle.UnpicklingError) else "is it cut off?"
        raise wrong(source, f"the pickle cannot be read: {why[:200]}") from None


def flight_trace(document: dict[Any, Any], source: str) -> Trace:
    """The trace in a dump, from its pickle or its JSON."""
    entries, config = document.get("entries"), document.get("pg_config")
    if not isinstance(entries, list) or not entries:
        raise wrong(source, "the dump of Flight Recorder has no calls; TORCH_FR_BUFFER_SIZE=2000 makes it keep some")
    groups, world = {}, None
    for key, group in config.items() if isinstance(config, dict) else ():
        if isinstance(group, dict) and (ranks := ranks_of(group.get("ranks"))):
            name = group.get("name", key)
            groups[name if isinstance(name, str) else ""] = ranks
            world = len(ranks) if group.get("desc") == "default_pg" else world
    calls = [call for entry in entries if (call := _call(entry, groups, source)) is not None]
    first = entries[0].get("record_id")
    return Trace(source, rank_of(source, groups), world, groups, tuple(calls), cut=type(first) is int and first > 0)


def _call(entry: Any, groups: dict[str, tuple[int, ...]], source: str) -> Call | None:
    if not isinstance(entry, dict) or not isinstance(name := entry.get("profiling_name"), str):
        raise wrong(source, "an entry of Flight Recorder has no profiling_name; expected one like 'nccl:all_reduce'")
    _, _, called = name.partition(":")
    kind = kind_of(called)
    if kind is None:
        return None
    group = entry.get("process_group")
    if not isinstance(group, list | tuple) or len(group) != 2 or not all(isinstance(word, str) for word in group):
        raise wrong(source, "an entry has no process_group with a name and a description; PyTorch 2.5 or newer has it")
    given, taken = (_bytes(entry, side, source) for side in ("input", "output"))
    amount = given if kind in ("all-to-all", SEND) else max(given, taken)
    # For example 'send 0->2' and 'recv 0<-3': the second number is the other rank, by its place in the group.
    peer = re.search(r"(?:->|<-)(\d{1,9})", called) if kind in (SEND, RECEIVE) else None
    ranks = groups.get(group[0], ())
    to = ranks[int(peer[1])] if peer and int(peer[1]) < len(ranks) else None
    return Call(kind, group[0], amount, to=to, label=label_of(group[1]))


def _bytes(entry: dict[Any, Any], side: str, source: str) -> int:
    """The bytes of the tensors on one side of a call."""
    shapes, dtypes = entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")
    if not isinstance(shapes, list | tuple) or not isinstance(dtypes, list | tuple):
        raise wrong(source, f"an entry has no {side}_sizes and {side}_dtypes; PyTorch 2.5 or newer has them")
    total = 0
    for number, shape in enumerate(shapes):
        plain = isinstance(shape, list | tuple) and len(shape) <= MOST_DIMENSIONS
        if not plain or not all(type(size) is int and 0 <= size < 2**48 for size in shape):
            raise wrong(source, f"an entry has {side}_sizes that are no shapes; expected some like [[1000]]")
        dtype = dtypes[min(number, len(dtypes) - 1)] if dtypes else None
        total += prod(shape) * bytes_of(dtype, source)
    return total
