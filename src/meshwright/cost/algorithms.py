"""What the algorithms behind the collectives send, by level: the traffic of one group, before any bandwidth.

A group's members are numbered in rank order. Its shape gives, for each level of the system from the outermost that the
group spans down to the devices, how many children of one instance hold members of it (1 where it does not fan out). An
algorithm is a sequence of phases; within a phase everything flows at the same time. All amounts are in units of the
bytes that a member holds before the step.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import prod

import numpy as np

from meshwright.language.goals import Goal
from meshwright.language.program import ROOTED, Collective

Shape = tuple[int, ...]

Pairs = Iterator[tuple[int, int, float]]


@dataclass(frozen=True)
class Phase:
    """Traffic that flows at the same time, per level. A child's port joins it to its siblings.

    port: through the busiest child's port, in its busier direction: all traffic that enters or leaves the child.
    inner: the same without the traffic that enters or leaves the parent.
    shared: between the children of one instance, all together.
    outer: what `shared` grows by with the traffic into and out of an instance.
    device: through the port by the busiest single device.
    device_inner: the same without the traffic that enters or leaves the parent.
    pairs: for a level, who sends how much to whom among the children of one instance, as (child, child, amount).
    messages: how many follow each other.
    sent: how many there are, of all members together.
    round: whether they go round a ring, where in every turn each member sends one.
    """

    port: tuple[float, ...]
    inner: tuple[float, ...]
    shared: tuple[float, ...]
    outer: tuple[float, ...]
    device: tuple[float, ...]
    device_inner: tuple[float, ...]
    pairs: Callable[[int], Pairs]
    messages: tuple[float, ...]
    sent: float
    round: bool = False


@cache
def phases(algorithm: str, collective: Collective, shape: Shape, rotates: bool) -> tuple[Phase, ...] | None:
    """The phases of an algorithm, or None where it cannot do this collective in a group of this shape.

    `rotates`: rings and trees are laid so that all members of an instance take turns in leaving it.

    >>> [phase.port for phase in phases("ring", Collective.ALL_REDUCE, (4, 16), rotates=False)]
    [(1.96875, 1.96875)]
    """
    return ALGORITHMS[algorithm](collective, shape, rotates)


def inside(shape: Shape) -> tuple[int, ...]:
    """The members below one child, per level.

    >>> inside((4, 16))
    (16, 1)
    """
    return tuple(prod(shape[level + 1 :]) for level in range(len(shape)))


def _hops(shape: Shape) -> tuple[float, ...]:
    """How often the path through all members in rank order crosses from child to child, per level."""
    return tuple(float(prod(shape[:level]) * (fan - 1)) for level, fan in enumerate(shape))


def _cycle(shape: Shape) -> tuple[float, ...]:
    """The hops of the slowest chunk on its way round a ring: all edges but one of the innermost."""
    hops = list(_hops(shape))
    innermost = max(level for level, fan in enumerate(shape) if fan > 1)
    hops[0] += 1
    hops[innermost] -= 1
    return tuple(hops)


def _ring(collective: Collective, shape: Shape, rotates: bool) -> tuple[Phase, ...]:
    """One ring in rank order, pipelined: it enters and leaves every instance once. Rooted: a ring less one edge.

    With `rotates`, there are many rings that share the payload, one for each way to turn the order of the children at
    the levels below the first, so that each member has its turn in leaving an instance. A root stays where it is.
    """
    size = prod(shape)
    edge, rounds = {
        Collective.ALL_REDUCE: (2 * (size - 1) / size, 2.0),
        Collective.REDUCE_SCATTER: ((size - 1) / size, 1.0),
        Collective.ALL_GATHER: (float(size - 1), 1.0),
        Collective.REDUCE: (1.0, 1.0),
        Collective.BROADCAST: (1.0, 1.0),
    }[collective]
    closed = collective not in ROOTED
    rotates = rotates and closed
    # Turned rings leave an instance once in so many turns instead of passing on to the next child.
    stay = tuple((fan - 1) / fan if rotates and level > 0 else float(fan > 1) for level, fan in enumerate(shape))
    alone = tuple(1 / members if rotates else 1.0 for members in inside(shape))

    def pairs(level: int) -> Pairs:
        around = rotates or (level == 0 and closed)
        for child in range(shape[level] if around and shape[level] > 1 else shape[level] - 1):
            yield child, (child + 1) % shape[level], edge * stay[level]

    return (
        Phase(
            port=(edge,) * len(shape),
            inner=tuple(edge * s for s in stay),
            shared=tuple(edge * (fan - 1 + (level == 0 and closed)) for level, fan in enumerate(shape)),
            outer=tuple(edge * _ends(prod(shape[:level]), closed) for level in range(len(shape))),
            device=tuple(edge * a for a in alone),
            device_inner=tuple(edge * s * a for s, a in zip(stay, alone, strict=True)),
            pairs=pairs,
            messages=tuple(rounds * hops for hops in (_cycle(shape) if closed else _hops(shape))),
            sent=rounds * (size - 1) * size if closed else size - 1.0,
            round=closed,
        ),
    )


def _two_way_ring(collective: Collective, shape: Shape, rotates: bool) -> tuple[Phase, ...] | None:
    """Half of the payload round the ring each way, so that links between neighbours carry as much either way."""
    if collective in ROOTED:
        return None
    (one_way,) = _ring(collective, shape, rotates)
    edge, below = one_way.port[0], inside(shape)
    inner, device, device_inner = one_way.inner, one_way.device, one_way.device_inner
    if not rotates:
        # A child passes on one half each way; of two children in an outer ring, each only to the other.
        halves = [2, *(min(fan - 1, 2) for fan in shape[1:])]
        inner = tuple(edge / 2 * half for half in halves)
        device = tuple(edge if members == 1 else edge / 2 for members in below)
        device_inner = tuple(min(d, i) for d, i in zip(device, inner, strict=True))

    def pairs(level: int) -> Pairs:
        for child, other, amount in one_way.pairs(level):
            yield child, other, amount / 2
            yield other, child, amount / 2

    sent = 2 * one_way.sent
    return (replace(one_way, inner=inner, device=device, device_inner=device_inner, pairs=pairs, sent=sent),)


def _ends(instances: int, closed: bool) -> int:
    """How many edges of the ring join one of the instances to the others, at most."""
    return min(2, instances if closed and instances > 1 else instances - 1)


def _direct(collective: Collective, shape: Shape, _rotates: bool) -> tuple[Phase, ...] | None:
    """Everyone sends to everyone at once."""
    size = prod(shape)
    if collective in ROOTED:
        return None
    amount = 1.0 if collective is Collective.ALL_GATHER else 1 / size
    below = inside(shape)
    within = tuple(b * fan for b, fan in zip(below, shape, strict=True))

    def pairs(level: int) -> Pairs:
        for child in range(shape[level]):
            for other in range(shape[level]):
                if child != other:
                    yield child, other, below[level] ** 2 * amount

    phase = Phase(
        port=tuple(b * (size - b) * amount for b in below),
        inner=tuple(b * (w - b) * amount for b, w in zip(below, within, strict=True)),
        shared=tuple(w * (w - b) * amount for b, w in zip(below, within, strict=True)),
        outer=tuple(2 * w * (size - w) * amount for w in within),
        device=tuple((size - b) * amount for b in below),
        device_inner=tuple((w - b) * amount for b, w in zip(below, within, strict=True)),
        pairs=pairs,
        messages=_one_message(shape, 0),
        sent=size * (size - 1.0),
    )
    # An all-reduce gathers as much as it scattered.
    return (phase, phase) if collective is Collective.ALL_REDUCE else (phase,)


@cache
def transfer_phase(kind: Goal, shape: Shape) -> Phase:
    """What a transfer sends, as one phase.

    All-to-all: everyone has a part for everyone, all at once; a member's messages leave one after the other.
    Point-to-point: everyone sends what it holds to the next member, the last one to nobody.
    """
    if kind is Goal.ALL_TO_ALL:
        found = _direct(Collective.REDUCE_SCATTER, shape, False)
        assert found is not None
        below = inside(shape)
        return replace(found[0], messages=tuple(float(b * (fan - 1)) for b, fan in zip(below, shape, strict=True)))
    (chain,) = _ring(Collective.BROADCAST, shape, False)
    return replace(chain, messages=_one_message(shape, 0))


def _one_message(shape: Shape, level: int) -> tuple[float, ...]:
    return tuple(float(k == level) for k in range(len(shape)))


def _exchange(shape: Shape, level: int, distance: int, amount: float) -> Phase:
    """Everyone swaps `amount` with the member whose child at one level is `distance` away, by flipping that bit."""
    below = inside(shape)
    at = tuple(k >= level for k in range(len(shape)))

    def pairs(where: int) -> Pairs:
        if where == level:
            for child in range(shape[level]):
                yield child, child ^ distance, below[level] * amount

    return Phase(
        port=tuple(b * amount if active else 0.0 for b, active in zip(below, at, strict=True)),
        inner=tuple(below[k] * amount if k == level else 0.0 for k in range(len(shape))),
        shared=tuple(shape[k] * below[k] * amount if k == level else 0.0 for k in range(len(shape))),
        outer=tuple(2 * shape[k] * below[k] * amount if k > level else 0.0 for k in range(len(shape))),
        device=tuple(amount if active else 0.0 for active in at),
        device_inner=tuple(amount if k == level else 0.0 for k in range(len(shape))),
        pairs=pairs,
        messages=_one_message(shape, level),
        sent=float(prod(shape)),
    )


def _rounds(shape: Shape) -> list[tuple[int, int]] | None:
    """The (level, distance) of each round of a butterfly, nearest first; None if a fan is not a power of two."""
    if any(fan & (fan - 1) for fan in shape):
        return None
    return [
        (level, 1 << bit) for level in range(len(shape) - 1, -1, -1) for bit in range(shape[level].bit_length() - 1)
    ]


def _recursive(collective: Collective, shape: Shape, _rotates: bool) -> tuple[Phase, ...] | None:
    """Recursive halving and doubling: half to the nearest, a quarter to the next, …; gathering in reverse."""
    rounds = _rounds(shape)
    if rounds is None or collective in ROOTED:
        return None
    halving = [_exchange(shape, level, d, 0.5 ** (k + 1)) for k, (level, d) in enumerate(rounds)]
    if collective is Collective.REDUCE_SCATTER:
        return tuple(halving)
    if collective is Collective.ALL_REDUCE:
        return tuple(halving + halving[::-1])
    size = prod(shape)
    return tuple(_exchange(shape, level, d, size * 0.5 ** (k + 1)) for k, (level, d) in enumerate(rounds))[::-1]


def _halving(collective: Collective, shape: Shape, rotates: bool) -> tuple[Phase, ...] | None:
    """Recursive halving as most libraries order it: half to the farthest first; gathering in reverse.

    A ring where a fan is not a power of two.
    """
    rounds = _rounds(shape)
    if collective not in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER):
        return None
    if rounds is None:
        return _ring(collective, shape, rotates)
    amounts = [0.5 ** (k + 1) for k in range(len(rounds))]
    if collective is Collective.REDUCE_SCATTER:
        return tuple(_exchange(shape, *at, amount) for at, amount in zip(rounds[::-1], amounts, strict=True))
    size = prod(shape)
    return tuple(_exchange(shape, *at, size * amount) for at, amount in zip(rounds, amounts[::-1], strict=True))


def _reduce_and_scatter(collective: Collective, shape: Shape, _rotates: bool) -> tuple[Phase, ...] | None:
    """In groups of two or three: everyone sends all to the first, which adds up and sends each its part."""
    size = prod(shape)
    if collective is not Collective.REDUCE_SCATTER or size > 3:
        return None
    others = range(1, size)
    return (
        _explicit(shape, [(member, 0) for member in others], 1.0),
        _explicit(shape, [(0, member) for member in others], 1 / size),
    )


def _doubling(collective: Collective, shape: Shape, _rotates: bool) -> tuple[Phase, ...] | None:
    """Recursive doubling: everyone swaps everything with the nearest, then with the next, …; few messages."""
    rounds = _rounds(shape)
    if rounds is None or collective is not Collective.ALL_REDUCE:
        return None
    return tuple(_exchange(shape, level, distance, 1.0) for level, distance in rounds)


def _tree(collective: Collective, shape: Shape, _rotates: bool) -> tuple[Phase, ...] | None:
    """A double binary tree between the outermost instances, a chain through the members inside each, pipelined.

    As in NCCL. Several of them are laid so that every instance and every member takes every role in turn, so what
    counts is the average over all rotations of the trees and of the chains. A root could not take turns.
    """
    if collective is not Collective.ALL_REDUCE:
        return None
    outermost, members = shape[0], prod(shape[1:])
    between = 2 * (outermost - 1) / outermost
    # What one link of the chain carries each way; a rotation breaks each link of the cycle once.
    link = 1 - 1 / members
    chain_level = next((k for k in range(1, len(shape)) if shape[k] > 1), len(shape))
    below = inside(shape)
    rows: list[tuple[float, ...]] = []
    for level, fan in enumerate(shape):
        share = below[level] / members
        if level == 0:
            rows.append((between, between, between * outermost, 0.0, between / members, between / members))
        elif level < chain_level:
            rows.append((between, 0.0, 0.0, 2 * between, between / members, 0.0))
        else:
            # Down the chain to the next child, and up to the previous one.
            around = level == chain_level
            neighbours = 2 if around or fan > 2 else 1
            single = 2 * link if below[level] == 1 else link
            rows.append(
                (
                    2 * link + between * share,
                    neighbours * link if fan > 1 else 0.0,
                    2 * link * (fan - 1 + around) if fan > 1 else 0.0,
                    2 * between * share * fan + (0.0 if around else 4 * link),
                    single + between / members,
                    min(single, neighbours * link) if fan > 1 else 0.0,
                )
            )

    def pairs(level: int) -> Pairs:
        fan = shape[level]
        if level == 0:
            for parent, child in double_tree(outermost):
                for turn in range(outermost):
                    a, b = (parent + turn) % outermost, (child + turn) % outermost
                    yield a, b, 0.5 / outermost
                    yield b, a, 0.5 / outermost
        else:
            for child in range(fan if level == chain_level and fan > 1 else fan - 1):
                following = (child + 1) % fan
                yield child, following, link
                yield following, child, link

    depth = float((outermost - 1).bit_length())
    chain = _hops((1, *shape[1:]))
    messages = tuple(2 * (depth if level == 0 else chain[level]) for level in range(len(shape)))
    return (_phase(rows, pairs, messages, 4.0 * (prod(shape) - 1)),)


def _phase(
    rows: list[tuple[float, ...]], pairs: Callable[[int], Pairs], messages: tuple[float, ...], sent: float
) -> Phase:
    """A phase from one row per level, in the order of its fields."""
    port, inner, shared, outer, device, device_inner = zip(*rows, strict=True)
    return Phase(port, inner, shared, outer, device, device_inner, pairs, messages, sent)


def double_tree(size: int) -> list[tuple[int, int]]:
    """The (parent, child) edges of two binary trees on `size` nodes; each carries half of the payload.

    The first is the in-order tree; the second the same shifted by one, so that inner nodes of one are mostly leaves of
    the other.
    """

    def in_order(low: int, high: int) -> tuple[int, list[tuple[int, int]]]:
        step = 1
        while 2 * step <= high - low + 1:
            step *= 2
        root = low + step - 1
        edges = []
        for a, b in ((low, root - 1), (root + 1, high)):
            if a <= b:
                child, below = in_order(a, b)
                edges += [(root, child), *below]
        return root, edges

    _, first = in_order(0, size - 1)
    return first + [((a + 1) % size, (b + 1) % size) for a, b in first]


def _switch(collective: Collective, shape: Shape, _rotates: bool) -> tuple[Phase, ...] | None:
    """The switches add up: every child sends what its members have in sum up once, and gets the total back once."""
    if collective is not Collective.ALL_REDUCE:
        return None
    spanned = tuple(float(fan > 1) for fan in shape)
    device = tuple(1 / members for members in inside(shape))

    def pairs(_level: int) -> Pairs:
        return iter(())

    return (
        Phase(
            port=(1.0,) * len(shape),
            inner=spanned,
            shared=tuple(2.0 * fan * here for fan, here in zip(shape, spanned, strict=True)),
            outer=tuple(2.0 * (1 - here) for here in spanned),
            device=device,
            device_inner=tuple(d * here for d, here in zip(device, spanned, strict=True)),
            pairs=pairs,
            messages=tuple(2 * here for here in spanned),
            sent=2.0 * prod(shape),
        ),
    )


def _explicit(shape: Shape, edges: list[tuple[int, int]], amount: float) -> Phase:
    """A phase from its edges (member, member), each carrying the same amount."""
    source, target = (np.array(ends) for ends in zip(*edges, strict=True))
    below = inside(shape)
    rows = []
    outermost = next(level for level, b in enumerate(below) if (source // b != target // b).any())
    for level, fan in enumerate(shape):
        b, w = below[level], below[level] * fan
        leaves, stays = source // b != target // b, source // w == target // w
        internal, external = leaves & stays, ~stays
        rows.append(
            (
                max(_most(source[leaves] // b), _most(target[leaves] // b)),
                max(_most(source[internal] // b), _most(target[internal] // b)),
                _most(source[internal] // w),
                # Of the instance where it is most, beyond what stays inside the busiest: the two may differ.
                _most(np.concatenate([source[internal], source[external], target[external]]) // w)
                - _most(source[internal] // w),
                max(_most(source[leaves]), _most(target[leaves])),
                max(_most(source[internal]), _most(target[internal])),
            )
        )

    def pairs(level: int) -> Pairs:
        """Of the instance that has the most traffic."""
        b, w = below[level], below[level] * shape[level]
        here = [(s, t) for s, t in edges if s // b != t // b and s // w == t // w]
        busiest = _busiest([s // w for s, _ in here])
        for s, t in here:
            if s // w == busiest:
                yield s // b % shape[level], t // b % shape[level], amount

    amounts = [tuple(amount * count for count in row) for row in rows]
    return _phase(amounts, pairs, _one_message(shape, outermost), float(len(edges)))


def _most(values: np.ndarray) -> float:
    return float(np.bincount(values).max()) if len(values) else 0.0


def _busiest(values: list[int]) -> int:
    return max(set(values), key=values.count) if values else -1


def binomial_stages(size: int) -> list[list[tuple[int, int]]]:
    """The edges of a binomial tree from member 0, by how far the sender is from the root; nearest members first.

    A member sends to all its children as soon as it has the data, at once.
    """
    stages: list[list[tuple[int, int]]] = [[] for _ in range((size - 1).bit_length())]
    for member in range(size):
        distance = 1 << member.bit_length()
        while member + distance < size:
            stages[member.bit_count()].append((member, member + distance))
            distance *= 2
    return [stage for stage in stages if stage]


MOST_LISTED = 2**12
"""Algorithms whose edges are listed one by one are not used in larger groups."""


def _binomial(collective: Collective, shape: Shape, _rotates: bool) -> tuple[Phase, ...] | None:
    """A binomial tree, one stage after the other, nothing pipelined."""
    if prod(shape) > MOST_LISTED:
        return None
    stages = binomial_stages(prod(shape))
    if collective is Collective.BROADCAST:
        return tuple(_explicit(shape, stage, 1.0) for stage in stages)
    if collective is Collective.REDUCE:
        return tuple(_explicit(shape, [(t, s) for s, t in stage], 1.0) for stage in reversed(stages))
    return None


def _ring_gather(collective: Collective, shape: Shape, rotates: bool) -> tuple[Phase, ...] | None:
    """A reduction to the root as a ring ReduceScatter, then everyone sends its part to the root."""
    size = prod(shape)
    if collective is not Collective.REDUCE or size > MOST_LISTED:
        return None
    gather = _explicit(shape, [(member, 0) for member in range(1, size)], 1 / size)
    return (*_ring(Collective.REDUCE_SCATTER, shape, rotates), gather)


ALGORITHMS: dict[str, Callable[[Collective, Shape, bool], tuple[Phase, ...] | None]] = {
    "ring": _ring,
    "two-way-ring": _two_way_ring,
    "tree": _tree,
    "recursive": _recursive,
    "halving": _halving,
    "reduce-and-scatter": _reduce_and_scatter,
    "doubling": _doubling,
    "direct": _direct,
    "switch": _switch,
    "binomial": _binomial,
    "ring-gather": _ring_gather,
}
