"""Observations: which microbenchmarks tell about single levels of a system, and what they told."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from statistics import median

from meshwright.cost.library import Library
from meshwright.errors import SpecError, TooLargeError
from meshwright.language.goals import PROGRAM_GOALS, Goal
from meshwright.language.program import ROOTED, Collective
from meshwright.measure.bench import Case, case_of
from meshwright.measure.records import SEND, Measurement, check_seconds
from meshwright.placement.placement import Placement
from meshwright.system.model import System
from meshwright.text.spec import shown
from meshwright.workload.communication import MAX_BYTES, Reduction

MOST_RANKS = 65_536  # the most devices that measurements are made with


@dataclass(frozen=True, slots=True)
class Observation:
    """A collective in groups that fill one level, or a send between two of its instances: bytes held, seconds taken."""

    level: str
    collective: Collective | None
    bytes: int
    seconds: float
    alone: bool = False  # whether only one group or one pair was at work, not all at once

    def __post_init__(self) -> None:
        """Refuse what cannot have been observed."""
        if type(self.bytes) is not int or not 1 <= self.bytes <= MAX_BYTES:
            raise SpecError(f"{shown(self.bytes)} bytes were observed; expected 1 to {MAX_BYTES:,}")
        check_seconds(self.seconds)


def microbenchmarks(system: System, library: Library, sizes: Sequence[int], rooted: bool = True) -> list[Case]:
    """What to measure: for each level and size, every collective in groups that fill the level, and sends.

    For example, on node=4,gpu=4 the groups of level node are devices 0, 4, 8 and 12, then 1, 5, 9 and 13, and so on.
    They run each collective all at once, and an all-reduce also in the first group alone. The sends are from node 0
    to node 1: device 0 to 4 alone, then 0 to 4, 1 to 5, 2 to 6 and 3 to 7 all at once, which fills the node's port.
    """
    if system.devices > MOST_RANKS:
        raise TooLargeError(
            f"{system.devices:,} devices are too many to measure with; at most {MOST_RANKS:,} can be: measure fewer of "
            "the same kind"
        )
    placement = by_level(system)
    found = []
    for number, level in enumerate(system.levels):
        if level.count == 1:
            continue
        inside = prod(system.counts[number + 1 :])
        sends = tuple((device, device + inside) for device in range(inside))
        for size in sizes:
            for goal in PROGRAM_GOALS:
                if goal.flat in ROOTED and not rooted:
                    continue
                reduction = Reduction((level.name,), size, goal=goal)
                case = replace(case_of(placement, reduction, library, [f"{goal.flat} all"]), numbers=(0,))
                found.append(case)
                if goal is Goal.ALL_REDUCE:
                    if system.devices > level.count:  # there are other groups
                        found.append(replace(case, alone=True))
                    for pairs in {sends[:1], sends}:
                        found.append(replace(case, sends=pairs, alone=len(pairs) < inside))
    return found


def by_level(system: System) -> Placement:
    """The placement with an axis for each level, named like it: on node=4,gpu=8 it is ((4, 1), (1, 8))."""
    counts = system.counts
    matrix = tuple(tuple(counts[k] if j == k else 1 for j in range(len(counts))) for k in range(len(counts)))
    return Placement(system, tuple(level.name for level in system.levels), matrix)


def observations(measurements: Sequence[Measurement]) -> list[Observation]:
    """Those measurements that tell about a single level: one flat step over one axis that is a level, or sends."""
    found = []
    flat = {f"{goal.flat} all": goal.flat for goal in PROGRAM_GOALS if goal.flat}
    for one in measurements:
        names = [level["name"] for level in one.system["levels"]]
        if one.failed is not None or one.axes != names or len(one.over) != 1 or not one.seconds:
            continue
        if one.program in flat or one.program == SEND:
            found.append(Observation(one.over[0], flat.get(one.program), one.bytes, median(one.seconds), one.alone))
    return found
