"""Placements as text: for each axis its factors, outermost first, like data=2x2,shard=2x8; or rows of a matrix."""

import json
import re
from collections.abc import Iterable

from meshwright.errors import SpecError
from meshwright.placement.placement import Placement
from meshwright.system.model import System
from meshwright.text.spec import shown, split_items, unknown

PLACEMENT_EXAMPLE = "data=4x1,shard=1x16"


def format_placement(axes: Iterable[str], matrix: Iterable[Iterable[int]]) -> str:
    """A matrix as people are shown it: for each axis its factors, outermost first; `parse_placement` reads it.

    >>> format_placement(["data", "shard"], [[4, 1], [1, 16]])
    'data=4x1,shard=1x16'
    """
    return ",".join(f"{axis}={'x'.join(map(str, row))}" for axis, row in zip(axes, matrix, strict=True))


def parse_placement(text: str, system: System, axes: Iterable[str]) -> Placement:
    """A placement from the text of its matrix: for each of the axes its factors, outermost first, or a list of rows.

    >>> from meshwright import parse_system
    >>> parse_placement("data=4x1,shard=1x16", parse_system("node=4,gpu=16"), ["data", "shard"]).sizes
    {'data': 4, 'shard': 16}
    >>> parse_placement("[[4,1],[1,16]]", parse_system("node=4,gpu=16"), ["data", "shard"]).sizes
    {'data': 4, 'shard': 16}
    """
    names = tuple(axes)
    if "=" in text:
        items = [_row(item, text) for item in split_items(text, "placement", PLACEMENT_EXAMPLE)]
        rows = dict(items)
        if len(rows) < len(items):
            raise SpecError(f"the placement {shown(text)} has an axis twice")
        for axis in (*rows, *names):
            if axis not in rows or axis not in names:
                problem = unknown("axis", axis, names) if axis in rows else f"it has no factors for axis {axis!r}"
                raise SpecError(f"the placement {shown(text)}: {problem}")
        return Placement(system, names, tuple(rows[axis] for axis in names))
    example = (
        f'the factors of each axis, like "{PLACEMENT_EXAMPLE}", or a list of rows, one per axis, like "[[4,1],[1,16]]"'
    )
    try:
        matrix = json.loads(text)
    except (ValueError, RecursionError):
        raise SpecError(f"the placement {text!r} cannot be read; expected {example}") from None
    if not isinstance(matrix, list) or not all(isinstance(row, list) for row in matrix):
        raise SpecError(f"the placement {text!r} is not {example}")
    return Placement(system, names, tuple(tuple(row) for row in matrix))


def _row(item: str, text: str) -> tuple[str, tuple[int, ...]]:
    """One of the items of a placement: an axis and its factors."""
    axis, _, factors = (part.strip() for part in item.partition("="))
    if not re.fullmatch(r"[0-9]{1,9}(x[0-9]{1,9})*", factors):
        raise SpecError(
            f"{shown(item)} in the placement {shown(text)} is not an axis and its factors, as in {PLACEMENT_EXAMPLE!r}"
        )
    return axis, tuple(map(int, factors.split("x")))
