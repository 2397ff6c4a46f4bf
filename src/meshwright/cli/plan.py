"""`meshwright plan`: where to put the axes, and how to reduce."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from meshwright.cli.common import (
    Command,
    collectives,
    json_option,
    library_option,
    max_steps_option,
    new_table,
    no_rooted_option,
    out_option,
    placement_option,
    print_json,
    print_table,
    say,
    system_option,
)
from meshwright.cli.workload import print_needs
from meshwright.cost.pipeline import CHUNKS
from meshwright.errors import SpecError
from meshwright.export.mesh import mesh_code
from meshwright.language.program import device_groups, step_text
from meshwright.placement.placement import parse_axes, parse_placement
from meshwright.planning.constraints import Constraint, ConstraintRule, parse_constraint
from meshwright.planning.explain import why
from meshwright.planning.orders import Habit, gain, habits
from meshwright.planning.plan import Plan, Planned, ratio
from meshwright.planning.planfile import write_plan
from meshwright.planning.planner import Planner, Ranking
from meshwright.planning.planner import plan as make_plan
from meshwright.planning.sizes import Choice, Choices, check_memory, choose_sizes, with_devices
from meshwright.system.model import System
from meshwright.system.read import load_system
from meshwright.text.spec import format_counts, split_items
from meshwright.text.units import format_amount, format_bytes, format_seconds
from meshwright.workload.communication import Communication, exposed, parse_reduction
from meshwright.workload.read import load_workload
from meshwright.workload.workload import Workload

LISTED = 4096
"""The ranks of larger systems are not listed one by one."""


def _constraint_option(rule: str, metavar: str, text: str) -> Callable[[Command], Command]:
    name = rule.replace("-", "_")
    return click.option(f"--{rule}", name, multiple=True, metavar=metavar, help=text)


@click.command()
@system_option
@click.option(
    "--axes",
    "axes_spec",
    metavar="AXES",
    help="The parallelism axes and their sizes, like data=4,shard=16 [default: those of the workload].",
)
@click.option(
    "--reduce",
    "reductions",
    multiple=True,
    metavar="AXES=BYTES",
    help="A reduction, [GOAL:]AXIS[+AXIS…]=BYTES[*COUNT], like data=2GiB or data+shard=64MiB*80; BYTES is the size of "
    "the whole tensor: what each device holds before an all-reduce. May be given several times.",
)
@click.option(
    "--workload",
    "workload_spec",
    metavar="WORKLOAD",
    help="All that a step sends: one of `meshwright workload list`, or the path of a .yaml file. Instead of --reduce.",
)
@placement_option("matrix")
@_constraint_option("inside", "AXIS=LEVEL", "Keep an axis inside one instance of a level, like tensor=node.")
@_constraint_option("not-across", "AXIS=LEVEL", "Forbid an axis to cross a level, like pipeline=gpu.")
@_constraint_option("row", "AXIS=FACTORS", "Fix an axis's row of the matrix, outermost first, like tensor=1,8.")
@click.option("--devices", type=click.IntRange(min=1), help="So many devices: sets the count of the outermost level.")
@click.option(
    "--choose",
    metavar="AXES",
    help="Choose the sizes of these axes too, like data,tensor,pipeline; for a workload that describes its model.",
)
@click.option("--compare", is_flag=True, help="Beside the placements that PyTorch, JAX and Megatron give by default.")
@library_option
@no_rooted_option
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="How many candidates to show.")
@max_steps_option
@click.option(
    "--chunks",
    type=click.IntRange(1, CHUNKS[-1]),
    default=1,
    show_default=True,
    help="Cut payloads into at most so many chunks that flow through the steps, where that is faster.",
)
@out_option("Write the best plan to this file.")
@json_option
def plan(
    system_spec: str,
    axes_spec: str | None,
    reductions: tuple[str, ...],
    workload_spec: str | None,
    matrix: str | None,
    inside: tuple[str, ...],
    not_across: tuple[str, ...],
    row: tuple[str, ...],
    devices: int | None,
    choose: str | None,
    compare: bool,
    library: str,
    no_rooted: bool,
    top: int,
    max_steps: int,
    chunks: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Rank the placements of the axes, with the best program for each reduction.

    With --placement and one reduction, rank the programs of that placement.
    """
    if bool(reductions) == bool(workload_spec):
        raise SpecError("give either --reduce (one or more) or --workload")
    system = load_system(system_spec)
    if devices is not None:
        system = with_devices(system, devices)
    constraints = [
        parse_constraint(rule, text)
        for rule, texts in zip(ConstraintRule, (inside, not_across, row), strict=True)
        for text in texts
    ]
    allowed = collectives(no_rooted)
    axes = parse_axes(axes_spec) if axes_spec else {}
    workload: Workload | None = None
    choices: Choices | None = None
    communications: tuple[Communication, ...]
    if choose is not None:
        if workload_spec is None or matrix is not None:
            raise SpecError("--choose needs a --workload that describes its model, and no --placement")
        file = load_workload(workload_spec)
        free = split_items(choose, "axes to choose", "data,tensor,pipeline")
        fixed = axes if axes_spec else {axis: size for axis, size in file.axes.items() if axis not in free}
        choices = choose_sizes(
            system,
            file,
            free,
            fixed,
            library=library,
            constraints=constraints,
            top=top,
            max_steps=max_steps,
            collectives=allowed,
            max_chunks=chunks,
            progress=_progress(as_json),
        )
        workload = choices.best[0].workload
        axes, communications, ranking = dict(workload.axes), workload.communications, choices.best[0].ranking
    else:
        if workload_spec is not None:
            workload = load_workload(workload_spec).workload(axes or None)
            check_memory(workload)
            axes, communications = axes or dict(workload.axes), workload.communications
        else:
            communications = tuple(parse_reduction(text) for text in reductions)
        if not axes:
            raise SpecError("--axes is missing: give the axes and their sizes, like data=4,shard=16")
        ranking = make_plan(
            system,
            axes,
            communications,
            library=library,
            placement=None if matrix is None else parse_placement(matrix, system, axes),
            constraints=constraints,
            top=top,
            max_steps=max_steps,
            collectives=allowed,
            max_chunks=chunks,
        )
    best = ranking.candidates[0]
    habit = habits(Planner(system, axes, communications, library, max_steps, allowed, chunks)) if compare else []
    if out is not None:
        write_plan(best, out)
        say(f"wrote the best plan to {out}")
    if as_json:
        print_json(_document(system, axes, ranking, workload, choices, habit, constraints, top))
        return
    if choices is not None:
        _print_choices(choices, top)
    _print(ranking, matrix is not None and len(communications) == 1, workload, constraints)
    if habit:
        _print_habits(habit, best)


def _progress(as_json: bool) -> Callable[[int, int], None]:
    """Says how far the sizes are, now and then, to a person."""

    def tell(done: int, every: int) -> None:
        if not as_json and every > 200 and done and done % 200 == 0:
            say(f"{done} of {every} choices of sizes")

    return tell


def _document(
    system: System,
    axes: dict[str, int],
    ranking: Ranking,
    workload: Workload | None,
    choices: Choices | None,
    habit: list[Habit],
    constraints: list[Constraint],
    top: int,
) -> dict[str, Any]:
    best = ranking.candidates[0]
    found: dict[str, Any] = {
        "system": system.name,
        "axes": axes,
        "library": best.library.name,
        "placements": ranking.placements,
        "evaluated": ranking.evaluated,
        "pruned": ranking.pruned,
        "constraints": [str(constraint) for constraint in constraints],
        "candidates": [candidate.document() for candidate in ranking.candidates],
        "mesh": mesh_code(best.placement),
        "ranks": best.placement.mesh().tolist() if system.devices <= LISTED else None,
    }
    if workload is not None:
        found["workload"] = {
            "name": workload.name,
            "memory_bytes": workload.memory,
            "device_memory_bytes": workload.device_memory,
            "compute_seconds": workload.compute,
        }
    if choices is not None:
        found["sizes"] = {
            "tried": choices.tried,
            "refused": dict(choices.refused),
            "best": [
                {"axes": dict(c.workload.axes), "seconds": c.seconds, "memory_bytes": c.workload.memory}
                for c in choices.best[:top]
            ],
        }
    if habit:
        found["comparison"] = [
            {
                "name": one.name,
                "missing": one.missing,
                **(
                    {
                        "axes": list(one.plan.placement.axes),
                        "matrix": [list(row) for row in one.plan.placement.matrix],
                        "default_seconds": one.plan.default_seconds,
                        "seconds": one.plan.seconds,
                        "gain": gain(one, best),
                    }
                    if one.plan
                    else {}
                ),
            }
            for one in habit
        ]
    return found


def _print_choices(choices: Choices, top: int) -> None:
    known = choices.best[0].workload.compute is not None
    table = new_table("", "sizes", "time", "communication", *(["computing"] if known else []), "memory")

    def add(number: int, choice: Choice) -> None:
        made = choice.workload
        table.add_row(
            str(number),
            format_counts(made.axes),
            format_seconds(choice.seconds),
            format_seconds(choice.ranking.candidates[0].seconds),
            *([format_seconds(made.compute or 0.0)] if known else []),
            format_amount(made.memory or 0.0),
        )

    for number, choice in enumerate(choices.best[:top], 1):
        add(number, choice)
    print_table(table)
    refused = "; ".join(f"{count} not possible: {reason}" for reason, count in choices.refused.items())
    click.echo(f"\n{choices.tried} choices of sizes{'; ' + refused if refused else ''}.")
    if not known:
        click.echo("Compared by communication alone; with 'flops' in the model, computing and the bubble count too.")
    click.echo("\nWith the first:\n")


def _print_habits(habit: list[Habit], best: Plan) -> None:
    click.echo("\nBeside what is done today:")
    table = new_table("order", "placement", "default collectives", "best programs", "this plan is faster by")
    for one in habit:
        if one.plan is None:
            table.add_row(one.name, f"none: {one.missing}", "", "", "")
            continue
        rows = dict(zip(one.plan.placement.axes, one.plan.placement.matrix, strict=True))
        table.add_row(
            one.name,
            str([list(rows[axis]) for axis in best.placement.axes]),
            format_seconds(one.plan.default_seconds),
            format_seconds(one.plan.seconds),
            f"{gain(one, best):.2f}x",
        )
    print_table(table)


def _print(ranking: Ranking, by_program: bool, workload: Workload | None, constraints: list[Constraint]) -> None:
    best = ranking.candidates[0]
    several = len(best.communications) > 1 and workload is None
    by_program = by_program and bool(best.reductions)
    columns = ["", "program" if by_program else "placement", "time", "default", "speedup", "over bound"]
    names = ["+".join(r.communication.axes) for r in best.reductions] if several else []
    table = new_table(*columns, *(f"{name} share" for name in names))
    for number, candidate in enumerate(ranking.candidates, 1):
        if by_program:
            first = candidate.reductions[0]
            what = candidate.program_text(first)
        else:
            what = str([list(row) for row in candidate.placement.matrix])
        shares = [f"{ratio(r.seconds * r.communication.count, candidate.seconds):.0%}" for r in candidate.reductions]
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
    click.echo(f"\n{_certificate(ranking, constraints)}")
    click.echo(f"\nThe best, on {best.placement.system.name}, library {best.library.name}:")
    for line in why(best):
        click.echo(f"  {line}")
    click.echo(f"\n{best.placement}")
    if workload is not None:
        _print_workload(best, workload)
        return
    for planned in best.reductions:
        click.echo()
        _print_program(best, planned)


def _certificate(ranking: Ranking, constraints: list[Constraint]) -> str:
    """What was searched, and what that proves."""
    total, timed = ranking.placements, ranking.evaluated
    under = f" with {', '.join(map(str, constraints))}" if constraints else ""
    if total == 1:
        return f"One placement{under}."
    if timed >= total:
        return f"All {total:,} placements{under} were timed: under the model, none of them is faster."
    return (
        f"{total:,} placements{under}: {timed:,} were timed, and bounds rule out the other {ranking.pruned:,}: under "
        "the model, none of them is faster."
    )


def _print_workload(best: Plan, workload: Workload) -> None:
    click.echo()
    table = new_table("communication", "kind", "over", "bytes", "count", "each", "hidden", "share", "program")
    for planned in best.communications:
        one = planned.communication
        program = best.program_text(planned)
        table.add_row(
            one.name,
            str(one.goal),
            "+".join(one.axes),
            format_amount(one.bytes),
            str(one.count),
            format_seconds(planned.seconds),
            f"{one.hidden:.0%}" if one.hidden else "",
            f"{ratio(planned.seconds * exposed(one), best.seconds):.1%}",
            program,
        )
    print_table(table)
    if workload.memory is not None:
        click.echo()
    print_needs(workload)
    click.echo("\nThe mesh:")
    for engine, line in mesh_code(best.placement).items():
        click.echo(f"  {engine}: {line}")


def _print_program(plan: Plan, planned: Planned) -> None:
    reduction = planned.communication
    times = f" x {reduction.count}" if reduction.count > 1 else ""
    click.echo(
        f"{reduction.goal} over {'+'.join(reduction.axes)}, {format_bytes(reduction.bytes)}{times}: "
        f"{format_seconds(planned.seconds)} each"
    )
    hierarchy = plan.hierarchy(planned)
    if planned.chunks > 1:
        click.echo(f"  in {planned.chunks} chunks, which flow through these steps at once:")
    for program, chunks in planned.shares[1:]:
        click.echo(f"  ({chunks} of them take {program.text(hierarchy)})")
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
