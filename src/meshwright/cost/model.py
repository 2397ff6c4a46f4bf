"""Time: how long a step and a program take, with all groups at once on the system's links.

A step runs in all groups of its grouping, in every reduction group of the system, at the same time. Groups that share
a port add up. The time of a phase is that of the most loaded link, plus its messages' latencies; phases, and steps,
follow each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.algorithms import Phase, Shape, phases, transfer_phase
from meshwright.cost.bound import bound
from meshwright.cost.library import Library, Rule
from meshwright.errors import SpecError, TooLargeError
from meshwright.language.goals import Goal
from meshwright.language.program import Collective, Grouping, Program, Step
from meshwright.language.symbolic import State, run_symbolically, scattered
from meshwright.placement.layout import Layout, check_links, inner_only
from meshwright.system.model import Fabric, Level, Link

MAX_RING = 512
"""Longer rings of children are not routed."""

_Whole = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Load:
    """What one phase puts on the links of one level.

    groups: how many groups share the busiest port (or the bus); bytes: what they put on it; limit: what sets the
    time: the `port`, the `bus`, the `links` of a ring, or one `device`.
    """

    level: str
    groups: float
    bytes: float
    seconds: float
    limit: str


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """The loads of one phase by level, outermost first, its latency, and what the processors take for all messages.

    turns: of a ring whose messages wait for handshakes; 0 otherwise.
    """

    loads: tuple[Load, ...]
    latency: float
    processing: float = 0.0
    turns: float = 0.0

    @property
    def seconds(self) -> float:
        """The most loaded link or the processors, whichever take longer, and the latency."""
        return _together(max(self.processing, *(load.seconds for load in self.loads)), self.latency, self.turns)

    @property
    def bottleneck(self) -> Load:
        """The most loaded link."""
        return max(self.loads, key=lambda load: load.seconds)


def _together(work: float, latency: float, turns: float) -> float:
    """Work and latency add up; but in the turns of a ring with handshakes, one half of a message is on its way while
    the other waits for its handshake.
    """
    return max(work + latency / turns, work / 2 + latency) if turns else work + latency


@dataclass(frozen=True, slots=True)
class StepCost:
    """The time of a step, and where it goes."""

    algorithm: str
    held: float
    phases: tuple[PhaseCost, ...]

    @property
    def seconds(self) -> float:
        """The phases follow each other."""
        return sum(phase.seconds for phase in self.phases)


class CostModel:
    """The times of steps and programs of one reduction: a layout, a library, and the bytes that each device holds."""

    def __init__(self, layout: Layout, library: Library, payload: int) -> None:
        """`payload` is the size of the whole tensor: what a device holds before an all-reduce."""
        check_links(layout.system)
        if payload <= 0:
            raise SpecError(f"the payload is {payload} bytes; expected a positive size, like 2GiB")
        self.layout, self.library, self.payload = layout, library, payload
        self._seconds: dict[tuple[Step, tuple[int, ...]], float] = {}

    def __call__(self, state: State, step: Step) -> float:
        """The seconds of a step taken in a state: the cost function for synthesis."""
        key = step_kind(len(self.layout.levels), state, step)
        if key not in self._seconds:
            self._seconds[key] = self._step(step, key[1]).seconds
        return self._seconds[key]

    def step(self, state: State, step: Step) -> StepCost:
        """The time of a step taken in a state, and where it goes."""
        return self._step(*step_kind(len(self.layout.levels), state, step))

    def steps(self, program: Program, goal: Goal = Goal.ALL_REDUCE) -> list[StepCost]:
        """The times of a valid program's steps, and where they go."""
        states = run_symbolically(program, len(self.layout.levels), goal)
        return [self.step(state, step) for state, step in zip(states, program.steps, strict=False)]

    def seconds(self, program: Program, goal: Goal = Goal.ALL_REDUCE) -> float:
        """The time of a valid program."""
        states = run_symbolically(program, len(self.layout.levels), goal)
        return sum((self(state, step) for state, step in zip(states, program.steps, strict=False)), 0.0)

    def transfer(self, kind: Goal) -> StepCost:
        """The time of a transfer in the whole group, and where it goes."""
        if not self.layout.levels:
            return StepCost(str(kind), float(self.payload), ())
        everyone = Grouping(0, len(self.layout.levels) - 1)
        outermost, shape = _shape(self.layout, everyone)
        at_port, at_instance = self._bytes(everyone, [self.payload])
        groups = _all_groups(self.layout, everyone)
        held = float(self.payload)
        found = transfer_phase(kind, shape)
        work = groups * (found.sent + prod(shape))
        return StepCost(str(kind), held, (self._phase(found, outermost, at_port, at_instance, held, 1.0, work),))

    def bound(self, goal: Goal = Goal.ALL_REDUCE) -> float:
        """No algorithm can be faster."""
        return bound(self.layout, goal, self.payload)

    def _step(self, step: Step, sets: tuple[int, ...]) -> StepCost:
        rule = self.library.rule(step.collective, max(self._held(levels) for levels in sets))
        return min(self.options(step, sets, rule), key=lambda option: option.seconds)

    def options(self, step: Step, sets: tuple[int, ...], rule: Rule) -> list[StepCost]:
        """The times of a step with each of the algorithms that a rule of the library allows."""
        outermost, shape = _shape(self.layout, step.grouping)
        held = [self._held(levels) for levels in sets]
        at_port, at_instance = self._bytes(step.grouping, held)
        groups = _all_groups(self.layout, step.grouping)
        options = []
        for names in (rule.algorithms, rule.otherwise):
            for name in names:
                found = self._phases(name, step.collective, shape, outermost)
                if found is not None:
                    # Making the call is as much work for a device as a message.
                    work = [groups * (phase.sent + (0 if k else prod(shape))) for k, phase in enumerate(found)]
                    costs = tuple(
                        self._phase(phase, outermost, at_port, at_instance, max(held), rule.efficiency, here)
                        for phase, here in zip(found, work, strict=True)
                    )
                    options.append(StepCost(name, max(held), costs))
            if options:
                return options
        raise SpecError(
            f"the library {self.library.name!r} has no algorithm for {step.collective} in groups of shape {shape}: "
            "add one to 'otherwise' that can do any group, like ring"
        )

    def _phases(self, name: str, collective: Collective, shape: Shape, outermost: int) -> tuple[Phase, ...] | None:
        if name == "switch" and not self._switches_reduce(shape, outermost):
            return None
        return phases(name, collective, shape, self.library.rotates)

    def _switches_reduce(self, shape: Shape, outermost: int) -> bool:
        """Whether the sum can be made in the switches alone, each passing on what it has added up to the next."""
        spanned = [level.link for level, fan in zip(self._from(outermost), shape, strict=True) if fan > 1]
        return all(link.reduces for link in spanned) and not any(link.bypass for link in spanned[1:])

    def _from(self, outermost: int) -> tuple[Level, ...]:
        return self.layout.system.levels[outermost:]

    def _held(self, levels: int) -> float:
        """The bytes that a device holds when it is scattered along the given levels."""
        radices = self.layout.hierarchy.radices
        return self.payload / prod(radix for level, radix in enumerate(radices) if levels >> level & 1)

    def _bytes(self, grouping: Grouping, held: Sequence[float]) -> tuple[list[float], list[float]]:
        """Held bytes, added up over the groups at one port and in one instance, per level of the system."""
        layout = self.layout
        levels = range(layout.levels[grouping.first], len(layout.radices))
        if len(held) == 1:
            groups = [_groups(layout, grouping, level) * held[0] for level in levels]
            instance = [_groups_inside(layout, grouping, level) * held[0] for level in levels]
            return groups, instance
        kinds = dict(zip(_first_devices(len(layout.levels), grouping), held, strict=True))
        at_port = [layout.beside[level] * _heaviest(layout, grouping, level + 1, kinds) for level in levels]
        at_instance = []
        for level in levels:
            side = layout.system.counts[level] // layout.radices[level]
            at_instance.append(side * layout.beside[level] * _heaviest(layout, grouping, level, kinds))
        return at_port, at_instance

    def _phase(
        self,
        phase: Phase,
        outermost: int,
        at_port: list[float],
        at_instance: list[float],
        held: float,
        efficiency: float,
        work: float,
    ) -> PhaseCost:
        """`work` is what the processors have to do for all devices, in messages."""
        loads = []
        latency = 0.0
        for k, level in enumerate(self._from(outermost)):
            link = level.link
            latency += phase.messages[k] * link.latency
            if level.count == 1:
                continue
            assert link.bandwidth is not None
            amount, limit = self._load(phase, k, outermost + k, link, at_port[k], at_instance[k])
            seconds = amount / link.bandwidth / efficiency
            if link.per_device is not None:
                alone = inner_only(link)
                device = held * (phase.device_inner[k] if alone else phase.device[k])
                if device / link.per_device / efficiency > seconds:
                    amount, limit, seconds = device, "device", device / link.per_device / efficiency
            sharing = at_instance[k] if limit == "bus" else at_port[k]
            loads.append(Load(level.name, sharing / held, amount, seconds, limit))
        turns = 0.0
        if self.library.handshake and phase.round:  # in every turn, all wait for the slowest
            turns = sum(phase.messages)
            latency = turns * max(
                self._from(outermost)[k].link.latency for k, many in enumerate(phase.messages) if many
            )
        latency *= self.library.trips
        rate = self.layout.system.message_rate
        return PhaseCost(tuple(loads), latency, 0.0 if rate is None else work / rate, turns)

    def _load(
        self, phase: Phase, k: int, level: int, link: Link, at_port: float, at_instance: float
    ) -> tuple[float, str]:
        if link.fabric is Fabric.RING:
            return at_port * _busiest_link(phase, k, self.layout.columns[level]), "links"
        if link.fabric is Fabric.BUS:
            return at_instance * (phase.shared[k] + (0.0 if link.bypass else phase.outer[k])), "bus"
        return at_port * (phase.inner[k] if link.bypass else phase.port[k]), "port"


class AnyPayload:
    """The times of steps for any payload: loads grow with it, latencies do not. For a layout and a library."""

    def __init__(self, layout: Layout, library: Library) -> None:
        """Nothing is known yet."""
        self.unit, self.library = CostModel(layout, library, 1), library
        self._known: dict[tuple[Step, tuple[int, ...], Rule], list[list[tuple[float, float, float, float]]]] = {}

    def seconds(self, step: Step, sets: tuple[int, ...], payload: int) -> float:
        """The time of a step with so many bytes; `sets` is what `step_kind` gives."""
        held = payload * max(self.unit._held(levels) for levels in sets)
        rule = self.library.rule(step.collective, held)
        key = step, sets, rule
        if key not in self._known:
            self._known[key] = [
                [
                    (max(load.seconds for load in phase.loads), phase.processing, phase.latency, phase.turns)
                    for phase in option.phases
                ]
                for option in self.unit.options(step, sets, rule)
            ]
        options = self._known[key]
        return min(
            sum([_together(max(load * payload, work), latency, turns) for load, work, latency, turns in phases])
            for phases in options
        )


def step_kind(levels: int, state: State, step: Step) -> tuple[Step, tuple[int, ...]]:
    """What the time of a step taken in a state depends on: the step, and along which levels its groups are scattered.

    The latter is one set of levels, or one for each kind of group.
    """
    sets = tuple(scattered(state[z], levels) for z in _first_devices(levels, step.grouping))
    return step, sets[:1] if len(set(sets)) == 1 else sets


@lru_cache(maxsize=4096)
def _first_devices(levels: int, grouping: Grouping) -> tuple[int, ...]:
    """The symbolic index of the first device of each kind of group of a grouping."""
    over = range(grouping.first, grouping.last + 1)
    below = range(grouping.last + 1, levels)
    choices = [
        (True,) if level in over or (grouping.masters and level in below) else (True, False) for level in range(levels)
    ]
    return tuple(sum(1 << level for level, zero in enumerate(zeros) if zero) for zeros in product(*choices))


def _shape(layout: Layout, grouping: Grouping) -> tuple[int, Shape]:
    """The outermost level of the system that a group spans, and its fans from there down to the devices."""
    spanned = layout.levels[grouping.first : grouping.last + 1]
    outermost = spanned[0]
    fans = (layout.radices[level] if level in spanned else 1 for level in range(outermost, len(layout.radices)))
    return outermost, tuple(fans)


def _groups(layout: Layout, grouping: Grouping, level: int) -> int:
    """How many groups have members below one child of a level."""
    if grouping.masters:
        return layout.beside[level]
    outside = (layout.radices[k] for k in layout.levels[grouping.last + 1 :] if k > level)
    return layout.beside[level] * prod(outside)


def _all_groups(layout: Layout, grouping: Grouping) -> int:
    """How many groups there are in the whole system."""
    radices = [layout.radices[k] for k in layout.levels]
    inside = 1 if grouping.masters else prod(radices[grouping.last + 1 :])
    return layout.system.devices // prod(radices) * prod(radices[: grouping.first]) * inside


def _groups_inside(layout: Layout, grouping: Grouping, level: int) -> int:
    """How many groups have members inside one instance, that is below any of its children at the level."""
    spanned = level in layout.levels[grouping.first : grouping.last + 1]
    children = layout.system.counts[level] // (layout.radices[level] if spanned or grouping.masters else 1)
    return _groups(layout, grouping, level) * children


def _heaviest(layout: Layout, grouping: Grouping, level: int, kinds: dict[int, float]) -> float:
    """Held bytes, added up over the groups of one reduction group below a place; at the place where it is most.

    A place fixes the digits above `level`; kinds of groups differ by which of their digits are zero.
    """
    over = range(grouping.first, grouping.last + 1)
    free = [h for h, k in enumerate(layout.levels) if k >= level and h not in over]
    heaviest = 0.0
    totals: dict[tuple[bool, ...], float] = {}
    for kind, held in kinds.items():
        fixed = tuple(bool(kind >> h & 1) for h in range(len(layout.levels)) if h not in free)
        weight = prod(1 if kind >> h & 1 else layout.radices[layout.levels[h]] - 1 for h in free)
        totals[fixed] = totals.get(fixed, 0.0) + weight * held
        heaviest = max(heaviest, totals[fixed])
    return heaviest


@lru_cache(maxsize=65536)
def _busiest_link(phase: Phase, k: int, column: tuple[tuple[int, bool], ...]) -> float:
    """The most that any link between neighbours carries, for one group in each place, going the shorter way round."""
    count = prod(factor for factor, _ in column)
    if count > MAX_RING:
        raise TooLargeError(f"a ring of {count:,} children is too long to route; at most {MAX_RING:,} can be")
    # For each member of a group, where it is in each of the groups.
    within = [row for row, (_, reduced) in enumerate(column) if reduced]
    others = [row for row, (_, reduced) in enumerate(column) if not reduced]
    places = np.arange(count).reshape([factor for factor, _ in column]).transpose(within + others)
    places = places.reshape(prod(column[row][0] for row in within), -1)
    sends = list(phase.pairs(k))
    if not sends:
        return 0.0
    child, target, amount = (np.array(values) for values in zip(*sends, strict=True))
    a, b = places[child].reshape(-1), places[target].reshape(-1)
    amounts = np.repeat(amount, places.shape[1])
    ahead = (b - a) % count
    forward = ahead <= count - ahead
    loads = [
        _flows(a[forward], ahead[forward], amounts[forward], count),
        _flows(b[~forward], (count - ahead)[~forward], amounts[~forward], count),
    ]
    return float(max(load.max() for load in loads))


def _flows(start: _Whole, length: _Whole, amount: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """What each link of a ring carries, of amounts that go so many links far, the same way round."""
    # Where traffic begins and stops to flow, for two turns: summed up, what each link carries.
    changes = np.bincount(start, amount, 2 * count) - np.bincount(start + length, amount, 2 * count)
    turns = np.cumsum(changes)
    return turns[:count] + turns[count:]
