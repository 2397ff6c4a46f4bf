"""Calls: what a call means, what its result is, and what ranks compare and tell each other about it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from meshwright.errors import EngineError
from meshwright.language.goals import Goal, Holding
from meshwright.planning.plan import Plan
from meshwright.runtime.agreement import CallCheck
from meshwright.runtime.choose import Chooser, Over
from meshwright.runtime.notices import Notices
from meshwright.runtime.payload import Array, Arrays, length_of
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


class Prepared(NamedTuple):
    """A call that can be made.

    length: the elements of the whole array, also where a rank gives or gets a part of it.
    kept: what the caller gets back, a view of `result`.
    words: the call in words, which ranks compare.
    """

    number: int
    role: Role
    check: CallCheck
    cut: Sequence[Cut]
    length: int
    given: Array
    result: Array
    kept: Array
    words: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """The size of the whole array."""
        size: int = self.length * self.given.itemsize
        return size


class Calls:
    """The calls of one rank with one plan."""

    def __init__(
        self, plan: Plan, rank: int, roles: Sequence[Role], checks: Sequence[CallCheck], arrays: Arrays
    ) -> None:
        """No call is made yet; there are a role and a check for each of the plan's reductions."""
        self.rank, self.roles, self.checks, self.arrays = rank, roles, checks, arrays
        self.choose, self.notices = Chooser(plan), Notices(plan, rank)

    def prepare(self, goal: Goal, given: Array, out: Array | None, op: str, over: Over) -> Prepared:
        """Find out which reduction is meant, how large it is, and where its result goes.

        out: where an all-gather is to put its result, if the caller says so.
        """
        arrays, whole = self.arrays, given if out is None else out
        is_part = goal.start is Holding.PART and out is None
        number = self.choose(goal, over, whole.nbytes, is_part)
        role = self.roles[number]
        size = len(role.ranks)
        length = length_of(whole) * (size if is_part else 1)
        mine = part_length(length, size, role.ranks.index(self.rank))
        result = kept = given
        if goal.end is Holding.PART:
            result = arrays.empty(part_length(length, size, 0), given)
            kept = result[:mine]
        elif goal.start is Holding.PART:
            if (has := length_of(given)) != mine:
                raise EngineError(
                    f"rank {self.rank} gives {has} elements, but its part of {length} over {size} ranks has {mine}"
                )
            if arrays.kind(whole) != arrays.kind(given):
                raise EngineError(f"out is {arrays.kind(whole)}, the part is {arrays.kind(given)}")
            result = kept = arrays.empty(length, given) if out is None else out
        kind = op if goal.reduces else "any"
        dtype = arrays.dtype(given)
        words = ("gives", str(length), "elements of", dtype, "to", goal, kind, "of", f"reduction {number}")
        cut = role.cut(length, given.itemsize)
        if length:
            self.notices.chunks(number, len(cut), length * given.itemsize)
        return Prepared(number, role, self.checks[number], cut, length, given, result, kept, words)

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
