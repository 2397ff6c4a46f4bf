"""Tree algorithms: NCCL's double binary tree, binomial trees, a star, and trees with reducing switches."""

from functools import cache
from math import prod

from meshwright.cost.traffic import MOST_LISTED, Edges, Pairs, Phase, Phases, Sent, Shape, Traffic, hops, inside, listed
from meshwright.language.program import ROOTED, Collective


def tree(collective: Collective, shape: Shape, _rotates: bool) -> Phases | None:
    """A double binary tree between the outermost instances, a chain through the members inside each, pipelined.

    As in NCCL. Several of them are laid so that every instance and every member takes every role in turn, so what
    counts is the average over all rotations of the trees and of the chains. A root could not take turns.

    For example, four nodes with two GPUs each: the shape (4, 2). Each of the two trees has three edges, which carry
    half of the payload up and then down. All together, the nodes send 2 x 3 x 2 x 1/2 = 6 payloads, so that each sends
    `between` = 1.5 of them. Inside a node, the chains are the two ways to cut a cycle of two links, so that each link
    carries `link` = 1/2 of the payload up and as much down. A GPU sends up and down its chain (2 x 1/2), and it leaves
    the node for half of the payload (1.5 / 2): in all, 1.75 payloads go out of its port, and as many come in.
    """
    if collective is not Collective.ALL_REDUCE:
        return None
    outermost, members = shape[0], prod(shape[1:])
    between = 2 * (outermost - 1) / outermost
    # What one link of the chain carries each way; a rotation breaks each link of the cycle once.
    link = 1 - 1 / members
    chain_level = next((k for k in range(1, len(shape)) if shape[k] > 1), len(shape))
    depth, chain = float((outermost - 1).bit_length()), hops((1, *shape[1:]))
    leaving = between / members  # what one member sends to other instances
    levels = [Traffic(between, between, between * outermost, 0.0, leaving, leaving, 2 * depth)]
    for level in range(1, len(shape)):
        if level < chain_level:  # a single child: everything passes through it
            levels.append(Traffic(between, 0.0, 0.0, 2 * between, leaving, 0.0, 2 * chain[level]))
        else:
            levels.append(_chained(shape, level, level == chain_level, link, between, 2 * chain[level]))

    def pairs(level: int) -> Pairs:
        fan = shape[level]
        if level == 0:
            yield from _between_outermost(outermost)
        else:
            last = inside(shape)[level] - 1
            for child in range(fan if level == chain_level and fan > 1 else fan - 1):
                following = (child + 1) % fan
                yield Sent(child, following, link, last, 0)
                yield Sent(following, child, link, 0, last)

    return (Phase(tuple(levels), pairs, 4.0 * (prod(shape) - 1), 2.0 * (prod(shape) - 1)),)


def _between_outermost(outermost: int) -> Pairs:
    """Who sends how much to whom between the outermost instances, as the average over all rotations of both trees."""
    for parent, child in double_tree(outermost):
        for turn in range(outermost):
            a, b = (parent + turn) % outermost, (child + turn) % outermost
            yield Sent(a, b, 0.5 / outermost)
            yield Sent(b, a, 0.5 / outermost)


def _chained(shape: Shape, level: int, around: bool, link: float, between: float, messages: float) -> Traffic:
    """The traffic of a level that the chains run through: down to the next child, and up to the previous one.

    around: whether a rotated chain also goes from the last child to the first, as it does at the chain's first level.
    """
    fan, below, members = shape[level], inside(shape)[level], prod(shape[1:])
    share = below / members
    spread = float(fan > 1)
    neighbours = 2 if around or fan > 2 else 1
    single = 2 * link if below == 1 else link
    return Traffic(
        port=2 * link + between * share,
        inner=spread * neighbours * link,
        shared=spread * 2 * link * (fan - 1 + around),
        outer=2 * between * share * fan + (0.0 if around else 4 * link),
        device=single + between / members,
        device_inner=spread * min(single, neighbours * link),
        messages=messages,
    )


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


def switch(collective: Collective, shape: Shape, _rotates: bool) -> Phases | None:
    """The switches add up: every child sends what its members have in sum up once, and gets the total back once."""
    if collective is not Collective.ALL_REDUCE:
        return None
    levels = []
    for fan, members in zip(shape, inside(shape), strict=True):
        spans = float(fan > 1)
        levels.append(
            Traffic(
                port=1.0,
                inner=spans,
                shared=2.0 * fan * spans,
                outer=2.0 * (1 - spans),
                device=1 / members,
                device_inner=1 / members * spans,
                messages=2 * spans,
            )
        )
    return (Phase(tuple(levels), lambda _level: iter(()), 2.0 * prod(shape), 2.0 * prod(shape)),)


def switch_tree(collective: Collective, shape: Shape, _rotates: bool) -> Phases | None:
    """Inside the outermost instances the switches add up, and between these each member has a double binary tree for
    its part of the sum, pipelined: NCCL's NVLS tree.

    For example, four nodes with two GPUs each: the shape (4, 2). Every GPU sends its payload up to its node's switch,
    and gets the total back. It sends one half of the node's sum to other nodes: 1.5 / 2 payloads leave by it.
    """
    first = next((k for k in range(1, len(shape)) if shape[k] > 1), None)
    if collective is not Collective.ALL_REDUCE or first is None:
        return None
    outermost, members = shape[0], prod(shape[1:])
    between, depth = 2 * (outermost - 1) / outermost, float((outermost - 1).bit_length())
    leaving = between / members
    levels = [Traffic(between, between, between * outermost, 0.0, leaving, leaving, 2 * depth)]
    for level in range(1, len(shape)):
        fan, below = shape[level], inside(shape)[level]
        spans, up = float(fan > 1), float(level >= first)  # outside of the first there is nothing to add up
        levels.append(
            Traffic(
                port=up + below * leaving,
                inner=spans,
                shared=2 * fan * spans,
                outer=2 * (up - spans) + 2 * fan * below * leaving,
                device=up / below + leaving,
                device_inner=spans / below,
                messages=2 * spans,
            )
        )

    def pairs(level: int) -> Pairs:
        return _between_outermost(outermost) if level == 0 else iter(())

    sent = 2.0 * prod(shape) + 4.0 * members * (outermost - 1)
    return (Phase(tuple(levels), pairs, sent, 2.0 * prod(shape) + 2.0 * (outermost - 1)),)


@cache
def binomial_stages(size: int) -> list[list[tuple[int, int]]]:
    """The edges of a binomial tree from member 0, by how far the sender is from the root; nearest members first.

    A member sends to all its children as soon as it has the data, at once.

    >>> binomial_stages(6)
    [[(0, 1), (0, 2), (0, 4)], [(1, 3), (1, 5)]]
    """
    stages: list[list[tuple[int, int]]] = [[] for _ in range((size - 1).bit_length())]
    for member in range(size):
        distance = 1 << member.bit_length()
        while member + distance < size:
            stages[member.bit_count()].append((member, member + distance))
            distance *= 2
    return [stage for stage in stages if stage]


@cache
def _binomial_edges(size: int, upwards: bool) -> tuple[Edges, ...]:
    """The stages of a binomial tree, away from the root, or upwards to it."""
    stages = binomial_stages(size)
    if upwards:
        return tuple(Edges([(t, s) for s, t in stage]) for stage in reversed(stages))
    return tuple(Edges(stage) for stage in stages)


def binomial(collective: Collective, shape: Shape, _rotates: bool) -> Phases | None:
    """A binomial tree, one stage after the other, nothing pipelined."""
    if prod(shape) > MOST_LISTED or collective not in ROOTED:
        return None
    stages = _binomial_edges(prod(shape), collective is Collective.REDUCE)
    return tuple(listed(shape, stage, 1.0) for stage in stages)


def reduce_and_scatter(collective: Collective, shape: Shape, _rotates: bool) -> Phases | None:
    """In groups of two or three: everyone sends all to the first, which adds up and sends each its part."""
    size = prod(shape)
    if collective is not Collective.REDUCE_SCATTER or size > 3:
        return None
    others = range(1, size)
    return (
        listed(shape, Edges([(member, 0) for member in others]), 1.0),
        listed(shape, Edges([(0, member) for member in others]), 1 / size),
    )
