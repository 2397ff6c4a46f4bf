"""The planner: from a system, axes and communications to ranked plans; on rings also in the best order of the axes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import inf, prod
from os import PathLike

from meshwright.cost.bound import bound
from meshwright.cost.chunking import Searched, least_seconds
from meshwright.cost.chunking import search as search_programs
from meshwright.cost.library import Library, as_library, load_library
from meshwright.cost.model import CostModel
from meshwright.cost.pipeline import CHUNKS, Pipeline
from meshwright.errors import PlacementError, SpecError
from meshwright.language.goals import Goal
from meshwright.language.program import Collective, Pipelined, as_collectives
from meshwright.language.synthesis import MAX_STEPS, ProgramGraph, program_graph
from meshwright.placement.layout import Column, Layout, check_links, layout_of
from meshwright.placement.matrices import Matrix
from meshwright.placement.placement import Placement, check_fit
from meshwright.planning.constraints import Constraint, allowed_rows
from meshwright.planning.neighbours import Order, Sharing, best_order
from meshwright.planning.plan import Plan, Planned, predict
from meshwright.planning.ranges import Envelope
from meshwright.planning.ranking import Ranking, Sofar
from meshwright.planning.search import searching
from meshwright.planning.terms import Found, Problem, Row, Term
from meshwright.system.model import System
from meshwright.system.read import as_system
from meshwright.text.spec import as_tuple, check_type, shown, unknown
from meshwright.workload.communication import Communication, exposed
from meshwright.workload.workload import Workload

DEFAULT_LIBRARY = "ring"
"""The library where neither the caller nor the system names one."""

DEFAULT_CHUNKS = 16
"""Into how many chunks a payload may be cut, unless told otherwise."""

MAX_TOP = 1_000_000
"""The most candidates."""


def plan(
    system: System | str | PathLike[str],
    axes: Mapping[str, int],
    communications: Sequence[Communication] | Workload,
    *,
    library: Library | str | PathLike[str] | None = None,
    placement: Placement | None = None,
    constraints: Sequence[Constraint] = (),
    top: int = 10,
    max_steps: int = MAX_STEPS,
    collectives: Collection[Collective | str] = tuple(Collective),
    max_chunks: int = DEFAULT_CHUNKS,
    ranges: bool = True,
    placement_only: bool = False,
    watch: Callable[[Sofar], object] = lambda _: None,
) -> Ranking:
    """The best plans for some communications on a system: which placement, and which program for each reduction.

    A system and a library may be given as `load_system` and `load_library` take them. Without a library it is that of
    the system, and plain rings where the system names none. With a `placement`, only that
    one is considered; with a placement and one reduction, the candidates are its programs. The first candidate is
    proven to be the best under the model, the first k the k best. Unless `max_chunks` is 1, payloads may be cut into
    chunks that flow through the steps of a program, or of several. The first candidate also has the best programs for
    payloads of other sizes, unless `ranges` is False; finding them can take longer than the plan itself. With
    `placement_only`, the library's own collectives are the only programs: for who can change the mesh alone. `watch` is
    called now and then with what the search has found so far; it may raise an exception to end the search, and
    `ranking()` of what it got last is then the best.

    >>> from meshwright import Reduction, parse_system
    >>> system = parse_system("node=4@8GB/s,gpu=16@270GB/s")
    >>> best = plan(system, {"data": 4, "shard": 16}, [Reduction(("data",), 2**31)]).candidates[0]
    >>> best.placement.matrix, best.program_text(best.reductions[0])
    (((1, 4), (4, 4)), 'AllReduce all')
    """
    if type(top) is not int or not 1 <= top <= MAX_TOP:
        raise SpecError(f"at least one candidate must be asked for, and at most {MAX_TOP:,}, not {shown(top)}")
    system = as_system(system)
    constraints = as_tuple(constraints, Constraint, "constraints")
    planner = Planner(system, axes, communications, library, max_steps, collectives, max_chunks, placement_only)
    finish = planner.with_ranges if ranges and not placement_only else lambda ranking: ranking
    if placement is None:
        return finish(planner.best(top, constraints, watch))
    check_type(placement, Placement, "a Placement")
    if placement.system != system or placement.sizes != dict(axes):
        raise PlacementError(
            f"the placement {[list(row) for row in placement.matrix]} is one of the axes {placement.sizes} on "
            f"{placement.system.name}, not of {dict(axes)} on {system.name}"
        )
    for constraint in constraints:
        raise PlacementError(f"{constraint} has no meaning where the placement is given")
    if len(planner.communications) == 1:
        return finish(planner.ranking(planner.programs(placement, top), 1, 1))
    return finish(planner.ranking((planner.plan(placement),), 1, 1))


def library_for(system: System, library: Library | str | PathLike[str] | None) -> Library:
    """The given library, or else the one that the system names, or else the default."""
    if library is not None or system.library is None:
        return as_library(DEFAULT_LIBRARY if library is None else library)
    try:
        return load_library(system.library)
    except SpecError as error:
        raise SpecError(f"the system {shown(system.name)} names a library that cannot be had: {error}") from None


class Planner:
    """Plans communications; what it computes for a layout serves all placements that have this layout."""

    def __init__(
        self,
        system: System,
        axes: Mapping[str, int],
        communications: Sequence[Communication] | Workload,
        library: Library | str | PathLike[str] | None = None,
        max_steps: int = MAX_STEPS,
        collectives: Collection[Collective | str] = tuple(Collective),
        max_chunks: int = DEFAULT_CHUNKS,
        placement_only: bool = False,
    ) -> None:
        """Refuse what cannot be planned."""
        if type(max_chunks) is not int or not 1 <= max_chunks <= CHUNKS[-1]:
            raise SpecError(f"payloads can be cut into 1 to {CHUNKS[-1]} chunks, not {shown(max_chunks)}")
        self.communications = _as_communications(communications)
        check_links(system)
        check_fit(system, axes)
        for one in self.communications:
            for axis in one.axes:
                if axis not in axes:
                    raise PlacementError(unknown("axis", axis, axes))
        self.system, self.axes = system, dict(axes)
        profile = library_for(system, library)
        self.library = profile.alone if placement_only else profile
        self.max_steps, self.collectives = max_steps, as_collectives(collectives)
        self.placement_only, self.max_chunks = placement_only, 1 if placement_only else max_chunks
        self.rings = system.order_matters
        self.found: dict[tuple[object, ...], Planned] = {}
        self.least: dict[tuple[object, ...], float] = {}
        self.per_byte: dict[tuple[Goal, Row], float] = {}
        self.models: dict[Row, dict[tuple[object, ...], CostModel]] = {}
        self.searched: dict[tuple[object, ...], Searched] = {}
        self.shared: dict[tuple[Communication, Row], dict[tuple[Column, ...], float]] = {}
        self.orders: dict[Matrix, Order] = {}

    def best(
        self, top: int, constraints: Sequence[Constraint] = (), watch: Callable[[Sofar], object] = lambda _: None
    ) -> Ranking:
        """The best placements, with the best program for each reduction on them; `watch` as in `plan`."""
        allowed, total = allowed_rows(self.system, self.axes, constraints)
        terms = [self._term(one) for one in self.communications if exposed(one)]
        best: dict[Matrix, float] = {}  # the search may ask twice for the same matrix

        def ordered(matrix: Matrix) -> float:
            order = self._order(matrix, sorted(best.values())[top - 1] if len(best) >= top else inf)
            if order.rows:
                best[matrix] = order.seconds
            return order.seconds

        # Where there are ring fabrics, a time depends on who is a neighbour, so on the whole matrix.
        whole = ordered if self.rings else None
        problem = Problem(tuple(self.axes.values()), self.system.counts, allowed, terms, top, whole, total)
        for found in searching(problem):
            watch(Sofar(lambda *so_far: self.with_ranges(self.ranked(*so_far)), total, found))
        return self.ranked(found, total)

    def ranked(self, found: Found, total: int) -> Ranking:
        """The plans of the matrices that a search has found among `total`."""
        plans = [self.plan(self._placed(matrix)) for _, matrix in found.best]
        return self.ranking(tuple(sorted(plans, key=lambda plan: plan.seconds)), total, found.complete)

    def ranking(self, plans: tuple[Plan, ...], total: int, timed: int) -> Ranking:
        """Plans, the fastest first, with what is known of those that were not found."""
        # There may be too many orders of the axes on rings to compare them all.
        least = min([order.least for order in self.orders.values() if not order.proven], default=inf)
        gap = max(0.0, plans[0].seconds / least - 1) if least else 0.0
        if self.max_chunks == 1:
            return Ranking(plans, total, timed, gap)
        within = max((searched.gap for searched in self.searched.values()), default=0.0)
        gap = (1 + gap) * (1 + within) - 1
        least = 0.0
        for planned in plans[0].communications:
            one, layout = planned.communication, layout_of(plans[0].placement, planned.communication.axes)
            searched = self.searched.get((one.goal, one.bytes, layout.radices, layout.columns))
            least += exposed(one) * (planned.seconds if searched is None else searched.least)
        return Ranking(plans, total, timed, gap, least)

    def with_ranges(self, ranking: Ranking) -> Ranking:
        """A ranking whose first plan has the best programs for every payload, and alternatives to its own."""
        first = ranking.candidates[0]
        keys = [
            (one.communication.goal, layout_of(first.placement, one.communication.axes)) for one in first.reductions
        ]
        fixed: dict[tuple[Goal, Layout], dict[int, Pipelined]] = {}
        for key, planned in zip(keys, first.reductions, strict=True):
            if key[1].levels and planned.pipelined:
                fixed.setdefault(key, {})[planned.communication.bytes] = planned.pipelined
        found = {key: self._envelope(*key, programs) for key, programs in fixed.items()}
        ranges = {key: envelope.ranges() for key, envelope in found.items()}
        reductions = [
            replace(one, ranges=ranges[key], alternatives=found[key].alternatives(one.communication.bytes))
            if key in found
            else one
            for key, one in zip(keys, first.reductions, strict=True)
        ]
        best = Plan(first.placement, first.library, (*reductions, *first.transfers))
        return replace(ranking, candidates=(best, *ranking.candidates[1:]))

    def _envelope(self, goal: Goal, layout: Layout, fixed: dict[int, Pipelined]) -> Envelope:
        pipeline = Pipeline(self._model(layout, max(fixed)), goal, self.max_chunks)
        return Envelope(pipeline, self._graph(layout, goal), fixed)

    def _graph(self, layout: Layout, goal: Goal) -> ProgramGraph:
        """The programs that a goal may have on a layout."""
        if self.placement_only and goal.flat:
            return program_graph(len(layout.levels), goal, 1, (goal.flat,))
        return program_graph(len(layout.levels), goal, self.max_steps, self.collectives)

    def _placed(self, matrix: Matrix) -> Placement:
        """The placement of a matrix; on rings, where the order of axes inside a level matters, in the best order."""
        names = list(self.axes)
        rows = self._order(matrix).rows if self.rings else range(len(names))
        return Placement(self.system, tuple(names[row] for row in rows), tuple(matrix[row] for row in rows))

    def _order(self, matrix: Matrix, longest: float = inf) -> Order:
        """The best order of a matrix's rows on rings, unless every order takes longer than `longest`."""
        if matrix not in self.orders:
            rings = [level.link.fabric.neighbours_only for level in self.system.levels]
            what = [self._sharing(one, matrix) for one in self.communications if exposed(one)]
            order = best_order(matrix, rings, what, longest)
            if not order.rows:  # another search may ask for one that takes longer
                return order
            self.orders[matrix] = order
        return self.orders[matrix]

    def _sharing(self, one: Communication, matrix: Matrix) -> Sharing:
        """A communication as the search for the best order of a matrix sees it."""
        names, weight = list(self.axes), exposed(one)
        rows = frozenset(names.index(axis) for axis in one.axes)
        radices = tuple(prod(matrix[row][level] for row in rows) for level in range(len(self.system.levels)))
        known = self.shared.setdefault((one, radices), {})

        def seconds(columns: tuple[Column, ...]) -> float:
            if columns not in known:  # the same ones come again on many matrices
                known[columns] = weight * self._fastest(one, Layout(self.system, radices, columns))
            return known[columns]

        return Sharing(rows, seconds)

    def _term(self, one: Communication) -> Term:
        """A communication as the search sees it; on rings, where its radices do not tell its time, with bounds."""
        names, weight = list(self.axes), exposed(one)
        no_columns = ((),) * len(self.system.levels)

        def low(radices: Row) -> float:
            key = one.goal, radices
            if key not in self.per_byte:
                self.per_byte[key] = bound(Layout(self.system, radices, no_columns), one.goal, 1)
            return weight * (one.bytes * self.per_byte[key])

        def exact(radices: Row) -> float:
            return weight * self._fastest(one, Layout(self.system, radices, no_columns))

        return Term(frozenset(names.index(axis) for axis in one.axes), exact if self.rings else low, exact)

    def plan(self, placement: Placement) -> Plan:
        """The best program for each reduction on a placement."""
        planned = [self._planned(one, layout_of(placement, one.axes)) for one in self.communications]
        return Plan(placement, self.library, tuple(planned))

    def _planned(self, one: Communication, layout: Layout) -> Planned:
        key = one, layout.radices, layout.columns
        if key not in self.found:
            self.found[key] = self._ranked(one, layout, 1)[0]
        return self.found[key]

    def _fastest(self, one: Communication, layout: Layout) -> float:
        """The time of the best program, which takes less work to find than the program itself; a bound where columns
        are open.
        """
        if one.goal.has_programs and self.max_chunks > 1 and not layout.open:
            return self._planned(one, layout).seconds
        key = one.goal, one.bytes, layout.radices, layout.columns
        if key not in self.least:
            model = self._model(layout, one.bytes)
            if not one.goal.has_programs:
                self.least[key] = model.transfer(one.goal).seconds
                return self.least[key]
            self.least[key] = least_seconds(Pipeline(model, one.goal, self.max_chunks), self._graph(layout, one.goal))
            if self.least[key] == inf:
                self._planned(one, layout)  # says what is wrong
        return self.least[key]

    def _model(self, layout: Layout, payload: int) -> CostModel:
        """The cost model of a layout and a payload; what it has computed serves all of the same radices."""
        models = self.models.setdefault(layout.radices, {})
        key = layout.columns, payload
        if key not in models:
            like = next(iter(models.values()), None)
            models[key] = CostModel(layout, self.library, payload) if like is None else like.at(layout, payload)
        return models[key]

    def programs(self, placement: Placement, top: int) -> tuple[Plan, ...]:
        """The best programs of the only communication on a placement."""
        one = self.communications[0]
        ranked = self._ranked(one, layout_of(placement, one.axes), top)
        return tuple(Plan(placement, self.library, (planned,)) for planned in ranked)

    def _ranked(self, one: Communication, layout: Layout, top: int) -> list[Planned]:
        """A communication on a layout with each of its `top` best programs."""
        model, goal = self._model(layout, one.bytes), one.goal
        if not goal.has_programs:
            return [predict(model, one)]
        key = goal, one.bytes, layout.radices, layout.columns
        if key not in self.searched or len(self.searched[key].programs) < top:
            pipeline = Pipeline(model, goal, self.max_chunks)
            self.searched[key] = search_programs(pipeline, self._graph(layout, goal), top)
        found = [predict(model, one, pipelined) for pipelined in self.searched[key].programs[:top]]
        if not found:
            allowed = ", ".join(sorted(self.collectives)) or "none"
            raise SpecError(
                f"no program of at most {self.max_steps} steps reaches the goal {goal} over {layout.hierarchy} with "
                f"the collectives that are allowed ({allowed})"
            )
        return found


def _as_communications(given: Sequence[Communication] | Workload) -> tuple[Communication, ...]:
    if isinstance(given, Workload):
        given = given.communications
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise SpecError(f"expected a list of communications, as in [Reduction(…)], not {shown(given)}")
    if not given:
        raise SpecError("there is nothing to plan: at least one reduction is needed")
    for one in given:
        if not isinstance(one, Communication):
            raise SpecError(
                f"expected a Reduction or a Transfer, not {shown(one)}; parse_reduction makes one from text"
            )
    return tuple(given)
