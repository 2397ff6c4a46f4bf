"""The planner: from a system, axes and reductions to ranked plans."""

from bisect import insort
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop
from itertools import islice
from math import prod

from meshwright.bound import bound
from meshwright.cost import CostModel
from meshwright.errors import PlacementError, SpecError, TooLargeError
from meshwright.layout import Layout, check_links, layout_of
from meshwright.matrices import Matrix
from meshwright.placement import Placement, check_fit, count_placements, placements
from meshwright.plan import Plan, PlannedReduction, Reduction, planned_reduction
from meshwright.profiles import Library, load_library
from meshwright.program import Collective, as_collectives
from meshwright.spec import unknown
from meshwright.synthesis import MAX_STEPS, program_graph
from meshwright.system import Fabric, System

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
    if type(top) is not int or top < 1:
        raise SpecError(f"at least one candidate must be asked for, not {top!r}")
    for reduction in reductions:
        if not isinstance(reduction, Reduction):
            raise SpecError(f"expected a Reduction, not {reduction!r}; parse_reduction makes one from text")
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
        self.bounds: dict[tuple[int, tuple[int, ...]], float] = {}
        self.rings = any(level.link.fabric is Fabric.RING for level in system.levels)
        self.found: dict[tuple[int, Matrix | tuple[int, ...]], PlannedReduction] = {}

    def best_placements(self, axes: Mapping[str, int], top: int) -> Ranking:
        """Placements in the order of their bounds, until none can be among the best any more."""
        total = count_placements(self.system, axes)
        if total > MAX_PLACEMENTS:
            raise TooLargeError(
                f"there are {total:,} placements, more than the {MAX_PLACEMENTS:,} that can be searched; give a "
                "placement, or merge axes that are always reduced over together"
            )
        names = tuple(axes)
        rows = [[names.index(axis) for axis in reduction.axes] for reduction in self.reductions]
        heap = []
        for number, placement in enumerate(placements(self.system, axes)):
            matrix = placement.matrix
            least = sum([self._bound(k, _radices(matrix, chosen)) for k, chosen in enumerate(rows)])
            heap.append((least, number, placement))
        heapify(heap)
        best: list[tuple[float, int, Plan]] = []
        evaluated = 0
        while heap and not (len(best) == top and heap[0][0] >= best[-1][0]):
            _, number, placement = heappop(heap)
            candidate = self.plan(placement)
            evaluated += 1
            insort(best, (candidate.seconds, number, candidate), key=lambda entry: entry[:2])
            del best[top:]
        return Ranking(tuple(candidate for _, _, candidate in best), total, evaluated)

    def _bound(self, number: int, radices: tuple[int, ...]) -> float:
        """The bound of one reduction, times its count; it depends on the radices only."""
        if (number, radices) not in self.bounds:
            reduction = self.reductions[number]
            layout = Layout(self.system, radices, ((),) * len(radices))
            self.bounds[number, radices] = bound(layout, reduction.goal, reduction.bytes) * reduction.count
        return self.bounds[number, radices]

    def plan(self, placement: Placement) -> Plan:
        """The best program for each reduction on a placement."""
        planned = []
        for number, reduction in enumerate(self.reductions):
            # Where there are ring fabrics, a time depends on who is a neighbour, so on the whole matrix.
            matrix = placement.matrix
            key = number, matrix if self.rings else _radices(matrix, placement.rows(reduction.axes))
            if key not in self.found:
                self.found[key] = self._ranked(layout_of(placement, reduction.axes), reduction, 1)[0]
            planned.append(self.found[key])
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
        found = [planned_reduction(model, reduction, program) for _, program in islice(graph.ranked(model), top)]
        if not found:
            allowed = ", ".join(sorted(self.collectives)) or "none"
            raise SpecError(
                f"no program of at most {self.max_steps} steps reaches the goal {goal} over {layout.hierarchy} with "
                f"the collectives that are allowed ({allowed})"
            )
        return found


def _radices(matrix: Matrix, rows: Sequence[int]) -> tuple[int, ...]:
    """Per level, the product of the chosen rows: the fastest way is most of the time of a large search."""
    if len(rows) == 1:
        return matrix[rows[0]]
    return tuple(map(prod, zip(*[matrix[row] for row in rows], strict=True)))
