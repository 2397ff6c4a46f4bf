"""Plans: a placement, and for each reduction the program that carries it out. What engines run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.cost.library import Library
from meshwright.cost.model import CostModel
from meshwright.cost.pipeline import Pipeline
from meshwright.errors import SpecError
from meshwright.language.goals import flat_program
from meshwright.language.program import Pipelined, Program
from meshwright.placement.hierarchy import Hierarchy, reduction_hierarchy
from meshwright.placement.layout import layout_of
from meshwright.placement.placement import Placement
from meshwright.text.spec import (
    as_tuple,
    check_type,
    is_number,
    shown,
)
from meshwright.workload.communication import Communication, Reduction, Transfer, exposed

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
