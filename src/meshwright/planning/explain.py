"""Why a plan is as fast as it is: in words, and what would make it faster."""

from contextlib import suppress
from dataclasses import dataclass, replace

from meshwright.cost.bound import bound
from meshwright.cost.library import library_names, load_library
from meshwright.cost.model import StepCost
from meshwright.cost.pipeline import CHUNKS, Pipeline
from meshwright.errors import SpecError, TooLargeError
from meshwright.language.goals import flat_program
from meshwright.language.program import Pipelined
from meshwright.placement.layout import layout_of
from meshwright.placement.notation import format_placement
from meshwright.placement.placement import count_placements
from meshwright.planning.plan import Plan, Planned, cost_model, predict_seconds, ratio
from meshwright.planning.planner import Planner
from meshwright.text.units import format_seconds, format_size
from meshwright.workload.communication import exposed

CUT, FEW = 16, 100
"""In how many chunks another plan may cut the payload, and how many placements are few."""

SAME_HARDWARE = (("nccl", "nccl-sockets"), ("gloo", "openmpi"))
"""Built-in libraries that run on the same hardware."""

ERROR = 0.05
"""What predicted times are off by, about: less in the median, more for small payloads (docs/regret.md)."""

NOTABLE = 1.05
"""What makes the bound smaller by this factor is said where the bound is shown."""


def why(plan: Plan) -> list[str]:
    """Three lines: where the axes sit, where the time goes and why, and how far the bound is."""
    sizes = plan.placement.sizes
    sits = []
    for axis, row in zip(plan.placement.axes, plan.placement.matrix, strict=True):
        spanned = [level.name for level, factor in zip(plan.placement.system.levels, row, strict=True) if factor > 1]
        sits.append(f"{axis}={sizes[axis]} {'over ' + ' and '.join(spanned) if spanned else 'nowhere'}")
    total = plan.seconds
    main = max(plan.communications, key=lambda one: one.seconds * exposed(one.communication))
    what = main.communication
    share = ratio(main.seconds * exposed(what), total)
    name = f"{what.name} over " if what.name else ""
    reason = why_transfer(plan, main) if main.pipelined is None else why_program(plan, main)
    return [
        f"placement: {', '.join(sits)}",
        f"{share:.0%} of the time goes to {name}{'+'.join(what.axes)}: {reason}",
        f"predicted {format_seconds(total)}, {_compared(plan.speedup)} on this placement; {_gap(plan)}",
    ]


def _gap(plan: Plan) -> str:
    """How far the bound is, and what lies between."""
    gap = ratio(plan.seconds, plan.bound_seconds)
    if gap < 1.005:
        return "it reaches the bound, so nothing is left to win"
    costs = [(one, cost) for one in plan.communications for cost in costs_of(plan, one)]
    latency = sum(
        exposed(one.communication) * phase.latency * one.chunks for one, cost in costs for phase in cost.phases
    )
    if latency > 0.5 * (plan.seconds - plan.bound_seconds):
        rest = "the rest is mostly latency, which the bound leaves out"
    elif _bound(plan, detours=False) > NOTABLE * plan.bound_seconds:
        rest = "the bound lets data go round slow inner links, through other instances and back; few programs do"
    elif _bound(plan, reducing=False) > NOTABLE * plan.bound_seconds:
        rest = "the bound lets the switches add up in every step; programs use that in an AllReduce only"
    elif any(one.chunks > 1 for one in plan.communications):
        rest = "in between, the first chunk fills the steps and the last one empties them"
    elif len(costs) > len(plan.communications) or any(len(cost.phases) > 1 for _, cost in costs):
        rest = "in between, links of one level wait for those of another"
    else:
        rest = "the library's algorithms move more than they must"
    return f"{gap:.3g}x the bound: {rest}"


def _bound(plan: Plan, *, detours: bool = True, reducing: bool = True) -> float:
    """The bound, had it not counted on detours, or on switches that reduce."""
    return sum(
        exposed(one.communication)
        * bound(
            layout_of(plan.placement, one.communication.axes),
            one.communication.goal,
            one.communication.bytes,
            detours=detours,
            reducing=reducing,
        )
        for one in plan.communications
    )


def _compared(speedup: float) -> str:
    return "as fast as the default" if speedup < 1.005 else f"{speedup:.2f}x faster than the default"


def why_program(plan: Plan, planned: Planned) -> str:
    """Why this program is the best for its reduction."""
    model = cost_model(plan, planned)
    levels = len(model.layout.levels)
    goal = planned.communication.goal
    if levels == 0:
        return "each group is a single device, so there is nothing to do"
    costs = model.steps(planned.program, goal)
    worst = max((phase for cost in costs for phase in cost.phases), key=lambda phase: phase.seconds)
    link = worst.bottleneck.level
    name = str(goal.flat)
    if planned.chunks > 1:
        once = model.seconds(planned.program, goal)
        mixed = len(planned.shares) > 1
        whose, which = (f" of {len(planned.shares)} programs", " of the first of them") if mixed else ("", "")
        return (
            f"{planned.chunks} chunks that flow through the steps{whose} at once are "
            f"{ratio(planned.default_seconds, planned.seconds):.2f}x faster than one {name}, and "
            f"{ratio(once, planned.seconds):.2f}x faster than the steps{which} one after the other"
        )
    if planned.program != flat_program(goal, levels):
        gain = ratio(planned.default_seconds, planned.seconds)
        several = f"{len(planned.program.steps)} steps"
        if gain < 1.005:
            return f"{several} take as long as one {name}"
        (flat,) = model.steps(flat_program(goal, levels), goal)
        slow = max(flat.phases, key=lambda phase: phase.seconds).bottleneck.level
        before, after = _load([flat], slow), _load(costs, slow)
        if before - after > _latency([flat]) - _latency(costs):
            return f"{several} are {gain:.2f}x faster than one {name}: they load {slow} {before / after:.2f}x less"
        return f"{several} are {gain:.2f}x faster than one {name}: their messages are fewer or nearer"
    if ratio(_latency(costs), planned.seconds) > 0.5:
        size = format_size(planned.communication.bytes)
        return f"one {name} is best: {size} is latency-bound, and every step costs messages"
    if costs[0].algorithm == "switch":
        return f"one {name} is best: the {link} switch adds up by itself"
    if levels == 1:
        spanned = model.layout.levels[0]
        parent = model.layout.system.levels[spanned - 1].name if spanned > 0 else None
        where = f"inside one {parent}" if parent else f"only across {link}"
        return f"one {name} is best: its groups lie {where}"
    return f"one {name} is best: with what this library does ({costs[0].algorithm}), no sequence of steps is faster"


def why_transfer(plan: Plan, planned: Planned) -> str:
    """Where the time of a transfer goes."""
    phases = [phase for cost in costs_of(plan, planned) for phase in cost.phases]
    if not phases:
        return "each group is a single device, so there is nothing to do"
    worst = max(phases, key=lambda phase: phase.seconds)
    if worst.latency > worst.bottleneck.seconds:
        return f"{planned.communication.goal}, most of it latency"
    return f"{planned.communication.goal}, as fast as the links of {worst.bottleneck.level} let it be"


def _latency(costs: list[StepCost]) -> float:
    """The seconds that messages of a program are on their way."""
    return sum(phase.latency for cost in costs for phase in cost.phases)


def _load(costs: list[StepCost], level: str) -> float:
    """The seconds that a program keeps a level's links busy."""
    return sum(load.seconds for cost in costs for phase in cost.phases for load in phase.loads if load.level == level)


@dataclass(frozen=True, slots=True)
class Help:
    """What a change would bring."""

    change: str
    seconds: float


def what_would_help(plan: Plan) -> list[Help]:
    """The time of the plan with twice the bandwidth, or no latency, at each level; the most helpful first.

    Only changes that save at least one percent are named.
    """
    helps = []
    levels = plan.placement.system.levels
    for number, level in enumerate(levels):
        link = level.link
        if link.bandwidth is None:
            continue
        faster = replace(
            link, bandwidth=2 * link.bandwidth, per_device=None if link.per_device is None else 2 * link.per_device
        )
        changes = [(f"twice the bandwidth of {level.name}", faster)]
        if link.latency:
            changes.append((f"no latency at {level.name}", replace(link, latency=0.0)))
        for change, better in changes:
            system = replace(
                plan.placement.system,
                levels=(*levels[:number], replace(level, link=better), *levels[number + 1 :]),
            )
            changed = replace(plan, placement=replace(plan.placement, system=system))
            seconds = sum(
                exposed(one.communication) * predict_seconds(cost_model(changed, one), one.communication, one.pipelined)
                for one in plan.communications
            )
            if seconds < 0.99 * plan.seconds:
                helps.append(Help(change, seconds))
    return sorted(helps, key=lambda entry: entry.seconds)


def better_plans(plan: Plan) -> list[Help]:
    """What another plan on the same hardware would bring: one in chunks, or on another placement; the best first.

    Other placements are looked at where there are few. Only what saves at least one percent is named, and nothing for
    which the library has no algorithm.
    """
    at, chunks = plan.placement, _chunks(plan)
    what = [planned.communication for planned in plan.communications]
    found = []
    with suppress(SpecError, TooLargeError):
        if chunks == 1:
            in_chunks = Planner(at.system, at.sizes, what, plan.library, max_chunks=CUT).plan(at)
            found.append(Help(f"plan --chunks {CUT}", in_chunks.seconds))
    with suppress(SpecError, TooLargeError):
        if count_placements(at.system, at.sizes) <= FEW:
            (best,) = Planner(at.system, at.sizes, what, plan.library, max_chunks=chunks).best(1).candidates
            matrix = format_placement(best.placement.axes, best.placement.matrix)
            found.append(Help(f"another placement, {matrix}", best.seconds))
    return sorted([each for each in found if each.seconds < 0.99 * plan.seconds], key=lambda each: each.seconds)


def other_libraries(plan: Plan) -> list[Help]:
    """What a plan on the same placement for another built-in library would bring that runs on the same hardware.

    Only what saves more than predictions are off by is named.
    """
    name, at = plan.library.name, plan.placement
    if name not in library_names() or load_library(name) != plan.library:
        return []  # a calibrated library is not compared with one that is not
    chunks = _chunks(plan)
    what = [planned.communication for planned in plan.communications]
    others = [other for family in SAME_HARDWARE if name in family for other in family if other != name]
    found = [
        Help(f"plan --library {other}", Planner(at.system, at.sizes, what, other, max_chunks=chunks).plan(at).seconds)
        for other in others
    ]
    return [each for each in found if each.seconds < (1 - ERROR) * plan.seconds]


def undecided(plan: Plan) -> list[str]:
    """For which reductions something quite different is predicted to be as fast as predictions can tell, in words.

    Quite different are the library's own collective, steps one after the other, and chunks.
    """
    found = []
    for planned in plan.reductions:
        one = planned.communication
        if planned.pipelined is None or planned.tuned_at(one.bytes):
            continue
        near = [each.pipelined for each in planned.alternatives if each.seconds <= (1 + ERROR) * planned.seconds]
        kinds = [kind for kind in dict.fromkeys(map(_kind, near)) if kind != _kind(planned.pipelined)]
        if kinds:
            what = f"{one.goal} over {'+'.join(one.axes)}, {format_size(one.bytes)}"
            found.append(f"{what}: {' and '.join(kinds)} would take at most {ERROR:.0%} longer")
    return found


def _kind(pipelined: Pipelined) -> str:
    """What kind of programs these are. All steps over the same groups are what the library's own collective does too:
    a ring all-reduce is a ReduceScatter and an AllGather.
    """
    if pipelined.chunks > 1:
        return "chunks"
    apart = len({step.grouping for step in pipelined.program.steps}) > 1
    return "steps without chunks" if apart else "the library's own"


def costs_of(plan: Plan, planned: Planned) -> list[StepCost]:
    """Where the time of a communication goes, step by step, for one chunk; without programs it is one step."""
    model, goal = cost_model(plan, planned), planned.communication.goal
    if planned.pipelined is None:
        return [model.transfer(goal)]
    return Pipeline(model, goal).costs(planned.pipelined)


def _chunks(plan: Plan) -> int:
    """The most chunks of a plan's reductions, as far as plans are searched in so many."""
    return min(max([planned.chunks for planned in plan.reductions], default=1), CHUNKS[-1])
