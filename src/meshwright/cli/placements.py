"""`meshwright placements`: every way to place the axes on the system."""

from itertools import islice

import click

from meshwright.cli import options
from meshwright.cli.output import print_count, print_json, print_text, say
from meshwright.cli.progress import counted, listed, progress
from meshwright.errors import TooLargeError
from meshwright.placement.notation import format_placement
from meshwright.placement.placement import count_placements, parse_axes
from meshwright.placement.placement import placements as all_placements
from meshwright.system.model import System
from meshwright.system.read import load_system, system_document

LIST_LIMIT = 100_000


@click.command()
@options.system
@options.axes
@options.count
@click.option("--first", type=click.IntRange(min=1), metavar="N", help="List only the first N.")
@options.json
def placements(system_spec: str, axes_spec: str, count_only: bool, first: int | None, as_json: bool) -> None:
    """List or count the placements of the axes on the system.

    A placement is a matrix of factors: a row per axis, a column per level, rows multiplying to the axis sizes and
    columns to the level counts.
    """
    system, axes = load_system(system_spec), parse_axes(axes_spec)
    if count_only and first is not None:
        raise click.UsageError("--count and --first exclude each other")
    with progress("counting placements"):
        count = _count(system, axes, first)
    if count_only:
        print_count(count, as_json)
        return
    shown = count if first is None else first if count is None else min(first, count)
    if shown is None or shown > LIST_LIMIT:
        raise TooLargeError(
            f"there are {count:,} placements, more than the {LIST_LIMIT:,} that can be listed; use --count for the "
            "number, --first N for some of them, or meshwright.placements() in Python for all, lazily"
        )
    some = islice(all_placements(system, axes), shown)
    if count is None or shown < count:
        say(f"note: the first {shown} of {'too many to count' if count is None else count} placements")
    if as_json:
        print_json(
            {
                "count": count,
                "system": system_document(system),
                "axes": axes,
                "placements": [placement.document() for placement in counted(some, "placements", shown)],
            }
        )
        return
    names = [level.name for level in system.levels]
    many = "very many placements" if count is None else f"{count} placement{'s' if count != 1 else ''}"
    print_text(f"{many} of {axes_spec} on {system.name}; the factors are those of {' x '.join(names)}")
    for number, placement in enumerate(listed(some, "placements", shown), 1):
        click.echo(f"\nplacement {number}: {format_placement(axes, placement.matrix)}\n{placement}")


def _count(system: System, axes: dict[str, int], first: int | None) -> int | None:
    """How many placements there are; None where that is too much work and only the first few are wanted."""
    try:
        return count_placements(system, axes)
    except TooLargeError:
        if first is None:
            raise
        return None
