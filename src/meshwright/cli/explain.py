"""`meshwright explain`: where the time of a plan goes."""

from pathlib import Path
from typing import Any

import click

from meshwright.cli import options
from meshwright.cli.output import print_json, print_table, print_text
from meshwright.cli.ranking import print_ranges, print_undecided
from meshwright.language.program import step_text
from meshwright.planning.explain import (
    Help,
    better_plans,
    costs_of,
    other_libraries,
    undecided,
    what_would_help,
    why,
    why_transfer,
)
from meshwright.planning.plan import Plan, Planned, Tuned
from meshwright.planning.planfile import read_plan
from meshwright.planning.tuning import own_program
from meshwright.runtime.calls import describe
from meshwright.system.read import system_document
from meshwright.text.units import format_amount, format_bandwidth, format_seconds, format_size


@click.command()
@options.plan
@options.json
def explain(plan_path: Path, as_json: bool) -> None:
    """Show per step and level where the time of the plan file PLAN goes, what the bottleneck is and what would help."""
    plan = read_plan(plan_path)
    helps, better = what_would_help(plan), [*better_plans(plan), *other_libraries(plan)]
    if as_json:
        print_json(
            {
                "system": system_document(plan.placement.system),
                "library": plan.library.name,
                **plan.document(),
                "why": why(plan),
                "steps": [_document(plan, planned) for planned in plan.reductions],
                "what_would_help": [{"change": h.change, "seconds": h.seconds} for h in helps],
                "better_plans": [{"change": h.change, "seconds": h.seconds} for h in better],
                "undecided": undecided(plan),
            }
        )
        return
    for line in why(plan):
        print_text(line)
    for planned in plan.reductions:
        click.echo()
        print_text(_head(planned, f"default {format_seconds(planned.default_seconds)}, "))
        for tuned in planned.tuned:
            print_text(f"  {_tuned(plan, planned, tuned)}")
        _print(plan, planned)
    for transfer in plan.transfers:
        click.echo()
        print_text(_head(transfer, ""))
        print_text(f"  {why_transfer(plan, transfer)}")
    click.echo("\nWhat would help, with the same programs:")
    _print_helps(plan, helps)
    if not helps:
        click.echo("  nothing that can be said of one level alone")
    if better:
        click.echo("\nWhat would help, on the same system:")
        _print_helps(plan, better)
    print_undecided(plan)
    for planned in plan.reductions:
        _print_others(plan, planned)


def _print_helps(plan: Plan, helps: list[Help]) -> None:
    for entry in helps:
        print_text(f"  {entry.change}: {format_seconds(entry.seconds)}, {plan.seconds / entry.seconds:.2f}x faster")


def _head(planned: Planned, default: str) -> str:
    """A communication's name, its count if that is not 1, and its hidden share if that is not 0; and its times."""
    one = planned.communication
    details = [f"{one.count} times"] if one.count > 1 else []
    details += [f"{one.hidden:.0%} hidden"] if one.hidden else []
    more = f" ({', '.join(details)})" if details else ""
    called = f"{one.name}{more}: " if one.name else f"{', '.join(details)}: " if details else ""
    times = f"{format_seconds(planned.seconds)} ({default}bound {format_seconds(planned.bound_seconds)})"
    return f"{called}{one.goal} over {'+'.join(one.axes)}, {format_size(one.bytes)}: {times}"


def _tuned(plan: Plan, planned: Planned, tuned: Tuned) -> str:
    """What was measured, in words."""
    calls = f"calls of {format_amount(tuned.least, tuned.bytes)} to {format_amount(tuned.most + 1, tuned.bytes)}"
    time = (
        f"{format_size(tuned.bytes)} took {format_seconds(tuned.chosen.seconds)} ±{format_seconds(tuned.chosen.noise)}"
    )
    own = [one.seconds for one in tuned.compared if one.pipelined in (None, own_program(plan, planned))]
    beside = f", the library's own {format_seconds(min(own))}" if own else ""
    many = len(tuned.compared)
    return f"tuned with {tuned.engine} for {calls}: {time}{beside} ({many} other{'s' if many != 1 else ''} measured)"


def _document(plan: Plan, planned: Planned) -> list[dict[str, Any]]:
    names = plan.hierarchy(planned).names
    return [
        {
            "step": step_text(step, names),
            "algorithm": cost.algorithm,
            "held_bytes": cost.held,
            "seconds": cost.seconds,
            "call_seconds": cost.call,
            "phases": [
                {
                    "seconds": phase.seconds,
                    "latency_seconds": phase.latency,
                    "filling_seconds": phase.filling,
                    "bottleneck": phase.bottleneck.level,
                    "levels": [
                        {
                            "level": load.level,
                            "groups": load.groups,
                            "load_bytes": load.bytes,
                            "seconds": load.seconds,
                            "limit": load.limit,
                        }
                        for load in phase.loads
                    ],
                }
                for phase in cost.phases
            ],
        }
        for step, cost in zip(planned.program.steps, costs_of(plan, planned), strict=True)
    ]


def _print(plan: Plan, planned: Planned) -> None:
    if planned.chunks > 1:
        click.echo(f"  in {planned.chunks} chunks; the steps of one of them:")
    for program, chunks in planned.shares[1:]:
        print_text(f"  {chunks} of them take another program: {program.text(plan.hierarchy(planned))}")
    names, size = plan.hierarchy(planned).names, planned.communication.bytes
    links = {level.name: level.link for level in plan.placement.system.levels}
    for number, (step, cost) in enumerate(zip(planned.program.steps, costs_of(plan, planned), strict=True), 1):
        how = f"{format_seconds(cost.seconds)}, {cost.algorithm}, {format_amount(cost.held, size)} held"
        click.echo(f"\n  {number}. {step_text(step, names)}: {how}")
        rows = [["    call", "", "", "", format_seconds(cost.call)]] if cost.call else []
        for k, phase in enumerate(cost.phases, 1):
            if len(cost.phases) > 1:
                rows.append([f"   phase {k} of {len(cost.phases)}"])
            slowest = max(load.seconds for load in phase.loads)
            for load in (load for load in phase.loads if load.bytes):
                link = links[load.level]
                rate = link.per_device if load.limit == "device" else link.bandwidth
                mark = "* bottleneck" if load.seconds == slowest > phase.latency else ""
                limit = f"{load.limit} {format_bandwidth(rate or 0, link.bits)}"
                amounts = (f"{load.groups:g}", format_amount(load.bytes, size), limit, format_seconds(load.seconds))
                rows.append([f"    {load.level}", *amounts, mark])
            if phase.processing:
                mark = "* bottleneck" if phase.processing >= max(slowest, phase.latency) else ""
                rows.append(["    processors", "", "", "", format_seconds(phase.processing), mark])
            if phase.latency:
                mark = "* bottleneck" if phase.latency >= slowest else ""
                limit = f"beside {1 - phase.apart:.0%} of the load" if phase.apart < 0.995 else ""
                rows.append(["    latency", "", "", limit, format_seconds(phase.latency), mark])
            if phase.filling:
                rows.append(["    first piece", "", "", "hop by hop", format_seconds(phase.filling)])
        print_table(["    level", "groups", "load", "limit", "time", ""], rows)


def _print_others(plan: Plan, planned: Planned) -> None:
    """The programs for calls of other sizes, and others for the same size."""
    if len(planned.ranges) > 1:
        click.echo(f"\n{describe(planned)}, by size:")
        print_ranges(plan, planned)
    if planned.alternatives:
        click.echo(f"\n{describe(planned)}, other programs for {format_size(planned.communication.bytes)}:")
        hierarchy = plan.hierarchy(planned)
        rows = [[f"  {format_seconds(t.seconds)}", t.pipelined.text(hierarchy)] for t in planned.alternatives]
        print_table(["  time", "program"], rows)
