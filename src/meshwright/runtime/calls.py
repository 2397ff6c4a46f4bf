"""Calls: what a call means, what its result is, and what ranks compare and tell each other about it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from meshwright.errors import EngineError
from meshwright.language.goals import Goal, Holding
from meshwright.planning.plan import Plan
from meshwright.runtime.agreement import CallCheck
from meshwright.runtime.choose import KEPT, Chooser, Over
from meshwright.runtime.notices import Notices
from meshwright.runtime.payload import Array, Arrays
from meshwright.runtime.role import Cut, Role, part_length

_OPERATIONS = frozenset({"sum", "avg", "max", "min"})


def check_operation(op: Any) -> None:
    """Refuse what is not an operation."""
    if op not in _OPERATIONS:
        raise EngineError(f"op={op!r}: expected sum, avg, max or min")


def check_average(op: str, fits: bool, dtype: object, needed: str = "floating point numbers") -> None:
    """Refuse an average of a dtype that does not fit."""
    if op == "avg" and not fits:
        raise EngineError(f"op='avg' needs {needed}, not {dtype}: reduce with 'sum', then divide")


class Kind(NamedTuple):
    """What calls have in common that are of one reduction, length, dtype and operation.

    length: the elements of the whole array, also where a rank gives or gets a part of it; `bytes` is its size.
    words: the call in words, which ranks compare.
    """

    role: Role
    check: CallCheck
    length: int
    bytes: int
    cut: Sequence[Cut]
    words: tuple[str, ...]


class Prepared(NamedTuple):
    """A call that can be made. kept: what the caller gets back, a view of `result`."""

    kind: Kind
    given: Array
    result: Array
    kept: Array


class Calls:
    """The calls of one rank with one plan."""

    def __init__(
        self, plan: Plan, rank: int, roles: Sequence[Role], checks: Sequence[CallCheck], arrays: Arrays
    ) -> None:
        """No call is made yet; there are a role and a check for each of the plan's reductions."""
        self.rank, self.roles, self.checks, self.arrays = rank, roles, checks, arrays
        self.choose, self.notices = Chooser(plan), Notices(plan, rank)
        self.kinds: dict[tuple[int, str, int, Any], Kind] = {}

    def prepare(self, goal: Goal, given: Array, out: Array | None, op: str, over: Over) -> Prepared:
        """Find out which reduction is meant, how large it is, and where its result goes.

        out: where an all-gather is to put its result, if the caller says so.
        """
        arrays, whole = self.arrays, given if out is None else out
        is_part = goal.start is Holding.PART and out is None
        number = self.choose(goal, over, whole.nbytes, is_part)
        ranks = self.roles[number].ranks
        length = arrays.length(whole) * (len(ranks) if is_part else 1)
        key = number, op, length, given.dtype
        kind = self.kinds.get(key)
        if kind is None:
            if len(self.kinds) >= KEPT:
                self.kinds.clear()
            kind = self.kinds[key] = self._kind(number, op, length, given)
        if goal.in_place:
            return Prepared(kind, given, given, given)
        mine = part_length(length, len(ranks), ranks.index(self.rank))
        if goal.end is Holding.PART:
            result = arrays.empty(part_length(length, len(ranks), 0), given)
            return Prepared(kind, given, result, result[:mine])
        if (has := arrays.length(given)) != mine:
            raise EngineError(
                f"rank {self.rank} gives {has} elements, but its part of {length} over {len(ranks)} ranks has {mine}"
            )
        if arrays.words(whole) != arrays.words(given):
            raise EngineError(f"out is {arrays.words(whole)}, the part is {arrays.words(given)}")
        result = arrays.empty(length, given) if out is None else out
        return Prepared(kind, given, result, result)

    def _kind(self, number: int, op: str, length: int, given: Array) -> Kind:
        role = self.roles[number]
        goal, cut, size = role.planned.communication.goal, role.cut(length, given.itemsize), length * given.itemsize
        if length:
            self.notices.chunks(number, len(cut), size)
        what = f"reduction {number}"
        kind = op if goal.reduces else "any"
        words = ("gives", str(length), "elements of", self.arrays.dtype(given), "to", goal, kind, "of", what)
        return Kind(role, self.checks[number], length, size, cut, words)

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
