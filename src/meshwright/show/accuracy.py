"""Accuracy to look at: measured beside predicted times, as plain data for the page."""

from collections.abc import Sequence
from typing import Any

from meshwright.measure.accuracy import Pair
from meshwright.text.units import format_amount

FORMAT = "meshwright-accuracy"

MOST_POINTS = 4000
"""How many programs are drawn at most."""


def accuracy_view(
    pairs: Sequence[Pair], library: str, figures: Sequence[tuple[str, object]], misses: Sequence[str]
) -> dict[str, Any]:
    """Everything that is shown of measurements: figures with their names, misses in words, and a point per program."""
    systems = list(dict.fromkeys(pair.system for pair in pairs))
    points = []
    for pair in pairs:
        what = (
            f"{pair.goal} over {'+'.join(pair.over)}, {format_amount(pair.bytes)}, {[list(row) for row in pair.matrix]}"
        )
        for one in pair.outcomes:
            seconds = [float(f"{value:.6g}") for value in (one.measured, one.predicted)]
            points.append([systems.index(pair.system), *seconds, f"{one.program}: {what}"])
    left = len(points) - MOST_POINTS
    return {
        "format": FORMAT,
        "version": 1,
        "title": f"{len(points):,} programs, predicted and measured",
        "library": library,
        "systems": systems,
        "figures": [[name, str(value)] for name, value in figures],
        "points": points[:MOST_POINTS],
        "misses": list(misses),
        "notes": [f"The first {MOST_POINTS:,} programs are drawn; {left:,} more were measured."] if left > 0 else [],
    }
