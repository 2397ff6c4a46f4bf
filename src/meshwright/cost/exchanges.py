"""Exchange algorithms: every member swaps data with all others at once, or with one partner after the other."""

from math import prod

from meshwright.cost.rings import ring
from meshwright.cost.traffic import Pairs, Phase, Phases, Sent, Shape, Traffic, inside
from meshwright.language.program import ROOTED, Collective


def direct(collective: Collective, shape: Shape, _rotates: bool) -> Phases | None:
    """Everyone sends to everyone at once."""
    if collective in ROOTED:
        return None
    size = prod(shape)
    amount = 1.0 if collective is Collective.ALL_GATHER else 1 / size
    below = inside(shape)
    levels = []
    for level, (b, fan) in enumerate(zip(below, shape, strict=True)):
        w = b * fan
        levels.append(
            Traffic(
                port=b * (size - b) * amount,
                inner=b * (w - b) * amount,
                shared=w * (w - b) * amount,
                outer=2 * w * (size - w) * amount,
                device=(size - b) * amount,
                device_inner=(w - b) * amount,
                messages=float(level == 0),
            )
        )

    def pairs(level: int) -> Pairs:
        for child in range(shape[level]):
            for other in range(shape[level]):
                if child != other:
                    yield Sent(child, other, below[level] ** 2 * amount)

    phase = Phase(tuple(levels), pairs, size * (size - 1.0), size * (size - 1.0) * amount)
    # An all-reduce gathers as much as it scattered.
    return (phase, phase) if collective is Collective.ALL_REDUCE else (phase,)


def _exchange(shape: Shape, level: int, distance: int, amount: float) -> Phase:
    """Everyone swaps `amount` with the member whose child at one level is `distance` away, by flipping that bit."""
    below = inside(shape)
    levels = []
    for k, (b, fan) in enumerate(zip(below, shape, strict=True)):
        here = float(k == level)
        active = float(k >= level)
        levels.append(
            Traffic(
                port=active * b * amount,
                inner=here * b * amount,
                shared=here * fan * b * amount,
                outer=2 * (active - here) * fan * b * amount,
                device=active * amount,
                device_inner=here * amount,
                messages=here,
            )
        )

    def pairs(where: int) -> Pairs:
        if where == level:
            for child in range(shape[level]):
                yield Sent(child, child ^ distance, below[level] * amount)

    return Phase(tuple(levels), pairs, float(prod(shape)), prod(shape) * amount)


def _rounds(shape: Shape) -> list[tuple[int, int]] | None:
    """The (level, distance) of each round of a butterfly, nearest first; None if a fan is not a power of two."""
    if any(fan & (fan - 1) for fan in shape):
        return None
    return [
        (level, 1 << bit) for level in range(len(shape) - 1, -1, -1) for bit in range(shape[level].bit_length() - 1)
    ]


def recursive(collective: Collective, shape: Shape, _rotates: bool) -> Phases | None:
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


def halving(collective: Collective, shape: Shape, rotates: bool) -> Phases | None:
    """Recursive halving as most libraries order it: half to the farthest first; gathering in reverse.

    A ring where a fan is not a power of two.
    """
    rounds = _rounds(shape)
    if collective not in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER):
        return None
    if rounds is None:
        return ring(collective, shape, rotates)
    amounts = [0.5 ** (k + 1) for k in range(len(rounds))]
    if collective is Collective.REDUCE_SCATTER:
        return tuple(_exchange(shape, *at, amount) for at, amount in zip(rounds[::-1], amounts, strict=True))
    size = prod(shape)
    return tuple(_exchange(shape, *at, size * amount) for at, amount in zip(rounds, amounts[::-1], strict=True))


def doubling(collective: Collective, shape: Shape, _rotates: bool) -> Phases | None:
    """Recursive doubling: everyone swaps everything with the nearest, then with the next, …; few messages."""
    rounds = _rounds(shape)
    if rounds is None or collective is not Collective.ALL_REDUCE:
        return None
    return tuple(_exchange(shape, level, distance, 1.0) for level, distance in rounds)
