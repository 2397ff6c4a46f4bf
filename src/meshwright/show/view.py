"""The view: a plan and all that is shown of it, as plain data for JSON; the page, the trace and the app show the same.

Times are in seconds, rounded to six digits; levels are numbered, outermost first. The data is bounded: of large systems
only the first instances of the outer levels are to be drawn, and `notes` says what is left out.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from meshwright.errors import SpecError, TooLargeError
from meshwright.language.goals import Goal
from meshwright.language.symbolic import NOTHING, reduced, run_symbolically, scattered
from meshwright.measure.records import Measurement
from meshwright.placement.placement import count_placements
from meshwright.planning.constraints import Constraint
from meshwright.planning.explain import better_plans, what_would_help, why, why_program, why_transfer
from meshwright.planning.orders import mesh_alone
from meshwright.planning.plan import Plan, Planned, times_of
from meshwright.planning.planner import Planner
from meshwright.planning.ranking import Ranking
from meshwright.planning.settings import MOST_CHUNKS, Settings
from meshwright.planning.sizes import Choices
from meshwright.show.measured import seen
from meshwright.show.snippets import snippets
from meshwright.show.timeline import Flow, timeline
from meshwright.system.model import System
from meshwright.text.spec import format_counts
from meshwright.text.units import format_amount, format_bandwidth, format_seconds

FORMAT, VERSION = "meshwright-view", 1

MOST_DRAWN = 1024
"""How many devices are drawn at most."""

MOST_PLANS = 8
"""How many candidates are shown at most."""

MOST_LEVELS = 6
"""Hierarchies with more levels have no playback: what devices hold would be a table of thousands of rows."""

FEW = 1000
"""How many placements there may be for a plan from a file to be shown beside the others."""


def view_of(
    plan: Plan,
    ranking: Ranking | None = None,
    constraints: Sequence[Constraint] = (),
    measurements: Sequence[Measurement] = (),
    workload: str = "",
    settings: Settings | None = None,
    choices: Choices | None = None,
) -> dict[str, Any]:
    """Everything that is shown of a plan.

    ranking: the candidates that it comes from; without, they are looked for. workload: what `--workload` was, if any.
    settings: what the plan was made with, where that is known. choices: the sizes of the axes that were tried, if any.
    """
    notes: list[str] = []
    searched = ranking or _searched(plan, notes)
    if ranking and plan in ranking.candidates:
        # In its own order: what is hardly faster in chunks comes after the same without.
        plans = list(ranking.candidates)
    else:
        others = [each for each in (searched.candidates if searched else ()) if each.placement != plan.placement]
        plans = sorted([plan, *others], key=lambda each: each.seconds)
    chosen = plans.index(plan)
    if len(plans) > MOST_PLANS:
        plans = plans[:MOST_PLANS] if chosen < MOST_PLANS else [*plans[: MOST_PLANS - 1], plan]
        chosen = min(chosen, MOST_PLANS - 1)
        notes.append(f"The {MOST_PLANS} best candidates are shown.")
    drawn = _drawn(plan.placement.system, notes)
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": f"{format_counts(plan.placement.sizes)} on {plan.placement.system.name}",
        "system": _system(plan.placement.system, drawn),
        "library": plan.library.name,
        "axes": [{"name": axis, "size": size} for axis, size in plan.placement.sizes.items()],
        "sizes": None if choices is None else _sizes(choices),
        "chosen": chosen,
        "plans": [_plan(each, measurements) for each in plans],
        "as_given_seconds": _rounded(mesh_alone([plan], plan.placement.sizes).as_given),
        "why": why(plan),
        "certificate": searched.certificate(constraints) if searched else "",
        "advice": _advice(plan, searched_all=ranking is not None),
        "snippets": [asdict(each) for each in snippets(plan, workload, settings)],
        "notes": notes,
    }


def _searched(plan: Plan, notes: list[str]) -> Ranking | None:
    """The best placements for what a plan communicates, where there are few to look at and the library can do them."""
    at, what = plan.placement, [planned.communication for planned in plan.communications]
    count = count_placements(at.system, at.sizes)
    if count > FEW:
        notes.append(
            f"There are {count:,} placements of these axes; `meshwright plan … --html` shows the best of them beside "
            "each other."
        )
        return None
    chunks = min(max(planned.chunks for planned in plan.communications), MOST_CHUNKS)
    try:
        return Planner(at.system, at.sizes, what, plan.library, max_chunks=chunks).best(MOST_PLANS)
    except (SpecError, TooLargeError) as error:
        notes.append(f"Other placements are not shown: {error}")
        return None


def _drawn(system: System, notes: list[str]) -> list[int]:
    """How many instances of each level are drawn: inner levels first, but two of each outer one."""
    left = MOST_DRAWN
    found: list[int] = []
    for number in reversed(range(len(system.levels))):
        outside = sum(count > 1 for count in system.counts[:number])
        found.insert(0, max(1, min(system.counts[number], left >> min(outside, 10))))
        left //= found[0]
    if found != list(system.counts):
        parts = [
            f"{shown:,} of {level.count:,} ({level.name})"
            for shown, level in zip(found, system.levels, strict=True)
            if shown < level.count
        ]
        notes.append(f"Of {system.devices:,} devices the first are drawn: {', '.join(parts)}. The others repeat them.")
    return found


def _system(system: System, drawn: Sequence[int]) -> dict[str, Any]:
    levels = []
    for level, shown in zip(system.levels, drawn, strict=True):
        link = level.link
        latency = f", {format_seconds(link.latency)} latency" if link.latency else ""
        text = f"{format_bandwidth(link.bandwidth)} {link.fabric}{latency}" if link.bandwidth else ""
        levels.append({"name": level.name, "count": level.count, "drawn": shown, "link": text})
    return {"name": system.name, "devices": system.devices, "levels": levels}


def _sizes(choices: Choices) -> dict[str, Any]:
    """The best choices of sizes, and what became of the others."""
    best = [
        {
            "axes": format_counts(choice.workload.axes),
            "seconds": _rounded(choice.seconds),
            "communication": _rounded(choice.ranking.candidates[0].seconds),
            "computing": _rounded(choice.workload.compute),
            "memory": format_amount(choice.workload.memory or 0.0),
        }
        for choice in choices.best[:MOST_PLANS]
    ]
    refused = [f"{count:,} not possible: {reason}" for reason, count in choices.refused.items()]
    return {"best": best, "tried": choices.tried, "ways": choices.ways, "refused": refused}


def _plan(plan: Plan, measurements: Sequence[Measurement]) -> dict[str, Any]:
    return {
        "axes": list(plan.placement.axes),
        "matrix": [list(row) for row in plan.placement.matrix],
        **_times(plan),
        "communications": [_communication(plan, one, measurements) for one in plan.communications],
    }


def _communication(plan: Plan, planned: Planned, measurements: Sequence[Measurement]) -> dict[str, Any]:
    one, hierarchy, when = planned.communication, plan.hierarchy(planned), timeline(plan, planned)
    numbers = {level.name: k for k, level in enumerate(plan.placement.system.levels)}
    numbered, known = [numbers[name] for name in hierarchy.names], seen(plan, planned, measurements)
    return {
        "name": one.name,
        "goal": str(one.goal),
        "axes": list(one.axes),
        "size": format_amount(one.bytes),
        "count": one.count,
        "hidden": one.hidden,
        **_times(planned),
        "program": plan.program_text(planned),
        "why": why_transfer(plan, planned) if planned.pipelined is None else why_program(plan, planned),
        "levels": numbered,
        "radices": list(hierarchy.radices),
        "flows": [_flow(flow, numbers) | {"states": _states(one.goal, flow, len(numbered))} for flow in when.flows],
        "order": list(when.order),
        "period": _rounded(when.period),
        "measured": None if known is None else {k: _rounded(v) for k, v in asdict(known).items()},
    }


def _flow(flow: Flow, numbers: dict[str, int]) -> dict[str, Any]:
    steps = []
    for name, cost in zip(flow.names, flow.costs, strict=True):
        phases = [
            {
                "seconds": _rounded(phase.seconds),
                "loads": [[numbers[load.level], _rounded(load.seconds), _rounded(load.bytes)] for load in phase.loads],
            }
            for phase in cost.phases
        ]
        seconds, call = _rounded(cost.seconds), _rounded(cost.call)
        steps.append({"text": name, "algorithm": cost.algorithm, "seconds": seconds, "call": call, "phases": phases})
    return {"steps": steps}


def _states(goal: Goal, flow: Flow, levels: int) -> list[list[list[int] | None]]:
    """What the devices hold at the start, and after each step; nothing for transfers.

    A state has an entry for each set of digits that are zero, as bits: None where such devices hold nothing, or the
    levels along which they hold only their own part, and those over which all have contributed, as bits.
    """
    if flow.program is None or levels > MOST_LEVELS:
        return []
    states = run_symbolically(flow.program, levels, goal)
    return [
        [None if entry == NOTHING else [scattered(entry, levels), reduced(entry, levels)] for entry in state]
        for state in states
    ]


def _advice(plan: Plan, searched_all: bool) -> list[dict[str, Any]]:
    """What would help: other links, and other plans on the same ones, unless all plans were looked at anyway."""
    better = [] if searched_all else better_plans(plan)
    found = [(each, "links") for each in what_would_help(plan)] + [(each, "plan") for each in better]
    return [{"change": each.change, "seconds": _rounded(each.seconds), "kind": kind} for each, kind in found]


def _times(plan: Plan | Planned) -> dict[str, Any]:
    return {name: _rounded(value) for name, value in times_of(plan).items()}


def _rounded(value: Any) -> Any:
    """A number with six digits; everything else as it is."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
