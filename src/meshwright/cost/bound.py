"""The bound: how fast any algorithm and any schedule can be at best.

An algorithm may send anything at any time between the devices of a group, but only these handle the group's data, as in
the communicators of libraries. What is sent takes the links that the system has for it; on a ring, the shorter way
round.
"""

from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import assert_never

from meshwright.language.goals import Goal
from meshwright.placement.layout import Layout, check_links, inner_only
from meshwright.system.model import Fabric, Level


def bound(layout: Layout, goal: Goal, payload: int, *, detours: bool = True, reducing: bool = True) -> float:
    """A lower bound on the time of any algorithm for a goal or a transfer: no schedule on these links can be faster.

    At each level, an instance is seen as one large device. Each instance that a group spans must send at least the
    goal's least share through its port, for every group that has members in it.

    For example, an all-reduce on node=4@8GB/s,gpu=16@270GB/s in groups that have one GPU in each node: a node must send
    2 x 3/4 of the payload for each of its 16 groups, at 8 GB/s.

    Where switches reduce, an all-reduce is counted in two ways, and both are bounds. First, each instance must send its
    contribution once. Second, R instances make R - 1 sends until the first of them has the result, and R - 1 receives
    after that. A plain message is one of these, but what passes a switch that reduces may be a send when it goes in
    and a receive when it comes out, so the capacity through such switches counts twice.

    detours: whether data may go round the slow links of a level, through another instance and back. reducing: whether
    switches may reduce. Without them the result is no bound, but tells how much the bound counts on them.
    """
    check_links(layout.system)
    if not reducing:
        levels = [replace(level, link=replace(level.link, reduces=False)) for level in layout.system.levels]
        layout = replace(layout, system=replace(layout.system, levels=tuple(levels)))
    # Only switches that reduce, and the cut of a ring, make the two ways to count different.
    differ = layout.system.order_matters or any(level.link.reduces for level in layout.system.levels)
    return payload * max(_counted(layout, goal, detours, once) for once in ((False, True) if differ else (False,)))


def _counted(layout: Layout, goal: Goal, detours: bool, once: bool) -> float:
    """The bound for each byte of the payload, counted in one of the two ways.

    once: every instance sends its contribution once; otherwise the capacity through switches that reduce counts twice.
    """
    seconds = 0.0
    outside, members = 1, prod(layout.radices)
    for level, radix in enumerate(layout.radices):
        spanned = outside * radix
        own, groups = layout.system.levels[level], layout.beside[level]
        if spanned > 1 and own.count > 1:
            most, average = goal.least(spanned, members, once)
            below = prod(layout.system.counts[level + 1 :])
            direct = radix > 1 and not detours
            around = (0.0, 0.0) if direct else _around(layout, level, own.count * below)
            ports = own.link.bandwidth if own.link.fabric is Fabric.BUS else own.count * _port(own, below)
            assert ports is not None
            around_one = (0.0, 0.0) if direct else _around(layout, level, below)
            one = _ways(layout, level, _port(own, below), around_one)
            every = _ways(layout, level, ports, around)
            together = own.count * groups * average
            if own.link.fabric is Fabric.BUS and not own.link.bypass:
                every = ports, 0.0
                if outside > 1 and (once or not around[1]):
                    # What comes in from outside crosses the bus as well.
                    together += own.count // radix * groups * goal.least(outside, members, once)[1]
            seconds = max(seconds, groups * most / _capacity(one, once), together / _capacity(every, once))
            if own.link.fabric is Fabric.RING and radix > 1:
                seconds = max(seconds, _by_distance(layout, level, goal, _capacity(around, once), once))
                if once and _column(layout, level):
                    seconds = max(seconds, _by_cut(layout, level, goal, detours))
        outside = spanned
    return seconds


Ways = tuple[float, float]
"""Bytes per second: by every way out, and how much of that can pass switches that reduce."""


def _capacity(ways: Ways, once: bool) -> float:
    return ways[0] if once else sum(ways)


def _ways(layout: Layout, level: int, port: float, around: Ways) -> Ways:
    """What can be sent out of a child through its port, and around it, by way of the levels further out."""
    link = layout.system.levels[level].link
    if layout.radices[level] == 1:  # no two members of a group have this level between them
        return around if inner_only(link) else (min(port, around[0]), min(port, around[1]))
    if inner_only(link):
        return port + around[0], (port if link.reduces else 0.0) + around[1]
    return port, port if link.reduces else min(port, around[1])


def _around(layout: Layout, level: int, devices: int) -> Ways:
    """What some devices of one instance of a level can send to members in other instances."""
    outer = [k for k in range(level) if layout.system.counts[k] > 1]  # a single child needs no fabric
    if prod(layout.radices[:level]) == 1:
        return 0.0, 0.0
    port = _port(layout.system.levels[outer[-1]], devices)
    return _ways(layout, outer[-1], port, _around(layout, outer[-1], devices))


def _port(level: Level, devices: int) -> float:
    """What some devices below one child can send through its port, or on a ring over its links to both neighbours."""
    link = level.link
    assert link.bandwidth is not None
    alone = float("inf") if link.per_device is None else devices * link.per_device
    return _links(level) * min(link.bandwidth, alone)


def _links(level: Level) -> int:
    """Over how many links a child can send."""
    match level.link.fabric:
        case Fabric.RING:
            return 2 if level.count > 2 else 1
        case Fabric.SWITCH | Fabric.BUS:
            return 1
        case _:
            assert_never(level.link.fabric)


def _link(layout: Layout, level: int) -> float:
    """What all devices can send between two neighbours in a ring, each over the links of its own."""
    own = layout.system.levels[level]
    return _port(own, prod(layout.system.counts[level + 1 :])) / _links(own)


def _by_distance(layout: Layout, level: int, goal: Goal, around: float, once: bool) -> float:
    """How long the links of a ring take for each byte of the payload, as data must go far.

    The members of a group in a ring form blocks by the first reduced factor of the ring's column, smaller ones by the
    first two, and so on. If blocks are seen as instances, the goal's least share must be sent between them. That goes
    at least as far as members of two blocks are apart, and takes up that many links. What is sent through other rings
    takes up no link here, but counts for blocks of all sizes.

    For example, a ring of 64 with the column ((4, True), (4, False), (4, True)): a group has four blocks of four
    neighbours, 13 links apart. An all-reduce sends 2 x 3 payloads between blocks and 2 x 15 between members, so that 24
    of these may go to a neighbour: 6 x 13 + 24 = 102 payloads on links, for each of the four groups, on 128 links.
    """
    own, radix, members = layout.system.levels[level], layout.radices[level], prod(layout.radices)
    column = _column(layout, level)
    blocks, distances = _blocks(column) if column else ((radix,), (1,))
    outside, groups = prod(layout.radices[:level]), own.count // radix * layout.beside[level]
    parts = _parts(column)
    links = (own.count * _links(own) - (2 * parts if parts > 1 else 0)) * _link(layout, level)
    seconds = far = weight = 0.0
    # The sum over blocks of (distance - the next smaller distance) x (what is sent between blocks - what goes around)
    # must fit the links. Sizes of blocks whose share all goes around drop out: these are the largest blocks.
    for block, distance, nearer in zip(blocks[::-1], distances[::-1], (0, *distances[:0:-1]), strict=True):
        far += (distance - nearer) * groups * block * goal.least(outside * block, members, once)[1]
        weight += distance - nearer
        seconds = max(seconds, far / (links + weight * around))
    return seconds


def _by_cut(layout: Layout, level: int, goal: Goal, detours: bool) -> float:
    """How long it takes for each byte of the payload to get out of a part of a ring that holds one block of each group.

    Two links join that part to the rest of the ring. Only one of them helps if the groups do not reach round the ring:
    if an axis that is not reduced over comes first in the column, the shorter way never leaves a group's own part of
    the ring.
    """
    own, column = layout.system.levels[level], _column(layout, level)
    first = next(k for k, (_, reduced) in enumerate(column) if reduced)
    size = prod(factor for factor, _ in column[first + 1 :])
    groups = layout.beside[level] * prod(factor for factor, reduced in column[first + 1 :] if not reduced)
    outside, members = prod(layout.radices[:level]), prod(layout.radices)
    most, _ = goal.least(outside * column[first][0], members, True)
    around, _ = _around(layout, level, size * prod(layout.system.counts[level + 1 :])) if detours else (0.0, 0.0)
    return groups * most / ((1 if first > 0 else _links(own)) * _link(layout, level) + around)


def _column(layout: Layout, level: int) -> tuple[tuple[int, bool], ...]:
    """The column of a ring, or nothing if the order of its axes is not known as a whole."""
    column = layout.columns[level]
    return column if prod(factor for factor, _ in column) == layout.system.counts[level] else ()


def _parts(column: tuple[tuple[int, bool], ...]) -> int:
    """Into how many parts a ring falls that no group leaves, as the first axes of its column are not reduced over."""
    parts = 1
    for factor, reduced in column:
        if reduced:
            break
        parts *= factor
    return parts


@lru_cache(maxsize=4096)
def _blocks(column: tuple[tuple[int, bool], ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """For each reduced factor of a ring's column: the blocks that it and those before it make, and how far members of
    different blocks are apart, at least.

    >>> _blocks(((4, True), (4, False), (4, True)))
    ((4, 16), (13, 1))
    """
    count = prod(factor for factor, _ in column)
    stride, offsets = 1, {0}  # from one member to others that differ in the factors so far
    nearest: list[int] = []
    for factor, reduced in reversed(column):
        if reduced:
            further = {at + turn * stride for at in offsets for turn in range(1 - factor, factor) if turn}
            nearest.append(min(min(at % count, -at % count) for at in further))
            offsets |= further
        stride *= factor
    blocks, distances = [1], [count]
    for (factor, _), distance in zip([f for f in column if f[1]], nearest[::-1], strict=True):
        blocks.append(blocks[-1] * factor)
        distances.append(min(distances[-1], distance))
    return tuple(blocks[1:]), tuple(distances[1:])
