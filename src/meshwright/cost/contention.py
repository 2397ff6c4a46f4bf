"""Contention: how many groups of a step meet on one link, and how many bytes their members hold."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

from meshwright.cost.traffic import Shape
from meshwright.language.program import Grouping, Step
from meshwright.language.symbolic import State, scattered
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


def contention(
    layout: Layout, grouping: Grouping, scattered: tuple[int, ...], held: Callable[[int], float]
) -> Contention:
    """The contention of a grouping; `held` gives the bytes of a device that is scattered along some levels."""
    spanned = layout.levels[grouping.first : grouping.last + 1]
    outermost = spanned[0]
    levels = range(outermost, len(layout.radices))
    shape = tuple([layout.radices[level] if level in spanned else 1 for level in levels])
    alike = len(set(scattered)) == 1
    sizes = [held(scattered[0])] if alike else [held(along) for along in scattered]
    ports, instances = (
        _alike(layout, grouping, spanned, sizes[0])
        if alike
        else _unlike(layout, grouping, dict(zip(first_devices(len(layout.levels), grouping), sizes, strict=True)))
    )
    return Contention(outermost, shape, _all_groups(layout, grouping), max(sizes), ports, instances)


Amounts = tuple[float, ...]


def _alike(layout: Layout, grouping: Grouping, spanned: tuple[int, ...], held: float) -> tuple[Amounts, Amounts]:
    """The bytes at the ports and in the instances when all groups hold the same."""
    counts, radices = layout.system.counts, layout.radices
    inner = () if grouping.masters else layout.levels[grouping.last + 1 :]
    ports, instances = [], []
    inside = 1  # how many groups of one reduction group lie below one child
    for level in range(len(radices) - 1, spanned[0] - 1, -1):
        groups = layout.beside[level] * inside
        children = counts[level] // (radices[level] if level in spanned or grouping.masters else 1)
        ports.append(groups * held)
        instances.append(groups * children * held)
        inside *= radices[level] if level in inner else 1
    return tuple(ports[::-1]), tuple(instances[::-1])


def _unlike(layout: Layout, grouping: Grouping, kinds: dict[int, float]) -> tuple[Amounts, Amounts]:
    """The bytes at the ports and in the instances when kinds of groups hold different amounts."""
    ports, instances = [], []
    for level in range(layout.levels[grouping.first], len(layout.radices)):
        side = layout.system.counts[level] // layout.radices[level] * layout.beside[level]
        ports.append(layout.beside[level] * _heaviest(layout, grouping, level + 1, kinds))
        instances.append(side * _heaviest(layout, grouping, level, kinds))
    return tuple(ports), tuple(instances)


def _heaviest(layout: Layout, grouping: Grouping, level: int, kinds: dict[int, float]) -> float:
    """Held bytes, added up over the groups of one reduction group below a place; at the place where it is most.

    A place fixes the digits above `level`; below it, a digit is zero in one child and not zero in all others.

    For example, a step across the pods of pod=2, node=2, gpu=3, where GPU 0 of each node holds 6 bytes and the others
    hold 12. There are four kinds of groups: node 0 or not, GPU 0 or not. With `level` at the GPUs, a place is a node:
    below it, there is one group of 6 bytes and two of 12 bytes, 30 bytes in all. With `level` below the GPUs, a place
    is a single GPU: the heaviest holds 12 bytes.
    """
    free = 0
    for number, at in enumerate(layout.levels):
        if at >= level and not grouping.first <= number <= grouping.last:
            free |= 1 << number
    totals: dict[int, float] = {}
    for kind, held in kinds.items():
        totals[kind & ~free] = totals.get(kind & ~free, 0.0) + layout.others[free & ~kind] * held
    return max(totals.values())


def _all_groups(layout: Layout, grouping: Grouping) -> int:
    """How many groups there are in the whole system."""
    radices = [layout.radices[k] for k in layout.levels]
    inside = 1 if grouping.masters else prod(radices[grouping.last + 1 :])
    return layout.system.devices // prod(radices) * prod(radices[: grouping.first]) * inside
