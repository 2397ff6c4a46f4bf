"""Communications: what is sent, over which axes, how many bytes, how often, and to which goal."""

from dataclasses import dataclass

from meshwright.errors import SpecError
from meshwright.language.goals import TRANSFER_GOALS, Goal, as_goal
from meshwright.text.spec import (
    MAX_COUNT,
    as_tuple,
    check_names,
    check_title,
    check_type,
    is_number,
    one_of,
    parse_count,
    shown,
)
from meshwright.text.units import parse_bytes

MAX_BYTES = 10**14  # a hundred terabytes for one tensor is a mistake
MAX_TOTAL = 10**18  # and so is an exabyte in a step

REDUCTION_EXAMPLE = "data=2GiB, data+shard=64MiB*80 or reduce-scatter:shard=1GiB"


@dataclass(frozen=True, slots=True)
class Communication:
    """What is sent: over which axes, how many bytes, how often, and to what goal.

    For goals with programs, `bytes` is the size of the whole tensor, not of a part: what each device holds before an
    all-reduce. For the others it is what each device sends in total: to the rest of its group for all-to-all, to the
    next device on the axis for point-to-point. `hidden` is the share of its time that overlaps with computation and so
    costs nothing.
    """

    axes: tuple[str, ...]
    bytes: int
    count: int = 1
    goal: Goal = Goal.ALL_REDUCE
    name: str = ""
    hidden: float = 0.0

    def __post_init__(self) -> None:
        goal = one_of(Goal, "goal", self.goal)
        what = "reduction" if goal.has_programs else "transfer"
        if isinstance(self.axes, str):
            raise SpecError(f"expected the axes as a list, as in [{shown(self.axes)}]")
        axes = as_tuple(self.axes, object, f"axes of a {what}")
        if not axes:
            raise SpecError(f"a {what} needs at least one axis, like {REDUCTION_EXAMPLE}")
        if not all(isinstance(axis, str) for axis in axes):
            raise SpecError(f"a {what} names its axes, not {shown(axes)}")
        if len(set(axes)) < len(axes):
            raise SpecError(f"a {what} names each of its axes once, not {shown('+'.join(axes))}")
        check_names(axes, f"axes of a {what}", "data")
        object.__setattr__(self, "axes", axes)
        object.__setattr__(self, "goal", goal)
        check_title(self.name, f"the name of a {what}")
        what = f"{what} {shown(self.name)}" if self.name else what
        for name, value, most in (("bytes", self.bytes, MAX_BYTES), ("count", self.count, MAX_COUNT)):
            if type(value) is not int or not 1 <= value <= most:
                raise SpecError(f"a {what} has {name}={shown(value)}; expected a whole number from 1 to {most:,}")
        if self.bytes * self.count > MAX_TOTAL:
            times = f"{self.bytes:,} bytes {self.count:,} times"
            raise SpecError(f"a {what} has {times}; expected at most {MAX_TOTAL:,} in all")
        if not is_number(self.hidden) or not 0 <= self.hidden <= 1:
            raise SpecError(f"a {what} has hidden={shown(self.hidden)}; expected a share of its time, from 0 to 1")
        if goal is Goal.POINT_TO_POINT and len(self.axes) > 1:
            raise SpecError(f"point-to-point goes along one axis, not {'+'.join(self.axes)}")


Reduction = Communication
"""What users call a communication whose goal has programs."""


def Transfer(  # noqa: N802  # reads like Reduction, its sibling
    axes: tuple[str, ...],
    bytes: int,  # noqa: A002
    kind: Goal,
    count: int = 1,
    name: str = "",
    hidden: float = 0.0,
) -> Communication:
    """What is sent besides reductions: by everyone to everyone of a group, or by everyone to the next on an axis.

    >>> Transfer(("expert",), 2**20, Goal.ALL_TO_ALL).goal
    <Goal.ALL_TO_ALL: 'all-to-all'>
    """
    return Communication(axes, bytes, count, one_of(TRANSFER_GOALS, "kind of transfer", kind), name, hidden)


@dataclass(frozen=True)
class Line:
    """A communication of a workload.

    overlap: the group of those that overlap with computation to the same share; formula and source: where its size
    and count come from.
    """

    communication: Communication
    overlap: str = ""
    formula: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        check_type(self.communication, Communication, "a Reduction or a Transfer")
        for name in ("overlap", "formula", "source"):
            check_title(getattr(self, name), f"the {name} of a line")


def exposed(one: Communication) -> float:
    """How often its time counts: once for each run, less what is hidden."""
    return one.count * (1 - one.hidden)


def parse_reduction(text: str) -> Reduction:
    """A reduction from `[GOAL:]AXIS[+AXIS…]=BYTES[*COUNT]`.

    >>> parse_reduction("data+shard=64MiB*80") == Reduction(("data", "shard"), 2**26, 80)
    True
    """
    check_type(text, str, f"a reduction as text, like {REDUCTION_EXAMPLE}")
    goal, colon, rest = text.rpartition(":")
    axes, equals, amount = rest.partition("=")
    size, star, count = amount.partition("*")
    if not equals or not all(axis.strip() for axis in axes.split("+")):
        raise SpecError(f"{shown(text)} is not [GOAL:]AXIS[+AXIS…]=BYTES[*COUNT], like {REDUCTION_EXAMPLE}")
    return Reduction(
        tuple(axis.strip() for axis in axes.split("+")),
        parse_bytes(size),
        parse_count(count.strip(), text, "reductions", REDUCTION_EXAMPLE) if star else 1,
        as_goal(goal.strip()) if colon else Goal.ALL_REDUCE,
    )
