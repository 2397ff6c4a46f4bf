"""What a format gets to write, and what it gives back; the checks that formats share."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshwright.errors import SpecError
from meshwright.planning.plan import Plan, Planned
from meshwright.text.units import format_size

OUT_OF_ORDER = (
    "on some hosts the ranks are not in the order of the devices, which this file cannot say; --wrapper FILE writes a "
    "script that gives each rank its GPU, and `meshwright hosts --json` lists the position of each"
)


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be written, and for whom.

    hosts: in the order of the system's devices. order: how the program numbers its ranks, see `seatings`. bind: in a
    rank file, bind ranks to cores. reduction: the number of the one that is meant. instances: how many copies of a
    program run side by side. least, most: the bytes for which a program is taken; by default half and twice the planned
    size. labels: for levels of the system the labels of Kubernetes nodes.
    """

    plan: Plan
    hosts: tuple[str, ...] = ()
    order: str = "axes"
    bind: bool = False
    reduction: int | None = None
    instances: int = 1
    least: int | None = None
    most: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exported:
    """The text of a file, and what its reader has to know: what of the plan it does not say, and how to use it."""

    text: str
    notes: tuple[str, ...] = ()


def the_reduction(request: Request) -> Planned:
    """The reduction that is meant, for formats that carry one."""
    reductions, number = request.plan.reductions, request.reduction
    if not reductions:
        raise SpecError("the plan has no reductions with programs, so there is nothing to write in this format")
    listed = "; ".join(f"{k}: {described(each)}" for k, each in enumerate(reductions[:10]))
    if number is None and len(reductions) > 1:
        raise SpecError(
            f"this format carries one reduction, and the plan has {len(reductions)}: say --reduction N ({listed})"
        )
    if number is not None and not 0 <= number < len(reductions):
        raise SpecError(f"there is no reduction {number}; the plan has {listed}")
    return reductions[number or 0]


def described(planned: Planned) -> str:
    """A reduction in words."""
    one = planned.communication
    called = f"{one.name}, " if one.name else ""
    return f"{called}{one.goal} over {'+'.join(one.axes)}, {format_size(one.bytes)}"


def bytes_range(request: Request, planned: Planned) -> tuple[int, int]:
    """For which sizes a program is taken: from half of what was planned to twice as much, if the request is silent."""
    size = planned.communication.bytes
    least = size - size // 2 if request.least is None else request.least
    most = 2 * size if request.most is None else request.most
    if least > most:
        raise SpecError(f"--min-bytes {least} is more than --max-bytes {most}")
    return least, most
