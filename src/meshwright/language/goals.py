"""Goals: what a communication is to achieve. A goal is one line of a table, the members of `Goal`."""

from collections.abc import Callable
from enum import Enum, StrEnum, auto

from meshwright.language.program import Collective, Grouping, Program, Step
from meshwright.text.spec import one_of


class Holding(Enum):
    """What the devices of a group hold before a program, or after it."""

    CONTRIBUTION = auto()
    """Every device holds the whole payload, with its own contribution only."""
    WHOLE = auto()
    """Every device holds the whole payload, with the contributions of all."""
    PART = auto()
    """Every device holds only its own part of the payload, with the contributions of all."""
    ROOT = auto()
    """The first device holds the whole payload, with the contributions of all. Before a program the others hold
    nothing; after it they may hold anything, which is of no use.
    """


Least = Callable[[int, int, bool], tuple[float, float]]
"""The share of the payload that one of several instances of a level must send or receive at least, whatever the
algorithm: the largest over the instances, and the average.

It is a function of the number of instances that a group spans, of the number of its members, and of whether a switch
adds up what passes through it.
"""


def _exchanged(instances: int, _members: int, _reducing: bool) -> tuple[float, float]:
    """Each instance sends or receives all but its own part: of four instances, each 3/4 of the payload."""
    others = (instances - 1) / instances
    return others, others


def _exchanged_twice(instances: int, _members: int, reducing: bool) -> tuple[float, float]:
    """Every part is reduced, then given back to all; if the switch reduces, the payload passes each port once."""
    share = 1.0 if reducing else 2 * (instances - 1) / instances
    return share, share


def _whole(instances: int, _members: int, _reducing: bool) -> tuple[float, float]:
    """Some instance sends or receives the whole payload; on average, one instance has no need to."""
    return 1.0, (instances - 1) / instances


def _spread(instances: int, members: int, _reducing: bool) -> tuple[float, float]:
    """Each member keeps what goes to its own instance, and sends the rest out."""
    share = (instances - 1) / instances * members / instances
    return share, share


class Goal(StrEnum):
    """What a communication is to achieve, each in one line.

    In a line: its name, what the devices hold at the start and at the end, the collective that does it in one step,
    and its least share. Where only the library decides how it is done, there are no programs: no start, no end, no
    collective.
    """

    start: Holding | None
    end: Holding | None
    flat: Collective | None
    least: Least
    reduces: bool
    """Whether contributions are added up; if not, data is only moved."""
    in_place: bool
    """Whether the result has the size of what is given, so that it can take its place."""

    ALL_REDUCE = "all-reduce", Holding.CONTRIBUTION, Holding.WHOLE, Collective.ALL_REDUCE, _exchanged_twice
    REDUCE_SCATTER = "reduce-scatter", Holding.CONTRIBUTION, Holding.PART, Collective.REDUCE_SCATTER, _exchanged
    ALL_GATHER = "all-gather", Holding.PART, Holding.WHOLE, Collective.ALL_GATHER, _exchanged
    REDUCE = "reduce", Holding.CONTRIBUTION, Holding.ROOT, Collective.REDUCE, _whole
    BROADCAST = "broadcast", Holding.ROOT, Holding.WHOLE, Collective.BROADCAST, _whole
    ALL_TO_ALL = "all-to-all", None, None, None, _spread
    POINT_TO_POINT = "point-to-point", None, None, None, _whole

    def __new__(
        cls,
        name: str,
        start: Holding | None = None,
        end: Holding | None = None,
        flat: Collective | None = None,
        least: Least = _whole,
    ) -> "Goal":
        """A member is its name; the rest of its line becomes attributes."""
        goal = str.__new__(cls, name)
        goal._value_ = name
        goal.start, goal.end, goal.flat, goal.least = start, end, flat, least
        goal.reduces = start is Holding.CONTRIBUTION
        goal.in_place = flat is not None and Holding.PART not in (start, end)
        return goal

    @property
    def has_programs(self) -> bool:
        """Whether programs reach it; of the others, a library has one way to do them."""
        return self.flat is not None


PROGRAM_GOALS = tuple(goal for goal in Goal if goal.has_programs)
"""The goals that programs reach."""

TRANSFER_GOALS = tuple(goal for goal in Goal if not goal.has_programs)
"""The goals that a library reaches in one way."""

TransferKind = Goal
"""The name under which users write the goals of transfers: `TransferKind.ALL_TO_ALL`."""


def as_goal(goal: Goal | str) -> Goal:
    """A goal that programs reach, also from its name.

    >>> as_goal("all-gather")
    <Goal.ALL_GATHER: 'all-gather'>
    """
    return one_of(PROGRAM_GOALS, "goal", goal)


def flat_program(goal: Goal, levels: int) -> Program:
    """The goal as one collective over the whole group: what a library does by default."""
    if levels == 0:
        return Program(())
    assert goal.flat is not None
    return Program((Step(goal.flat, Grouping(0, levels - 1)),))
