"""Tuning a plan: what is measured for each of its reductions, and the plan that takes what was fastest."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isqrt

from meshwright.errors import EngineError, SpecError
from meshwright.language.program import Pipelined
from meshwright.measure.bench import Case, race
from meshwright.measure.records import Measurement
from meshwright.planning.plan import Plan, Tuned
from meshwright.planning.tuning import candidates, check_tunable, choose, retuned
from meshwright.runtime.calls import describe


@dataclass(frozen=True, slots=True)
class Heat:
    """One payload of one reduction: what is measured, and for which payloads the result counts."""

    number: int  # of the reduction
    case: Case
    span: tuple[int, int]  # the smallest and the largest payload, in bytes

    @property
    def bytes(self) -> int:
        """The payload."""
        return self.case.reduction.bytes


def heats(plan: Plan, best: int, sizes: Iterable[int] = ()) -> list[Heat]:
    """What is to be measured for each reduction, with the planned payload and some other sizes."""
    check_tunable(plan)
    found = []
    for number, planned in enumerate(plan.reductions):
        wanted = sorted({planned.communication.bytes, *sizes})
        for size, span in zip(wanted, spans(wanted), strict=True):
            own, *others = candidates(plan, planned, size, best)
            if any(collective is planned.communication.goal.flat for collective, _ in plan.library.own):
                others = [own, *others]  # an engine has something better than the library's own
            if plan.hierarchy(planned).size == 1 or not others:
                continue
            reduction = replace(planned.communication, bytes=size)
            found.append(Heat(number, race(plan.placement, reduction, plan.library, others), span))
    if not found:
        raise SpecError("there is nothing to tune: no reduction of the plan has more than one program")
    return found


def spans(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Around each of some growing sizes, the payloads from half to twice as large; where two meet, each has its share.

    >>> spans([1000, 3000])
    [(500, 1732), (1733, 5999)]
    """
    found = []
    for k, size in enumerate(sizes):
        least = max((size + 1) // 2, isqrt(sizes[k - 1] * size) + 1 if k else 1)
        most = min(2 * size - 1, isqrt(size * sizes[k + 1]) if k + 1 < len(sizes) else 2 * size)
        found.append((least, max(size, most)))
    return found


def tune(plan: Plan, wanted: Sequence[Heat], measured: Iterable[Measurement], engine: str) -> Plan:
    """The plan that takes what was fastest, or as fast and simpler; what gave wrong results is left out."""
    by_id = {one.id: one for one in measured}
    found: dict[int, list[Tuned]] = {}
    for heat in wanted:
        planned = plan.reductions[heat.number]
        times: dict[Pipelined | None, list[float]] = {}
        for number, blank in zip(heat.case.numbers, heat.case.measurements(engine), strict=True):
            one = by_id[blank.id]
            if one.failed is not None and number is None:
                raise EngineError(f"{describe(planned)}: the library's own collective failed: {one.failed}")
            if one.failed is None:
                times[None if number is None else heat.case.plan.reductions[number].pipelined] = one.seconds
        chosen = choose(plan, planned, heat.bytes, heat.span, engine, times)
        found.setdefault(heat.number, []).append(chosen)
    return retuned(plan, found)
