"""Traffic: what one group sends at each level of the system, phase by phase, before any bandwidth.

A group's members are numbered in rank order. Its shape gives, for each level of the system from the outermost that the
group spans down to the devices, how many children of one instance hold members of it (1 where it does not fan out).
All amounts are in units of the bytes that a member holds before the step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from meshwright.language.program import Collective

Shape = tuple[int, ...]

EVERYONE = -1


class Sent(NamedTuple):
    """What one child of an instance sends to another, and which of the members below the two do.

    sender, receiver: their numbers below the child and below the other; or EVERYONE, each as much as the others.
    """

    child: int
    other: int
    amount: float
    sender: int = EVERYONE
    receiver: int = EVERYONE


Pairs = Iterator[Sent]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What flows at one level during a phase. A child's port joins it to its siblings.

    port: through the busiest child's port, in its busier direction: all traffic that enters or leaves the child.
    inner: the same without the traffic that enters or leaves the parent.
    shared: between the children of one instance, all together.
    outer: what `shared` grows by with the traffic into and out of an instance.
    device: through the port by the busiest single device.
    device_inner: the same without the traffic that enters or leaves the parent.
    messages: how many follow each other.
    """

    port: float
    inner: float
    shared: float
    outer: float
    device: float
    device_inner: float
    messages: float


@dataclass(frozen=True, eq=False)
class Phase:
    """Traffic that flows at the same time. Two phases are equal if they are the same object: they are cached.

    levels: the traffic of each level of the group's shape.
    pairs: for a level, who sends how much to whom among the children of one instance.
    sent: how many messages there are, of all members together; amount: what they carry, all together. They are taken to
    carry the same each.
    round: whether they go round a ring, where in every turn each member sends one.
    """

    levels: tuple[Traffic, ...]
    pairs: Callable[[int], Pairs]
    sent: float
    amount: float
    round: bool = False


Phases = tuple[Phase, ...]

Algorithm = Callable[[Collective, Shape, bool], Phases | None]
"""From a collective, a shape and whether the library rotates to phases, or None where the algorithm cannot be used.

Rotating means that rings and trees are laid so that all members of an instance take turns in leaving it.
"""


@lru_cache(maxsize=65536)
def inside(shape: Shape) -> tuple[int, ...]:
    """The members below one child, per level.

    >>> inside((4, 16))
    (16, 1)
    """
    return tuple(prod(shape[level + 1 :]) for level in range(len(shape)))


def hops(shape: Shape) -> tuple[float, ...]:
    """How often the path through all members in rank order crosses from child to child, per level.

    >>> hops((4, 16))
    (3.0, 60.0)
    """
    return tuple(float(prod(shape[:level]) * (fan - 1)) for level, fan in enumerate(shape))


MOST_LISTED = 2**12
"""Algorithms whose edges are listed one by one are not used in larger groups."""


class Edges:
    """Who sends to whom, as (member, member): each edge carries the same amount. Two are equal if they are the same.

    What they put on a level depends only on how many members there are below one child and in one instance, so it is
    counted once for all shapes in which these are the same.
    """

    def __init__(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.pairs = tuple(pairs)
        self.source, self.target = (np.array(ends) for ends in zip(*pairs, strict=True))
        self._known: dict[tuple[int, int], Traffic] = {}

    def traffic(self, below: int, instance: int) -> Traffic:
        """What the edges put on a level with `below` members below a child and `instance` in an instance, if each
        carries 1. messages: whether any of them leaves a child.
        """
        key = below, instance
        if key not in self._known:
            source, target = self.source, self.target
            leaves, stays = source // below != target // below, source // instance == target // instance
            internal, external = leaves & stays, ~stays
            shared = _most(source[internal] // instance)
            crossing = _most(np.concatenate([source[internal], source[external], target[external]]) // instance)
            self._known[key] = Traffic(
                port=max(_most(source[leaves] // below), _most(target[leaves] // below)),
                inner=max(_most(source[internal] // below), _most(target[internal] // below)),
                shared=shared,
                # Of the instance where it is most, beyond what stays inside the busiest: the two may differ.
                outer=crossing - shared,
                device=max(_most(source[leaves]), _most(target[leaves])),
                device_inner=max(_most(source[internal]), _most(target[internal])),
                messages=float(leaves.any()),
            )
        return self._known[key]


def listed(shape: Shape, edges: Edges, amount: float) -> Phase:
    """A phase from its edges, each carrying the same amount."""
    below = inside(shape)
    levels = [edges.traffic(b, b * fan) for b, fan in zip(below, shape, strict=True)]
    outermost = next(level for level, one in enumerate(levels) if one.messages)
    levels = [
        Traffic(
            *(amount * one.port, amount * one.inner, amount * one.shared, amount * one.outer),
            *(amount * one.device, amount * one.device_inner, float(level == outermost)),
        )
        for level, one in enumerate(levels)
    ]

    def pairs(level: int) -> Pairs:
        """Of the instance that has the most traffic."""
        b, w = below[level], below[level] * shape[level]
        here = [(s, t) for s, t in edges.pairs if s // b != t // b and s // w == t // w]
        busiest = _busiest([s // w for s, _ in here])
        for s, t in here:
            if s // w == busiest:
                yield Sent(s // b % shape[level], t // b % shape[level], amount, s % b, t % b)

    return Phase(tuple(levels), pairs, float(len(edges.pairs)), amount * len(edges.pairs))


def _most(values: np.ndarray) -> float:
    return float(np.bincount(values).max()) if len(values) else 0.0


def _busiest(values: list[int]) -> int:
    return max(set(values), key=values.count) if values else -1
