"""Benchmarks: which programs are measured, and the loop that every rank runs to measure them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import mean, stdev

from meshwright.cost.library import Library
from meshwright.errors import TooLargeError
from meshwright.language.program import Collective, Program, parse_pipelined
from meshwright.language.synthesis import MAX_STEPS, program_graph
from meshwright.measure.records import DEFAULT_PROGRAM, SEND, Measurement, Records
from meshwright.measure.trials.trial import Engine, check_results, payloads
from meshwright.placement.placement import Placement
from meshwright.planning.plan import Plan, PlannedReduction, planned_reduction
from meshwright.system.read import system_document
from meshwright.workload.communication import Reduction

STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 97.5% points of Student's distribution for 1, 2, … degrees of freedom; beyond, about 2.1."""


MOST_MEASUREMENTS = 20_000
"""More would take days."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured together: programs of one reduction on one placement, and the library's default.

    kinds: which programs, by number; None is the default. sends: ranks that send to others, in place of programs.
    """

    plan: Plan
    kinds: tuple[int | None, ...]
    alone: bool = False
    sends: tuple[tuple[int, int], ...] = ()

    @property
    def reduction(self) -> Reduction:
        """The reduction that all programs carry out."""
        return self.plan.reductions[0].reduction

    def measurement(self, number: int | None, engine: str) -> Measurement:
        """One of the programs, not yet measured; None is the default."""
        return Measurement(
            system=system_document(self.plan.placement.system),
            axes=list(self.plan.placement.axes),
            matrix=[list(row) for row in self.plan.placement.matrix],
            over=list(self.reduction.axes),
            goal=str(self.reduction.goal),
            bytes=self.reduction.bytes,
            program=self._text(number),
            engine=engine,
            alone=self.alone,
        )

    def _text(self, number: int | None) -> str:
        if self.sends:
            return SEND
        if number is None:
            return DEFAULT_PROGRAM
        planned = self.plan.reductions[number]
        return planned.pipelined.text(self.plan.hierarchy(planned))

    def measurements(self, engine: str) -> list[Measurement]:
        """All of them, not yet measured."""
        return [self.measurement(number, engine) for number in self.kinds]


def cases(
    placements: Iterable[Placement],
    reductions: Sequence[Reduction],
    library: Library,
    every: int = 3,
    best: int = 10,
    max_steps: int = MAX_STEPS,
    collectives: Sequence[Collective] = tuple(Collective),
) -> list[Case]:
    """For each placement and reduction, every program of at most `every` steps and the predicted `best` of
    `max_steps`.
    """
    found = []
    total = 0
    for placement in placements:
        for reduction in reductions:
            empty = Plan(placement, library, (PlannedReduction(reduction, Program(()), 0, 0, 0),))
            hierarchy, model = empty.hierarchy(empty.reductions[0]), empty.model(empty.reductions[0])
            levels = len(hierarchy.names)
            if levels == 0:
                continue  # nothing to reduce over
            programs: dict[Program, None] = {}
            graph = program_graph(levels, reduction.goal, every, collectives)
            total += 1 + (graph.count() if every else 0)
            check_measurements(total)
            if every:
                programs |= dict.fromkeys(graph.programs())
            if best:
                ranked = program_graph(levels, reduction.goal, max_steps, collectives).ranked(model)
                for _, (_, program) in zip(range(best), ranked, strict=False):
                    programs.setdefault(program)
            planned = tuple(planned_reduction(model, reduction, program) for program in programs)
            found.append(Case(Plan(placement, library, planned), (None, *range(len(planned)))))
    return found


def check_measurements(count: int) -> None:
    """Refuse more measurements than can be made."""
    if count > MOST_MEASUREMENTS:
        raise TooLargeError(
            f"there are {count:,} programs and placements to measure, or more; at most {MOST_MEASUREMENTS:,} can be: "
            "ask for shorter programs with --every, or name some with --placement or --program"
        )


def case_of(placement: Placement, reduction: Reduction, library: Library, texts: Sequence[str]) -> Case:
    """The case of some programs, given as text."""
    empty = Plan(placement, library, (PlannedReduction(reduction, Program(()), 0, 0, 0),))
    hierarchy, model = empty.hierarchy(empty.reductions[0]), empty.model(empty.reductions[0])
    programs = [parse_pipelined(text, hierarchy) for text in texts]
    planned = tuple(planned_reduction(model, reduction, program) for program in programs)
    return Case(Plan(placement, library, planned), (None, *range(len(planned))))


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to repeat: at least and at most so often, until the mean is known to a share of itself with 95%
    confidence, or so many seconds were measured.
    """

    least: int = 3
    most: int = 20
    width: float = 0.02
    budget: float = 10.0

    def enough(self, seconds: Sequence[float]) -> bool:
        """Whether these repetitions will do."""
        count = len(seconds)
        if count < self.least:
            return False
        if count >= self.most or sum(seconds) >= self.budget:
            return True
        return half_width(seconds) <= self.width * mean(seconds)


def half_width(seconds: Sequence[float]) -> float:
    """Half of the 95% confidence interval of the mean."""
    if len(seconds) < 2:
        return float("inf")
    point = STUDENT[len(seconds) - 2] if len(seconds) - 2 < len(STUDENT) else 2.1
    return point * stdev(seconds) / sqrt(len(seconds))


Watch = Callable[[Callable[[], object]], dict[str, int]]
"""Runs something, and tells what crossed the most loaded link of each level meanwhile."""


def measure(
    engine: Engine,
    wanted: Sequence[Case],
    records: Records | None,
    patience: Patience,
    dtype: str = "float32",
    progress: Callable[[Measurement], None] = lambda _: None,
    watch: Watch | None = None,
) -> None:
    """Measure what is not measured yet. Every rank calls this; the first one has the records, and may watch the
    links.
    """
    for case in wanted:
        todo = list(zip(case.kinds, case.measurements(engine.name), strict=True))
        skip = engine.shared([records is not None and measurement.id in records.done for _, measurement in todo])
        if all(skip):
            continue
        engine.load(case.plan)
        for (number, measurement), known in zip(todo, skip, strict=True):
            if known:
                continue
            if records is not None:
                progress(measurement)
                records.start(measurement)
            result = _measured(engine, case, number, measurement, patience, dtype, watch)
            if records is not None:
                records.add(result)


def _measured(
    engine: Engine,
    case: Case,
    number: int | None,
    measurement: Measurement,
    patience: Patience,
    dtype: str,
    watch: Watch | None,
) -> Measurement:
    payload = payloads(case.plan, dtype)[number or 0]
    engine.prepare(payload)

    def once() -> float:
        if case.sends:
            return engine.send(case.sends)
        return engine.run(number is None, case.alone)

    links = None
    if watch is None:
        once()
    else:
        links = watch(once)
    if not case.sends and not case.alone and (faults := engine.everyone(check_results(engine, payload))):
        return replace(measurement, failed=f"wrong result: {faults[0]}")
    seconds: list[float] = []
    while not patience.enough(seconds):
        seconds.append(once())
    return replace(measurement, seconds=seconds, links=links)
