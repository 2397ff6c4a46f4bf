"""The P2 paper's evaluation, repeated with the model: its two machines, its placements and reductions, its figures."""

import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

from meshwright.cost.library import load_library
from meshwright.cost.model import CostModel
from meshwright.language.goals import Goal, flat_program
from meshwright.language.program import all_steps
from meshwright.language.semantics import RuleBrokenError, apply_step
from meshwright.language.semantics import State as ExactState
from meshwright.language.semantics import state_of as exact_state
from meshwright.language.symbolic import State, hopeless, state_of, successors
from meshwright.language.synthesis import MAX_STEPS, program_graph
from meshwright.placement.layout import layout_of
from meshwright.placement.placement import placements
from meshwright.system.model import System
from meshwright.system.read import preset

MACHINES = ("gcp-a100:2", "gcp-a100:4", "gcp-v100:2", "gcp-v100:4")

S = TypeVar("S", bound=Hashable)

WIN = 1.01
"""A program beats the default if it is at least this many times faster."""


@dataclass(frozen=True, slots=True)
class PaperCase:
    """One placement and one reduction on it."""

    machine: str
    axes: tuple[int, ...]
    matrix: tuple[tuple[int, ...], ...]
    reduced: tuple[int, ...]
    default_seconds: float
    best_seconds: float
    bound_seconds: float
    program: str
    programs: int

    @property
    def speedup(self) -> float:
        """The default's time over the best program's."""
        return self.default_seconds / self.best_seconds


@dataclass(frozen=True, slots=True)
class Summary:
    """The paper's figures for some cases."""

    cases: int
    spread: float
    wins: float
    mean_of_wins: float
    mean: float
    best: float
    best_over_bound: float


def axis_sizes(devices: int, most: int = 3, least: int = 2) -> Iterator[tuple[int, ...]]:
    """The sizes of one to `most` axes that multiply to the devices, in growing order.

    >>> list(axis_sizes(8))
    [(8,), (2, 4), (2, 2, 2)]
    """
    yield (devices,)
    if most > 1:
        for first in range(least, devices):
            if devices % first == 0 and devices // first >= first:
                for rest in axis_sizes(devices // first, most - 1, first):
                    yield (first, *rest)


def payload(system: System) -> int:
    """The paper's payload: 2^29 float32 per device, times the number of nodes."""
    return 2**29 * 4 * system.levels[0].count


def cases(machine: str, library: str = "ring") -> Iterator[PaperCase]:
    """Every placement and reduction on a machine."""
    system = preset(machine)
    loaded = load_library(library)
    for sizes in axis_sizes(system.devices):
        axes = {f"axis{k}": size for k, size in enumerate(sizes)}
        for placement in placements(system, axes):
            for length in range(1, len(sizes) + 1):
                for reduced in combinations(range(len(sizes)), length):
                    layout = layout_of(placement, [f"axis{k}" for k in reduced])
                    model = CostModel(layout, loaded, payload(system))
                    graph = program_graph(len(layout.levels))
                    seconds, program = next(graph.ranked(model))
                    yield PaperCase(
                        machine,
                        sizes,
                        placement.matrix,
                        reduced,
                        model.seconds(flat_program(Goal.ALL_REDUCE, len(layout.levels))),
                        seconds,
                        model.bound(),
                        program.text(layout.hierarchy),
                        graph.count(),
                    )


def summary(found: list[PaperCase]) -> Summary:
    """The figures of some cases."""
    by_reduction: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[float]] = {}
    for case in found:
        by_reduction.setdefault((case.machine, case.axes, case.reduced), []).append(case.default_seconds)
    wins = [case.speedup for case in found if case.speedup >= WIN]
    return Summary(
        cases=len(found),
        spread=max(max(times) / min(times) for times in by_reduction.values()),
        wins=len(wins) / len(found),
        mean_of_wins=sum(wins) / len(wins) if wins else 1.0,
        mean=sum(case.speedup for case in found) / len(found),
        best=max(case.speedup for case in found),
        best_over_bound=sum(case.best_seconds / case.bound_seconds for case in found) / len(found),
    )


@dataclass(frozen=True, slots=True)
class SearchCost:
    """What a search for all programs takes: how many states it looks at, and seconds."""

    levels: int
    technique: str
    states: int
    seconds: float


def search_costs(levels: int, max_steps: int = MAX_STEPS) -> list[SearchCost]:
    """The search for all programs of an all-reduce with more and more techniques; the exact one for groups of two."""
    goal, radices = Goal.ALL_REDUCE, (2,) * levels

    def exact(state: ExactState) -> Iterator[ExactState]:
        for step in all_steps(levels):
            try:
                yield apply_step(state, step, radices)
            except RuleBrokenError:
                continue

    def symbolic(state: State) -> Iterator[State]:
        return (after for _, after in successors(state, levels))

    def pruned(state: State) -> Iterator[State]:
        return (after for after in symbolic(state) if not hopeless(after, levels))

    start, end = state_of(goal.start, levels), state_of(goal.end, levels)
    techniques: dict[str, Callable[[], int]] = {
        "symbolic states": lambda: _states_seen(start, end, symbolic, max_steps),
        "symbolic states, hopeless ones pruned": lambda: _states_seen(start, end, pruned, max_steps),
    }
    if levels <= 3:
        first, last = exact_state(goal.start, 2**levels), exact_state(goal.end, 2**levels)
        techniques = {"exact states": lambda: _states_seen(first, last, exact, max_steps), **techniques}
    found = []
    for name, search in techniques.items():
        begin = time.perf_counter()
        states = search()
        found.append(SearchCost(levels, name, states, time.perf_counter() - begin))
    return found


def _states_seen(start: S, end: S, after: Callable[[S], Iterable[S]], max_steps: int) -> int:
    """How many states a search in breadth sees before the last step, which can only lead to the end."""
    seen = {start}
    frontier = {start}
    for _ in range(max_steps - 1):
        reached = {one for state in frontier - {end} for one in after(state)}
        frontier = reached - seen
        seen |= reached
    return len(seen)
