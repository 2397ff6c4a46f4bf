"""Benchmarks: which programs are measured, and the loop that every rank runs to measure them."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from statistics import mean

from meshwright.cost.library import Library
from meshwright.cost.model import CostModel
from meshwright.errors import TooLargeError
from meshwright.language.parse import parse_pipelined
from meshwright.language.program import Collective, Pipelined, Program
from meshwright.language.synthesis import MAX_STEPS, ProgramGraph, program_graph
from meshwright.measure.records import SEND, Measurement, Records
from meshwright.measure.trials.trial import Runner, check_results, payloads
from meshwright.placement.layout import layout_of
from meshwright.placement.placement import Placement
from meshwright.planning.plan import DEFAULT_PROGRAM, Plan, predict
from meshwright.planning.tuning import beaten, half_width
from meshwright.system.read import canonical_document
from meshwright.workload.communication import Reduction

MOST_MEASUREMENTS = 20_000  # more would take days

MOST_LISTED = 1_000_000
"""Of more programs, no sample is drawn."""

SEED = 1
"""Of the generator that draws samples."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured together: programs of one reduction on one placement, and the library's default."""

    plan: Plan  # with the same reduction once for each program
    numbers: tuple[int | None, ...]  # which of these are measured; None is the default
    alone: bool = False  # whether only the first group runs
    sends: tuple[tuple[int, int], ...] = ()  # pairs of ranks, sender and receiver, that send instead
    in_turns: bool = False  # whether all are repeated in turns, and what is clearly slower than others is left

    @property
    def reduction(self) -> Reduction:
        """The reduction that all programs carry out."""
        return self.plan.reductions[0].communication

    def measurements(self, engine: str) -> list[Measurement]:
        """What is to be measured, without results."""
        blank = Measurement(
            system=canonical_document(self.plan.placement.system),
            axes=list(self.plan.placement.axes),
            matrix=[list(row) for row in self.plan.placement.matrix],
            over=list(self.reduction.axes),
            goal=str(self.reduction.goal),
            bytes=self.reduction.bytes,
            program=SEND if self.sends else DEFAULT_PROGRAM,
            engine=engine,
            alone=self.alone,
        )
        planned = [None if k is None or self.sends else self.plan.reductions[k] for k in self.numbers]
        return [blank if one is None else replace(blank, program=self.plan.program_text(one)) for one in planned]


def cases(
    placements: Iterable[Placement],
    reductions: Sequence[Reduction],
    library: Library,
    every: int = 3,
    best: int = 10,
    max_steps: int = MAX_STEPS,
    collectives: Sequence[Collective] = tuple(Collective),
    sample: int = 0,
) -> list[Case]:
    """For each placement and reduction: every program of at most `every` steps; of those with at most `max_steps` the
    `best` that are predicted to be fastest, and `sample` of the others, drawn at random.

    Without a sample, nothing could show that a program which is not predicted to be among the best is fast.
    """
    found = []
    total = 0
    for placement in placements:
        for reduction in reductions:
            model = _model(placement, reduction, library)
            levels = len(model.layout.levels)
            if levels == 0:
                continue  # nothing to reduce over
            programs: dict[Program, None] = {}
            graph = program_graph(levels, reduction.goal, every, collectives)
            total += 1 + (graph.count() if every else 0)
            check_measurements(total)
            if every:
                programs |= dict.fromkeys(graph.programs())
            longer = program_graph(levels, reduction.goal, max_steps, collectives)
            if best:
                programs |= dict.fromkeys(program for _, program in islice(longer.ranked(model), best))
            if sample:
                programs |= dict.fromkeys(_drawn(longer, programs, sample))
            found.append(_case(placement, reduction, model, map(Pipelined.of, programs)))
    return found


def _drawn(graph: ProgramGraph, known: Collection[Program], sample: int) -> list[Program]:
    """Some of a graph's programs that are not known yet, each as likely as any other; always the same ones."""
    if graph.count() > MOST_LISTED:
        raise TooLargeError(
            f"there are {graph.count():,} programs of at most {graph.max_steps} steps to draw from; at most "
            f"{MOST_LISTED:,} can be: ask for shorter programs with --max-steps"
        )
    others = [program for program in graph.programs() if program not in known]
    return Random(SEED).sample(others, min(sample, len(others)))


def case_of(placement: Placement, reduction: Reduction, library: Library, texts: Sequence[str]) -> Case:
    """The case of some programs, given as text."""
    model = _model(placement, reduction, library)
    return _case(placement, reduction, model, [parse_pipelined(text, model.layout.hierarchy) for text in texts])


def race(placement: Placement, reduction: Reduction, library: Library, programs: Iterable[Pipelined]) -> Case:
    """The case of some programs that are measured in turns."""
    return replace(_case(placement, reduction, _model(placement, reduction, library), programs), in_turns=True)


def _model(placement: Placement, reduction: Reduction, library: Library) -> CostModel:
    return CostModel(layout_of(placement, reduction.axes), library, reduction.bytes)


def _case(placement: Placement, reduction: Reduction, model: CostModel, programs: Iterable[Pipelined]) -> Case:
    planned = tuple(predict(model, reduction, pipelined) for pipelined in programs)
    return Case(Plan(placement, model.library, planned), (None, *range(len(planned))))


def check_measurements(count: int) -> None:
    """Refuse more measurements than can be made."""
    if count > MOST_MEASUREMENTS:
        raise TooLargeError(
            f"there are {count:,} programs and placements to measure, or more; at most {MOST_MEASUREMENTS:,} can be: "
            "ask for shorter programs with --every, or name some with --placement or --program"
        )


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to repeat: at least `least` and at most `most` times. In between, until the mean is known to within
    `width` of itself with 95% confidence, or `budget` seconds were measured.

    For example, 1.00, 1.01 and 1.02 s have the mean 1.01 s and a confidence interval of 0.025 s to either side. That
    is 2.5%, which is too wide for a width of 0.02: one more repetition is made.
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


Watch = Callable[[Callable[[], object]], dict[str, int]]  # does some work; the bytes on each level's busiest link


def measure(
    runner: Runner,
    wanted: Sequence[Case],
    records: Records | None,
    patience: Patience,
    progress: Callable[[Measurement], None] = lambda _: None,
    watch: Watch | None = None,
) -> None:
    """Measure what is not measured yet. Every rank calls this; only the first has records, and may watch the links."""
    for case in wanted:
        todo = list(zip(case.numbers, case.measurements(runner.name), strict=True))
        # Only the first rank knows what is measured already. It tells the others, so that all skip the same.
        skip = runner.shared([records is not None and measurement.id in records.done for _, measurement in todo])
        if all(skip):
            continue
        runner.load(case.plan)
        todo = [each for each, known in zip(todo, skip, strict=True) if not known]
        if case.in_turns:
            _measure_in_turns(runner, case, todo, records, patience, progress)
            continue
        for number, measurement in todo:
            if records is not None:
                progress(measurement)
                records.start(measurement)
            result = _measured(runner, case, number, measurement, patience, watch, records)
            if records is not None:
                records.add(result)


def _measure_in_turns(
    runner: Runner,
    case: Case,
    todo: Sequence[tuple[int | None, Measurement]],
    records: Records | None,
    patience: Patience,
    progress: Callable[[Measurement], None],
) -> None:
    """Repeat one after the other, again and again, so that what disturbs for a while disturbs all of them."""
    times: dict[int | None, list[float]] = {number: [] for number, _ in todo}
    waiting = list(todo)
    while waiting:
        for number, measurement in list(waiting):
            payload, seconds, default = payloads(case.plan, "float32")[number or 0], times[number], number is None
            runner.prepare(payload)
            if records is not None:
                records.start(measurement)  # every time, as a sign of life
            result = None
            if not seconds:
                runner.run(default)  # to warm up, and for the result
                if faults := runner.everyone(check_results(runner, payload)):
                    result = replace(measurement, failed=f"wrong result: {faults[0]}")
            if result is None:
                seconds.append(runner.run(default))
                others = [times[other] for other in times if other != number]
                if patience.enough(seconds) or (len(seconds) >= patience.least and beaten(seconds, others)):
                    result = replace(measurement, seconds=seconds)
            if result is not None:
                waiting.remove((number, measurement))
                if records is not None:
                    progress(measurement)
                    records.add(result)


def _measured(
    runner: Runner,
    case: Case,
    number: int | None,
    measurement: Measurement,
    patience: Patience,
    watch: Watch | None,
    records: Records | None,
) -> Measurement:
    payload = payloads(case.plan, "float32")[number or 0]
    runner.prepare(payload)

    def once() -> float:
        seconds = runner.send(case.sends) if case.sends else runner.run(number is None, case.alone)
        if records is not None:
            records.touch()
        return seconds

    if watch is None:
        once()  # to warm up, and for the result
    links = None if watch is None else watch(once)
    if not case.sends and not case.alone and (faults := runner.everyone(check_results(runner, payload))):
        return replace(measurement, failed=f"wrong result: {faults[0]}")
    seconds: list[float] = []
    while not patience.enough(seconds):
        seconds.append(once())
    return replace(measurement, seconds=seconds, links=links)
