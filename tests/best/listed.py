"""The enumeration: all matrices, orders and programs of a problem, with their times."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from math import isclose, prod
from typing import Any
from unittest.mock import patch

from meshwright import (
    Fabric,
    InvalidProgramError,
    Placement,
    Program,
    Reduction,
    System,
    check_program,
    plan,
)
from meshwright.cost.chunking import GAINED
from meshwright.cost.library import load_library
from meshwright.cost.model import CostModel
from meshwright.cost.pipeline import CHUNKS, NEARLY, Pipeline
from meshwright.language.goals import Goal
from meshwright.language.program import Collective, Grouping, Pipelined, Step
from meshwright.placement.layout import Layout, layout_of
from meshwright.planning import search
from tests.strategies import named

MARGIN = (1 + NEARLY) ** 2 / (1 - GAINED)
"""With chunks: of numbers of chunks that are nearly as good the smallest is taken, then of programs that are nearly as
good the one in the fewest, and cutting must gain something."""

SAME = 1e-9


@dataclass(frozen=True)
class Problem:
    """What is asked of the planner."""

    system: System
    axes: dict[str, int]
    reductions: tuple[Reduction, ...]
    library: str
    top: int = 3
    max_steps: int = 2
    max_chunks: int = 1
    swept: bool = False
    """Whether a sweep takes over as soon as it can, not only where it takes long."""


def rows(size: int, counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All ways to write an axis as a product of factors, each of which divides the count of its level."""
    if not counts:
        if size == 1:
            yield ()
        return
    for factor in range(1, size + 1):
        if size % factor == 0 and counts[0] % factor == 0:
            for rest in rows(size // factor, counts[1:]):
                yield (factor, *rest)


def matrices(sizes: Sequence[int], counts: Sequence[int]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All matrices with these products of rows and of columns."""
    if not sizes:
        if prod(counts) == 1:
            yield ()
        return
    for row in rows(sizes[0], counts):
        left = [count // factor for count, factor in zip(counts, row, strict=True)]
        for rest in matrices(sizes[1:], left):
            yield (row, *rest)


def orders(problem: Problem) -> list[tuple[str, ...]]:
    """On rings, every order of the axes; axes of size 1 come last, as they are nowhere."""
    names = tuple(problem.axes)
    if not any(level.link.fabric is Fabric.RING for level in problem.system.levels):
        return [names]
    ones = tuple(name for name in names if problem.axes[name] == 1)
    return [(*order, *ones) for order in permutations(name for name in names if problem.axes[name] > 1)]


@cache
def programs(levels: int, goal: Goal, max_steps: int) -> tuple[Program, ...]:
    """All valid programs, by trying every step after every beginning that the rules allow."""
    groupings = [
        Grouping(first, last, masters)
        for first in range(levels)
        for last in range(first, levels)
        for masters in ((False, True) if last < levels - 1 else (False,))
    ]
    steps = [Step(collective, grouping) for collective in Collective for grouping in groupings]
    hierarchy = named((2,) * levels)
    found: list[Program] = []
    beginnings: list[tuple[Step, ...]] = [()]
    for _ in range(max_steps + 1):
        longer: list[tuple[Step, ...]] = []
        for beginning in beginnings:
            try:
                check_program(Program(beginning), hierarchy, goal)
                found.append(Program(beginning))
            except InvalidProgramError as error:
                if error.rule == "reaches the goal":
                    longer += [(*beginning, step) for step in steps]
        beginnings = longer
    return tuple(found)


class Listed:
    """The times of everything that a problem can be solved by."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.library = problem, load_library(problem.library)
        self.known: dict[object, float] = {}

    def best(self) -> list[float]:
        """The times of all matrices, each in the best order, the fastest first."""
        axes = self.problem.axes
        every = [dict(zip(axes, m, strict=True)) for m in matrices(list(axes.values()), self.problem.system.counts)]
        placed = orders(self.problem)
        return sorted(
            min(
                self.seconds(Placement(self.problem.system, order, tuple(matrix[name] for name in order)))
                for order in placed
            )
            for matrix in every
        )

    def seconds(self, placement: Placement) -> float:
        """The time of all reductions on a placement."""
        return sum(
            reduction.count * self.least(reduction, layout_of(placement, reduction.axes))
            for reduction in self.problem.reductions
        )

    def least(self, reduction: Reduction, layout: Layout) -> float:
        """The time of the best program, in any number of chunks that is tried."""
        key = reduction.bytes, reduction.goal, layout.radices, layout.columns
        if key not in self.known:
            model = CostModel(layout, self.library, reduction.bytes)
            every = programs(len(layout.levels), reduction.goal, self.problem.max_steps)
            if self.problem.max_chunks == 1:
                self.known[key] = min(model.seconds(program, reduction.goal) for program in every)
            else:
                pipeline = Pipeline(model, reduction.goal, self.problem.max_chunks)
                counts = [chunks for chunks in CHUNKS if chunks <= self.problem.max_chunks]
                self.known[key] = min(pipeline.seconds(Pipelined.of(p, n)) for p in every for n in counts)
        return self.known[key]


def fault(problem: Problem) -> str | None:
    """What the planner did worse than the enumeration, or None."""
    expected = Listed(problem).best()[: problem.top]
    at_once: dict[str, Any] = {"PATIENCE": -1, "REPORTED": 1} if problem.swept else {"PATIENCE": search.PATIENCE}
    with patch.multiple(search, **at_once):
        found = plan(
            problem.system,
            problem.axes,
            problem.reductions,
            library=problem.library,
            top=problem.top,
            max_steps=problem.max_steps,
            max_chunks=problem.max_chunks,
            ranges=False,
        ).candidates
    times = [candidate.seconds for candidate in found]
    if len(times) != len(expected):
        return f"{len(times)} plans, but {len(expected)} placements were listed"
    if any(candidate.bound_seconds > candidate.seconds * (1 + SAME) for candidate in found):
        return "a plan is below the bound"
    margin = MARGIN if problem.max_chunks > 1 else 1.0
    if times[0] > expected[0] * margin * (1 + SAME):
        return f"the plan takes {times[0]}, but {expected[0]} was listed"
    if problem.max_chunks == 1 and not all(isclose(a, b, rel_tol=SAME) for a, b in zip(times, expected, strict=True)):
        return f"the plans take {times}, but {expected} were listed"
    return None
