"""Time: how long a step and a program take, with all groups at once on the system's links.

A step runs in all groups of its grouping, in every reduction group of the system, at the same time. Groups that share
a port add up. The time of a phase is that of the most loaded link, plus its messages' latencies; phases, and steps,
follow each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import NamedTuple

import numpy as np

from meshwright.cost.algorithms import phases, transfer_phase
from meshwright.cost.bound import bound
from meshwright.cost.contention import (
    Contention,
    Families,
    Family,
    Spread,
    StepKind,
    contention,
    family_of,
    spread,
    step_kind,
)
from meshwright.cost.forecasts import Seen
from meshwright.cost.library import Library, LibraryRule, chosen
from meshwright.cost.loads import Entry, Values, filling, loads, together
from meshwright.cost.prices import Priced, Prices, priced
from meshwright.cost.traffic import Phases, Shape
from meshwright.errors import SpecError
from meshwright.language.goals import Goal
from meshwright.language.program import Collective, Grouping, Program, Step
from meshwright.language.symbolic import State, run_symbolically
from meshwright.placement.layout import Column, Layout, check_links
from meshwright.system.model import Fabric


@dataclass(frozen=True, slots=True)
class Load:
    """What one phase puts on the links of one level.

    groups: how many groups share the busiest port (or the bus); bytes: what they put on it, with all that goes with
    their messages; limit: what sets the time: the `port`, the `bus`, the `links` of a ring, or one `device`.
    """

    level: str
    groups: float
    bytes: float
    seconds: float
    limit: str


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """The loads of one phase by level, outermost first, its latency, and what the processors take for all messages.

    first: the latency that nothing hides; apart: the share of the loads in which nothing else is on its way; message:
    the latency that nothing hides where chunks flow (see `together`). filling: the seconds until the first piece has
    come down a line of members that hand on pieces.
    """

    loads: tuple[Load, ...]
    latency: float
    processing: float
    first: float
    apart: float
    message: float
    filling: float

    @property
    def seconds(self) -> float:
        """The most loaded link or the processors, whichever take longer, the latency, and the first piece."""
        work = max(self.processing, *(load.seconds for load in self.loads))
        return float(together(*np.array([work, self.latency, self.first, self.apart]))) + self.filling

    @property
    def bottleneck(self) -> Load:
        """The most loaded link."""
        return max(self.loads, key=lambda load: load.seconds)


@dataclass(frozen=True, slots=True)
class StepCost:
    """The time of a step, and where it goes.

    held: the most bytes that a device holds before it. call: seconds of a rank's own time for making the call, before
    the phases.
    """

    algorithm: str
    held: float
    phases: tuple[PhaseCost, ...]
    call: float = 0.0

    @property
    def seconds(self) -> float:
        """The phases follow each other."""
        return self.call + sum(phase.seconds for phase in self.phases)


class Options(NamedTuple):
    """The algorithms that a rule of a library allows for a step, with the loads that tell what each of them takes."""

    algorithms: list[str]
    entries: list[Entry]


class CostModel:
    """The times of steps and programs of one reduction: a layout, a library, and the bytes that each device holds."""

    def __init__(self, layout: Layout, library: Library, payload: int) -> None:
        """`payload` is the size of the whole tensor: what a device holds before an all-reduce."""
        check_links(layout.system)
        if payload <= 0:
            raise SpecError(f"the payload is {payload} bytes; expected a positive size, like 2GiB")
        self.layout, self.library, self.payload = layout, library, payload
        self._levels, self._rings = layout.system.levels, layout.system.order_matters
        self._seconds: dict[StepKind, float] = {}
        self._priced: dict[tuple[int, LibraryRule, tuple[Column, ...]], Priced] = {}
        # With the rules, so that these are kept as long as their ids are known.
        self._prices: dict[tuple[Families, tuple[int, ...], tuple[Column, ...]], tuple[Prices, object]] = {}
        self._spreads: dict[Grouping, Spread] = {}
        self._choices: dict[tuple[Collective, Grouping], list[tuple[int | None, LibraryRule]]] = {}
        self._rules = dict(library.rules)

    def at(self, layout: Layout, payload: int) -> "CostModel":
        """The model of another payload, and of a layout with the same radices. What either computes serves both."""
        other = CostModel(layout, self.library, payload)
        other._priced, other._prices, other._spreads = self._priced, self._prices, self._spreads
        other._choices = self._choices
        return other

    def __call__(self, state: State, step: Step) -> float:
        """The seconds of a step taken in a state: the cost function for synthesis."""
        return self.kind_seconds(step_kind(len(self.layout.levels), state, step))

    def kind_seconds(self, kind: StepKind) -> float:
        """The seconds of all steps of a kind."""
        if kind not in self._seconds:
            self._seconds[kind] = float(self.all_seconds([family_of(kind)])[0])
        return self._seconds[kind]

    def all_seconds(self, kinds: Sequence[Family]) -> Values:
        """The seconds of steps of several kinds."""
        if not kinds:
            return np.zeros(0)
        families = kinds if isinstance(kinds, Families) else Families(kinds)
        held = self.all_held(families)
        prices = self.prices(families, self.rules(families, held))
        found: Values = np.minimum.reduceat(prices.seconds(held), prices.begins)
        return found

    def all_held(self, kinds: Families) -> Values:
        """The most bytes that a device holds before a step of each kind."""
        held = np.array([self.payload / divisor for divisor in self.layout.divisors])
        found: Values = np.maximum.reduceat(held[kinds.along], kinds.begins)
        return found

    def rules(self, kinds: Families, held: Values) -> list[LibraryRule]:
        """The library's rule for each of some kinds of steps, when devices hold these bytes."""
        first = {collective: rules[0] for collective, rules in self._rules.items()}
        found = [first[collective] for collective in kinds.collectives]
        for collective, numbers in kinds.of.items():
            if len(self._rules[collective]) > 1:
                for number in numbers:
                    found[number] = chosen(
                        self.choices(collective, kinds[number].kind.step.grouping), float(held[number])
                    )
        return found

    def prices(self, kinds: Families, rules: Sequence[LibraryRule]) -> Prices:
        """The times of steps of several kinds, each under one of the library's rules."""
        key = kinds, tuple([id(rule) for rule in rules]), self.layout.columns
        if key not in self._prices:
            self._prices[key] = Prices.joined(self._all_priced(kinds, rules)), rules
        return self._prices[key][0]

    def _all_priced(self, kinds: Families, rules: Sequence[LibraryRule]) -> list[Priced]:
        keys = [
            (kind.number, rule, self._columns(kind.kind.step.grouping)) for kind, rule in zip(kinds, rules, strict=True)
        ]
        missing = {key: kind.kind for key, kind in zip(keys, kinds, strict=True) if key not in self._priced}
        if missing:
            # Of one byte, so that prices do not depend on which payload is asked for first.
            options = [self._options(kind, rule, 1) for (_, rule, _), kind in missing.items()]
            found = loads(self.layout, self.library, [entry for each in options for entry in each.entries])
            held = [each.entries[0].sharing.held for each in options]
            every = priced(found, [each.algorithms for each in options], held)
            self._priced.update(zip(missing, every, strict=True))
        return [self._priced[key] for key in keys]

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
        sharing = contention(self.layout, everyone, self._spread(everyone), [float(self.payload)])
        (cost,) = self._costs(Options([str(kind)], [Entry((transfer_phase(kind, sharing.shape),), sharing, 1.0)]))
        return cost

    def bound(self, goal: Goal = Goal.ALL_REDUCE) -> float:
        """No algorithm can be faster."""
        return bound(self.layout, goal, self.payload)

    def rule(self, kind: StepKind) -> LibraryRule:
        """The library's rule for a step of this kind."""
        held = float(self.all_held(Families([family_of(kind)]))[0])
        return chosen(self.choices(kind.step.collective, kind.step.grouping), held)

    def choices(self, collective: Collective, grouping: Grouping) -> list[tuple[int | None, LibraryRule]]:
        """The library's rules for a collective in the groups of a grouping, with the most bytes held under each."""
        key = collective, grouping
        if key not in self._choices:
            self._choices[key] = self.library.choices(collective, self._seen(grouping))
        return self._choices[key]

    def _step(self, kind: StepKind) -> StepCost:
        """With the fastest of the algorithms that the library's rule allows."""
        return min(self.options(kind, self.rule(kind)), key=lambda option: option.seconds)

    def options(self, kind: StepKind, rule: LibraryRule) -> list[StepCost]:
        """A step of this kind with each of the algorithms that a rule allows."""
        return self._costs(self._options(kind, rule, self.payload))

    def _options(self, kind: StepKind, rule: LibraryRule, payload: int) -> Options:
        collective = kind.step.collective
        grouping, scattered = kind.step.grouping, kind.scattered
        # Mostly all groups hold the same.
        sets = scattered if len(set(scattered)) > 1 else scattered[:1]
        held = [payload / self.layout.divisors[levels] for levels in sets]
        sharing = contention(self.layout, grouping, self._spread(grouping), held)
        for names in (rule.algorithms, rule.otherwise):
            found = {name: self._phases(name, collective, sharing) for name in names}
            entries = {
                name: Entry(each, sharing, rule.efficiency, rule.piece, rule.posted)
                for name, each in found.items()
                if each is not None
            }
            if entries:
                return Options(list(entries), list(entries.values()))
        raise SpecError(
            f"the library {self.library.name!r} has no algorithm for {collective} in groups of shape {sharing.shape}: "
            "add one to 'otherwise' that can do any group, like ring"
        )

    def _spread(self, grouping: Grouping) -> Spread:
        if grouping not in self._spreads:
            self._spreads[grouping] = spread(self.layout, grouping)
        return self._spreads[grouping]

    def _seen(self, grouping: Grouping) -> Seen:
        """What the library knows of a group: not that others share its links, nor what is beyond the nodes' ports."""
        outermost, shape, *_ = self._spread(grouping)
        fans = [1] * outermost + list(shape)
        several = [(level.link, fan) for level, fan in zip(self._levels, fans, strict=True) if level.count > 1]
        *network, (own, members) = several
        nodes = prod(fan for _, fan in network)
        inside, between = own.bandwidth if members > 1 else None, inf
        for card, _ in network[-1:]:
            between = min(card.bandwidth or inf, members * (card.per_device or inf))
        some = SWITCHED[: 0 if members < 3 else 1 if nodes == 1 else 2]  # for two GPUs a library asks no switch
        switches = frozenset(name for name in some if self._switches_reduce(outermost, shape, name == "switch"))
        return Seen(nodes * members, nodes, inside or inf, between, switches)

    def _columns(self, grouping: Grouping) -> tuple[Column, ...]:
        """The columns of the levels that a step's groups span: on others it sends nothing between neighbours."""
        if not self._rings:
            return ()
        levels = self.layout.levels
        return self.layout.columns[levels[grouping.first] : levels[grouping.last] + 1]

    def _phases(self, name: str, collective: Collective, sharing: Contention) -> Phases | None:
        if name in SWITCHED and not self._switches_reduce(sharing.outermost, sharing.shape, name == "switch"):
            return None
        return phases(name, collective, sharing.shape, self.library.rotates)

    def _switches_reduce(self, outermost: int, shape: Shape, whole: bool) -> bool:
        """Whether sums can be made in the switches, each passing on what it has added up to the next: that of the whole
        group, or those of the members in each of the outermost instances that it spans."""
        levels = zip(self._levels[outermost:], shape, strict=True)
        spanned = [level.link for level, fan in levels if fan > 1][0 if whole else 1 :]
        return bool(spanned) and all(link.reduces for link in spanned) and not any(link.bypass for link in spanned[1:])

    def _costs(self, options: Options) -> list[StepCost]:
        """The times of steps, and where they go."""
        found = loads(self.layout, self.library, options.entries)
        fill = filling(np.array(options.entries[0].sharing.held), found.piece, found.hops)
        costs, number = [], 0
        for name, entry in zip(options.algorithms, options.entries, strict=True):
            each = []
            for phase in range(number, number + len(entry.phases)):
                held, whole = entry.sharing.held, 1 + found.header_share[phase]
                on_links = [
                    Load(
                        self._levels[k].name,
                        float(found.shared[phase, k]) / held,
                        float(found.bytes[phase, k] * whole),
                        float(found.seconds[phase, k] * whole),
                        "device" if found.alone[phase, k] else _LIMITS[self._levels[k].link.fabric],
                    )
                    for k in range(entry.sharing.outermost, len(self._levels))
                    if self._levels[k].count > 1
                ]
                by_phase = (
                    float(of[phase])
                    for of in (found.latency, found.processing, found.first, found.apart, found.message, fill)
                )
                each.append(PhaseCost(tuple(on_links), *by_phase))
            costs.append(StepCost(name, entry.sharing.held, tuple(each), float(found.call[number])))
            number += len(entry.phases)
        return costs


SWITCHED = ("switch", "switch-tree")
"""The algorithms for which switches have to add up."""

_LIMITS = {Fabric.RING: "links", Fabric.BUS: "bus", Fabric.SWITCH: "port"}
"""What sets the time on the links of each fabric, unless a single device does."""
