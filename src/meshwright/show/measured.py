"""What was measured of a plan: by `meshwright tune`, which writes it into the plan, or by `meshwright bench`."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from meshwright.measure.records import Measurement
from meshwright.planning.plan import DEFAULT_PROGRAM, Plan, Planned


@dataclass(frozen=True, slots=True)
class Seen:
    """The median seconds of a program, and of the library's own collective where that was measured too."""

    engine: str
    seconds: float
    default_seconds: float | None


def seen(plan: Plan, planned: Planned, measurements: Iterable[Measurement]) -> Seen | None:
    """What was measured of one of a plan's communications: the same placement, payload and program; None: nothing.

    measurements: those of a bench; where they have nothing, what the plan was tuned by counts.
    """
    return _among(plan, planned, measurements) or _tuned(planned)


def _tuned(planned: Planned) -> Seen | None:
    for each in planned.tuned:
        if each.bytes == planned.communication.bytes and each.chosen.pipelined == planned.pipelined:
            own = [one.seconds for one in each.compared if one.pipelined is None]
            return Seen(each.engine, each.chosen.seconds, own[0] if own else None)
    return None


def _among(plan: Plan, planned: Planned, measurements: Iterable[Measurement]) -> Seen | None:
    text, at, one = plan.program_text(planned), plan.placement, planned.communication
    rows = dict(zip(at.axes, at.matrix, strict=True))
    shape = [(level.name, level.count) for level in at.system.levels]
    found: dict[str, Measurement] = {}
    for each in measurements:
        where = each.placement()
        same = [(level.name, level.count) for level in where.system.levels] == shape
        same = same and dict(zip(where.axes, where.matrix, strict=True)) == rows and not each.alone
        what = set(each.over) == set(one.axes) and each.goal == one.goal and each.bytes == one.bytes
        if same and what and each.seconds and each.program in (text, DEFAULT_PROGRAM):
            found[each.program] = each
    mine, default = found.get(text), found.get(DEFAULT_PROGRAM)
    if mine is None:
        return None
    known = None if default is None else median(default.seconds)
    return Seen(mine.engine, median(mine.seconds), known)
