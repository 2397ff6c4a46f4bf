"""How good the predictions are: measurements joined with what the model says, in figures and as a picture."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from statistics import mean, median

import numpy as np

from meshwright.cost.library import Library
from meshwright.cost.model import CostModel
from meshwright.cost.pipeline import Pipeline
from meshwright.errors import SpecError
from meshwright.language.goals import Goal, flat_program
from meshwright.language.parse import parse_pipelined
from meshwright.language.program import Pipelined
from meshwright.language.semantics import check_program
from meshwright.measure.records import Measurement
from meshwright.placement.layout import layout_of
from meshwright.placement.notation import format_placement
from meshwright.planning.plan import DEFAULT_PROGRAM
from meshwright.system.model import System
from meshwright.text.files import write_file
from meshwright.text.spec import format_counts


@dataclass(frozen=True, slots=True)
class Outcome:
    """A program with its measured and predicted seconds; spread: the slowest repetition over the fastest, less 1."""

    program: str
    measured: float
    predicted: float
    spread: float

    @property
    def steps(self) -> int:
        """The number of steps; of a mix, that of its longest program."""
        return max(part.count(";") + 1 for part in self.program.split("|"))

    @property
    def error(self) -> float:
        """How far the prediction is off, as a share of what was measured."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True)
class Pair:
    """A placement and a reduction, with all programs that were measured for them, the fastest first."""

    system: str
    axes: tuple[str, ...]
    matrix: tuple[tuple[int, ...], ...]
    over: tuple[str, ...]
    goal: str
    bytes: int
    group: int  # how many devices a reduction group has
    default: Outcome | None
    bound: float  # in seconds
    outcomes: tuple[Outcome, ...]

    @property
    def fastest(self) -> Outcome:
        """The program that was measured to be the fastest."""
        return self.outcomes[0]

    @property
    def chosen(self) -> Outcome:
        """The program that is predicted to be the fastest."""
        return min(self.outcomes, key=lambda outcome: outcome.predicted)

    @property
    def loss(self) -> float:
        """How much longer the chosen program took than the fastest, as a share of it."""
        return self.chosen.measured / self.fastest.measured - 1

    def hit(self, k: int, noise: float) -> bool:
        """Whether one of the k programs that are predicted best was the fastest, or as fast within the noise.

        For example, with a noise of 5% and a fastest program of 1.00 s, a program of 1.04 s among them is a hit.
        """
        limit = self.fastest.measured * (1 + noise)
        return min(outcome.measured for outcome in self.predicted[:k]) <= limit

    @property
    def predicted(self) -> list[Outcome]:
        """The programs, the one that is predicted to be the fastest first."""
        return sorted(self.outcomes, key=lambda outcome: outcome.predicted)

    @property
    def speedup(self) -> float | None:
        """How much faster the fastest program was than the library's default."""
        return None if self.default is None else self.default.measured / self.fastest.measured

    @property
    def correlation(self) -> float:
        """Spearman's rank correlation of predicted and measured times; 1 for a single program."""
        if len(self.outcomes) < 2:
            return 1.0
        times = ([outcome.measured for outcome in self.outcomes], [outcome.predicted for outcome in self.outcomes])
        measured, predicted = (np.argsort(np.argsort(each, kind="stable")) for each in times)  # their ranks
        return float(np.corrcoef(measured, predicted)[0, 1])


def join(measurements: Sequence[Measurement], library: Library, calibrated: System | None = None) -> list[Pair]:
    """Measurements with predictions, for each placement and reduction; from a calibrated system, if one is given."""
    grouped: dict[tuple[object, ...], list[Measurement]] = {}
    for one in measurements:
        if one.failed is None and one.seconds:
            key = (str(one.system), str(one.matrix), tuple(one.over), one.goal, one.bytes, one.engine)
            grouped.setdefault(key, []).append(one)
    if not grouped:
        raise SpecError("none of the measurements has a result")
    return [_pair(group, library, calibrated) for group in grouped.values()]


def _pair(group: list[Measurement], library: Library, calibrated: System | None) -> Pair:
    first = group[0]
    described = first.placement().system
    if calibrated is not None and calibrated.counts != described.counts:
        raise SpecError(f"the system has the counts {calibrated.counts}, but {described.counts} was measured")
    placement = first.placement(calibrated)
    model = CostModel(layout_of(placement, first.over), library, first.bytes)
    outcomes = [_outcome(one, model) for one in group]
    defaults = [outcome for outcome in outcomes if outcome.program == DEFAULT_PROGRAM]
    programs = [outcome for outcome in outcomes if outcome.program != DEFAULT_PROGRAM]
    if not programs:
        where = f"{format_placement(first.axes, first.matrix)} over {'+'.join(first.over)}"
        raise SpecError(f"only the default was measured for {where}")
    return Pair(
        system=format_counts({level.name: level.count for level in described.levels}),
        axes=placement.axes,
        matrix=placement.matrix,
        over=tuple(first.over),
        goal=first.goal,
        bytes=first.bytes,
        group=model.layout.hierarchy.size,
        default=defaults[-1] if defaults else None,
        bound=model.bound(Goal(first.goal)),
        outcomes=tuple(sorted(programs, key=lambda outcome: outcome.measured)),
    )


def _outcome(one: Measurement, model: CostModel) -> Outcome:
    """A measurement beside what the model predicts for its program."""
    goal, hierarchy = Goal(one.goal), model.layout.hierarchy
    if one.program == DEFAULT_PROGRAM:
        program = Pipelined.of(flat_program(goal, len(hierarchy.names)))
        model = CostModel(model.layout, model.library.alone, model.payload)
    else:
        program = parse_pipelined(one.program, hierarchy)
    for each, _ in program.shares:
        check_program(each, hierarchy, goal)
    spread = max(one.seconds) / min(one.seconds) - 1
    return Outcome(one.program, median(one.seconds), Pipeline(model, goal).seconds(program), spread)


BEST = 10  # how many of the programs that are predicted best the widest figure of accuracy counts
TELL_APART = 2.5  # times the median spread: if two times are further apart, they differ with 95% confidence


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of the predictions, and of what was measured."""

    pairs: int
    programs: int
    noise: float
    top: dict[int, float]  # for each k, the share of pairs whose fastest measured program is among the k predicted best
    # For each number of steps, how many programs were measured that are not among the `BEST` predicted best: only these
    # can put the last figure of `top` in doubt.
    others: dict[int, int]
    median_error: float
    worst_tenth_error: float
    correlation: float
    share: float  # of the pairs in which a program beats the library's default
    mean_speedup: float
    best_speedup: float
    spread: float  # how much slower the slowest placement is than the fastest
    over_bound: float  # the fastest program over the bound, in the median


def report(pairs: Sequence[Pair], noise: float | None = None) -> Report:
    """The figures of some pairs; the noise is taken from the repetitions unless given."""
    outcomes = [outcome for pair in pairs for outcome in pair.outcomes]
    if noise is None:
        noise = TELL_APART * median(outcome.spread for outcome in outcomes)
    errors = sorted(abs(outcome.error) for outcome in outcomes)
    speedups = [pair.speedup for pair in pairs if pair.speedup is not None]
    faster = [speedup for speedup in speedups if speedup > 1 + noise]
    return Report(
        pairs=len(pairs),
        programs=len(outcomes),
        noise=noise,
        top={k: mean(pair.hit(k, noise) for pair in pairs) for k in (1, 3, 5, BEST)},
        others=dict(sorted(Counter(other.steps for pair in pairs for other in pair.predicted[BEST:]).items())),
        median_error=float(np.percentile(errors, 50)),
        worst_tenth_error=float(np.percentile(errors, 90)),
        correlation=mean(pair.correlation for pair in pairs),
        share=len(faster) / len(speedups) if speedups else 0.0,
        mean_speedup=mean(faster) if faster else 1.0,
        best_speedup=max(speedups, default=1.0),
        spread=placement_spread(pairs),
        over_bound=median([pair.fastest.measured / pair.bound for pair in pairs if pair.bound > 0] or [1.0]),
    )


def misses(pairs: Sequence[Pair], noise: float) -> list[Pair]:
    """The pairs whose chosen program is slower than the fastest by more than the noise, the worst first."""
    return sorted((pair for pair in pairs if pair.loss > noise), key=lambda pair: -pair.loss)


def placement_spread(pairs: Sequence[Pair]) -> float:
    """The slowest over the fastest placement of groups of the same size, with the library's own collective."""
    # The names of axes do not matter: a study may measure just one of two placements that only swap axes of equal size.
    groups: dict[tuple[object, ...], list[float]] = {}
    for pair in pairs:
        time = pair.default.measured if pair.default is not None else pair.fastest.measured
        groups.setdefault((pair.system, pair.goal, pair.bytes, pair.group), []).append(time)
    return max((max(times) / min(times) for times in groups.values()), default=1.0)


def scatter(pairs: Sequence[Pair], path: Path) -> None:
    """Draw predicted over measured times of all programs, and the line where both agree; needs the extra `report`."""
    try:
        import matplotlib
    except ImportError as error:
        raise SpecError(f"plots need Matplotlib ({error}): pip install 'meshwright[report]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 5), layout="constrained")
    for system in dict.fromkeys(pair.system for pair in pairs):
        outcomes = [outcome for pair in pairs if pair.system == system for outcome in pair.outcomes]
        measured, predicted = [each.measured for each in outcomes], [each.predicted for each in outcomes]
        axes.scatter(measured, predicted, s=12, alpha=0.6, label=system)
    times = [time for pair in pairs for outcome in pair.outcomes for time in (outcome.measured, outcome.predicted)]
    ends = [min(times), max(times)]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="measured seconds", ylabel="predicted seconds")
    axes.legend(frameon=False)
    form = path.suffix.removeprefix(".").lower() or "png"
    drawn = BytesIO()
    try:
        figure.savefig(drawn, format=form, metadata={"Date": None} if form == "svg" else None)
    except ValueError as error:
        raise SpecError(f"cannot draw {str(path)!r}: {error}") from None
    finally:
        pyplot.close(figure)
    write_file(path, drawn.getvalue())
