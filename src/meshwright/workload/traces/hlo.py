"""HLO, the text of programs that XLA has compiled: its collectives, how often each runs, and in which groups."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import SpecError
from meshwright.text.spec import shown
from meshwright.workload.recorded import Recorded
from meshwright.workload.traces.trace import SEND, Recording, wrong

Ranks = NDArray[np.int64]

_KINDS = {
    "all-reduce": "all-reduce",
    "reduce-scatter": "reduce-scatter",
    "all-gather": "all-gather",
    "all-to-all": "all-to-all",
    "ragged-all-to-all": "all-to-all",
    "collective-broadcast": "broadcast",
    "collective-permute": SEND,
}
"""The kinds of calls, by the names of operations; each may also be split into NAME-start and NAME-done."""

_BITS = {"pred": 8, "s4": 4, "u4": 4, "s2": 2, "u2": 2, "c64": 64, "c128": 128, "token": 0, "opaque": 0}
"""The bits of a value of types whose names do not say it, as f32 does."""

MOST_DEVICES = 2**20
"""The most devices of a program."""

_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.-]+) = (.*)")
_OPERATION = re.compile(r"(?:^|(?<= ))([a-z][a-z0-9-]*)\(")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_TURNS = re.compile(r'known_trip_count\\?":\{\\?"n\\?":\\?"?([0-9]{1,12})')  # older texts escape the quotes


@dataclass(frozen=True, slots=True)
class _Instruction:
    """A line of a computation: `%name = type operation(rest`."""

    name: str
    type: str
    operation: str
    rest: str


def hlo_calls(text: str, source: str) -> Recording:
    """What every device calls in one run of a compiled program, from what `compiled.as_text()` gives.

    Devices are numbered as in the program's mesh, in row-major order over its axes.
    """
    first = text[:100_000].lstrip().split("\n", 1)[0]
    if not first.startswith("HloModule"):
        raise wrong(source, "no text of a compiled program; expected what compiled.as_text() gives: HloModule …")
    counts = [re.search(rf"\b{key}=([0-9]{{1,9}})\b", first) for key in ("num_partitions", "replica_count")]
    world = prod(int(count[1]) if count else 1 for count in counts)
    if not 0 < world <= MOST_DEVICES:
        raise wrong(source, f"a program for {world:,} devices; at most {MOST_DEVICES:,} are possible")
    computations, entry = _computations(text, source)
    times, notes = _times(computations, entry)
    counted: Counter[Recorded] = Counter()
    for name, instructions in computations.items():
        ends = {_operand(one): one.type for one in instructions if one.operation.endswith("-done")}
        for one in instructions if times[name] else ():
            if (kind := _KINDS.get(one.operation.removesuffix("-start"))) is not None:
                # What an operation that is split returns first holds its input too; its end has the result alone.
                size = _bytes(ends.get(one.name, one.type), source)
                for call in _recorded(kind, one.rest, size, world, source):
                    counted[call] += times[name]
    calls = tuple(Recorded(one.rank, one.kind, one.ranks, one.bytes, n, to=one.to) for one, n in counted.items())
    return Recording(calls, world, 1, tuple(notes))


def _operand(one: _Instruction) -> str:
    """The name of the first operand, which older texts write after its type: `(f32[8], f32[16]) %start), channel_id=1`.

    Only attributes, which follow, have an equals sign.
    """
    names = re.search(r"%([\w.-]+)", head := one.rest.split("=")[0]) or re.search(r"([\w.-]+)", head)
    return names[1] if names else ""


def _computations(text: str, source: str) -> tuple[dict[str, list[_Instruction]], str]:
    """The instructions of each computation, and the name of the one where the program starts."""
    found: dict[str, list[_Instruction]] = {}
    entry = ""
    current: list[_Instruction] | None = None
    for line in text.splitlines():
        if line[:1] not in (" ", "\t", "}") and line.endswith("{"):
            name = re.match(r"(ENTRY )?%?([\w.-]+)", line)
            if name is not None:
                current = found.setdefault(name[2], [])
                entry = name[2] if name[1] else entry
        elif current is not None and (match := _INSTRUCTION.match(line)) and (end := _OPERATION.search(match[2])):
            current.append(_Instruction(match[1], match[2][: end.start()], end[1], match[2][end.end() :]))
    if not entry:
        raise wrong(source, "the compiled program has no ENTRY; is the text cut off?")
    return found, entry


def _times(computations: dict[str, list[_Instruction]], entry: str) -> tuple[Counter[str], list[str]]:
    """How often each computation runs, and notes on what is not known."""
    times: Counter[str] = Counter({entry: 1})
    unknown = branches = 0
    # A computation is printed before those that call it.
    for name, instructions in reversed(computations.items()):
        for one in instructions if times[name] else ():
            turns = 1
            if one.operation == "while":
                known = _TURNS.search(one.rest)
                turns = int(known[1]) if known else 1
                unknown += known is None
            attributes = one.rest.split(", metadata={")[0]
            called = [] if one.operation.endswith("-done") else [other for _, other in _CALLED.findall(attributes)]
            for listed in _BRANCHES.findall(attributes):
                called += re.findall(r"[\w.-]+", listed)
            branches += one.operation == "conditional"
            for other in called:
                times[other] = min(times[other] + times[name] * turns, 10**12)
    notes = []
    if unknown:
        notes.append(f"{unknown} loops whose number of turns XLA does not know count as one turn")
    if branches:
        notes.append(f"of {branches} conditionals every branch counts")
    return times, notes


def _bytes(text: str, source: str) -> int:
    """The bytes of a type: of an array like `bf16[8,128]{1,0}`, or of all arrays in a tuple."""
    total = 0
    for name, shape in re.findall(r"\b([a-z][a-z0-9]*)\[([0-9,<= ]*)\]", text):
        number = re.match(r"[a-z]+([0-9]+)", name)
        bits = _BITS.get(name, int(number[1][:4]) if number else None)
        if bits is None:
            raise wrong(source, f"values of the type {shown(name)}, whose size is not known; expected one like f32")
        total += (prod(int(size) for size in re.findall(r"[0-9]{1,15}", shape)) * bits + 7) // 8
    return total


def _recorded(kind: str, rest: str, size: int, world: int, source: str) -> Iterator[Recorded]:
    """One run of an operation, as the calls of device 0, and of all groups that are not like its group."""
    if not size:
        return
    if kind == SEND:
        pairs = _pairs(rest, world, source)
        both = all((other, one) in pairs for one, other in pairs)  # an exchange happens at once, so it counts once
        for one, other in sorted(pairs):
            if not both or one < other:
                yield Recorded(one, kind, (one, other), size, to=other)
        return
    groups = np.sort(_groups(rest, world, source), axis=1)
    if groups.shape[1] < 2:
        return
    amount = size * groups.shape[1] if kind == "reduce-scatter" else size
    first = int(groups[:, 0].argmin())
    shapes = groups - groups[:, :1]
    for number in [first, *np.flatnonzero((shapes != shapes[first]).any(axis=1))]:
        ranks = tuple(groups[number].tolist())
        yield Recorded(ranks[0], kind, ranks, amount)


def _pairs(rest: str, world: int, source: str) -> set[tuple[int, int]]:
    listed = re.search(r"\bsource_target_pairs=\{([0-9,{}]*)\}", rest)
    numbers = re.findall(r"\{([0-9]{1,9}),([0-9]{1,9})\}", listed[1] if listed else "")
    pairs = {(int(one), int(other)) for one, other in numbers if int(one) != int(other)}
    if listed is None or any(max(pair) >= world for pair in pairs):
        raise wrong(source, f"a collective-permute has no source_target_pairs of {world} devices")
    return pairs


def _groups(rest: str, world: int, source: str) -> Ranks:
    """The groups of a collective, a row for each, in any of the three forms in which XLA writes them."""
    given = rest.partition("replica_groups=")[2]
    try:
        found = _listed(given) if given[:1] == "{" else _meshed(given) if given[:4] == "mesh" else _counted(given)
        if not found.size:
            found = np.arange(world).reshape(1, -1)
        if not np.array_equal(np.unique(found), np.sort(found, axis=None)) or found.max() >= world:
            raise SpecError("not every device is in one group")
    except (SpecError, ValueError, OverflowError):
        expected = "expected them like {{0,1},{2,3}}, [2,2]<=[4] or mesh['x'=2,'y'=2] {'y'}"
        raise wrong(source, f"a collective has the groups {shown(given[:60])} of {world} devices; {expected}") from None
    return found


def _whole(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"[0-9]{1,9}", text)]


def _listed(text: str) -> Ranks:
    """Groups as lists: `{{0,2},{1,3}}`; all devices if there are none."""
    listed = re.match(r"\{((?:\{[0-9,]*\},?)*)\}", text)
    if listed is None:
        raise SpecError("no lists")
    return np.array([_whole(group) for group in re.findall(r"\{([0-9,]*)\}", listed[1])], dtype=np.int64)


_ORDER = re.compile(r"\[([0-9,]+)\](?:T\(([0-9,]+)\))?")
"""Devices in some order: [4,2]T(1,0) is 0 to 7 as an array of 4 x 2, with its dimensions swapped: 0 2 4 6 1 3 5 7."""


def _ordered(text: str) -> Ranks:
    match = _ORDER.match(text)
    if match is None or prod(sizes := _whole(match[1])) > MOST_DEVICES:
        raise SpecError("no order")
    return np.arange(prod(sizes)).reshape(sizes).transpose(_whole(match[2]) if match[2] else None).reshape(-1)


def _counted(text: str) -> Ranks:
    """Groups by their number and size: `[2,4]<=[4,2]T(1,0)` are 0 2 4 6 and 1 3 5 7."""
    match = re.match(r"\[([0-9]{1,9}),([0-9]{1,9})\]<=", text)
    if match is None:
        raise SpecError("no groups")
    return _ordered(text[match.end() :]).reshape(int(match[1]), int(match[2]))


def _meshed(text: str) -> Ranks:
    """Groups along axes of a mesh: `mesh['x'=4,'y'=2] {'x'}` are 0 2 4 6 and 1 3 5 7.

    Part of an axis may be meant: 'x':(2)2 is the inner one of two axes that 'x' is made of, with 2 outside of it.
    """
    order = r"\[[0-9,]+\](?:T\([0-9,]+\))?|[0-9,]+"
    match = re.match(rf"mesh\[([^\]]*)\](?:, device_ids=\(({order})\))? \{{([^}}]*)\}}", text)
    if match is None:
        raise SpecError("no mesh")
    sizes = {name: int(size) for name, size in re.findall(r"'?([\w.-]+)'?=([0-9]{1,9})", match[1])}
    parts: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for name, before, size in re.findall(r"'?([\w.-]+)'?(?::\(([0-9]{1,9})\)([0-9]{1,9}))?", match[3]):
        outside = int(before) if before else 1
        parts[name].append((outside, outside * int(size) if size else sizes.get(name, 0)))
    if prod(sizes.values()) > MOST_DEVICES or not parts.keys() <= sizes.keys():
        raise SpecError("no such axes")
    shape: list[int] = []
    chosen: list[int] = []
    for name, size in sizes.items():
        for start, end in pairwise(sorted({1, size, *(limit for part in parts[name] for limit in part)})):
            if end % start:
                raise SpecError("no parts of an axis")
            if any(outside <= start and end <= inside for outside, inside in parts[name]):
                chosen.append(len(shape))
            shape.append(end // start)
    devices = np.arange(prod(sizes.values())) if match[2] is None else None
    if devices is None:
        devices = _ordered(match[2]) if match[2].startswith("[") else np.array(_whole(match[2]), dtype=np.int64)
    along = prod(shape[axis] for axis in chosen)
    return np.moveaxis(devices.reshape(shape), chosen, range(-len(chosen), 0)).reshape(-1, along)
