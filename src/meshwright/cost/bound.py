"""The bound: how fast any algorithm and any schedule can be at best."""

from math import prod

from meshwright.language.goals import Goal
from meshwright.placement.layout import Layout, check_links, inner_only
from meshwright.system.model import Fabric, Level, System


def bound(layout: Layout, goal: Goal, payload: int) -> float:
    """A lower bound on the time of any algorithm for a goal or a transfer: no schedule on these links can be faster.

    At each level, an instance is seen as one large device. Each instance that a group spans must send at least the
    goal's least share through its port, for every group that has members in it.

    For example, an all-reduce on node=4@8GB/s,gpu=16@270GB/s in groups that have one GPU in each node: a node must send
    2 x 3/4 of the payload for each of its 16 groups, at 8 GB/s.
    """
    check_links(layout.system)
    seconds = 0.0
    spanned, members = 1, prod(layout.radices)
    reducing = False
    for level, radix in enumerate(layout.radices):
        spanned *= radix
        # What a reducing switch adds up need not be sent twice, neither there nor on the way to it.
        reducing = reducing or (radix > 1 and layout.system.levels[level].link.reduces)
        if spanned == 1 or layout.system.levels[level].count == 1:
            continue
        most, average = goal.least(spanned, members, reducing)
        one, all_children = _capacities(layout.system, level, _stride(layout.columns[level]))
        count, link = layout.system.counts[level], layout.system.levels[level].link
        groups = layout.beside[level]
        together = count * groups * average
        if link.fabric is Fabric.BUS and not link.bypass and spanned > radix:
            # What comes in from outside crosses the bus as well.
            together += count // radix * groups * goal.least(spanned // radix, members, reducing)[1]
        seconds = max(seconds, groups * payload * most / one, together * payload / all_children)
    return seconds


def _stride(column: tuple[tuple[int, bool], ...]) -> int:
    """How far apart the nearest members of a group are on a ring: 1 where they are neighbours, or it is no ring."""
    stride = 1
    for factor, reduced in reversed(column):
        if reduced:
            return stride
        stride *= factor
    return 1


def _capacities(system: System, level: int, stride: int = 1) -> tuple[float, float]:
    """The bytes per second that one child, and all children of one instance, can send by every way out they have.

    On a ring, what goes `stride` children far takes up that many links.
    """
    own = system.levels[level]
    below = prod(system.counts[level + 1 :])
    port, around = _port(own, below), _around(system, level, below)
    assert own.link.bandwidth is not None
    if own.link.fabric is Fabric.BUS:
        ports = own.link.bandwidth
    else:
        ports = own.count * min(port, _links(own) * own.link.bandwidth / stride)
    return port + around, ports + _around(system, level, own.count * below)


def _port(level: Level, devices: int) -> float:
    """What some devices below one child can send through its port, or on a ring over its links to both neighbours."""
    link = level.link
    assert link.bandwidth is not None
    alone = float("inf") if link.per_device is None else devices * link.per_device
    return _links(level) * min(link.bandwidth, alone)


def _links(level: Level) -> int:
    """Over how many links a child can send."""
    return 2 if level.link.fabric is Fabric.RING and level.count > 2 else 1


def _around(system: System, level: int, devices: int) -> float:
    """What some devices can send without using the ports of their level, by those further out."""
    outer = [k for k in range(level) if system.counts[k] > 1]  # a single child needs no fabric
    if not inner_only(system.levels[level].link) or not outer:
        return 0.0
    return _port(system.levels[outer[-1]], devices) + _around(system, outer[-1], devices)
