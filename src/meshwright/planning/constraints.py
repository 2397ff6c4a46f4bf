"""Constraints on placements: what a user demands of an axis, like staying inside one node."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from math import prod

from meshwright.errors import PlacementError, SpecError
from meshwright.placement.matrices import count_matrices, rows
from meshwright.planning.search import count_allowed
from meshwright.planning.terms import Row
from meshwright.system.model import System
from meshwright.text.spec import as_tuple, check_names, format_counts, shown, unknown


class ConstraintRule(StrEnum):
    """The kinds of constraints."""

    INSIDE = "inside"
    NOT_ACROSS = "not-across"
    ROW = "row"


@dataclass(frozen=True, slots=True)
class Constraint:
    """A demand on the row of one axis.

    inside LEVEL: each of its groups lies in one instance of the level: its factors there and further out are 1.
    not-across LEVEL: it does not fan out at that level: its factor there is 1.
    row: exactly these factors, outermost first.
    """

    rule: ConstraintRule
    axis: str
    level: str = ""
    row: Row = ()

    def __post_init__(self) -> None:
        """Refuse what is no constraint."""
        if not isinstance(self.rule, str) or self.rule not in list(ConstraintRule):
            raise SpecError(unknown("rule", self.rule, list(ConstraintRule)))
        object.__setattr__(self, "rule", ConstraintRule(self.rule))
        check_names([self.axis], "constraint", "tensor=node")
        if not isinstance(self.level, str) or self.level:
            check_names([self.level], "constraint", "tensor=node")
        if not isinstance(self.row, tuple) or (self.rule is ConstraintRule.ROW) != bool(self.row):
            raise SpecError(f"a row is given where it is fixed, as a tuple of factors, not {shown(self.row)}")
        if any(type(factor) is not int or factor < 1 for factor in self.row):
            raise SpecError(f"the row of axis {shown(self.axis)} is {shown(self.row)}; expected positive factors")

    def __str__(self) -> str:
        """As on the command line."""
        return f"--{self.rule} {self.axis}={self.level or ','.join(map(shown, self.row))}"

    def allows(self, row: Row, system: System) -> bool:
        """Whether the axis may have this row."""
        if self.rule is ConstraintRule.ROW:
            return row == self.row
        level = [one.name for one in system.levels].index(self.level)
        first = 0 if self.rule is ConstraintRule.INSIDE else level
        return all(factor == 1 for factor in row[first : level + 1])


def inside(axis: str, level: str) -> Constraint:
    """Keep an axis inside one instance of a level.

    >>> print(inside("tensor", "node"))
    --inside tensor=node
    """
    return Constraint(ConstraintRule.INSIDE, axis, level)


def not_across(axis: str, level: str) -> Constraint:
    """Forbid an axis to cross a level.

    >>> print(not_across("pipeline", "gpu"))
    --not-across pipeline=gpu
    """
    return Constraint(ConstraintRule.NOT_ACROSS, axis, level)


def fixed_row(axis: str, row: Sequence[int]) -> Constraint:
    """Fix a row of the matrix.

    >>> print(fixed_row("tensor", (1, 8)))
    --row tensor=1,8
    """
    return Constraint(ConstraintRule.ROW, axis, row=as_tuple(row, int, "factors of a row"))


def parse_constraint(rule: ConstraintRule, text: str) -> Constraint:
    """A constraint from `AXIS=LEVEL`, or for a row from `AXIS=FACTOR,FACTOR,…`.

    >>> parse_constraint(ConstraintRule.ROW, "tensor=1,8").row
    (1, 8)
    """
    axis, equals, value = (word.strip() for word in text.partition("="))
    if rule is not ConstraintRule.ROW:
        if not equals or not axis or not value:
            raise SpecError(f"{shown(text)} is not AXIS=LEVEL, as in --{rule} tensor=node")
        return Constraint(rule, axis, value)
    factors = value.strip("[]").split(",")
    if not equals or not axis or not all(re.fullmatch(r"\s*[0-9]{1,20}\s*", one) for one in factors):
        raise SpecError(f"{shown(text)} is not AXIS=FACTOR,FACTOR,…, one factor per level, as in --row tensor=1,8")
    return Constraint(rule, axis, row=tuple(int(factor) for factor in factors))


def allowed_rows(
    system: System, axes: Mapping[str, int], constraints: Sequence[Constraint]
) -> tuple[Callable[[int, Row], bool], int]:
    """Whether an axis (by its number) may have a row, and how many placements the constraints leave.

    Refuses constraints that leave none, and says which do.
    """
    for constraint in constraints:
        _check(constraint, system, axes)
    names = list(axes)

    def allows(chosen: Sequence[Constraint]) -> Callable[[int, Row], bool]:
        by_axis = [[c for c in chosen if c.axis == name] for name in names]
        return lambda axis, row: all(c.allows(row, system) for c in by_axis[axis])

    def left(chosen: Sequence[Constraint]) -> int:
        return count_allowed(tuple(axes.values()), system.counts, allows(chosen))

    if not constraints:
        return (lambda _axis, _row: True), count_matrices(tuple(axes.values()), system.counts)
    if number := left(constraints):
        return allows(constraints), number
    for one in constraints:
        if not left([one]):
            raise PlacementError(
                f"{one} leaves no placement of {format_counts(axes)} on {system.name}: {_why(one, axes, system)}"
            )
    for one, other in combinations(constraints, 2):
        if not left([one, other]):
            raise PlacementError(
                f"{one} and {other} contradict each other: each can be had, but not both, with {format_counts(axes)} "
                f"on {format_counts({level.name: level.count for level in system.levels})}"
            )
    kept = 1
    while left(constraints[: kept + 1]):
        kept += 1
    before = left(constraints[:kept])
    raise PlacementError(
        f"no placement satisfies all {len(constraints)} constraints: "
        f"{', '.join(map(str, constraints[:kept]))} leave {before:,}, and {constraints[kept]} removes the last"
    )


def check_constraint(constraint: Constraint, system: System, axes: Collection[str]) -> None:
    """Refuse a constraint on an axis or a level that there is not."""
    if constraint.axis not in axes:
        raise PlacementError(f"{constraint}: {unknown('axis', constraint.axis, axes)}")
    names = [level.name for level in system.levels]
    if constraint.rule is not ConstraintRule.ROW:
        if constraint.level not in names:
            raise PlacementError(f"{constraint}: {unknown('level', constraint.level, names)}")
    elif len(constraint.row) != len(names):
        raise PlacementError(f"{constraint}: expected {len(names)} positive factors, for {', '.join(names)}")


def _check(constraint: Constraint, system: System, axes: Mapping[str, int]) -> None:
    check_constraint(constraint, system, axes)
    row, size = constraint.row, axes[constraint.axis]
    if row and prod(row) != size:
        raise PlacementError(
            f"{constraint}: the factors multiply to {shown(prod(row))}, but the axis has the size {size}"
        )


def _why(one: Constraint, axes: Mapping[str, int], system: System) -> str:
    size = axes[one.axis]
    fitting = [row for row in rows(size, system.counts) if one.allows(row, system)]
    if fitting:
        return "the other axes do not fit into what is left"
    if one.rule is ConstraintRule.ROW:
        return "the factors do not divide the level counts"
    return f"{one.axis} has the size {size}, which does not fit there"
