"""The reduction language: collectives, groupings, steps, programs, and programs in chunks."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import product

from meshwright.errors import SpecError
from meshwright.placement.hierarchy import Hierarchy, number_of
from meshwright.text.spec import as_tuple, check_type, shown, unknown


class Collective(StrEnum):
    """The five collectives that programs are made of."""

    ALL_REDUCE = "AllReduce"
    REDUCE_SCATTER = "ReduceScatter"
    ALL_GATHER = "AllGather"
    REDUCE = "Reduce"
    BROADCAST = "Broadcast"


ROOTED = frozenset({Collective.REDUCE, Collective.BROADCAST})

BACKWARDS = {
    Collective.ALL_REDUCE: Collective.ALL_REDUCE,
    Collective.REDUCE_SCATTER: Collective.ALL_GATHER,
    Collective.ALL_GATHER: Collective.REDUCE_SCATTER,
    Collective.REDUCE: Collective.BROADCAST,
    Collective.BROADCAST: Collective.REDUCE,
}
"""What each collective is when time runs backwards."""


@dataclass(frozen=True, slots=True, order=True)
class Grouping:
    """Which devices communicate: an interval of consecutive levels of the hierarchy, counted from the outermost.

    Devices that agree on all digits outside the levels `first` to `last` form a group. With `masters`, only those
    groups take part whose digits below `last` are all zero.
    """

    first: int
    last: int
    masters: bool = False

    def __post_init__(self) -> None:
        if type(self.first) is not int or type(self.last) is not int or not 0 <= self.first <= self.last:
            first, last = shown(self.first), shown(self.last)
            raise SpecError(f"a grouping needs 0 <= first <= last, not first={first}, last={last}")
        check_type(self.masters, bool, "True or False for 'masters'")


@dataclass(frozen=True, slots=True)
class Step:
    """A collective in all groups of a grouping at once."""

    collective: Collective
    grouping: Grouping

    def __post_init__(self) -> None:
        check_type(self.collective, Collective, "a Collective")
        check_type(self.grouping, Grouping, "a Grouping")


@dataclass(frozen=True, slots=True)
class Program:
    """A sequence of steps."""

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", as_tuple(self.steps, Step, "steps of a program"))

    def text(self, hierarchy: Hierarchy) -> str:
        """The program as text, in the words of the hierarchy's levels.

        >>> h = Hierarchy(("node", "gpu"), (4, 16))
        >>> Program((Step(Collective.REDUCE, Grouping(1, 1)),)).text(h)
        'Reduce inside node'
        """
        check_type(hierarchy, Hierarchy, "a Hierarchy; parse_hierarchy makes one from text")
        check_fits(self, len(hierarchy.names))
        return "; ".join(step_text(step, hierarchy.names) for step in self.steps) or "nothing"

    @property
    def mirrored(self) -> "Program":
        """Its mirror image: the steps in reverse, each doing what undoes the other.

        >>> h = Hierarchy(("node", "gpu"), (4, 16))
        >>> both = Program((Step(Collective.REDUCE, Grouping(1, 1)), Step(Collective.ALL_REDUCE, Grouping(0, 1))))
        >>> both.mirrored.text(h)
        'AllReduce all; Broadcast inside node'
        """
        return Program(tuple([Step(BACKWARDS[step.collective], step.grouping) for step in reversed(self.steps)]))


@dataclass(frozen=True, slots=True)
class Pipelined:
    """Programs that chunks of the payload flow through, each with how many chunks take it.

    Mostly it is one program; with one chunk it is just that program.
    """

    shares: tuple[tuple[Program, int], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", as_tuple(self.shares, tuple, "programs with their chunks"))
        for share in self.shares:
            if len(share) != 2 or not isinstance(share[0], Program):
                raise SpecError(f"expected a program and its chunks, not {shown(share)}")
        counts = [count for _, count in self.shares]
        if not counts or any(type(count) is not int or not 1 <= count <= MAX_CHUNKS for count in counts):
            raise SpecError(f"programs take chunks, from 1 to {MAX_CHUNKS} each, not {shown(counts)}")

    @classmethod
    def of(cls, program: Program, chunks: int = 1) -> "Pipelined":
        """One program, which all chunks take."""
        return cls(((program, chunks),))

    @property
    def program(self) -> Program:
        """The first program."""
        return self.shares[0][0]

    @property
    def chunks(self) -> int:
        """The chunks of all programs together."""
        return sum(count for _, count in self.shares)

    def text(self, hierarchy: Hierarchy) -> str:
        """As text, in the words of the hierarchy's levels."""
        if self.chunks == 1:
            return self.program.text(hierarchy)
        return " | ".join(
            f"{program.text(hierarchy)}, in {count} chunk{'s' if count > 1 else ''}" for program, count in self.shares
        )


MAX_CHUNKS = 1024
"""A payload is cut into no more chunks than this for one program."""


def as_collectives(collectives: Collection[Collective | str]) -> frozenset[Collective]:
    """A set of collectives, also from their names."""
    listed = as_tuple(collectives, str, f"collectives, of {', '.join(Collective)}")
    for collective in listed:
        if collective not in list(Collective):
            raise SpecError(f"expected a list of collectives: {unknown('collective', collective, list(Collective))}")
    return frozenset(Collective(collective) for collective in listed)


def check_fits(program: Program, levels: int) -> None:
    """Refuse a program with groupings that a hierarchy of `levels` levels does not have."""
    for number, step in enumerate(program.steps, 1):
        if step.grouping.last + step.grouping.masters >= levels:  # masters need a level below
            raise SpecError(f"step {number} has {step.grouping}, which a hierarchy of {levels} levels does not have")


@cache
def groupings(levels: int) -> tuple[Grouping, ...]:
    """All groupings of a hierarchy of `levels` levels, each once.

    >>> len(groupings(3))
    9
    """
    return tuple(
        Grouping(first, last, masters)
        for first in range(levels)
        for last in range(levels - 1, first - 1, -1)
        for masters in (False, True)
        if last < levels - 1 or not masters
    )


def all_steps(levels: int) -> tuple[Step, ...]:
    """All steps over a hierarchy of `levels` levels."""
    return tuple(Step(collective, grouping) for collective in Collective for grouping in groupings(levels))


def device_groups(grouping: Grouping, radices: Sequence[int]) -> list[tuple[int, ...]]:
    """The groups of a grouping as device numbers, each in rank order.

    >>> device_groups(Grouping(0, 0), (2, 3)), device_groups(Grouping(0, 0, masters=True), (2, 3))
    ([(0, 3), (1, 4), (2, 5)], [(0, 3)])
    """
    inside = range(grouping.first, grouping.last + 1)
    outer = product(*(range(radix) for radix in radices[: grouping.first]))
    below = [range(1) if grouping.masters else range(radix) for radix in radices[grouping.last + 1 :]]
    positions = list(product(*below))
    return [
        tuple(
            number_of((*prefix, *member, *suffix), radices)
            for member in product(*(range(radices[level]) for level in inside))
        )
        for prefix in outer
        for suffix in positions
    ]


@cache
def step_text(step: Step, names: tuple[str, ...]) -> str:
    """A step as text, in the words of the given level names."""
    grouping, outer = step.grouping, names[step.grouping.first - 1] if step.grouping.first > 0 else ""
    if grouping.last == len(names) - 1:
        return f"{step.collective} {f'inside {outer}' if outer else 'all'}"
    form = "masters of" if grouping.masters else "across"
    return f"{step.collective} {form} {names[grouping.last]}{f' within {outer}' if outer else ''}"
