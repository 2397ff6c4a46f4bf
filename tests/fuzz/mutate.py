"""How cases are made: valid texts and documents with something broken in them."""

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import Any

NUMBERS = (
    *("0", "1", "2", "3", "-1", "00", "1.5", "1e3", "1e308", "1e309", "-1e400", "nan", "NaN", "inf", "Infinity"),
    *("-Infinity", "4294967296", "1000000000000", "1000000000001", "99999999999999999999", "0x10", "1_000", "1e-400"),
    *(".5", "5.", "+", "-", "1e"),
)
WORDS = (
    *("AllReduce", "ReduceScatter", "AllGather", "Reduce", "Broadcast", "all-reduce", "all_gather", "all", "inside"),
    *("across", "masters", "of", "within", "nothing", "node", "gpu", "rack", "data", "shard", "tensor", "a", "b"),
    *("GB/s", "Gbit/s", "GiB", "MiB", "kB", "B", "us", "ms", "s", "/s", ",", ";", ":", "=", "@", "+", "*", "|", "["),
    *("]", "{", "}", "-", "?", "&", "!", "#", "'", '"', "\\", "in", "chunks", "chunk", "null", "true", "false"),
    *("yes", "~", "<<", "..", "../x", "/dev/zero", "{{{{", "[[[[", "*a", "&a"),
)
ODD = (
    "\x00",
    "\ufeff",
    "\u2028",
    "\u202e",
    "\ud800",
    "\U0001f600",
    "\u0660",
    "\u00b2",
    "\u00a0",
    "\x85",
    "\t",
    "\r\n",
    "\x1b[31m",
)
EDITS = 3
"""The most changes to one case, mostly."""


def nested(depth: int) -> Any:
    """Lists in lists."""
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


def junk(random: Random) -> Any:
    """A value that is seldom what is wanted; all can be written as JSON."""
    return random.choice(_JUNK)(random)


_JUNK: tuple[Callable[[Random], Any], ...] = (
    lambda _: None,
    lambda random: random.random() < 0.5,
    lambda random: random.choice([0, 1, 2, -1, 3, 7, 2**31, 10**12, 10**14, 10**18, 10**30, 10**400, -(10**400)]),
    lambda random: random.choice([0.0, 0.5, -0.0, 1e-300, 1e300, -1.5, float("nan"), float("inf"), float("-inf")]),
    lambda random: random.choice(["", " ", "x", "a" * 300, *NUMBERS, *WORDS, *ODD]),
    lambda random: text(random, random.choice(["node=4@8GB/s", "data", "1e3B", "AllReduce all"])),
    lambda random: nested(random.choice([1, 2, 30, 100])),
    lambda random: random.choice([[], {}, [[]], [{}], {"a": 1}, {"name": {}}, [None] * 50, ["data"] * 20]),
    lambda random: "x" * random.choice([255, 4096, 20_000]),
)


def text(random: Random, whole: str, others: Sequence[str] = ()) -> str:
    """A text with a few changes."""
    if random.random() < 0.02:
        return ""
    for _ in range(random.randint(1, EDITS) if random.random() < 0.95 else 20):
        whole = random.choice(_EDITS)(random, whole, others)
        if len(whole) > 100_000:
            return whole[:100_000]
    return whole


def _span(random: Random, whole: str) -> tuple[int, int]:
    start = random.randint(0, len(whole))
    return start, min(len(whole), start + random.choice([0, 1, 1, 2, 5, 20, 100]))


def _delete(random: Random, whole: str, _: Sequence[str]) -> str:
    start, end = _span(random, whole)
    return whole[:start] + whole[end:]


def _flip(random: Random, whole: str, _: Sequence[str]) -> str:
    if not whole:
        return "x"
    at = random.randrange(len(whole))
    return whole[:at] + chr((ord(whole[at]) ^ (1 << random.randrange(8))) & 0x10FFFF) + whole[at + 1 :]


def _insert(random: Random, whole: str, _: Sequence[str]) -> str:
    start, end = _span(random, whole)
    new = random.choice(random.choice((NUMBERS, WORDS, WORDS, ODD)))
    return (
        whole[:start] + random.choice(("", " ")) + new + random.choice(("", " ")) + whole[random.choice((start, end)) :]
    )


def _double(random: Random, whole: str, _: Sequence[str]) -> str:
    start, end = _span(random, whole)
    times = random.choice([2, 2, 2, 3, 50, 1000])
    return whole[:start] + whole[start:end] * times + whole[end:]


def _number(random: Random, whole: str, _: Sequence[str]) -> str:
    """Another number in the place of one."""
    places = [at for at, letter in enumerate(whole[:5000]) if letter.isdigit()]
    if not places:
        return whole
    start = end = random.choice(places)
    while end < len(whole) and (whole[end].isdigit() or whole[end] in ".e"):
        end += 1
    return whole[:start] + random.choice((*NUMBERS, "9" * 20, "9" * 400, "9" * 5000)) + whole[end:]


def _swap(random: Random, whole: str, _: Sequence[str]) -> str:
    """Two parts in each other's place."""
    parts = whole.split(separator := random.choice([" ", ",", ";", "\n", "=", ":"]))
    if len(parts) < 2:
        return whole
    one, other = random.randrange(len(parts)), random.randrange(len(parts))
    parts[one], parts[other] = parts[other], parts[one]
    return separator.join(parts)


def _splice(random: Random, whole: str, others: Sequence[str]) -> str:
    if not others:
        return whole
    other = random.choice(others)
    return whole[: random.randint(0, len(whole))] + other[random.randint(0, len(other)) :]


def _deep(random: Random, whole: str, _: Sequence[str]) -> str:
    """Deep nesting, closed or not."""
    start, end = _span(random, whole)
    opening, closing = random.choice(
        [("[", "]"), ("{", "}"), ("{a: ", "}"), ("[{", "}]"), ('{"a":', "}"), ("- ", ""), ("? ", ""), ("(", ")")]
    )
    depth = random.choice([3, 30, 300, 3000])
    return whole[:start] + opening * depth + whole[start:end] + closing * random.choice([0, depth]) + whole[end:]


_EDITS: tuple[Callable[[Random, str, Sequence[str]], str], ...] = (
    *(_delete, _delete, _flip, _flip, _insert, _insert, _insert),
    *(_double, _number, _number, _swap, _splice, _deep),
)


def document(random: Random, whole: Any) -> Any:
    """A document with a few changes in its parts; the given one stays as it is."""
    whole = deepcopy(whole)
    for _ in range(random.randint(1, EDITS)):
        places = list(_places(whole))
        if not places:
            return junk(random)
        holder, key = random.choice(places)
        kind = random.randrange(6)
        if kind <= 2:
            holder[key] = junk(random)
        elif kind == 3 and isinstance(holder[key], str):
            holder[key] = text(random, holder[key])
        elif kind == 4:
            del holder[key]
        elif isinstance(holder, list):
            holder.insert(key, deepcopy(holder[random.randrange(len(holder))]))
        else:
            other, place = random.choice(places)
            value = deepcopy(other[place]) if not isinstance(other, list) or place < len(other) else None
            holder[random.choice((key, random.choice(WORDS)))] = value
    return whole


def _places(whole: Any) -> Any:
    """Every part of a document, as what it is in and its key there."""
    todo = [whole]
    while todo:
        holder = todo.pop()
        if isinstance(holder, dict | list):
            for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
                yield holder, key
                todo.append(holder[key])


def as_json(random: Random, whole: Any) -> str:
    """A document as text, mostly as JSON."""
    try:
        found = json.dumps(whole, indent=random.choice((None, 1)), ensure_ascii=random.random() < 0.9)
    except RecursionError:
        return "[" * 3000
    return text(random, found) if random.random() < 0.1 else found
