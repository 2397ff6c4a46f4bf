"""A rank's role in a reduction: which chunks there are, and what the rank does with each, step by step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import ceil, lcm
from typing import NamedTuple

from meshwright.language.goals import Holding
from meshwright.language.program import Pipelined, Program, check_fits, device_groups, step_text
from meshwright.language.semantics import check_program
from meshwright.planning.plan import Plan, Planned
from meshwright.planning.tuning import known_programs
from meshwright.runtime.schedule import Call, Copy, Schedule, schedule
from meshwright.runtime.words import rank_list

LaneGroup = tuple[int, tuple[int, ...]]  # a lane, and the ranks of a group in it


@dataclass(frozen=True, slots=True)
class RankStep:
    """What a rank does for one step: copies, and a collective where it takes part in the step."""

    lane: int  # steps that may be under way at the same time have different ones, and groups of their own
    moves: tuple[Copy | Call, ...]
    groups: tuple[tuple[int, ...], ...]  # for each of the moves, the ranks of the collective; none for a copy


@dataclass(frozen=True, slots=True)
class Flow:
    """One of the programs that share a reduction's chunks: how many chunks take it, and what a rank does with each."""

    program: Program
    chunks: int
    schedule: Schedule
    steps: tuple[RankStep, ...]


class Cut(NamedTuple):
    """Where a chunk is cut from a payload, or for reduce-scatter and all-gather from each rank's part, in elements."""

    flow: Flow
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Role:
    """One rank's role in one of the plan's reductions."""

    planned: Planned
    names: tuple[str, ...]
    ranks: tuple[int, ...]  # the reduction group, in rank order; a schedule's devices are positions in it
    flows: dict[Pipelined, tuple[Flow, ...]]  # for each of the programs that some payload takes

    def words(self, flow: Flow, move: Call) -> str:
        """A call in words, for errors."""
        step = step_text(flow.program.steps[move.step], self.names)
        return f"step {move.step + 1} ({step}) with {rank_list(self.ranks[device] for device in move.group)}"

    def cut(self, length: int, width: int, pipelined: Pipelined | None = None) -> list[Cut]:
        """The chunks of a payload of `length` elements of `width` bytes, for its programs or for those that are given.

        Where the plan does not know the best programs for every payload, one that is smaller than planned gets fewer
        chunks, of about the planned size.
        """
        planned, whole = self.planned, length * width
        pipelined = pipelined or program_at(planned, whole)
        flows, wanted = self.flows[pipelined], pipelined.chunks
        in_place = planned.communication.goal.in_place
        if not in_place:
            length = part_length(length, len(self.ranks), 0)
        if not planned.ranges:
            wanted = min(wanted, ceil(wanted * whole / planned.communication.bytes))
        unit = lcm(*(flow.schedule.blocks for flow in flows)) if in_place else 1
        size = max(1, ceil(length / max(wanted, 1) / unit)) * unit
        starts = range(0, max(length, 1), size)
        if wanted <= 1 or len(starts) == 1:
            return [Cut(flows[0], 0, length)]
        due = [0.0] * len(flows)  # how many chunks each flow is behind its share
        found = []
        for start in starts:
            due = [late + flow.chunks / pipelined.chunks for late, flow in zip(due, flows, strict=True)]
            most = max(range(len(due)), key=lambda k: due[k])
            due[most] -= 1
            found.append(Cut(flows[most], start, min(start + size, length)))
        return found


def program_at(planned: Planned, payload: int) -> Pipelined:
    """The programs of a reduction for a payload."""
    found = planned.at(payload)
    assert found is not None, "reductions have programs"
    return found


def programs_of(planned: Planned) -> list[Pipelined]:
    """All programs that payloads of a reduction take, each once."""
    every = [each.pipelined for each in planned.ranges] or [program_at(planned, 0)]
    return list(dict.fromkeys(every))


def role_of(plan: Plan, number: int, rank: int, tune: bool = False) -> Role:
    """A rank's role in a reduction; the programs are checked first, whoever made the plan.

    tune: whether it can take all programs that the plan holds, not only those that payloads take.
    """
    planned = plan.reductions[number]
    hierarchy = plan.hierarchy(planned)
    ranks = next(group for group in plan.placement.groups(planned.communication.axes) if rank in group)
    schedules: dict[Program, Schedule] = {}
    flows = {}
    for pipelined in known_programs(plan, planned) if tune else programs_of(planned):
        found = []
        before = 0  # steps of the programs before this one
        for program, chunks in pipelined.shares:
            if program not in schedules:
                check_fits(program, len(hierarchy.names))
                check_program(program, hierarchy, planned.communication.goal)
                schedules[program] = schedule(program, hierarchy, ranks.index(rank), planned.communication.goal)
            lanes = [_lane(pipelined, before + k) for k in range(max(1, len(program.steps)))]
            found.append(Flow(program, chunks, schedules[program], _rank_steps(schedules[program], ranks, lanes)))
            before += len(program.steps)
        flows[pipelined] = tuple(found)
    return Role(planned, hierarchy.names, ranks, flows)


def renumbered(role: Role, ranks: Sequence[int]) -> Role:
    """A role where devices have other ranks: that of each device is `ranks[device]`."""

    def rename(devices: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(ranks[device] for device in devices)

    def turned(flow: Flow) -> Flow:
        steps = (replace(one, groups=tuple(map(rename, one.groups))) for one in flow.steps)
        return replace(flow, steps=tuple(steps))

    flows = {pipelined: tuple(map(turned, each)) for pipelined, each in role.flows.items()}
    return replace(role, ranks=rename(role.ranks), flows=flows)


def role_groups(roles: Iterable[Role]) -> list[LaneGroup]:
    """The groups that one rank needs for its roles, each once. Ranks that share several have them in the same order."""
    found: dict[LaneGroup, None] = {}
    for role in roles:
        for one in (one for flow in chain(*role.flows.values()) for one in flow.steps):
            found |= {(one.lane, group): None for group in one.groups if group}
    return list(found)


def _lane(pipelined: Pipelined, step: int) -> int:
    """The lane of a step, counted over all programs: one each where several can be under way at once."""
    return step if pipelined.chunks > 1 else 0


def _rank_steps(todo: Schedule, ranks: tuple[int, ...], lanes: Sequence[int]) -> tuple[RankStep, ...]:
    """The moves of a schedule, step by step, each step in its lane."""
    moves: list[list[Copy | Call]] = [[] for _ in lanes]
    waiting: list[Copy | Call] = []
    for move in todo.moves:
        waiting.append(move)
        if isinstance(move, Call):
            moves[move.step] += waiting
            waiting = []
    moves[-1] += waiting
    return tuple(
        RankStep(
            lane,
            tuple(mine),
            tuple(() if isinstance(move, Copy) else tuple(ranks[d] for d in move.group) for move in mine),
        )
        for lane, mine in zip(lanes, moves, strict=True)
    )


def plan_groups(plan: Plan, tune: bool = False) -> list[LaneGroup]:
    """All groups of ranks that a plan's programs need, by lane, each once, in the same order on every rank.

    tune: as in `role_of`.
    """
    found: dict[LaneGroup, None] = {}
    for planned in plan.reductions:
        radices = plan.hierarchy(planned).radices
        inside: dict[tuple[int, tuple[int, ...]], None] = {}  # by lane, the devices of a reduction group
        for pipelined in known_programs(plan, planned) if tune else programs_of(planned):
            steps = [step for program, _ in pipelined.shares for step in program.steps]
            for number, step in enumerate(steps):
                for devices in device_groups(step.grouping, radices):
                    inside.setdefault((_lane(pipelined, number), tuple(devices)))
        for group in plan.placement.groups(planned.communication.axes):
            for lane, devices in inside:
                found.setdefault((lane, tuple(group[device] for device in devices)))
    return list(found)


def sizes(todo: Schedule, length: int) -> tuple[int, int, int]:
    """How many elements there are in a block of a tensor, after padding; in what a schedule takes; in what it gives."""
    width = -(-length // todo.blocks)
    taken = width if todo.goal.start is Holding.PART else width * todo.blocks
    given = width if todo.goal.end is Holding.PART else width * todo.blocks
    return width, taken, given


def part_length(length: int, size: int, position: int) -> int:
    """How many elements of a flat tensor are in the part of one rank: parts are equal, but the last are cut short.

    >>> [part_length(5, 4, position) for position in range(4)]
    [2, 2, 1, 0]
    """
    width = -(-length // size)
    return max(0, min(width, length - position * width))
