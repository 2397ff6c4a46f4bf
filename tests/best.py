"""The planner against an enumeration of everything it chooses from, in problems that are drawn where mistakes hide.

Random problems seldom meet a library's threshold, a tie, an axis of size 1 or six axes. Here each problem aims at one
of these. All matrices, all orders of the axes on rings and all programs are listed by code of its own, which knows
nothing but the rules of programs (`check_program`) and the times of the cost model. Then the planner's best must not be
beaten, and its first k must take as long as the k best that were listed.

    python -m tests.best --cases 50000
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations
from math import isclose, prod
from random import Random
from typing import Any
from unittest.mock import patch

from meshwright import (
    Fabric,
    InvalidProgramError,
    Level,
    Link,
    Placement,
    Program,
    Reduction,
    System,
    check_program,
    plan,
)
from meshwright.cost.library import library_names, load_library
from meshwright.cost.model import CostModel
from meshwright.cost.pipeline import CHUNKS, NEARLY, Pipeline
from meshwright.language.goals import PROGRAM_GOALS, Goal
from meshwright.language.program import Collective, Grouping, Pipelined, Step
from meshwright.placement.layout import Layout, layout_of
from meshwright.planning import search
from tests.strategies import named

MARGIN = (1 + NEARLY) / (1 - 0.05)
"""With chunks: of numbers of chunks within 2% the smallest is taken, and cutting must gain 5%."""

MOST_PLACED = 800
"""Problems with more placements, in all orders that matter, are not listed."""

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
    in_blocks: bool = False
    """Whether the search in blocks takes over as soon as it can, not only where it takes long."""


# -- the enumeration --


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
    at_once: dict[str, Any] = {"PATIENCE": -1, "REPORTED": 1} if problem.in_blocks else {"PATIENCE": search.PATIENCE}
    with patch.multiple(search, **at_once):
        found = plan(
            problem.system,
            problem.axes,
            problem.reductions,
            library=problem.library,
            top=problem.top,
            max_steps=problem.max_steps,
            max_chunks=problem.max_chunks,
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


# -- the aims --


def _links(random: Random, count: int) -> list[Link]:
    """Plain links, with bandwidths that are wide apart or equal."""
    return [
        Link(random.choice([1e9, 1e9, 8e9, 1e11]), latency=random.choice([0.0, 0.0, 1e-6, 2e-5])) for _ in range(count)
    ]


def _system(counts: Sequence[int], links: Sequence[Link]) -> System:
    numbered = enumerate(zip(counts, links, strict=True))
    return System("drawn", tuple(Level(f"l{k}", count, link) for k, (count, link) in numbered))


def _dealt(random: Random, primes: Sequence[int], parts: int) -> list[int]:
    sizes = [1] * parts
    for prime in primes:
        sizes[random.randrange(parts)] *= prime
    return sizes


def _axes(sizes: Sequence[int]) -> dict[str, int]:
    return dict(zip("abcdef", sizes, strict=False))


def _over(random: Random, axes: dict[str, int]) -> tuple[str, ...]:
    return tuple(random.sample(list(axes), random.randint(1, len(axes))))


def _reductions(random: Random, axes: dict[str, int], most: int = 3) -> tuple[Reduction, ...]:
    return tuple(
        Reduction(
            _over(random, axes),
            random.choice([random.randint(1, 1000), random.randint(10**5, 10**8)]),
            random.choice([1, 1, 2, 10]),
            random.choice(PROGRAM_GOALS),
        )
        for _ in range(random.randint(1, most))
    )


def at_thresholds(random: Random) -> Problem:
    """A device holds, at some step, as many bytes as a rule of the library ends with, or one byte more or less."""
    library = random.choice(["nccl", "openmpi", "gloo"])
    primes = [random.choice([2, 2, 3, 5]) for _ in range(random.randint(2, 5))]
    counts = _dealt(random, primes, random.randint(1, 2))
    axes = _axes(_dealt(random, primes, random.randint(1, 3)))
    return Problem(
        _system(counts, _links(random, len(counts))),
        axes,
        tuple(_at_threshold(random, axes, library) for _ in range(random.randint(1, 2))),
        library,
        random.randint(1, 4),
        random.randint(1, 3),
    )


def _at_threshold(random: Random, axes: dict[str, int], library: str, chunks: int = 1) -> Reduction:
    over = _over(random, axes)
    size = prod(axes[name] for name in over)
    parts = random.choice([part for part in range(1, size + 1) if size % part == 0])
    up_to = random.choice([rule.up_to for _, rules in load_library(library).rules for rule in rules if rule.up_to])
    beside = random.choice([-1, 0, 0, 1])
    return Reduction(over, int(up_to) * parts * chunks + beside, random.choice([1, 1, 3]), random.choice(PROGRAM_GOALS))


def with_ones(random: Random) -> Problem:
    """Axes and levels of size 1."""
    primes = [random.choice([2, 2, 3]) for _ in range(random.randint(1, 4))]
    counts = _dealt(random, primes, random.randint(1, 2))
    sizes = _dealt(random, primes, random.randint(1, 3))
    for _ in range(random.randint(1, 3)):
        sizes.insert(random.randint(0, len(sizes)), 1)
    if random.random() < 0.5:
        counts.insert(random.randint(0, len(counts)), 1)
    axes = _axes(sizes)
    fabric = random.choice(list(Fabric))
    links = [Link(link.bandwidth, link.latency, fabric=fabric) for link in _links(random, len(counts))]
    return Problem(
        _system(counts, links), axes, _reductions(random, axes), random.choice(library_names()), random.randint(1, 4)
    )


def on_tori(random: Random) -> Problem:
    """Rings in several dimensions, with a limit for each device, and a switch among them at times."""
    primes = [random.choice([2, 2, 2, 3]) for _ in range(random.randint(2, 5))]
    counts = _dealt(random, primes, random.randint(1, 3))
    links = []
    for _ in counts:
        each = random.choice([1e9, 2e9, 8e9])
        limit = random.choice([None, each, each / 2, each / 4])
        fabric = random.choice([Fabric.RING, Fabric.RING, Fabric.SWITCH])
        links.append(Link(each * random.choice([1, 4]), per_device=limit, fabric=fabric, bypass=random.random() < 0.5))
    axes = _axes(_dealt(random, primes, random.randint(1, 3)))
    library = random.choice(["ideal", "ring", "nccl"])
    return Problem(_system(counts, links), axes, _reductions(random, axes, 2), library, random.randint(1, 3))


def of_six_axes(random: Random) -> Problem:
    """Six axes, most of them in one ring or in one node."""
    sizes = [random.choice([1, 2, 2, 3]) for _ in range(6)]
    while prod(sizes) > 48:
        sizes[random.randrange(6)] = 1
    primes = [size for size in sizes if size > 1]
    counts = _dealt(random, primes, random.choice([1, 1, 2]))
    fabric = random.choice([Fabric.RING, Fabric.RING, *Fabric])
    links = [Link(link.bandwidth, link.latency, fabric=fabric) for link in _links(random, len(counts))]
    axes = _axes(sizes)
    return Problem(_system(counts, links), axes, _reductions(random, axes, 2), random.choice(["ideal", "ring"]), 2)


def in_chunks(random: Random) -> Problem:
    """Payloads near a threshold, whose chunks meet another rule; on links that are alike, so that all levels count."""
    library = random.choice(["nccl", "nccl", "openmpi", "gloo", "ideal"])
    counts = [random.choice([2, 3, 4]), random.choice([2, 4, 8])]
    links = [Link(random.uniform(2e9, 2e10), random.choice([0.0, 1e-5, 1e-4])) for _ in counts]
    axes = _axes([prod(counts)] if random.random() < 0.7 else counts)
    rules = library if library != "ideal" else "nccl"
    one = _at_threshold(random, axes, rules, random.choice([1, 2, 3, 4]))
    payload = random.choice([one.bytes, int(one.bytes * random.uniform(0.5, 2))])
    reductions = (Reduction(one.axes, payload, one.count, random.choice([one.goal, Goal.ALL_REDUCE])),)
    chunks = random.choice([4, 16, 64])
    return Problem(_system(counts, links), axes, reductions, library, 1, random.randint(1, 3), chunks)


def with_roots(random: Random) -> Problem:
    """Reduce and Broadcast, where only some devices send as much as others."""
    primes = [random.choice([2, 2, 3]) for _ in range(random.randint(2, 4))]
    counts = _dealt(random, primes, random.randint(1, 3))
    axes = _axes(_dealt(random, primes, random.randint(1, 3)))
    links = []
    for link in _links(random, len(counts)):
        limit = random.choice([None, 1e9, 2.5e8])
        links.append(Link(link.bandwidth, link.latency, limit, random.choice(list(Fabric)), random.random() < 0.5))
    reductions = tuple(
        Reduction(_over(random, axes), random.randint(1, 10**8), 1, random.choice([Goal.REDUCE, Goal.BROADCAST]))
        for _ in range(random.randint(1, 2))
    )
    return Problem(_system(counts, links), axes, reductions, random.choice(library_names()), random.randint(1, 4), 2)


def near_ties(random: Random) -> Problem:
    """Equal links and equal axes, with payloads that differ by a byte or not at all."""
    prime, length = random.choice([(2, 4), (2, 6), (3, 3)])
    counts = _dealt(random, [prime] * length, random.randint(2, 3))
    axes = _axes(_dealt(random, [prime] * length, random.randint(2, 4)))
    link = random.choice(_links(random, 1))
    payload = random.randint(1, 10**8)
    reductions = tuple(
        Reduction(_over(random, axes), payload + random.choice([0, 0, 1]), 1, random.choice(PROGRAM_GOALS))
        for _ in range(random.randint(2, 4))
    )
    library = random.choice(["ring", "ideal", "openmpi"])
    return Problem(_system(counts, [link] * len(counts)), axes, reductions, library, random.randint(1, 5))


AIMS = {
    "thresholds": at_thresholds,
    "axes of size 1": with_ones,
    "tori": on_tori,
    "six axes": of_six_axes,
    "chunks": in_chunks,
    "roots": with_roots,
    "near ties": near_ties,
}


def draw(aim: str, seed: int, number: int) -> Problem:
    """A numbered problem; of those with too many placements, the next is taken."""
    random = Random(f"{aim}/{seed}/{number}")
    while True:
        problem = AIMS[aim](random)
        many = sum(1 for _ in matrices(list(problem.axes.values()), problem.system.counts))
        if many * len(orders(problem)) <= MOST_PLACED:
            return replace(problem, in_blocks=random.random() < 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2_000, help="how many problems (default: 2,000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first problem")
    parser.add_argument("--aim", choices=list(AIMS), action="append", help="only this one; may be repeated")
    chosen = parser.parse_args()
    aims = chosen.aim or list(AIMS)
    faults: Counter[str] = Counter()
    for number in range(chosen.first, chosen.first + chosen.cases):
        aim = aims[number % len(aims)]
        problem = draw(aim, chosen.seed, number)
        if wrong := fault(problem):
            faults[aim] += 1
            print(f"{aim}, case {number} of seed {chosen.seed}: {wrong}: {problem}", flush=True)
        if (number + 1) % 1000 == 0:
            print(f"{number + 1 - chosen.first:,} cases, {faults.total()} faults", file=sys.stderr, flush=True)
    print(f"{chosen.cases:,} cases, faults: {dict(faults) or 'none'}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
