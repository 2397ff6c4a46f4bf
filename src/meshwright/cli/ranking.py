"""Ranked plans as people read them: tables, the reason, the programs and their groups."""

from dataclasses import dataclass

import click

from meshwright.cli.common import new_table, print_table
from meshwright.cli.workload import print_needs
from meshwright.export.mesh import mesh_code
from meshwright.language.program import device_groups, step_text
from meshwright.planning.constraints import Constraint
from meshwright.planning.explain import why
from meshwright.planning.orders import Habit, gain
from meshwright.planning.plan import Plan, Planned, ratio
from meshwright.planning.planner import Ranking
from meshwright.planning.sizes import Choices
from meshwright.text.spec import format_counts
from meshwright.text.units import format_amount, format_bytes, format_seconds
from meshwright.workload.communication import exposed
from meshwright.workload.workload import Workload


@dataclass(frozen=True)
class Answer:
    """The answer of `meshwright plan`.

    top: how many choices of sizes are shown. workload, choices and habits: where they were asked for. one_placement:
    whether the placement was given; the candidates for a single reduction are then programs.
    """

    axes: dict[str, int]
    ranking: Ranking
    constraints: list[Constraint]
    top: int
    workload: Workload | None
    choices: Choices | None
    habits: list[Habit]
    one_placement: bool

    @property
    def best(self) -> Plan:
        """The best plan."""
        return self.ranking.candidates[0]


def print_answer(answer: Answer) -> None:
    """Write all of an answer."""
    if answer.choices is not None:
        _print_choices(answer.choices, answer.top)
    best = answer.best
    _print_candidates(answer)
    click.echo(f"\n{answer.ranking.certificate(answer.constraints)}")
    click.echo(f"\nThe best, on {best.placement.system.name}, library {best.library.name}:")
    for line in why(best):
        click.echo(f"  {line}")
    click.echo(f"\n{best.placement}")
    if answer.workload is not None:
        _print_workload(best, answer.workload)
    else:
        for planned in best.reductions:
            click.echo()
            _print_program(best, planned)
    if answer.habits:
        _print_habits(answer.habits, best)


def _print_choices(choices: Choices, top: int) -> None:
    known = choices.best[0].workload.compute is not None
    table = new_table("", "sizes", "time", "communication", *(["computing"] if known else []), "memory")
    for number, choice in enumerate(choices.best[:top], 1):
        made = choice.workload
        table.add_row(
            str(number),
            format_counts(made.axes),
            format_seconds(choice.seconds),
            format_seconds(choice.ranking.candidates[0].seconds),
            *([format_seconds(made.compute or 0.0)] if known else []),
            format_amount(made.memory or 0.0),
        )

    print_table(table)
    refused = "; ".join(f"{count} not possible: {reason}" for reason, count in choices.refused.items())
    click.echo(f"\n{choices.tried} choices of sizes{'; ' + refused if refused else ''}.")
    if not known:
        click.echo("Compared by communication alone; with 'flops' in the model, computing and the bubble count too.")
    click.echo("\nWith the first:\n")


def _print_habits(habits: list[Habit], best: Plan) -> None:
    click.echo("\nBeside what is done today:")
    table = new_table("order", "placement", "default collectives", "best programs", "this plan is faster by")
    for one in habits:
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


def _print_candidates(answer: Answer) -> None:
    best = answer.best
    several = len(best.communications) > 1 and answer.workload is None
    by_program = answer.one_placement and len(best.communications) == len(best.reductions) == 1
    columns = ["", "program" if by_program else "placement", "time", "default", "speedup", "over bound"]
    names = ["+".join(r.communication.axes) for r in best.reductions] if several else []
    table = new_table(*columns, *(f"{name} share" for name in names))
    for number, candidate in enumerate(answer.ranking.candidates, 1):
        matrix = [list(row) for row in candidate.placement.matrix]
        shares = [f"{ratio(r.seconds * r.communication.count, candidate.seconds):.0%}" for r in candidate.reductions]
        table.add_row(
            str(number),
            candidate.program_text(candidate.reductions[0]) if by_program else str(matrix),
            format_seconds(candidate.seconds),
            format_seconds(candidate.default_seconds),
            f"{candidate.speedup:.2f}x",
            f"{ratio(candidate.seconds, candidate.bound_seconds):.2f}x",
            *(shares if several else []),
        )
    print_table(table)


def _print_workload(best: Plan, workload: Workload) -> None:
    click.echo()
    table = new_table("communication", "kind", "over", "bytes", "count", "each", "hidden", "share", "program")
    for planned in best.communications:
        one = planned.communication
        table.add_row(
            one.name,
            str(one.goal),
            "+".join(one.axes),
            format_amount(one.bytes),
            str(one.count),
            format_seconds(planned.seconds),
            f"{one.hidden:.0%}" if one.hidden else "",
            f"{ratio(planned.seconds * exposed(one), best.seconds):.1%}",
            best.program_text(planned),
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
