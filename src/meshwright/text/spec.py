"""Names and counts, and the notation `NAME=COUNT,NAME=COUNT` of systems, axes and hierarchies: parsed and checked."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from os import PathLike, fspath
from pathlib import Path
from types import UnionType
from typing import TypeVar

from meshwright.errors import SpecError

MAX_COUNT = 10**12
"""The largest count: far beyond any machine, and small enough to be factorized at once."""

MAX_PRODUCT = 10**80
"""The largest product of counts: small enough that no predicted time overflows."""

MAX_NAMES = 16
"""The most levels of a system, and the most axes."""

MAX_TITLE = 1000
"""The most characters in the title of a system or a workload."""

SHOWN = 80
"""The most characters that a value takes up in a message."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}")


LINES, COLUMNS = 20, 100
"""How many lines below the first a `repr` has at most, and how many columns a screen has."""


def shown(value: object) -> str:
    """A value as messages show it: at most `SHOWN` characters, all printable.

    >>> shown("data"), len(shown("x" * 1000))
    ("'data'", 80)
    """
    try:
        text = repr(value)
    except Exception:  # an integer of too many digits, or an object that cannot be shown
        return f"a {type(value).__name__} that is too long to show"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def screenful(head: str, lines: Sequence[str]) -> str:
    """A `repr` that fits a screen: the head and the first lines, none of them longer than the screen is wide.

    >>> print(screenful("Plan of much", [f"reduction {k}" for k in range(30)])[:41])
    <Plan of much
      reduction 0
      reduction 1
    """
    shown = [f"<{head}", *(f"  {line}" for line in lines[:LINES])]
    shown += [f"  … and {len(lines) - LINES:,} more"] if len(lines) > LINES else []
    return "\n".join(line if len(line) < COLUMNS else f"{line[: COLUMNS - 2]}…" for line in shown) + ">"


def check_type(value: object, kind: type | UnionType, expected: str) -> None:
    """Refuse a value of another type. True and False do not count as numbers."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise SpecError(f"expected {expected}, not {shown(value)}")


def check_title(text: str, what: str) -> None:
    """Refuse a title that is too long, has more than one line, or holds control characters."""
    check_type(text, str, f"{what} as text")
    if not text.isprintable() or len(text) > MAX_TITLE:
        raise SpecError(f"{what} is {shown(text)}; expected at most {MAX_TITLE} characters that can be printed")


def is_number(value: object) -> bool:
    """Whether it is an int or a float that is finite, also after conversion to float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300


def no_constant(text: str) -> None:
    """For `json.loads`: refuse NaN and Infinity, which are not JSON."""
    raise ValueError(f"{text} is not a number of JSON")


T = TypeVar("T")


def as_tuple(values: Iterable[T], kind: type, what: str) -> tuple[T, ...]:
    """Values of one type as a tuple. Refuses a text, which would otherwise be split into its letters."""
    listed = tuple(values) if isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping) else None
    if listed is None:
        raise SpecError(f"expected a list of {what}, not {shown(values)}")
    for value in listed:
        check_type(value, kind, f"a list of {what}, each a {kind.__name__}")
    return listed


def check_path(path: str | PathLike[str], what: str) -> Path:
    """The path of a file, from a string or a path object."""
    check_type(path, str | PathLike, f"the path of a {what} file")
    name = fspath(path)
    check_type(name, str, f"the path of a {what} file")
    return Path(name)


def parse_counts(text: str, what: str, example: str) -> tuple[tuple[str, int], ...]:
    """Names and counts from `NAME=COUNT,…`.

    >>> parse_counts("data=4,shard=16", "axes", "data=4,shard=16")
    (('data', 4), ('shard', 16))
    """
    pairs = []
    for item in split_items(text, what, example):
        name, equals, count = item.partition("=")
        if not equals:
            raise SpecError(f"{shown(item)} in the {what} {shown(text)} is not NAME=COUNT, as in {example!r}")
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
    check_type(text, str, f"{what} as text, like {example!r}")
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise SpecError(f"the {what} {shown(text)} has an empty item; expected something like {example!r}")
    return items


def parse_count(text: str, name: str, what: str, example: str) -> int:
    """A positive whole number; `name` is what it counts."""
    if not re.fullmatch(r"0|[1-9][0-9]{0,99}", text):
        raise SpecError(
            f"{shown(name)} in the {what} has the count {shown(text)}; expected a positive whole number, as in "
            f"{example!r}"
        )
    check_count(int(text), f"{shown(name)} in the {what}", example)
    return int(text)


def check_count(count: int, who: str, example: str) -> None:
    """Refuse a count that is not a whole number from 1 to `MAX_COUNT`; `who` is what the message says has it."""
    if type(count) is not int or not 1 <= count <= MAX_COUNT:
        raise SpecError(
            f"{who} has the count {shown(count)}; expected a whole number from 1 to {MAX_COUNT:,}, as in {example!r}"
        )


def is_name(text: object) -> bool:
    """Whether it can be the name of a level or an axis."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def check_names(names: Sequence[str], what: str, example: str) -> None:
    """Refuse names that are not identifiers, appear twice, or are more than `MAX_NAMES`."""
    for name in names:
        if not is_name(name):
            raise SpecError(
                f"{shown(name)} in the {what} is not a name: expected letters, digits, '_' and '-', "
                f"starting with a letter, as in {example!r}"
            )
    for name, count in Counter(names).items():
        if count > 1:
            raise SpecError(f"{shown(name)} appears {count} times in the {what}; names must differ, as in {example!r}")
    if len(names) > MAX_NAMES:
        raise SpecError(f"the {what} has {len(names)} names; at most {MAX_NAMES} are possible, as in {example!r}")


E = TypeVar("E", bound=str)


def one_of(known: Iterable[E], what: str, given: object) -> E:
    """The one of the known names, or of an enum's members, that equals what was given; refuses everything else.

    >>> one_of(("axes", "devices"), "order", "axes")
    'axes'
    """
    for one in known:
        if isinstance(given, str) and given == one:
            return one
    raise SpecError(unknown(what, given, known))


def unknown(what: str, given: object, known: Iterable[str]) -> str:
    """The message for a name that is not among the known ones, with the closest one suggested."""
    known = [str(name) for name in known]  # members of enums are shown as their names
    given = str(given) if isinstance(given, str) else given
    close = get_close_matches(given, known, n=1) if isinstance(given, str) else []
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"unknown {what} {shown(given)}{hint} (known: {', '.join(known) or 'none'})"
