"""What the engines share: which of a plan's reductions is meant, and whether the processes fit the plan."""

import hashlib
import json
import operator
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, lcm, log, prod
from typing import Any, NamedTuple, SupportsIndex
from zlib import crc32

from meshwright.errors import EngineError, MeshwrightError, MeshwrightWarning
from meshwright.language.program import Goal, Program, check_fits, device_groups, step_text
from meshwright.language.semantics import check_program
from meshwright.planning.plan import Plan, PlannedReduction
from meshwright.runtime.schedule import IN_PLACE, Call, Copy, Schedule, schedule
from meshwright.system.model import System
from meshwright.text.units import format_amount

TESTBED = "MESHWRIGHT_TESTBED"
"""Set in the environment of processes inside a testbed: its name. They share one machine, and so one clock."""

Over = str | Iterable[str] | int | None
"""Which reduction is meant: its axes ("data", "data+shard", ["data"]), its number in the plan, or None for the only
one.
"""


class Chooser:
    """Finds the reduction that a call means; what was found once is kept."""

    def __init__(self, plan: Plan) -> None:
        """Nothing is found yet."""
        self.plan = plan
        self.found: dict[tuple[Goal, Over, int, bool], int] = {}

    def __call__(self, goal: Goal, over: Over, payload: int, is_part: bool = False) -> int:
        """The number of the reduction with a goal, for a payload of so many bytes, or for a rank's part of one."""
        if over is not None and not isinstance(over, str | int):
            over = operator.index(over) if isinstance(over, SupportsIndex) else tuple(over)
        number = self.found.get((goal, over, payload, is_part))
        if number is None:
            number = self.found[goal, over, payload, is_part] = choose(self.plan, goal, over, payload, is_part)
        return number


def choose(plan: Plan, goal: Goal, over: Over, payload: int, is_part: bool = False) -> int:
    """The number of the reduction with a goal; of several over the same axes, the one planned for the nearest size."""
    if isinstance(over, int):
        if not 0 <= over < len(plan.reductions):
            raise EngineError(f"there is no reduction {over}: the plan has 0 to {len(plan.reductions) - 1}")
        if plan.reductions[over].reduction.goal is not goal:
            raise EngineError(f"reduction {over} of the plan is {describe(plan.reductions[over])}, not a {goal}")
        return over
    fitting = [k for k, planned in enumerate(plan.reductions) if planned.reduction.goal is goal]
    if over is not None:
        axes = set(over.split("+") if isinstance(over, str) else over)
        fitting = [k for k in fitting if set(plan.reductions[k].reduction.axes) == axes]
        wanted = f"{goal} over {'+'.join(sorted(axes))}"
    else:
        wanted = str(goal)
    if not fitting:
        has = "; ".join(map(describe, plan.reductions))
        raise EngineError(f"the plan has no {wanted}; it has: {has}")
    if len({frozenset(plan.reductions[k].reduction.axes) for k in fitting}) > 1:
        several = "; ".join(describe(plan.reductions[k]) for k in fitting)
        raise EngineError(f"the plan has more than one {goal}: say which with over=…: {several}")
    whole = payload * plan.hierarchy(plan.reductions[fitting[0]]).size if is_part else payload
    return min(fitting, key=lambda k: abs(log(plan.reductions[k].reduction.bytes / max(whole, 1))))


def describe(planned: PlannedReduction) -> str:
    """A reduction in words."""
    return f"{planned.reduction.goal} over {'+'.join(planned.reduction.axes)}"


@dataclass(frozen=True, slots=True)
class Stage:
    """What a rank does for one step: copies, and a collective where it takes part in the step.

    groups: for each of the moves, the ranks that it is a collective of; none for a copy. lane: steps that may be under
    way at the same time have different lanes, and groups of their own.
    """

    lane: int
    moves: tuple[Copy | Call, ...]
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """A rank's part in the chunks that take one program: its share of the chunks, and what it does with each."""

    program: Program
    chunks: int
    schedule: Schedule
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One rank's part in one of the plan's reductions.

    ranks: the reduction group, in rank order; a schedule's devices are positions in it.
    """

    planned: PlannedReduction
    names: tuple[str, ...]
    ranks: tuple[int, ...]
    flows: tuple[Flow, ...]

    def words(self, flow: Flow, move: Call) -> str:
        """A call in words, for errors."""
        step = step_text(flow.program.steps[move.step], self.names)
        return f"step {move.step + 1} ({step}) with {rank_list(self.ranks[device] for device in move.group)}"

    def cut(self, length: int, width: int) -> list[tuple[Flow, int, int]]:
        """The chunks of a payload of so many elements of so many bytes; see `cut_payload`."""
        return cut_payload(self.planned, self.flows, len(self.ranks), length, width)


def cut_payload(
    planned: PlannedReduction, flows: Sequence[Flow], ranks: int, length: int, width: int
) -> list[tuple[Flow, int, int]]:
    """The chunks of a payload of so many elements of so many bytes: which flow each takes, its start and its end.

    A chunk is not smaller than planned, so smaller payloads have fewer. What is cut is the tensor, or for
    reduce-scatter and all-gather each rank's part of it.
    """
    in_place, whole = planned.reduction.goal in IN_PLACE, length * width
    if not in_place:
        length = share(length, ranks, 0)
    if planned.chunks == 1:
        return [(flows[0], 0, length)]
    wanted = min(planned.chunks, ceil(planned.chunks * whole / planned.reduction.bytes))
    unit = lcm(*(flow.schedule.parts for flow in flows)) if in_place else 1
    size = max(1, ceil(length / max(wanted, 1) / unit)) * unit
    starts = range(0, max(length, 1), size)
    if len(starts) == 1:
        return [(flows[0], 0, length)]
    due = [0.0] * len(flows)  # how many chunks each flow is behind its share
    found = []
    for start in starts:
        due = [late + flow.chunks / planned.chunks for late, flow in zip(due, flows, strict=True)]
        most = max(range(len(due)), key=lambda k: due[k])
        due[most] -= 1
        found.append((flows[most], start, min(start + size, length)))
    return found


def part_of(plan: Plan, number: int, rank: int) -> Part:
    """A rank's part in a reduction; the programs are checked first, whoever made the plan."""
    planned = plan.reductions[number]
    hierarchy = plan.hierarchy(planned)
    ranks = next(group for group in plan.placement.groups(planned.reduction.axes) if rank in group)
    flows = []
    before = 0  # steps of the programs before this one
    for program, chunks in planned.pipelined.shares:
        check_fits(program, len(hierarchy.names))
        check_program(program, hierarchy, planned.reduction.goal)
        todo = schedule(program, hierarchy, ranks.index(rank), planned.reduction.goal)
        lanes = [_lane(planned, before + k) for k in range(max(1, len(program.steps)))]
        flows.append(Flow(program, chunks, todo, _stages(todo, ranks, lanes)))
        before += len(program.steps)
    return Part(planned, hierarchy.names, ranks, tuple(flows))


def _lane(planned: PlannedReduction, step: int) -> int:
    """The lane of a step, counted over all programs: one each where several can be under way at once."""
    return step if planned.chunks > 1 else 0


def _stages(todo: Schedule, ranks: tuple[int, ...], lanes: Sequence[int]) -> tuple[Stage, ...]:
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
        Stage(
            lane,
            tuple(stage),
            tuple(() if isinstance(move, Copy) else tuple(ranks[d] for d in move.group) for move in stage),
        )
        for lane, stage in zip(lanes, moves, strict=True)
    )


LaneGroup = tuple[int, tuple[int, ...]]
"""A lane, and the ranks of a group in it."""


def plan_groups(plan: Plan) -> list[LaneGroup]:
    """All groups of ranks that a plan's programs need, by lane, each once, in an order that everyone has."""
    found: dict[LaneGroup, None] = {}
    for planned in plan.reductions:
        radices = plan.hierarchy(planned).radices
        steps = [step for program, _ in planned.pipelined.shares for step in program.steps]
        for group in plan.placement.groups(planned.reduction.axes):
            for number, step in enumerate(steps):
                for devices in device_groups(step.grouping, radices):
                    found.setdefault((_lane(planned, number), tuple(group[device] for device in devices)))
    return list(found)


def digest(plan: Plan) -> str:
    """A short text that differs between plans that would not run alike."""
    text = json.dumps([[level.count for level in plan.placement.system.levels], plan.document()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_devices(system: System, world: int, what: str = "processes") -> None:
    """Refuse a number of processes that is not the number of devices."""
    if world != system.devices:
        raise EngineError(
            f"there are {world} {what}, but the plan is for {system.devices} devices ({_counts(system)}): start "
            f"{system.devices}, or make a plan for {world}"
        )


TIMEOUT = 300.0
"""Seconds that a rank waits for others unless told otherwise."""


def check_timeout(timeout: float) -> float:
    """Refuse what is not a time to wait; longer than thirty years is never."""
    if not isinstance(timeout, int | float) or not 0 < timeout < 1e9:
        raise EngineError(f"timeout={timeout!r}: expected a number of seconds above 0 and below 1e9")
    return timeout


class Seat(NamedTuple):
    """Where a launcher put a process: its position on its host, and how many processes its host has."""

    local_rank: int
    local_size: int


_LAUNCHERS = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),  # torchrun
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH
)


def seat(environment: Mapping[str, str]) -> Seat | None:
    """The seat that a launcher tells in the environment; None where none does."""
    for rank, size in _LAUNCHERS:
        if environment.get(rank, "").isdecimal() and environment.get(size, "").isdecimal():
            return Seat(int(environment[rank]), int(environment[size]))
    return None


def layout_fault(system: System, seats: Mapping[int, Seat | None]) -> str:
    """What is wrong with where the ranks are; empty if they can be what the plan takes them for.

    Hosts must be the instances of one of the system's levels, with ranks in order. All ranks on one host are fine
    too, and a host each: which of its levels the hosts are, a system does not say.
    """
    counts = system.counts
    fitting = sorted({prod(counts[k:]) for k in range(len(counts) + 1)}, reverse=True)
    for rank, at in sorted(seats.items()):
        if at is None:
            continue
        if at.local_size not in fitting:
            sizes = ", ".join(map(str, fitting[:-1])) + f" or {fitting[-1]}"
            return (
                f"rank {rank} is on a host with {at.local_size} processes, but a host of the plan's system "
                f"{_counts(system)} can have {sizes}"
            )
        if rank % at.local_size != at.local_rank:
            return (
                f"rank {rank} is number {at.local_rank} of {at.local_size} on its host, but the plan numbers devices "
                f"host by host, so it should be number {rank % at.local_size}: start a host's ranks one after another"
            )
    sizes_seen = {at.local_size: rank for rank, at in sorted(seats.items(), reverse=True) if at is not None}
    if len(sizes_seen) > 1:
        (size_a, rank_a), (size_b, rank_b) = sorted(sizes_seen.items())[:2]
        return (
            f"hosts have different numbers of processes (rank {rank_a}: {size_a}, rank {rank_b}: {size_b}), but "
            f"those of the plan's system {_counts(system)} are alike"
        )
    return ""


def judge_start(system: System | None, said: Mapping[int, Any]) -> str:
    """What is wrong with what the ranks say of themselves: their plan, its faults, and where they sit."""
    if faulty := {rank: each["fault"] for rank, each in said.items() if each["fault"]}:
        first = next(iter(faulty.values()))
        everyone = len(faulty) == len(said) and set(faulty.values()) == {first}
        return first if everyone else f"{rank_list(faulty)}: {first}"
    other = [rank for rank, each in said.items() if each["plan"] != said[0]["plan"]]
    if other:
        have = "has" if len(other) == 1 else "have"
        return f"{rank_list(other)} {have} another plan than rank 0: give every process the same plan file"
    if other := [rank for rank, each in said.items() if each["check"] != said[0]["check"]]:
        return (
            f"rank {other[0]} has check={said[other[0]]['check']!r}, but rank 0 {said[0]['check']!r}: give every "
            "process the same"
        )
    seats = {rank: Seat(*each["seat"]) if each["seat"] else None for rank, each in said.items()}
    return "" if system is None else layout_fault(system, seats)


def sizes(todo: Schedule, length: int) -> tuple[int, int, int]:
    """The elements in a part of a tensor that has been padded, in what a schedule takes, and in what it gives."""
    width = -(-length // todo.parts)
    taken = width if todo.goal is Goal.ALL_GATHER else width * todo.parts
    given = width if todo.goal is Goal.REDUCE_SCATTER else width * todo.parts
    return width, taken, given


def share(length: int, size: int, position: int) -> int:
    """How many elements of a flat whole are in the part of a device: parts are equal, but the last are cut short.

    >>> [share(5, 4, position) for position in range(4)]
    [2, 2, 1, 0]
    """
    width = -(-length // size)
    return max(0, min(width, length - position * width))


def _counts(system: System) -> str:
    return ",".join(f"{level.name}={level.count}" for level in system.levels)


Agree = Callable[[str, str | None, Any, Callable[[dict[int, Any]], str]], None]
"""Lets the ranks of a group compare a value each under a key, and raises what a judge complains about on all of them;
the second key is that of the agreement before, which everyone is past."""


class CallCheck:
    """Compares the calls over the same axes with the same goal between the ranks of their group.

    Everyone checks at the same calls as long as all make the same ones; a rank that checks alone, because the others
    take a call for one they know, ends with an error after the timeout, and so do those that wait for it.
    """

    CALLS, BYTES = 64, 2**26
    """After so many calls or bytes, all calls so far are compared: often enough to notice, too seldom to cost."""

    def __init__(self, key: str, ranks: Sequence[int], mode: str, agree: Agree) -> None:
        """Nothing is compared yet; mode is first, always or never."""
        if mode not in ("first", "always", "never"):
            raise EngineError(f"check={mode!r}: expected 'first', 'always' or 'never'")
        self.key, self.ranks, self.agree = key, ranks, agree
        self.never, self.always = mode == "never" or len(ranks) == 1, mode == "always"
        self.calls = self.since = self.bytes = 0
        self.history = self.past = 0  # digests of all calls so far, and of those before the last one
        self.known: set[tuple[str, ...]] = set()
        self.before: str | None = None

    def __call__(self, call: tuple[str, ...], payload: int) -> None:
        """Compare a call if it is of a new kind, if it is time to compare all calls so far, or if always asked to."""
        self.calls += 1
        if self.never:
            return
        self.since += 1
        self.bytes += payload
        self.past, self.history = self.history, crc32(repr(call).encode(), self.history)
        if self.always or self.since >= self.CALLS or self.bytes >= self.BYTES or call not in self.known:
            self.compare(" ".join(call))
            self.known.add(call)

    def compare(self, call: str) -> None:
        """Compare a call, and all before it."""
        self.since = self.CALLS  # where this ends in an error, the next call is compared too
        try:
            self.agree(self._key(), self.before, [call, self.past], self.judge)
        except EngineError:
            self.history = self.past  # nobody made this call
            raise
        self.before, self.since, self.bytes = self._key(), 0, 0

    def refuse(self, message: str, announce: Callable[[str, Any], None]) -> None:
        """Tell the others that this rank cannot make its call, without waiting for them."""
        self.calls += 1
        if len(self.ranks) > 1:
            announce(self._key(), [f"cannot: {message}", self.history])
        self.since = self.CALLS  # the others may not have refused, so the next call is compared

    def explain(self, call: tuple[str, ...], error: EngineError, agree: Agree) -> EngineError:
        """Find out with the others why a call failed: some may have made another one, or none at all.

        Those who wait under the key of this call, because it is of a new kind to them alone, get the answer too.
        """
        if len(self.ranks) == 1:
            return error
        key = f"{self._key()}/after" if self.before == self._key() else self._key()
        try:
            agree(key, None, [" ".join(call), self.past], self.judge)
        except EngineError as found:
            reason = f"{found}; {error}" if found.agreed else f"{error}; {found}"
            return EngineError(reason, agreed=found.agreed)
        return error

    def finish(self) -> None:
        """Compare the calls since the last comparison."""
        if self.since and not self.never:
            self.calls += 1
            self.past = self.history
            self.compare("makes no more calls")

    def _key(self) -> str:
        return f"{self.key}/{self.calls}"

    def judge(self, calls: dict[int, Any]) -> str:
        """Say who called differently."""
        first = self.ranks[0]
        if different := [rank for rank in self.ranks if calls[rank][0] != calls[first][0]]:
            theirs = f"{rank_list(different)} {calls[different[0]][0]}"
            return f"the ranks call differently: rank {first} {calls[first][0]}, {theirs}"
        if different := [rank for rank in self.ranks if calls[rank][1] != calls[first][1]]:
            return (
                f"{rank_list(different)} made other calls than rank {first} since the ranks compared theirs last, so "
                "results since then may be wrong"
            )
        return ""


def call_checks(
    parts: Sequence[Part], mode: str, agreement: Callable[[int, tuple[int, ...]], Agree], key: str = ""
) -> list[CallCheck]:
    """The check of each of a plan's reductions; those with the same goal over the same axes share one."""
    found: dict[object, CallCheck] = {}
    checks = []
    for number, part in enumerate(parts):
        reduction = part.planned.reduction
        kind = reduction.goal, frozenset(reduction.axes)
        if kind not in found:
            found[kind] = CallCheck(f"{key}/{number}", part.ranks, mode, agreement(number, part.ranks))
        checks.append(found[kind])
    return checks


def introduce(
    plan: Plan, world: int, rank: int, at: Seat | None, check: str = "first"
) -> tuple[dict[str, Any], list[Part]]:
    """What a rank says of itself when ranks compare their plans, and its parts in the plan's reductions.

    What is wrong with its own plan is said too, so that all hear of it.
    """
    said: dict[str, Any] = {"plan": "", "seat": at, "check": check, "fault": ""}
    try:
        if not isinstance(plan, Plan):
            raise EngineError(f"expected a Plan, as read_plan gives one, not {type(plan).__name__}")
        said["plan"] = digest(plan)
        check_devices(plan.placement.system, world)
        return said, [part_of(plan, number, rank) for number in range(len(plan.reductions))]
    except MeshwrightError as error:
        return said | {"fault": str(error)}, []


class Notices:
    """Warns where a plan runs otherwise than planned: once per Reducer and reason, and on rank 0 alone, as it is alike
    on all.
    """

    LIBRARIES = ("nccl", "gloo", "openmpi")
    """The profiles that stand for one library; others may be meant for any."""

    def __init__(self, plan: Plan, rank: int) -> None:
        """Nothing is said yet."""
        self.plan, self.silent = plan, rank != 0
        self.seen: set[object] = set()

    def library(self, running: str) -> None:
        """Say that the plan runs on another library than it was made for."""
        planned = self.plan.library.name.removesuffix("-calibrated")
        if planned in self.LIBRARIES and planned != running:
            self._say(
                f"the plan was made for {planned}, but runs on {running}: results are right, but other programs may be "
                f"faster{f'; plan with --library {running}' if running in self.LIBRARIES else ''}",
                "library",
            )

    def chunks(self, number: int, chunks: int, payload: int) -> None:
        """Say that a payload of so many bytes is too small to be cut as a reduction was planned."""
        planned = self.plan.reductions[number]
        if chunks == 1 < planned.chunks and payload < planned.reduction.bytes:
            self._say(
                f"the {describe(planned)} was planned for {format_amount(planned.reduction.bytes)} in {planned.chunks} "
                f"chunks, but a call with {format_amount(payload)} is a single chunk, whose steps do not overlap: make "
                "the plan for the size of the calls",
                number,
            )

    def _say(self, text: str, reason: object) -> None:
        if self.silent or reason in self.seen:
            return
        self.seen.add(reason)
        frame, level = sys._getframe(), 1
        while frame.f_back is not None and frame.f_globals["__name__"].startswith("meshwright."):
            frame, level = frame.f_back, level + 1
        warnings.warn(text, MeshwrightWarning, stacklevel=level)  # at the line of the user's that called


def rank_list(ranks: Iterable[int]) -> str:
    """Ranks in words; many are cut short."""
    ranks = list(ranks)
    shown = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) != 1 else ''} {shown}"


_SOURCE = re.compile(
    r"\[[^]]*\.(?:cc|cpp|cu|h|hpp):\d+[^]]*\]|(?:\b(?:at|in):? )?/\S+\.(?:cc|cpp|cu|h|hpp):\d+,?|GLHF!?"
)
"""Where in a library's source an error arose, on the machine that it was built on, and a wish of gloo's."""


def first_line(error: BaseException) -> str:
    """The part of a library's message that says something.

    >>> first_line(RuntimeError("[/build/gloo/transport/tcp/pair.cc:547] Connection closed by peer\\nmore"))
    'Connection closed by peer'
    """
    return " ".join(_SOURCE.sub("", str(error)).strip().split("\n", 1)[0].split()) or type(error).__name__
