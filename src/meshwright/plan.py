"""Plans: a placement, and for each reduction the program that carries it out. What engines run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.cost import CostModel
from meshwright.errors import SpecError
from meshwright.hierarchy import Hierarchy, reduction_hierarchy
from meshwright.layout import layout_of
from meshwright.pipeline import Pipeline
from meshwright.placement import Placement
from meshwright.profiles import Library
from meshwright.program import (
    Collective,
    Goal,
    Grouping,
    Pipelined,
    Program,
    Step,
    TransferKind,
    as_goal,
)
from meshwright.spec import (
    MAX_COUNT,
    as_tuple,
    check_names,
    check_title,
    check_type,
    is_number,
    parse_count,
    shown,
    unknown,
)
from meshwright.units import parse_bytes

MAX_BYTES = 10**14  # a hundred terabytes for one tensor is a mistake
MAX_TOTAL = 10**18  # and so is an exabyte in a step

REDUCTION_EXAMPLE = "data=2GiB, data+shard=64MiB*80 or reduce-scatter:shard=1GiB"


@dataclass(frozen=True, slots=True)
class Reduction:
    """What is to be reduced: over which axes, how many bytes each device holds, how often, and to what goal.

    For reduce-scatter, all-gather and broadcast, `bytes` is the size of the whole tensor too, not of a part. `hidden`
    is the share of its time that overlaps with computation and so costs nothing.
    """

    axes: tuple[str, ...]
    bytes: int
    count: int = 1
    goal: Goal = Goal.ALL_REDUCE
    name: str = ""
    hidden: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what cannot be reduced."""
        object.__setattr__(self, "axes", _checked_axes(self.axes, "reduction"))
        object.__setattr__(self, "goal", as_goal(self.goal))
        _check_amounts(self, "reduction")


@dataclass(frozen=True, slots=True)
class Transfer:
    """What is sent besides reductions: by everyone to everyone of a group, or by everyone to the next on an axis.

    `bytes` is what each device sends in total.
    """

    axes: tuple[str, ...]
    bytes: int
    kind: TransferKind
    count: int = 1
    name: str = ""
    hidden: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what cannot be sent."""
        object.__setattr__(self, "axes", _checked_axes(self.axes, "transfer"))
        if not isinstance(self.kind, str) or self.kind not in list(TransferKind):
            raise SpecError(unknown("kind of transfer", self.kind, list(TransferKind)))
        object.__setattr__(self, "kind", TransferKind(self.kind))
        _check_amounts(self, "transfer")
        if self.kind is TransferKind.POINT_TO_POINT and len(self.axes) > 1:
            raise SpecError(f"point-to-point goes along one axis, not {'+'.join(self.axes)}")


Communication = Reduction | Transfer


def _checked_axes(axes: tuple[str, ...], what: str) -> tuple[str, ...]:
    if isinstance(axes, str):
        raise SpecError(f"expected the axes as a list, as in [{shown(axes)}]")
    axes = as_tuple(axes, object, f"axes of a {what}")
    if not axes:
        raise SpecError(f"a {what} needs at least one axis, like {REDUCTION_EXAMPLE}")
    if not all(isinstance(axis, str) for axis in axes):
        raise SpecError(f"a {what} names its axes, not {shown(axes)}")
    if len(set(axes)) < len(axes):
        raise SpecError(f"a {what} names each of its axes once, not {shown('+'.join(axes))}")
    check_names(axes, f"axes of a {what}", "data")
    return axes


def _check_amounts(one: Communication, what: str) -> None:
    check_title(one.name, f"the name of a {what}")
    what = f"{what} {shown(one.name)}" if one.name else what
    for name, value, most in (("bytes", one.bytes, MAX_BYTES), ("count", one.count, MAX_COUNT)):
        if type(value) is not int or not 1 <= value <= most:
            raise SpecError(f"a {what} has {name}={shown(value)}; expected a whole number from 1 to {most:,}")
    if one.bytes * one.count > MAX_TOTAL:
        raise SpecError(f"a {what} has {one.bytes:,} bytes {one.count:,} times; expected at most {MAX_TOTAL:,} in all")
    if not is_number(one.hidden) or not 0 <= one.hidden <= 1:
        raise SpecError(f"a {what} has hidden={shown(one.hidden)}; expected a share of its time, from 0 to 1")


def kind_of(one: Communication) -> str:
    """What a communication does, in a word.

    >>> kind_of(Reduction(("data",), 8))
    'all-reduce'
    """
    return str(one.goal if isinstance(one, Reduction) else one.kind)


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


TIMES = ("seconds", "default_seconds", "bound_seconds")


def _check_times(one: object, names: Sequence[str]) -> None:
    for name in names:
        seconds = getattr(one, name)
        if not is_number(seconds) or seconds < 0:
            raise SpecError(f"expected {name} of zero or more, not {shown(seconds)}")


@dataclass(frozen=True, slots=True)
class PlannedReduction:
    """A reduction with its program and predicted times, each for one run.

    seconds: of the program; default_seconds: of the library's own collective over the whole group, on the same
    placement; bound_seconds: no algorithm can be faster. chunks: how many the payload is cut into, of which `others`
    take other programs.
    """

    reduction: Reduction
    program: Program
    seconds: float
    default_seconds: float
    bound_seconds: float
    chunks: int = 1
    others: tuple[tuple[Program, int], ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is no plan for a reduction."""
        check_type(self.reduction, Reduction, "a Reduction")
        check_type(self.program, Program, "a Program")
        _check_times(self, TIMES)
        check_type(self.chunks, int, "a number of chunks")
        for other in as_tuple(self.others, tuple, "programs with their chunks"):
            if len(other) != 2 or not isinstance(other[0], Program) or type(other[1]) is not int:
                raise SpecError(f"expected a program and its chunks, not {shown(other)}")
        _ = self.pipelined  # refuses numbers of chunks that do not add up

    @property
    def pipelined(self) -> Pipelined:
        """The programs with their chunks."""
        left = self.chunks - sum(count for _, count in self.others)
        return Pipelined(((self.program, left), *self.others))


@dataclass(frozen=True, slots=True)
class PlannedTransfer:
    """A transfer and its predicted times, each for one run. Libraries do it in one way: that is the default, too."""

    transfer: Transfer
    seconds: float
    bound_seconds: float

    def __post_init__(self) -> None:
        """Refuse what is no plan for a transfer."""
        check_type(self.transfer, Transfer, "a Transfer")
        _check_times(self, ("seconds", "bound_seconds"))

    @property
    def default_seconds(self) -> float:
        """The same."""
        return self.seconds


PlannedCommunication = PlannedReduction | PlannedTransfer


def communication_of(planned: PlannedCommunication) -> Communication:
    """What was planned."""
    return planned.reduction if isinstance(planned, PlannedReduction) else planned.transfer


@dataclass(frozen=True, slots=True)
class Plan:
    """A placement, and the program for each reduction; what else is sent counts in the times.

    The times are sums over the reductions and transfers times their counts, without what is hidden.
    """

    placement: Placement
    library: Library
    reductions: tuple[PlannedReduction, ...]
    transfers: tuple[PlannedTransfer, ...] = ()

    def __post_init__(self) -> None:
        """Keep the reductions as a tuple."""
        check_type(self.placement, Placement, "a Placement")
        check_type(self.library, Library, "a Library")
        for name, kind in (("reductions", PlannedReduction), ("transfers", PlannedTransfer)):
            object.__setattr__(self, name, as_tuple(getattr(self, name), kind, f"{name} of a plan"))

    @property
    def communications(self) -> tuple[PlannedCommunication, ...]:
        """The reductions, then the transfers."""
        return (*self.reductions, *self.transfers)

    @property
    def seconds(self) -> float:
        """The predicted time of all communications that is not hidden."""
        return self._total("seconds")

    @property
    def default_seconds(self) -> float:
        """The predicted time with the library's own collectives on the same placement."""
        return self._total("default_seconds")

    @property
    def bound_seconds(self) -> float:
        """No algorithms can be faster on this placement."""
        return self._total("bound_seconds")

    def _total(self, which: str) -> float:
        return sum((getattr(one, which) * exposed(communication_of(one)) for one in self.communications), 0.0)

    @property
    def speedup(self) -> float:
        """How much faster than the default."""
        return ratio(self.default_seconds, self.seconds)

    def hierarchy(self, planned: PlannedReduction) -> Hierarchy:
        """The hierarchy of one of the reductions: what its program speaks of."""
        return reduction_hierarchy(self.placement, planned.reduction.axes)

    def model(self, planned: PlannedReduction) -> CostModel:
        """The cost model of one of the reductions."""
        layout = layout_of(self.placement, planned.reduction.axes)
        return CostModel(layout, self.library, planned.reduction.bytes)

    def document(self) -> dict[str, Any]:
        """The plan as plain data."""
        return {
            "placement": {
                "axes": list(self.placement.axes),
                "matrix": [list(row) for row in self.placement.matrix],
            },
            **times_of(self),
            "speedup": self.speedup,
            "reductions": [
                {
                    "axes": list(r.reduction.axes),
                    "bytes": r.reduction.bytes,
                    "count": r.reduction.count,
                    "goal": str(r.reduction.goal),
                    "name": r.reduction.name,
                    "hidden": r.reduction.hidden,
                    "program": r.pipelined.text(self.hierarchy(r)),
                    **times_of(r),
                }
                for r in self.reductions
            ],
            "transfers": [
                {
                    "axes": list(t.transfer.axes),
                    "bytes": t.transfer.bytes,
                    "kind": str(t.transfer.kind),
                    "count": t.transfer.count,
                    "name": t.transfer.name,
                    "hidden": t.transfer.hidden,
                    "seconds": t.seconds,
                    "bound_seconds": t.bound_seconds,
                }
                for t in self.transfers
            ],
        }


def ratio(a: float, b: float) -> float:
    """How many times b fits into a; 1 where there is nothing to do."""
    return a / b if b else 1.0


def times_of(plan: Plan | PlannedReduction | PlannedTransfer) -> dict[str, float]:
    """What was predicted: the time, that of the library's own, and the bound."""
    return {name: getattr(plan, name) for name in TIMES}


def flat_program(goal: Goal, levels: int) -> Program:
    """The goal as one collective over the whole group: what a library does by default."""
    if levels == 0:
        return Program(())
    return Program((Step(FLAT[goal], Grouping(0, levels - 1)),))


FLAT = {
    Goal.ALL_REDUCE: Collective.ALL_REDUCE,
    Goal.REDUCE_SCATTER: Collective.REDUCE_SCATTER,
    Goal.ALL_GATHER: Collective.ALL_GATHER,
    Goal.REDUCE: Collective.REDUCE,
    Goal.BROADCAST: Collective.BROADCAST,
}


def planned_reduction(model: CostModel, reduction: Reduction, program: Program | Pipelined) -> PlannedReduction:
    """A reduction with a program, and its times under a model."""
    goal = reduction.goal
    flat = flat_program(goal, len(model.layout.levels))
    if isinstance(program, Program):
        program = Pipelined(((program, 1),))
    return PlannedReduction(
        reduction,
        program.program,
        Pipeline(model, goal).seconds(program),
        model.seconds(flat, goal),
        model.bound(goal),
        program.chunks,
        program.shares[1:],
    )


def planned_transfer(model: CostModel, transfer: Transfer) -> PlannedTransfer:
    """A transfer, and its times under a model."""
    return PlannedTransfer(transfer, model.transfer(transfer.kind).seconds, model.bound(transfer.kind))
