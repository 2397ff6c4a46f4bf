"""Calls: which of a plan's reductions a call means, what its result is, and what ranks compare and say about it."""

import operator
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import log
from typing import Any, NamedTuple, SupportsIndex

from meshwright.cost.pipeline import CHUNKS
from meshwright.errors import EngineError, MeshwrightError, MeshwrightWarning
from meshwright.language.goals import Goal, Holding
from meshwright.planning.plan import Plan, Planned, cost_model, predict_seconds
from meshwright.planning.planner import Planner
from meshwright.planning.tuning import tuned_elsewhere
from meshwright.runtime.agreement import CallCheck
from meshwright.runtime.payload import Array, Arrays
from meshwright.runtime.role import Cut, Role, part_length
from meshwright.runtime.tuning import Race, Tuner
from meshwright.text.units import format_seconds, format_size
from meshwright.workload.communication import exposed

Over = str | Iterable[str] | int | None
"""Which reduction is meant: its axes ("data", "data+shard", ["data"]), its number, or None for the only one."""

KEPT = 1000  # choices and kinds of calls, so that sizes which always change do not fill the memory


class Chooser:
    """Finds the reduction that a call means; what was found is kept."""

    def __init__(self, plan: Plan) -> None:
        self.find = lru_cache(KEPT)(partial(choose, plan))

    def __call__(self, goal: Goal, over: Over, payload: int, is_part: bool = False) -> int:
        """The number of the reduction with a goal, for a payload of `payload` bytes, or for a rank's part of one."""
        if over is not None and not isinstance(over, str | int):
            over = operator.index(over) if isinstance(over, SupportsIndex) else tuple(over)
        return self.find(goal, over, payload, is_part)


def choose(plan: Plan, goal: Goal, over: Over, payload: int, is_part: bool = False) -> int:
    """The number of the reduction with a goal; of several over the same axes, the one planned for the nearest size."""
    if isinstance(over, int):
        if not 0 <= over < len(plan.reductions):
            raise EngineError(f"there is no reduction {over}: the plan has 0 to {len(plan.reductions) - 1}")
        if plan.reductions[over].communication.goal is not goal:
            raise EngineError(f"reduction {over} of the plan is {describe(plan.reductions[over])}, not a {goal}")
        return over
    fitting = [k for k, planned in enumerate(plan.reductions) if planned.communication.goal is goal]
    if over is not None:
        axes = set(over.split("+") if isinstance(over, str) else over)
        fitting = [k for k in fitting if set(plan.reductions[k].communication.axes) == axes]
        wanted = f"{goal} over {'+'.join(sorted(axes))}"
    else:
        wanted = str(goal)
    if not fitting:
        has = "; ".join(map(describe, plan.reductions))
        raise EngineError(f"the plan has no {wanted}; it has: {has}")
    if len({frozenset(plan.reductions[k].communication.axes) for k in fitting}) > 1:
        several = "; ".join(describe(plan.reductions[k]) for k in fitting)
        raise EngineError(f"the plan has more than one {goal}: say which with over=…: {several}")
    whole = payload * plan.hierarchy(plan.reductions[fitting[0]]).size if is_part else payload
    return min(fitting, key=lambda k: abs(log(plan.reductions[k].communication.bytes / max(whole, 1))))


def describe(planned: Planned) -> str:
    """A reduction in words."""
    return f"{planned.communication.goal} over {'+'.join(planned.communication.axes)}"


class Notices:
    """Warns where a plan runs otherwise than planned: once for each reason, and on rank 0 alone."""

    LIBRARIES = ("nccl", "gloo", "openmpi")  # that stand for one real library; others, like ring, may be for any

    def __init__(self, plan: Plan, rank: int) -> None:
        self.plan, self.silent = plan, rank != 0
        self.seen: set[object] = set()

    def library(self, running: str) -> None:
        """Say that the plan runs on another library than it was made for."""
        planned = self.plan.library.name.removesuffix("-calibrated")
        if planned in self.LIBRARIES and planned != running:
            known = running in self.LIBRARIES
            lost = self._lost(running) if known and not self.silent and "library" not in self.seen else ""
            self._say(
                f"the plan was made for {planned}, but runs on {running}: results are right, but "
                f"{lost or 'other programs may be faster'}{f'; plan with --library {running}' if known else ''}",
                "library",
            )

    def _lost(self, running: str) -> str:
        """What running on another library is expected to cost; nothing where no time can be computed."""
        placement, most = self.plan.placement, max(planned.chunks for planned in self.plan.reductions)
        what = [planned.communication for planned in self.plan.communications]
        try:
            best = Planner(placement.system, placement.sizes, what, running, max_chunks=min(most, CHUNKS[-1]))
            least = best.plan(placement).seconds
            taken = replace(self.plan, library=best.library)
            seconds = sum(
                exposed(one.communication) * predict_seconds(cost_model(taken, one), one.communication, one.pipelined)
                for one in taken.communications
            )
        except MeshwrightError:
            return ""
        return f"{format_seconds(seconds)} is predicted, where a plan for {running} takes {format_seconds(least)}"

    def tuned(self, engine: str) -> None:
        """Say that the plan was tuned somewhere else."""
        engines = {each.engine.partition("-")[0] for planned in self.plan.reductions for each in planned.tuned}
        if tuned_elsewhere(self.plan):
            reason = "on another system or placement than it has now"
        elif engines - {engine}:
            reason = f"with {', '.join(sorted(engines - {engine}))}, but runs with {engine}"
        else:
            return
        self._say(f"the plan was tuned {reason}, so its measurements no longer count: tune it again", "tuned")

    def chunks(self, number: int, chunks: int, payload: int) -> None:
        """Say that a payload of `payload` bytes is too small to be cut as a reduction was planned for one size only."""
        planned = self.plan.reductions[number]
        if chunks == 1 < planned.chunks and payload < planned.communication.bytes and not planned.ranges:
            self._say(
                f"the {describe(planned)} was planned for {format_size(planned.communication.bytes)} in "
                f"{planned.chunks} chunks, but a call with {format_size(payload)} is a single chunk, whose steps do "
                "not overlap: make the plan again, so that it has programs for every size",
                number,
            )

    def _say(self, text: str, reason: object) -> None:
        if self.silent or reason in self.seen:
            return
        self.seen.add(reason)
        frame, level = sys._getframe(), 1
        while frame.f_back is not None and frame.f_globals["__name__"].startswith("meshwright."):
            frame, level = frame.f_back, level + 1
        warnings.warn(text, MeshwrightWarning, stacklevel=level)  # names the user's line that made the call


OPERATIONS = frozenset({"sum", "avg", "max", "min"})


def check_operation(op: Any) -> None:
    """Refuse what is not an operation."""
    if op not in OPERATIONS:
        raise EngineError(f"op={op!r}: expected sum, avg, max or min")


def check_average(op: str, fits: bool, dtype: object, needed: str = "floating point numbers") -> None:
    """Refuse an average of a dtype that does not fit."""
    if op == "avg" and not fits:
        raise EngineError(f"op='avg' needs {needed}, not {dtype}: reduce with 'sum', then divide")


class CallKind(NamedTuple):
    """What calls have in common that are of one reduction, length, dtype and operation."""

    role: Role
    check: CallCheck
    length: int  # of the whole array in elements, also where a rank gives or gets a part of it
    bytes: int
    cut: Sequence[Cut]
    words: tuple[str, ...]  # the call in words, which ranks compare
    race: Race | None = None  # as long as it is not settled which programs calls take; they take turns then


class Prepared(NamedTuple):
    """A call that can be made."""

    kind: CallKind
    given: Array
    result: Array
    kept: Array  # what the caller gets back, a view of `result`


class Calls:
    """The calls of one rank with one plan."""

    def __init__(
        self,
        plan: Plan,
        rank: int,
        roles: Sequence[Role],
        checks: Sequence[CallCheck],
        arrays: Arrays,
        tune: bool = False,
    ) -> None:
        """No call is made yet; there are a role and a check for each of the plan's reductions.

        tune: whether the first calls find out which programs are fastest; the roles can then take all of them.
        """
        self.rank, self.roles, self.checks, self.arrays = rank, roles, checks, arrays
        self.tuner = Tuner(plan) if tune else None
        self.choose, self.notices = Chooser(plan), Notices(plan, rank)
        self.kinds: dict[tuple[int, str, int, Any], CallKind] = {}

    def prepare(self, goal: Goal, given: Array, out: Array | None, op: str, over: Over) -> Prepared:
        """Find out which reduction is meant, how large it is, and where its result goes: into `out`, if given."""
        gathers, arrays = goal.start is Holding.PART, self.arrays
        whole = out if gathers and out is not None else given
        is_part = gathers and out is None
        number = self.choose(goal, over, whole.nbytes, is_part)
        ranks = self.roles[number].ranks
        length = arrays.length(whole) * (len(ranks) if is_part else 1)
        key = number, op, length, given.dtype
        kind = self.kinds.get(key)
        if kind is None or (kind.race is not None and kind.race.winner is not None):
            if len(self.kinds) >= KEPT:
                self.kinds.clear()
            kind = self.kinds[key] = self._kind(number, op, length, given)
        if goal.in_place:
            return Prepared(kind, given, given, given)
        mine = part_length(length, len(ranks), ranks.index(self.rank))
        if goal.end is Holding.PART:
            result = arrays.empty(part_length(length, len(ranks), 0), given) if out is None else out
            return Prepared(kind, given, result, result[:mine])
        if (has := arrays.length(given)) != mine:
            raise EngineError(
                f"rank {self.rank} gives {has} elements, but its part of {length} over {len(ranks)} ranks has {mine}"
            )
        if arrays.words(whole) != arrays.words(given):
            raise EngineError(f"out is {arrays.words(whole)}, the part is {arrays.words(given)}")
        result = arrays.empty(length, given) if out is None else out
        return Prepared(kind, given, result, result)

    def _kind(self, number: int, op: str, length: int, given: Array) -> CallKind:
        role, size = self.roles[number], length * given.itemsize
        race = self.tuner.race(number, size) if self.tuner and size else None
        settled = None if race is None else race.winner
        goal, cut = role.planned.communication.goal, role.cut(length, given.itemsize, settled)
        if length:
            self.notices.chunks(number, len(cut), size)
        what = f"reduction {number}"
        kind = op if goal.reduces else "any"
        words = ("gives", str(length), "elements of", self.arrays.dtype(given), "to", goal, kind, "of", what)
        return CallKind(role, self.checks[number], length, size, cut, words, None if settled else race)

    def refuse(self, goal: Goal, over: Over, error: EngineError) -> None:
        """Tell the others, who may be about to compare this call, that this rank cannot make it."""
        try:
            number = self.choose(goal, over, 1)
        except EngineError:
            return
        self.checks[number].refuse(str(error))

    def finish(self) -> None:
        """Compare the last calls."""
        for check in dict.fromkeys(self.checks):
            check.finish()
