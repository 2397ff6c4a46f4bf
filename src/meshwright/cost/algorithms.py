"""The algorithms behind the collectives, by the names that libraries have for them.

An algorithm is a sequence of phases; within a phase everything flows at the same time.
"""

from dataclasses import replace
from functools import cache

from meshwright.cost.exchanges import direct, doubling, halving, recursive
from meshwright.cost.rings import ring, ring_gather, two_way_ring
from meshwright.cost.traffic import Algorithm, Phase, Phases, Shape, inside
from meshwright.cost.trees import binomial, reduce_and_scatter, switch, switch_tree, tree
from meshwright.language.goals import Goal
from meshwright.language.program import ROOTED, Collective

ALGORITHMS: dict[str, Algorithm] = {
    "ring": ring,
    "two-way-ring": two_way_ring,
    "tree": tree,
    "recursive": recursive,
    "halving": halving,
    "reduce-and-scatter": reduce_and_scatter,
    "doubling": doubling,
    "direct": direct,
    "switch": switch,
    "switch-tree": switch_tree,
    "binomial": binomial,
    "ring-gather": ring_gather,
}


@cache
def phases(algorithm: str, collective: Collective, shape: Shape, rotates: bool) -> Phases | None:
    """The phases of an algorithm, or None where it cannot do this collective in a group of this shape.

    An algorithm that knows no root does Reduce and Broadcast as an AllReduce: of a reduction only the root keeps the
    result, and to a broadcast the others contribute zeros.

    >>> [[level.port for level in phase.levels] for phase in phases("ring", Collective.ALL_REDUCE, (4, 16), False)]
    [[1.96875, 1.96875]]
    """
    found = ALGORITHMS[algorithm](collective, shape, rotates)
    if found is None and collective in ROOTED:
        return ALGORITHMS[algorithm](Collective.ALL_REDUCE, shape, rotates)
    return found


@cache
def transfer_phase(kind: Goal, shape: Shape) -> Phase:
    """What a transfer sends, as one phase.

    All-to-all: everyone has a part for everyone, all at once; a member's messages leave one after the other.
    Point-to-point: everyone sends what it holds to the next member, the last one to nobody.
    """
    if kind is Goal.ALL_TO_ALL:
        found = direct(Collective.REDUCE_SCATTER, shape, False)
        assert found is not None
        (phase,), below = found, inside(shape)
        messages = [float(b * (fan - 1)) for b, fan in zip(below, shape, strict=True)]
    else:
        (phase,) = ring(Collective.BROADCAST, shape, False)
        messages = [float(level == 0) for level in range(len(shape))]
    levels = [replace(level, messages=count) for level, count in zip(phase.levels, messages, strict=True)]
    return replace(phase, levels=tuple(levels))
