"""The `NAME=COUNT,NAME=COUNT` notation that systems, axes and hierarchies share."""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from meshwright.errors import SpecError

MAX_COUNT = 10**12  # far beyond any machine; keeps factorization and arithmetic instant

MAX_NAMES = 16  # levels of a system, or axes

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def parse_counts(text: str, what: str, example: str) -> tuple[tuple[str, int], ...]:
    """Names and counts from `NAME=COUNT,…`.

    >>> parse_counts("data=4,shard=16", "axes", "data=4,shard=16")
    (('data', 4), ('shard', 16))
    """
    pairs = []
    for item in split_items(text, what, example):
        name, equals, count = item.partition("=")
        if not equals:
            raise SpecError(f"{item!r} in the {what} {text!r} is not NAME=COUNT, as in {example!r}")
        pairs.append((name.strip(), parse_count(count.strip(), name.strip(), what, example)))
    check_names([name for name, _ in pairs], what, example)
    return tuple(pairs)


def format_counts(counts: Mapping[str, int]) -> str:
    """The inverse of `parse_counts`.

    >>> format_counts({"data": 4, "shard": 16})
    'data=4,shard=16'
    """
    return ",".join(f"{name}={count}" for name, count in counts.items())


def split_items(text: str, what: str, example: str) -> list[str]:
    """The comma-separated items of a description, none of them empty."""
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise SpecError(f"the {what} {text!r} has an empty item; expected something like {example!r}")
    return items


def parse_count(text: str, name: str, what: str, example: str) -> int:
    """A positive whole number; `name` is what it counts."""
    if not re.fullmatch(r"0|[1-9][0-9]{0,99}", text):
        raise SpecError(
            f"{name!r} in the {what} has the count {text!r}; expected a positive whole number, as in {example!r}"
        )
    check_count(int(text), f"{name!r} in the {what}", example)
    return int(text)


def check_count(count: int, who: str, example: str) -> None:
    """Refuse what is not a positive whole number of a sane size; `who` has it."""
    if type(count) is not int or not 1 <= count <= MAX_COUNT:
        raise SpecError(
            f"{who} has the count {count!r}; expected a whole number from 1 to {MAX_COUNT:,}, as in {example!r}"
        )


def check_names(names: Sequence[str], what: str, example: str) -> None:
    """Names must be identifiers and differ from each other."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise SpecError(
                f"{name!r} in the {what} is not a name: expected letters, digits, '_' and '-', "
                f"starting with a letter, as in {example!r}"
            )
    for name in names:
        if names.count(name) > 1:
            raise SpecError(
                f"{name!r} appears {names.count(name)} times in the {what}; names must differ, as in {example!r}"
            )
    if len(names) > MAX_NAMES:
        raise SpecError(f"the {what} has {len(names)} names; at most {MAX_NAMES} are possible, as in {example!r}")


def unknown(what: str, given: str, known: Iterable[str]) -> str:
    """The message for a name that is not among the known ones, with the closest one suggested."""
    known = list(known)
    close = get_close_matches(given, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"unknown {what} {given!r}{hint} (known: {', '.join(known) or 'none'})"
