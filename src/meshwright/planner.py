"""The planner: from a system, axes and reductions to ranked plans."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop
from itertools import islice

from meshwright.cost import CostModel, Layout, check_links, layout_of
from meshwright.errors import PlacementError, SpecError, TooLargeError
from meshwright.placement import Matrix, Placement, check_fit, count_placements, placements
from meshwright.plan import Plan, PlannedReduction, Reduction, flat_program
from meshwright.profiles import Library, load_library
from meshwright.program import Collective, as_collectives
from meshwright.spec import unknown
from meshwright.synthesis import MAX_STEPS, program_graph
from meshwright.system import System

MAX_PLACEMENTS = 3_000_000
"""More placements than this are not searched."""

DEFAULT_LIBRARY = "ring"


@dataclass(frozen=True, slots=True)
class Ranking:
    """Plans, the fastest first.

    placements: how many there are; evaluated: for how many the best programs had to be found. The others cannot be
    among the candidates: their bounds alone are no less than the last candidate's time.
    """

    candidates: tuple[Plan, ...]
    placements: int
    evaluated: int


def plan(
    system: System,
    axes: Mapping[str, int],
    reductions: Sequence[Reduction],
    *,
    library: Library | str = DEFAULT_LIBRARY,
    placement: Placement | None = None,
    top: int = 10,
    max_steps: int = MAX_STEPS,
    collectives: Collection[Collective | str] = tuple(Collective),
) -> Ranking:
    """The best plans for some reductions on a system: which placement, and which program for each reduction.

    With a `placement`, only that one is considered; with a placement and one reduction, the candidates are its
    programs. The first candidate is proven to be the best under the model, the first k the k best.

    >>> from meshwright import parse_system
    >>> system = parse_system("node=4@8GB/s,gpu=16@270GB/s")
    >>> best = plan(system, {"data": 4, "shard": 16}, [Reduction(("data",), 2**31)]).candidates[0]
    >>> best.placement.matrix, best.reductions[0].program.text(best.hierarchy(best.reductions[0]))
    (((1, 4), (4, 4)), 'AllReduce all')
    """
    if not reductions:
        raise SpecError("there is nothing to plan: at least one reduction is needed")
    if top < 1:
        raise SpecError(f"at least one candidate must be asked for, not {top}")
    check_links(system)
    check_fit(system, axes)
    for reduction in reductions:
        for axis in reduction.axes:
            if axis not in axes:
                raise PlacementError(unknown("axis", axis, axes))
    loaded = load_library(library) if isinstance(library, str) else library
    search = _Search(system, loaded, reductions, max_steps, as_collectives(collectives))
    if placement is None:
        return search.best_placements(axes, top)
    if placement.system != system or placement.sizes != dict(axes):
        raise PlacementError(
            f"the placement {[list(row) for row in placement.matrix]} is one of the axes {placement.sizes} on "
            f"{placement.system.name}, not of {dict(axes)} on {system.name}"
        )
    if len(reductions) == 1:
        return Ranking(search.programs(placement, top), 1, 1)
    return Ranking((search.plan(placement),), 1, 1)


class _Search:
    """One planning: what was computed for one layout serves all placements that share it."""

    def __init__(
        self,
        system: System,
        library: Library,
        reductions: Sequence[Reduction],
        max_steps: int,
        collectives: frozenset[Collective],
    ) -> None:
        self.system, self.library, self.reductions = system, library, reductions
        self.max_steps, self.collectives = max_steps, collectives
        self.found: dict[tuple[int, Layout], PlannedReduction] = {}

    def best_placements(self, axes: Mapping[str, int], top: int) -> Ranking:
        """Placements in the order of their bounds, until none can be among the best any more."""
        total = count_placements(self.system, axes)
        if total > MAX_PLACEMENTS:
            raise TooLargeError(
                f"there are {total:,} placements, more than the {MAX_PLACEMENTS:,} that can be searched; give a "
                "placement, or merge axes that are always reduced over together"
            )
        bounds = [self._bounds(axes, number) for number in range(len(self.reductions))]
        heap = [
            (sum(bound(placement.matrix) for bound in bounds), number, placement)
            for number, placement in enumerate(placements(self.system, axes))
        ]
        heapify(heap)
        best: list[tuple[float, int, Plan]] = []
        evaluated = 0
        while heap and not (len(best) == top and heap[0][0] >= best[-1][0]):
            _, number, placement = heappop(heap)
            candidate = self.plan(placement)
            evaluated += 1
            best = sorted([*best, (candidate.seconds, number, candidate)], key=lambda entry: entry[:2])[:top]
        return Ranking(tuple(candidate for _, _, candidate in best), total, evaluated)

    def _bounds(self, axes: Mapping[str, int], number: int) -> Callable[[Matrix], float]:
        """The bound of one reduction for a matrix; it depends on the rows of its axes only."""
        reduction = self.reductions[number]
        names = tuple(axes)
        rows = [names.index(axis) for axis in reduction.axes]
        known: dict[tuple[tuple[int, ...], ...], float] = {}

        def bound(matrix: Matrix) -> float:
            key = tuple(matrix[row] for row in rows)
            if key not in known:
                layout = layout_of(Placement(self.system, names, matrix), reduction.axes)
                model = CostModel(layout, self.library, reduction.bytes)
                known[key] = model.bound(reduction.goal) * reduction.count
            return known[key]

        return bound

    def plan(self, placement: Placement) -> Plan:
        """The best program for each reduction on a placement."""
        planned = []
        for number, reduction in enumerate(self.reductions):
            layout = layout_of(placement, reduction.axes)
            if (number, layout) not in self.found:
                self.found[number, layout] = self._ranked(layout, reduction, 1)[0]
            planned.append(self.found[number, layout])
        return Plan(placement, self.library, tuple(planned))

    def programs(self, placement: Placement, top: int) -> tuple[Plan, ...]:
        """The best programs of the only reduction on a placement."""
        reduction = self.reductions[0]
        ranked = self._ranked(layout_of(placement, reduction.axes), reduction, top)
        return tuple(Plan(placement, self.library, (planned,)) for planned in ranked)

    def _ranked(self, layout: Layout, reduction: Reduction, top: int) -> list[PlannedReduction]:
        model = CostModel(layout, self.library, reduction.bytes)
        levels, goal = len(layout.levels), reduction.goal
        graph = program_graph(levels, goal, self.max_steps, self.collectives)
        default = model.seconds(flat_program(goal, levels), goal)
        bound = model.bound(goal)
        found = [
            PlannedReduction(reduction, program, seconds, default, bound)
            for seconds, program in islice(graph.ranked(model), top)
        ]
        if not found:
            allowed = ", ".join(sorted(self.collectives)) or "none"
            raise SpecError(
                f"no program of at most {self.max_steps} steps reaches the goal {goal} over {layout.hierarchy} with "
                f"the collectives that are allowed ({allowed})"
            )
        return found
