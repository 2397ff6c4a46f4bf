"""Ring algorithms: every member sends to the next one in rank order, in one way or in both."""

from dataclasses import replace
from math import prod

from meshwright.cost.traffic import (
    EVERYONE,
    MOST_LISTED,
    Edges,
    Pairs,
    Phase,
    Phases,
    Sent,
    Shape,
    Traffic,
    hops,
    inside,
    listed,
)
from meshwright.language.program import ROOTED, Collective


def ring(collective: Collective, shape: Shape, rotates: bool) -> tuple[Phase]:
    """One ring in rank order, pipelined: it enters and leaves every instance once. Rooted: a ring less one edge.

    With `rotates`, there are many rings that share the payload, one for each way to turn the order of the children at
    the levels below the first, so that each member has its turn in leaving an instance. A root stays where it is: it
    sends its share of the payload into each ring, and each ring ends before it comes back to the root.

    For example, a Broadcast from GPU 0 on two nodes with two GPUs each: the shape (2, 2). Two rings carry half of the
    payload each: 0 to 1 to 2 to 3, less the edge from 3 to 0, and 0 to 3 to 2 to 1, less the edge from 1 to 0. So node
    0 sends the whole payload, half of it from each GPU. It gets back half of the payload: the first ring has no edge
    into the node, but the second ring still has to go from GPU 2 to GPU 1. A Reduce sends all of that the other way.
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
    below = inside(shape)
    # The share of the rings that lack an outermost edge: those in which the root is the first member of its instance.
    # All others lack an edge inside that instance, which changes nothing for the busiest instance: it is another one.
    missing = 0.0 if closed else 1 / below[0] if rotates else 1.0
    # Of `fan` rotated rings, one leaves the instance at a child where all others pass on to the next child.
    stay = [(fan - 1) / fan if rotates and level > 0 else float(fan > 1) for level, fan in enumerate(shape)]
    path = _cycle(shape) if missing < 1 else hops(shape)
    levels = []
    for level, fan in enumerate(shape):
        alone = 1 / below[level] if rotates else 1.0
        levels.append(
            Traffic(
                port=edge,
                inner=edge * stay[level],
                shared=edge * (fan - 1 if level else fan - missing),
                outer=edge * _ends(prod(shape[:level]), missing),
                device=edge * alone,
                device_inner=edge * stay[level] * alone,
                messages=rounds * path[level],
            )
        )

    def pairs(level: int) -> Pairs:
        last = shape[level] - 1
        # In rank order, the last member below a child sends to the first below the next.
        ends = (EVERYONE, EVERYONE) if rotates else (below[level] - 1, 0)
        for child in range(last):
            yield Sent(child, child + 1, edge * stay[level], *ends)
        if last and (rotates or (closed and level == 0)):
            yield Sent(last, 0, edge * stay[level], *ends)
            if level == 0 and not closed:  # less the share of the ring that lacks this edge
                yield Sent(last, 0, -edge / below[0], below[0] - 1, 0)

    edges = float(size if closed else size - 1)
    return (Phase(tuple(levels), pairs, edges * (rounds * (size - 1) if closed else 1), edges * edge, round=closed),)


def _cycle(shape: Shape) -> tuple[float, ...]:
    """The hops of the slowest part of the payload on its way round a ring: all edges but one of the innermost."""
    path = list(hops(shape))
    innermost = max(level for level, fan in enumerate(shape) if fan > 1)
    path[0] += 1
    path[innermost] -= 1
    return tuple(path)


def _ends(instances: int, missing: float) -> float:
    """How many edges of the ring join one of the instances to the others, at most; of two instances, one edge is
    missing in some of the rings.
    """
    return 2 - missing if instances == 2 else 2.0 * (instances > 2)


def two_way_ring(collective: Collective, shape: Shape, rotates: bool) -> Phases | None:
    """Half of the payload round the ring each way, so that links between neighbours carry as much either way.

    With a root there must be rotating rings: one ring in rank order would lack other edges one way than the other.
    """
    rooted = collective in ROOTED
    if rooted and not rotates:
        return None
    (one_way,) = ring(collective, shape, rotates)
    levels = list(one_way.levels)
    if rooted:
        # Of three instances, each way lacks an edge out of another one, so the busiest lacks half of an edge.
        missing = 1 / inside(shape)[0]
        levels = [
            replace(traffic, outer=2 - missing / 2) if prod(shape[:level]) == 3 else traffic
            for level, traffic in enumerate(levels)
        ]
    if not rotates:
        for level, (traffic, members) in enumerate(zip(levels, inside(shape), strict=True)):
            # A child passes on one half each way; of two children in an outer ring, each only to the other.
            inner = traffic.port / 2 * (2 if level == 0 else min(shape[level] - 1, 2))
            device = traffic.port if members == 1 else traffic.port / 2
            levels[level] = replace(traffic, inner=inner, device=device, device_inner=min(device, inner))

    def pairs(level: int) -> Pairs:
        for child, other, amount, sender, receiver in one_way.pairs(level):
            yield Sent(child, other, amount / 2, sender, receiver)
            if rooted:  # the mirrored ring begins at the root too
                yield Sent(-child % shape[level], -other % shape[level], amount / 2, sender, receiver)
            else:
                yield Sent(other, child, amount / 2, receiver, sender)

    return (replace(one_way, levels=tuple(levels), pairs=pairs, sent=2 * one_way.sent),)


def ring_gather(collective: Collective, shape: Shape, rotates: bool) -> Phases | None:
    """A reduction to the root as a ring ReduceScatter, then everyone sends its part to the root."""
    size = prod(shape)
    if collective is not Collective.REDUCE or size > MOST_LISTED:
        return None
    gather = listed(shape, Edges([(member, 0) for member in range(1, size)]), 1 / size)
    return (*ring(Collective.REDUCE_SCATTER, shape, rotates), gather)
