"""Tuning: which programs are worth measuring for a payload, which of them to take, and a plan with what was taken."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import hypot, sqrt
from statistics import median, stdev

from meshwright.cost.pipeline import Pipeline
from meshwright.errors import SpecError
from meshwright.language.goals import flat_program
from meshwright.language.program import Pipelined
from meshwright.placement.placement import Placement
from meshwright.planning.plan import Measured, Plan, Planned, Timed, Tuned, cost_model, predict
from meshwright.planning.ranges import varied
from meshwright.system.read import canonical_document

STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 97.5% points of Student's distribution for 1, 2, … degrees of freedom; beyond, about 2.1."""

BEATEN = 1.25
"""What never took less than this factor times the median of the fastest is not measured any further."""


def half_width(seconds: Sequence[float]) -> float:
    """Half of the 95% confidence interval of the mean."""
    if len(seconds) < 2:
        return float("inf")
    point = STUDENT[len(seconds) - 2] if len(seconds) - 2 < len(STUDENT) else 2.1
    return point * stdev(seconds) / sqrt(len(seconds))


def simplest(times: Sequence[Sequence[float]]) -> int:
    """Which of some candidates to take, from the times of each: the first that is as fast as the fastest within noise.

    The candidates are sorted, the simplest first; what is clearly slower than another is not taken. For example, three
    took 1.00, 0.98 and 0.80 s, each with a noise of 0.03 s. The third is the fastest by 0.18 s, and the others differ
    from it by more than hypot(0.03, 0.03) = 0.04 s, so it is taken. If the first two took 0.83 and 0.82 s, the first is
    taken.
    """
    medians, noise = [median(each) for each in times], [half_width(each) for each in times]
    best = min(range(len(times)), key=lambda k: medians[k])
    return next(
        k
        for k in range(len(times))
        if not beaten(times[k], times) and medians[k] - medians[best] <= hypot(noise[k], noise[best])
    )


def beaten(times: Sequence[float], others: Sequence[Sequence[float]]) -> bool:
    """Whether a candidate is clearly slower than the fastest of the others."""
    return bool(times) and min(times) > BEATEN * min([median(each) for each in others if each], default=min(times))


def own_program(plan: Plan, planned: Planned) -> Pipelined:
    """The library's own collective over the whole group, as a program."""
    return Pipelined.of(flat_program(planned.communication.goal, len(plan.hierarchy(planned).names)))


def known_programs(plan: Plan, planned: Planned) -> list[Pipelined]:
    """All programs that a plan holds for a reduction, and the same without chunks; the library's own is the first."""
    every = [own_program(plan, planned), *([planned.pipelined] if planned.pipelined else [])]
    every += [each.pipelined for each in (*planned.ranges, *planned.alternatives)]
    every += [Pipelined.of(program) for one in every for program, _ in one.shares]
    return list(dict.fromkeys(every))


def candidates(plan: Plan, planned: Planned, payload: int, best: int) -> list[Pipelined]:
    """What to measure for a payload: the library's own collective, and `best` programs that the plan holds; the
    simplest first.

    Among these are what the plan takes, and the fastest without chunks. The others have the least predicted times, but
    are `varied`. All ranks find the same, whatever their processors do with the last digits of a time.
    """
    own, *others = known_programs(plan, planned)
    pipeline = Pipeline(cost_model(plan, planned), planned.communication.goal).at(payload)
    hierarchy = plan.hierarchy(planned)
    timed = [Timed(payload, one, float(f"{pipeline.seconds(one):.6e}")) for one in others]
    timed.sort(key=lambda each: (each.seconds, each.pipelined.chunks, each.pipelined.text(hierarchy)))
    taken = [one for one in [planned.at(payload)] if one and one != own]
    found = [*taken, *(each.pipelined for each in varied([own, *taken], timed))]
    plain = [one for one in found if one.chunks == 1][:1]
    wanted = dict.fromkeys([*taken, *plain, *found])
    return [
        own,
        *sorted([*wanted][:best], key=lambda one: (one.chunks, sum(len(each.steps) for each, _ in one.shares))),
    ]


def gain(plan: Plan, planned: Planned, payload: int) -> float | None:
    """How many times as fast as the library's own collective the programs for a payload were measured to be.

    None where they were not measured, or elsewhere than on the plan's system and placement.
    """
    found = planned.tuned_at(payload)
    if found is None or found.where != where(plan.placement):
        return None
    known = {one.pipelined: one.seconds for one in (found.chosen, *found.compared)}
    own = known.get(None, known.get(own_program(plan, planned)))
    return own / found.chosen.seconds if own is not None and found.chosen.seconds else None


def check_tunable(plan: Plan) -> None:
    """Refuse a plan that was made without programs to choose from; of some reductions there may be no other program."""
    for planned in plan.reductions:
        if plan.hierarchy(planned).size > 1 and not planned.ranges:
            raise SpecError(
                f"the plan has only one program for the {planned.communication.goal} over "
                f"{'+'.join(planned.communication.axes)}, so there is nothing to tune: make the plan again, without "
                "--placement-only"
            )


def where(placement: Placement) -> str:
    """A digest of a system and a placement on it: what was measured elsewhere does not count. Names do not matter."""
    system = {
        key: value for key, value in canonical_document(placement.system).items() if key not in ("name", "library")
    }
    text = json.dumps([system, placement.axes, placement.matrix], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def tuned_elsewhere(plan: Plan) -> bool:
    """Whether a plan was tuned on another system or placement than it has now."""
    here = where(plan.placement)
    return any(each.where != here for planned in plan.reductions for each in planned.tuned)


def choose(
    plan: Plan,
    planned: Planned,
    payload: int,
    span: tuple[int, int],
    engine: str,
    times: Mapping[Pipelined | None, Sequence[float]],
    taken: int | None = None,
) -> Tuned:
    """What a reduction is to take for payloads of a span of sizes, from measured times, those of the simplest first.

    taken: the position of what is taken, if that is known already.
    """
    measured = [Measured(one, median(each), half_width(each)) for one, each in times.items()]
    at = simplest([*times.values()]) if taken is None else taken
    chosen = replace(measured[at], pipelined=measured[at].pipelined or own_program(plan, planned))
    return Tuned(payload, *span, engine, where(plan.placement), chosen, (*measured[:at], *measured[at + 1 :]))


def retuned(plan: Plan, found: Mapping[int, Sequence[Tuned]]) -> Plan:
    """A plan that takes what was chosen for some of its reductions, by their numbers."""
    reductions = [_retuned(plan, planned, found.get(k, ())) for k, planned in enumerate(plan.reductions)]
    return replace(plan, communications=(*reductions, *plan.transfers))


def _retuned(plan: Plan, planned: Planned, found: Sequence[Tuned]) -> Planned:
    """A reduction with what was chosen; what was chosen before for the same sizes, or elsewhere, is forgotten."""
    if not found:
        return planned
    model, one = cost_model(plan, planned), planned.communication
    pipeline = Pipeline(model, one.goal)
    ranges = [(each.bytes, each.pipelined) for each in planned.ranges]
    for each in found:
        assert each.chosen.pipelined is not None, "a tuned reduction has programs"
        ranges = spliced(ranges, each.least, each.most, each.chosen.pipelined)
    timed = tuple(Timed(first, program, pipeline.at(first).seconds(program)) for first, program in ranges)
    now = _at(ranges, one.bytes)
    others = [each for each in known_alternatives(planned) if each.pipelined != now]
    here = where(plan.placement)
    kept = [
        old
        for old in planned.tuned
        if old.where == here and all(old.most < new.least or new.most < old.least for new in found)
    ]
    tuned = tuple(sorted([*kept, *found], key=lambda each: each.bytes))
    return replace(predict(model, one, now), ranges=timed, alternatives=tuple(others), tuned=tuned)


def known_alternatives(planned: Planned) -> list[Timed]:
    """The program of a reduction and its alternatives, the fastest first."""
    assert planned.pipelined is not None, "a reduction has programs"
    own = Timed(planned.communication.bytes, planned.pipelined, planned.seconds)
    return sorted([own, *planned.alternatives], key=lambda each: each.seconds)


Ranges = list[tuple[int, Pipelined]]
"""From how many bytes on which programs count; the first also for less."""


def spliced(ranges: Ranges, least: int, most: int, pipelined: Pipelined) -> Ranges:
    """Ranges in which payloads from `least` to `most` bytes take some programs, and all others what they took before.

    >>> from meshwright import Goal
    >>> one, other = (Pipelined.of(flat_program(Goal.ALL_REDUCE, 1), chunks) for chunks in (1, 2))
    >>> [(first, program.chunks) for first, program in spliced([(1024, one)], 4096, 8191, other)]
    [(1024, 1), (4096, 2), (8192, 1)]
    """
    before = [each for each in ranges if each[0] < least]
    if not before and least > 1:
        before = [(1, ranges[0][1])]
    after = [(most + 1, _at(ranges, most + 1)), *[each for each in ranges if each[0] > most + 1]]
    found: Ranges = []
    for each in [*before, (least, pipelined), *after]:
        if not found or found[-1][1] != each[1]:
            found.append(each)
    return found


def _at(ranges: Ranges, payload: int) -> Pipelined:
    return [program for first, program in ranges if first <= payload or first == ranges[0][0]][-1]
