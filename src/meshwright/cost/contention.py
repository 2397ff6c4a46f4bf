"""Contention: how many groups of a step meet on one link, and how many bytes their members hold."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.traffic import Shape
from meshwright.language.program import Collective, Grouping, Step
from meshwright.language.symbolic import State, scattered
from meshwright.language.synthesis import ProgramGraph
from meshwright.placement.layout import Layout


class StepKind(NamedTuple):
    """What the time of a step taken in a state depends on.

    scattered: for each kind of group (see `first_devices`), the levels along which its members are scattered, as bits.
    """

    step: Step
    scattered: tuple[int, ...]


def step_kind(levels: int, state: State, step: Step) -> StepKind:
    """The kind of a step taken in a state of a hierarchy with `levels` levels."""
    return StepKind(step, tuple([scattered(state[z], levels) for z in first_devices(levels, step.grouping)]))


class Family(NamedTuple):
    """A kind of step, the number of its family, and the sets of levels along which groups are scattered, each once.

    The times of a family's kinds differ only by how much the devices hold. Where all groups hold the same, that is so
    for all kinds of the same step; where they do not, a kind is a family of its own.
    """

    kind: StepKind
    number: int
    along: tuple[int, ...]


def family_of(kind: StepKind) -> Family:
    """A kind of step as one of a family."""
    along = tuple(set(kind.scattered))
    key = kind.step, () if len(along) == 1 else kind.scattered
    return Family(kind, _FAMILIES.setdefault(key, len(_FAMILIES)), along)


def step_family(levels: int, state: State, step: Step) -> Family:
    """The kind of a step taken in a state, as one of a family."""
    return family_of(step_kind(levels, state, step))


_FAMILIES: dict[tuple[Step, tuple[int, ...]], int] = {}


class Families(Sequence[Family]):
    """Several kinds of steps, with what is the same for all layouts.

    along: the sets of levels along which groups are scattered, of all kinds one after the other; begins: for each kind,
    where they begin. of: for each collective, the numbers of its kinds. Two are equal if they are the same object.
    """

    def __init__(self, kinds: Iterable[Family]) -> None:
        self.kinds = tuple(kinds)
        many = [len(kind.along) for kind in self.kinds]
        self.along = np.array([levels for kind in self.kinds for levels in kind.along], dtype=np.int64)
        self.begins = np.cumsum(many, dtype=np.int64) - many
        self.collectives = [kind.kind.step.collective for kind in self.kinds]
        self.of: dict[Collective, list[int]] = {}
        for number, collective in enumerate(self.collectives):
            self.of.setdefault(collective, []).append(number)

    def __len__(self) -> int:
        return len(self.kinds)

    @overload
    def __getitem__(self, at: int) -> Family: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Family, ...]: ...
    def __getitem__(self, at: int | slice) -> Family | tuple[Family, ...]:
        return self.kinds[at]


def families_of(graph: ProgramGraph) -> tuple[Families, NDArray[np.int64]]:
    """The kinds of steps of a graph, and for each of its edges the number of its kind."""
    return graph.once(_families)


def _families(graph: ProgramGraph) -> tuple[Families, NDArray[np.int64]]:
    kinds, index = graph.kinds(step_family)
    return Families(kinds), index


@lru_cache(maxsize=4096)
def first_devices(levels: int, grouping: Grouping) -> tuple[int, ...]:
    """The symbolic index of the first device of each kind of group of a grouping.

    Kinds of groups differ by which of their digits are zero: outside the grouped levels a digit is zero or it is not.
    """
    over = range(grouping.first, grouping.last + 1)
    below = range(grouping.last + 1, levels)
    choices = [
        (True,) if level in over or (grouping.masters and level in below) else (True, False) for level in range(levels)
    ]
    return tuple(sum(1 << level for level, zero in enumerate(zeros) if zero) for zeros in product(*choices))


@dataclass(frozen=True, slots=True)
class Contention:
    """How the groups of one step share the links of a system.

    outermost: the outermost level of the system that a group spans. All tuples begin at that level, and go down to the
    devices. shape: into how many children of one instance a group fans out. groups: how many groups the system has.
    held: the most bytes that any device holds. at_port and at_instance: what one member of each group holds, added up
    over the groups that have members below one child, and over those that have members in one instance.
    """

    outermost: int
    shape: Shape
    groups: int
    held: float
    at_port: tuple[float, ...]
    at_instance: tuple[float, ...]


class Spread(NamedTuple):
    """What the contention of a grouping depends on beside the bytes that are held: fields as in `Contention`.

    ports, instances: how many groups have members below one child, and in one instance, where all groups are alike.
    """

    outermost: int
    shape: Shape
    groups: int
    ports: tuple[int, ...]
    instances: tuple[int, ...]


def spread(layout: Layout, grouping: Grouping) -> Spread:
    """How the groups of a grouping lie on a system."""
    counts, radices = layout.system.counts, layout.radices
    spanned = layout.levels[grouping.first : grouping.last + 1]
    inner = () if grouping.masters else layout.levels[grouping.last + 1 :]
    ports, instances = [], []
    inside = 1  # how many groups of one reduction group lie below one child
    for level in range(len(radices) - 1, spanned[0] - 1, -1):
        groups = layout.beside[level] * inside
        children = counts[level] // (radices[level] if level in spanned or grouping.masters else 1)
        ports.append(groups)
        instances.append(groups * children)
        inside *= radices[level] if level in inner else 1
    shape = tuple([radices[level] if level in spanned else 1 for level in range(spanned[0], len(radices))])
    return Spread(spanned[0], shape, _all_groups(layout, grouping), tuple(ports[::-1]), tuple(instances[::-1]))


def contention(layout: Layout, grouping: Grouping, over: Spread, held: Sequence[float]) -> Contention:
    """The contention of a grouping; `held` has the bytes of each kind of group (see `first_devices`)."""
    most = max(held)
    if min(held) == most:
        ports, instances = tuple([n * most for n in over.ports]), tuple([n * most for n in over.instances])
    else:
        ports, instances = _unlike(layout, grouping, held)
    return Contention(over.outermost, over.shape, over.groups, most, ports, instances)


Amounts = tuple[float, ...]


def _unlike(layout: Layout, grouping: Grouping, held: Sequence[float]) -> tuple[Amounts, Amounts]:
    """The bytes at the ports and in the instances when kinds of groups hold different amounts."""
    heaviest = _heaviest(layout, grouping, held)
    # For each level of the system, the number of the first level of the hierarchy that is not outside of it.
    first = [sum(at < level for at in layout.levels) for level in range(len(layout.radices) + 1)]
    ports, instances = [], []
    for level in range(layout.levels[grouping.first], len(layout.radices)):
        side = layout.system.counts[level] // layout.radices[level] * layout.beside[level]
        ports.append(layout.beside[level] * heaviest[first[level + 1]])
        instances.append(side * heaviest[first[level]])
    return tuple(ports), tuple(instances)


def _heaviest(layout: Layout, grouping: Grouping, held: Sequence[float]) -> list[float]:
    """Held bytes, added up over the groups of one reduction group below a place; at the place where it is most.

    A place fixes the digits above some level of the hierarchy; below it, a digit is zero in one child and not zero in
    all others. There is a result for each such level, and one for single devices.

    For example, a step across the pods of pod=2, node=2, gpu=3, where GPU 0 of each node holds 6 bytes and the others
    hold 12. There are four kinds of groups: node 0 or not, GPU 0 or not. Where the GPUs are not fixed, a place is a
    node: below it, there is one group of 6 bytes and two of 12 bytes, 30 bytes in all. Where all is fixed, a place is a
    single GPU: the heaviest holds 12 bytes.
    """
    places, others = _places(len(layout.levels), grouping)
    weights = np.array(layout.others)[others] * np.array(held)
    totals = np.bincount(places.ravel(), weights.ravel(), places.shape[0] << len(layout.levels))
    found: list[float] = totals.reshape(len(places), -1).max(axis=1).tolist()
    return found


@lru_cache(maxsize=4096)
def _places(levels: int, grouping: Grouping) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each level from which on digits are not fixed, and each kind of group: the number of its place, and as bits
    the levels in which its members differ from the first. The places of one such level have numbers of their own.
    """
    kinds = np.array(first_devices(levels, grouping))
    every = range(levels + 1)
    free = [sum(1 << k for k in range(first, levels) if not grouping.first <= k <= grouping.last) for first in every]
    places = [(kinds & ~bits) + (first << levels) for first, bits in zip(every, free, strict=True)]
    return np.array(places), np.array([bits & ~kinds for bits in free])


def _all_groups(layout: Layout, grouping: Grouping) -> int:
    """How many groups there are in the whole system."""
    radices = [layout.radices[k] for k in layout.levels]
    inside = 1 if grouping.masters else prod(radices[grouping.last + 1 :])
    return layout.system.devices // prod(radices) * prod(radices[: grouping.first]) * inside
