"""`meshwright plan`: where to put the axes, and how to reduce."""

import json
from pathlib import Path

import click

from meshwright.cli.common import (
    axes_option,
    json_option,
    max_steps_option,
    new_table,
    print_json,
    print_table,
    say,
    system_option,
)
from meshwright.errors import SpecError
from meshwright.explain import why
from meshwright.placement import Placement, parse_axes
from meshwright.plan import Plan, PlannedReduction, parse_reduction, ratio, write_plan
from meshwright.planner import DEFAULT_LIBRARY, Ranking
from meshwright.planner import plan as make_plan
from meshwright.profiles import library_names
from meshwright.program import ROOTED, Collective, device_groups, step_text
from meshwright.system import System, load_system
from meshwright.units import format_bytes, format_seconds


@click.command()
@system_option
@axes_option
@click.option(
    "--reduce",
    "reductions",
    multiple=True,
    required=True,
    metavar="AXES=BYTES",
    help="A reduction, [GOAL:]AXIS[+AXIS…]=BYTES[*COUNT], like data=2GiB or data+shard=64MiB*80; BYTES is the size of "
    "the whole tensor: what each device holds before an all-reduce. May be given several times.",
)
@click.option("--placement", "matrix", metavar="MATRIX", help='Only this placement, like "[[4,1],[1,16]]".')
@click.option(
    "--library",
    default=DEFAULT_LIBRARY,
    show_default=True,
    help=f"Whose collectives run: {', '.join(library_names())}, or the path of a .yaml file.",
)
@click.option("--no-rooted", is_flag=True, help="Without Reduce and Broadcast, which some engines lack.")
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="How many candidates to show.")
@max_steps_option
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the best plan to this file.")
@json_option
def plan(
    system_spec: str,
    axes_spec: str,
    reductions: tuple[str, ...],
    matrix: str | None,
    library: str,
    no_rooted: bool,
    top: int,
    max_steps: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Rank the placements of the axes, with the best program for each reduction.

    With --placement and one reduction, rank the programs of that placement.
    """
    system, axes = load_system(system_spec), parse_axes(axes_spec)
    ranking = make_plan(
        system,
        axes,
        [parse_reduction(text) for text in reductions],
        library=library,
        placement=None if matrix is None else _placement(matrix, system, tuple(axes)),
        top=top,
        max_steps=max_steps,
        collectives=[c for c in Collective if not (no_rooted and c in ROOTED)],
    )
    if out is not None:
        write_plan(ranking.candidates[0], out)
        say(f"wrote the best plan to {out}")
    if as_json:
        print_json(
            {
                "system": system.name,
                "axes": axes,
                "library": ranking.candidates[0].library.name,
                "placements": ranking.placements,
                "evaluated": ranking.evaluated,
                "candidates": [candidate.document() for candidate in ranking.candidates],
            }
        )
    else:
        _print(ranking, by_program=matrix is not None and len(reductions) == 1)


def _placement(text: str, system: System, axes: tuple[str, ...]) -> Placement:
    example = 'a list of rows, one per axis, like "[[4,1],[1,16]]"'
    try:
        matrix = json.loads(text)
    except (ValueError, RecursionError):
        raise SpecError(f"the placement {text!r} cannot be read; expected {example}") from None
    if not isinstance(matrix, list) or not all(isinstance(row, list) for row in matrix):
        raise SpecError(f"the placement {text!r} is not {example}")
    return Placement(system, axes, tuple(tuple(row) for row in matrix))


def _print(ranking: Ranking, by_program: bool) -> None:
    best = ranking.candidates[0]
    several = len(best.reductions) > 1
    columns = ["", "program" if by_program else "placement", "time", "default", "speedup", "over bound"]
    names = ["+".join(r.reduction.axes) for r in best.reductions] if several else []
    table = new_table(*columns, *(f"{name} share" for name in names))
    for number, candidate in enumerate(ranking.candidates, 1):
        first = candidate.reductions[0]
        what = (
            first.program.text(candidate.hierarchy(first))
            if by_program
            else str([list(row) for row in candidate.placement.matrix])
        )
        shares = [f"{ratio(r.seconds * r.reduction.count, candidate.seconds):.0%}" for r in candidate.reductions]
        table.add_row(
            str(number),
            what,
            format_seconds(candidate.seconds),
            format_seconds(candidate.default_seconds),
            f"{candidate.speedup:.2f}x",
            f"{ratio(candidate.seconds, candidate.bound_seconds):.2f}x",
            *(shares if several else []),
        )
    print_table(table)
    considered = f"{ranking.placements} placement{'s' if ranking.placements != 1 else ''}"
    click.echo(f"\nThe best of {considered}, on {best.placement.system.name}, library {best.library.name}:")
    for line in why(best):
        click.echo(f"  {line}")
    click.echo(f"\n{best.placement}")
    for planned in best.reductions:
        click.echo()
        _print_program(best, planned)


def _print_program(plan: Plan, planned: PlannedReduction) -> None:
    reduction = planned.reduction
    times = f" x {reduction.count}" if reduction.count > 1 else ""
    click.echo(
        f"{reduction.goal} over {'+'.join(reduction.axes)}, {format_bytes(reduction.bytes)}{times}: "
        f"{format_seconds(planned.seconds)} each"
    )
    hierarchy = plan.hierarchy(planned)
    groups = plan.placement.groups(reduction.axes) if plan.placement.system.devices <= 65_536 else ()
    for number, step in enumerate(planned.program.steps, 1):
        click.echo(f"  {number}. {step_text(step, hierarchy.names)}")
        if groups:
            inner = device_groups(step.grouping, hierarchy.radices)
            ranks = [tuple(groups[0][k] for k in group) for group in inner[:2]]
            shown = "  ".join(_ranks(group) for group in ranks)
            many = len(groups) * len(inner)
            more = "  …" if many > len(ranks) else ""
            click.echo(f"     {many} group{'s' if many > 1 else ''} of {len(inner[0])}: {shown}{more}")


def _ranks(group: tuple[int, ...]) -> str:
    return "{" + " ".join(map(str, group[:6])) + (" …}" if len(group) > 6 else "}")
