"""Time: how long a step and a program take, with all groups at once on the system's links.

A step runs in all groups of its grouping, in every reduction group of the system, at the same time. Groups that share
a port add up. The time of a phase is that of the most loaded link, plus its messages' latencies; phases, and steps,
follow each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.algorithms import phases, transfer_phase
from meshwright.cost.bound import bound
from meshwright.cost.contention import Contention, Family, StepKind, contention, family_of, step_kind
from meshwright.cost.library import Library, LibraryRule
from meshwright.cost.routing import busiest_line, busiest_link, completions
from meshwright.cost.traffic import Phase, Phases
from meshwright.errors import SpecError
from meshwright.language.goals import Goal
from meshwright.language.program import Collective, Grouping, Program, Step
from meshwright.language.symbolic import State, run_symbolically
from meshwright.placement.layout import Column, Layout, check_links, inner_only
from meshwright.system.model import Fabric


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


Work = TypeVar("Work", float, NDArray[np.float64])


def _together(work: Work, latency: float, turns: float) -> Work:
    """Work and latency add up, except in a ring with handshakes, where one half of a message is on its way while the
    other half waits for its handshake.

    For example, 4 turns with 20 us of work and 8 us of latency in all take 22 us: only the first turn's latency shows.
    With 2 us of work they take 9 us: the latency of all turns, and the half of the work that nothing hides.
    """
    if not turns:
        return work + latency
    return _longer(work / 2 + latency, work + latency / turns)


def _longer(one: Work | float, other: Work) -> Work:
    return max(one, other) if isinstance(other, float) else np.maximum(one, other)


@dataclass(frozen=True, slots=True)
class StepCost:
    """The time of a step, and where it goes; held: the most bytes that a device holds before it."""

    algorithm: str
    held: float
    phases: tuple[PhaseCost, ...]

    @property
    def seconds(self) -> float:
        """The phases follow each other."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def price(self) -> "Price":
        """The time of the step as a function of the bytes held."""
        works = [(phase.bottleneck.seconds, phase.processing, phase.latency, phase.turns) for phase in self.phases]
        if any(processing or turns for _, processing, _, turns in works):
            return Price(self.held, 0.0, 0.0, tuple(works))
        return Price(self.held, sum([work for work, *_ in works]), sum([latency for *_, latency, _ in works]), ())


class Price(NamedTuple):
    """What a step takes when a device holds `held` bytes, so that its time with any other number of bytes follows.

    The bytes of all groups grow together, so that the links' work grows with them, and latency does not. work, latency:
    of all phases that just add up; phases: the work, processing, latency and turns of each of the others.
    """

    held: float
    work: float
    latency: float
    phases: tuple[tuple[float, float, float, float], ...]

    def seconds(self, held: Work) -> Work:
        """The time when a device holds some bytes; or the times, where these are several numbers."""
        share = held / self.held
        found = share * self.work + self.latency
        for work, processing, latency, turns in self.phases:
            found += _together(_longer(processing, share * work), latency, turns)
        return found


class CostModel:
    """The times of steps and programs of one reduction: a layout, a library, and the bytes that each device holds."""

    def __init__(self, layout: Layout, library: Library, payload: int) -> None:
        """`payload` is the size of the whole tensor: what a device holds before an all-reduce."""
        check_links(layout.system)
        if payload <= 0:
            raise SpecError(f"the payload is {payload} bytes; expected a positive size, like 2GiB")
        self.layout, self.library, self.payload = layout, library, payload
        self._levels = layout.system.levels
        self._seconds: dict[StepKind, float] = {}
        self._held: dict[int, float] = {}
        self._prices: dict[tuple[int, int | None, tuple[Column, ...]], list[Price]] = {}
        self._rules = dict(library.rules)

    def at(self, layout: Layout, payload: int) -> "CostModel":
        """The model of another payload, and of a layout with the same radices. What either computes serves both."""
        other = CostModel(layout, self.library, payload)
        other._prices = self._prices
        return other

    def __call__(self, state: State, step: Step) -> float:
        """The seconds of a step taken in a state: the cost function for synthesis."""
        return self.kind_seconds(step_kind(len(self.layout.levels), state, step))

    def kind_seconds(self, kind: StepKind) -> float:
        """The seconds of all steps of a kind."""
        if kind not in self._seconds:
            (self._seconds[kind],) = self.all_seconds([family_of(kind)])
        return self._seconds[kind]

    def all_seconds(self, kinds: Sequence[Family]) -> list[float]:
        """The seconds of steps of several kinds."""
        found = []
        for kind, number, along in kinds:
            held = self.held(along)
            rule = self._rules[kind.step.collective][0]
            if rule.up_to is not None:
                rule = self.library.rule(kind.step.collective, held)
            key = number, rule.up_to, self._columns(kind.step.grouping)
            if key not in self._prices:
                self._prices[key] = [option.price for option in self.options(kind, rule)]
            prices = self._prices[key]
            found.append(prices[0].seconds(held) if len(prices) == 1 else min([each.seconds(held) for each in prices]))
        return found

    def step(self, state: State, step: Step) -> StepCost:
        """The time of a step taken in a state, and where it goes."""
        return self._step(step_kind(len(self.layout.levels), state, step))

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
        sharing = contention(self.layout, everyone, (0,), self._bytes)
        return self._cost(str(kind), (transfer_phase(kind, sharing.shape),), sharing, 1.0)

    def bound(self, goal: Goal = Goal.ALL_REDUCE) -> float:
        """No algorithm can be faster."""
        return bound(self.layout, goal, self.payload)

    def _bytes(self, scattered: int) -> float:
        """The bytes that a device holds when it is scattered along the given levels."""
        if scattered not in self._held:
            radices = self.layout.hierarchy.radices
            divisor = prod(radix for level, radix in enumerate(radices) if scattered >> level & 1)
            self._held[scattered] = self.payload / divisor
        return self._held[scattered]

    def held(self, along: Sequence[int]) -> float:
        """The most bytes that a device holds before a step whose groups are scattered along these sets of levels."""
        return self._bytes(along[0]) if len(along) == 1 else max([self._bytes(levels) for levels in along])

    def rule(self, kind: StepKind) -> LibraryRule:
        """The library's rule for a step of this kind."""
        return self.library.rule(kind.step.collective, self.held(kind.scattered))

    def _step(self, kind: StepKind) -> StepCost:
        """With the fastest of the algorithms that the library's rule allows."""
        return min(self.options(kind, self.rule(kind)), key=lambda option: option.seconds)

    def options(self, kind: StepKind, rule: LibraryRule) -> list[StepCost]:
        """A step of this kind with each of the algorithms that a rule allows."""
        collective = kind.step.collective
        sharing = contention(self.layout, kind.step.grouping, kind.scattered, self._bytes)
        for names in (rule.algorithms, rule.otherwise):
            found = [(name, self._phases(name, collective, sharing)) for name in names]
            options = [self._cost(name, each, sharing, rule.efficiency) for name, each in found if each is not None]
            if options:
                return options
        raise SpecError(
            f"the library {self.library.name!r} has no algorithm for {collective} in groups of shape {sharing.shape}: "
            "add one to 'otherwise' that can do any group, like ring"
        )

    def _columns(self, grouping: Grouping) -> tuple[Column, ...]:
        """The columns of the levels that a step's groups span: on others it sends nothing between neighbours."""
        levels = self.layout.levels
        return self.layout.columns[levels[grouping.first] : levels[grouping.last] + 1]

    def _phases(self, name: str, collective: Collective, sharing: Contention) -> Phases | None:
        if name == "switch" and not self._switches_reduce(sharing):
            return None
        return phases(name, collective, sharing.shape, self.library.rotates)

    def _switches_reduce(self, sharing: Contention) -> bool:
        """Whether the sum can be made in the switches alone, each passing on what it has added up to the next."""
        levels = self._levels[sharing.outermost :]
        spanned = [level.link for level, fan in zip(levels, sharing.shape, strict=True) if fan > 1]
        return all(link.reduces for link in spanned) and not any(link.bypass for link in spanned[1:])

    def _cost(self, name: str, found: Phases, sharing: Contention, efficiency: float) -> StepCost:
        rate = self.layout.system.message_rate
        levels = [k for k in range(sharing.outermost, len(self._levels)) if self._levels[k].count > 1]
        costs = []
        for number, phase in enumerate(found):
            # What the processors have to do for all devices, in messages: making the call is as much work as a message.
            work = sharing.groups * (phase.sent + (0 if number else prod(sharing.shape)))
            loads = tuple([self._load(phase, k, sharing, efficiency) for k in levels])
            latency, turns = self._latency(phase, sharing.outermost)
            costs.append(PhaseCost(loads, latency, 0.0 if rate is None else work / rate, turns))
        return StepCost(name, sharing.held, tuple(costs))

    def _load(self, phase: Phase, number: int, sharing: Contention, efficiency: float) -> Load:
        """The load of the level with the given number: the one formula of the time that links take."""
        level, k = self._levels[number], number - sharing.outermost
        link, traffic = level.link, phase.levels[k]
        assert link.bandwidth is not None
        shared = sharing.at_port[k]
        if link.fabric is Fabric.RING:
            columns = completions(self.layout.columns[number], level.count, self.layout.radices[number])
            amount, limit = shared * min([busiest_link(phase, k, column) for column in columns], default=0.0), "links"
        elif link.fabric is Fabric.BUS:
            shared = sharing.at_instance[k]
            amount, limit = shared * (traffic.shared + (0.0 if link.bypass else traffic.outer)), "bus"
        else:
            amount, limit = shared * (traffic.inner if link.bypass else traffic.port), "port"
        seconds = amount / link.bandwidth / efficiency
        if link.per_device is not None:
            if link.fabric is Fabric.RING:
                below = prod(sharing.shape[k + 1 :])
                single = min([busiest_line(phase, k, column, below) for column in columns], default=0.0)
            else:
                single = traffic.device_inner if inner_only(link) else traffic.device
            device = sharing.held * single
            alone = device / link.per_device / efficiency
            if alone > seconds * (1 + 1e-12):  # not where the two are equal but for rounding
                return Load(level.name, sharing.at_port[k] / sharing.held, device, alone, "device")
        return Load(level.name, shared / sharing.held, amount, seconds, limit)

    def _latency(self, phase: Phase, outermost: int) -> tuple[float, float]:
        """The latencies of a phase's messages, added up, and its turns (see `PhaseCost`)."""
        each = [
            (at.messages, level.link.latency) for at, level in zip(phase.levels, self._levels[outermost:], strict=True)
        ]
        if self.library.handshake and phase.round:  # in every turn, all wait for the slowest
            turns = sum([messages for messages, _ in each])
            return turns * max([latency for messages, latency in each if messages]) * self.library.trips, turns
        return sum([messages * latency for messages, latency in each]) * self.library.trips, 0.0
