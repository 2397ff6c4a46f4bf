"""Ranked plans as people read them: tables, the reason, the programs and their groups."""

from dataclasses import dataclass

import click

from meshwright.cli.drawing import drawn
from meshwright.cli.output import columns, console, print_table, print_text
from meshwright.cli.workload import DESCRIBED, described, print_needs
from meshwright.export.mesh import mesh_code
from meshwright.language.program import device_groups, step_text
from meshwright.placement.notation import format_placement
from meshwright.planning.constraints import Constraint
from meshwright.planning.explain import other_libraries, undecided, why
from meshwright.planning.orders import Habit, MeshAlone, gain, mesh_alone
from meshwright.planning.plan import Plan, Planned, ratio
from meshwright.planning.ranking import Ranking
from meshwright.planning.sizes import Choices
from meshwright.runtime.calls import describe
from meshwright.text.spec import format_counts
from meshwright.text.units import format_amount, format_seconds, format_size
from meshwright.workload.communication import exposed
from meshwright.workload.workload import Workload


@dataclass(frozen=True)
class Answer:
    """The answer of `meshwright plan`.

    top: how many choices of sizes are shown. workload, choices and habits: where they were asked for. one_placement:
    whether the placement was given; the candidates for a single reduction are then programs. placement_only: whether
    the programs are the library's own collectives. assumed: whether the library was not given.
    """

    axes: dict[str, int]
    ranking: Ranking
    constraints: list[Constraint]
    top: int
    workload: Workload | None
    choices: Choices | None
    habits: list[Habit]
    one_placement: bool
    placement_only: bool = False
    assumed: bool = False

    @property
    def best(self) -> Plan:
        """The best plan."""
        return self.ranking.candidates[0]

    @property
    def alone(self) -> MeshAlone:
        """What the mesh of the best plan brings without its programs."""
        return mesh_alone(self.ranking.candidates, self.axes)

    @property
    def interrupted(self) -> bool:
        """Whether this is only the best so far."""
        return self.ranking.at_least is not None or (self.choices is not None and self.choices.interrupted)


def print_answer(answer: Answer) -> None:
    """Write all of an answer."""
    if answer.choices is not None:
        _print_choices(answer.choices, answer.top)
    best = answer.best
    _print_candidates(answer)
    click.echo()
    print_text(answer.ranking.certificate(answer.constraints))
    click.echo()
    print_text(f"The best, on {best.placement.system.name}, library {best.library.name}:")
    if answer.assumed:
        print_text(f"  {_library(best)}")
    sits, reason, predicted = why(best)
    for line in [sits, predicted] if answer.placement_only else [sits, reason, predicted]:
        print_text(f"  {line}")
    click.echo(f"\n{best.placement}")
    _draw(best)
    if answer.workload is not None:
        _print_workload(best, answer.workload)
    else:
        for planned in best.reductions:
            click.echo()
            _print_program(best, planned)
    _print_mesh(answer)
    if not answer.placement_only:
        _print_more(best)
    if answer.habits:
        _print_habits(answer.habits, best)


def _draw(best: Plan) -> None:
    """The placement as a drawing, where stdout is a terminal."""
    out = console()
    if out.is_terminal and (lines := drawn(best.placement, columns())):
        click.echo("\nEvery device by its coordinate on each axis:")
        for line in lines:
            out.print(line, soft_wrap=True)


def _placement(best: Plan) -> str:
    """The title of a column of placements: which levels the factors are of."""
    return f"placement, {' x '.join(level.name for level in best.placement.system.levels)}"


def _print_more(best: Plan) -> None:
    """What else may be faster on the same system: another library, or what only measuring can tell."""
    for each in other_libraries(best):
        gain = f"{format_seconds(each.seconds)}, {ratio(best.seconds, each.seconds):.2f}x faster"
        click.echo()
        print_text(f"Another library on the same placement: {each.change}: {gain}")
    print_undecided(best)


def print_undecided(plan: Plan) -> None:
    """What predictions cannot tell, and measuring can."""
    if found := undecided(plan):
        click.echo("\nMore than predictions can tell; `meshwright tune` measures it where the plan runs:")
        for line in found:
            print_text(f"  {line}")


def _library(best: Plan) -> str:
    """Which library was taken, and why."""
    system = best.placement.system
    if system.library is not None:
        return f"library: {best.library.name}, as the system {system.name} says; --library takes another"
    return f"library: {best.library.name}, as nothing says what runs on this system; --library takes another"


def _print_mesh(answer: Answer) -> None:
    """The code that makes the mesh, and what the mesh brings without the programs."""
    click.echo("\nThe mesh:")
    for engine, line in mesh_code(answer.best.placement).items():
        click.echo(f"  {engine}: {line}")
    alone = answer.alone
    text = f"The mesh alone, with the library's own collectives: {format_seconds(alone.seconds)}"
    if alone.as_given is not None:
        faster = ratio(alone.as_given, alone.seconds)
        gain = f", {faster:.2f}x as long" if abs(faster - 1) >= 0.005 else ", the same"
        text += f"; ranks in the order of the axes as given: {format_seconds(alone.as_given)}{gain}"
    if alone.best > 1:
        text += f"; best for that is {alone.best}: {format_seconds(alone.best_seconds)} (--placement-only)"
    print_text(text)


def _print_choices(choices: Choices, top: int) -> None:
    known = choices.best[0].workload.compute is not None
    rows = []
    for number, choice in enumerate(choices.best[:top], 1):
        made = choice.workload
        seconds = [choice.seconds, choice.ranking.candidates[0].seconds, *([made.compute or 0.0] if known else [])]
        memory = format_amount(made.memory or 0.0)
        rows.append([number, format_counts(made.axes), *map(format_seconds, seconds), memory])
    print_table(["", "sizes", "time", "communication", *(["computing"] if known else []), "memory"], rows)
    refused = "; ".join(f"{count} not possible: {reason}" for reason, count in choices.refused.items())
    tried = (
        f"{choices.tried} of {choices.ways} choices of sizes"
        if choices.interrupted
        else f"{choices.tried} choices of sizes"
    )
    rest = "; not proven: interrupted, and others may be faster" if choices.interrupted else ""
    click.echo()
    print_text(f"{tried}{'; ' + refused if refused else ''}{rest}.")
    if not known:
        print_text("Compared by communication alone; with 'flops' in the model, computing and the bubble count too.")
    click.echo("\nWith the first:\n")


def _print_habits(habits: list[Habit], best: Plan) -> None:
    click.echo("\nBeside what is done today:")
    rows: list[list[object]] = []
    for one in habits:
        if one.plan is None:
            rows.append([one.name, f"none: {one.missing}"])
            continue
        factors = dict(zip(one.plan.placement.axes, one.plan.placement.matrix, strict=True))
        matrix = format_placement(best.placement.axes, [factors[axis] for axis in best.placement.axes])
        times, factor = [format_seconds(one.plan.default_seconds), format_seconds(one.plan.seconds)], gain(one, best)
        rows.append([one.name, matrix, *times, "as fast" if factor < 1.005 else f"{factor:.2f}x faster"])
    print_table(["order", _placement(best), "default", "best programs", "this plan"], rows)


def _print_candidates(answer: Answer) -> None:
    best = answer.best
    several = len(best.communications) > 1 and answer.workload is None
    by_program = answer.one_placement and len(best.communications) == len(best.reductions) == 1
    columns = ["", "program" if by_program else _placement(best), "time", "default", "speedup", "over bound"]
    names = ["+".join(r.communication.axes) for r in best.reductions] if several else []
    rows = []
    for number, one in enumerate(answer.ranking.candidates, 1):
        at = one.placement
        which = one.program_text(one.reductions[0]) if by_program else format_placement(at.axes, at.matrix)
        times = [format_seconds(one.seconds), format_seconds(one.default_seconds)]
        ratios = [f"{one.speedup:.2f}x", f"{ratio(one.seconds, one.bound_seconds):.2f}x"]
        shares = [f"{ratio(r.seconds * r.communication.count, one.seconds):.0%}" for r in one.reductions]
        rows.append([number, which, *times, *ratios, *(shares if several else [])])
    print_table([*columns, *(f"{name} share" for name in names)], rows)


def _print_workload(best: Plan, workload: Workload) -> None:
    click.echo()
    rows = []
    what = described([planned.communication for planned in best.communications])
    for planned, (*cells, hidden) in zip(best.communications, what, strict=True):
        share = ratio(planned.seconds * exposed(planned.communication), best.seconds)
        each, program = format_seconds(planned.seconds), best.program_text(planned)
        rows.append([*cells, each, hidden, f"{share:.1%}", program])
    print_table([*DESCRIBED[:-1], "each", DESCRIBED[-1], "share", "program"], rows)
    shown = set()
    for planned in best.reductions:
        one = planned.communication
        if len(planned.ranges) > 1 and (one.goal, one.axes) not in shown:
            shown.add((one.goal, one.axes))
            click.echo(f"\n{describe(planned)}, by size:")
            print_ranges(best, planned)
    if workload.memory is not None:
        click.echo()
    print_needs(workload)


def _print_program(plan: Plan, planned: Planned) -> None:
    reduction = planned.communication
    times = f" x {reduction.count}" if reduction.count > 1 else ""
    click.echo(
        f"{reduction.goal} over {'+'.join(reduction.axes)}, {format_size(reduction.bytes)}{times}: "
        f"{format_seconds(planned.seconds)} each"
    )
    hierarchy = plan.hierarchy(planned)
    if planned.chunks > 1:
        click.echo(f"  in {planned.chunks} chunks, which flow through these steps at once:")
    for program, chunks in planned.shares[1:]:
        print_text(f"  ({chunks} of them take {program.text(hierarchy)})")
    groups = plan.placement.groups(reduction.axes) if plan.placement.system.devices <= 65_536 else ()
    for number, step in enumerate(planned.program.steps, 1):
        click.echo(f"  {number}. {step_text(step, hierarchy.names)}")
        if groups:
            inner = device_groups(step.grouping, hierarchy.radices)
            size, many = len(inner[0]), len(groups) * len(inner)
            listed = [" ".join(str(groups[0][k]) for k in group[:6]) for group in inner[:2]]
            shown = "  ".join(f"{{{ranks}{' …' if size > 6 else ''}}}" for ranks in listed)
            more = "  …" if many > len(listed) else ""
            click.echo(f"     {many} group{'s' if many > 1 else ''} of {size}: {shown}{more}")
    print_ranges(plan, planned)


def print_ranges(plan: Plan, planned: Planned) -> None:
    """Which program runs for which payload, where that is not the same for all."""
    if len(planned.ranges) < 2:
        return
    hierarchy, (first, second, *_) = plan.hierarchy(planned), planned.ranges
    size = planned.communication.bytes
    rows = [[f"  below {format_amount(second.bytes, size)}", first.pipelined.text(hierarchy)]]
    for each in planned.ranges[1:]:
        rows.append([f"  from {format_amount(each.bytes, size)}", each.pipelined.text(hierarchy)])
    print_table(["  calls", "program"], rows)
