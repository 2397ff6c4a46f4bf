"""Calibration: short measurements per level and collective, fitted to bandwidth, latency and the library's efficiency.

Inside one level, the model's time of a collective is linear in two unknowns: its time at full bandwidth over what is
reached of it, plus its number of messages one after another times the latency. So each level is a linear least-squares
fit, over all collectives and sizes at once, of relative errors. Sends between two instances tell a level's bandwidth;
what a collective reaches beyond or below it, at all levels, is the library's efficiency.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log, prod
from statistics import median

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.library import Library
from meshwright.cost.model import CostModel
from meshwright.errors import SpecError, TooLargeError
from meshwright.language.goals import PROGRAM_GOALS, Goal, flat_program
from meshwright.language.program import Collective
from meshwright.measure.bench import Case, case_of
from meshwright.measure.records import SEND, Measurement, check_seconds
from meshwright.placement.layout import layout_of
from meshwright.placement.placement import Placement
from meshwright.system.model import LEAST, MOST, System
from meshwright.text.spec import shown, unknown
from meshwright.workload.communication import MAX_BYTES, Reduction

MOST_RANKS = 65_536
"""The most devices that measurements are made with."""

ROUNDS = 6
"""Of fitting, where what is fitted decides which terms count."""

GUESSED = 0.03
"""How far off, as a share, the efficiencies that are given may well be."""

FINEST = 0.002
"""No observation counts for more than one with this error."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A collective in groups that fill one level, or a send between two instances of it: bytes held and seconds taken.

    alone: only one group or one pair was at work, not all at once.
    """

    level: str
    collective: Collective | None
    bytes: int
    seconds: float
    alone: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot have been observed."""
        if type(self.bytes) is not int or not 1 <= self.bytes <= MAX_BYTES:
            raise SpecError(f"{shown(self.bytes)} bytes were observed; expected 1 to {MAX_BYTES:,}")
        check_seconds(self.seconds)


@dataclass(frozen=True, slots=True)
class Fit:
    """What was found, each with its standard error as a share of itself; figures are relative to the given system."""

    system: System
    library: Library
    bandwidth_error: dict[str, float]
    latency_error: dict[str, float]
    efficiency_error: dict[Collective, float]
    residual: float
    observations: int


def microbenchmarks(system: System, library: Library, sizes: Sequence[int], rooted: bool = True) -> list[Case]:
    """What to measure: for each level, sends and every collective inside it, alone and all at once, in some sizes."""
    if system.devices > MOST_RANKS:
        raise TooLargeError(
            f"{system.devices:,} devices are too many to measure with; at most {MOST_RANKS:,} can be: measure fewer of "
            "the same kind"
        )
    placement = by_level(system)
    found = []
    for number, level in enumerate(system.levels):
        if level.count == 1:
            continue
        inside = prod(system.counts[number + 1 :])
        groups = system.devices // level.count
        for size in sizes:
            for goal in PROGRAM_GOALS:
                if goal in (Goal.REDUCE, Goal.BROADCAST) and not rooted:
                    continue
                reduction = Reduction((level.name,), size, goal=goal)
                case = case_of(placement, reduction, library, [f"{goal.flat} all"])
                found.append(replace(case, numbers=(0,)))
                if groups > 1 and goal is Goal.ALL_REDUCE:
                    found.append(replace(case, numbers=(0,), alone=True))
                if goal is Goal.ALL_REDUCE:
                    every = tuple((device, device + inside) for device in range(inside))
                    for pairs in {every[:1], every}:
                        found.append(replace(case, numbers=(0,), sends=pairs, alone=len(pairs) < inside))
    return found


def by_level(system: System) -> Placement:
    """The placement with an axis for each level, named like it."""
    counts = system.counts
    matrix = tuple(tuple(counts[k] if j == k else 1 for j in range(len(counts))) for k in range(len(counts)))
    return Placement(system, tuple(level.name for level in system.levels), matrix)


def observations(measurements: Sequence[Measurement]) -> list[Observation]:
    """Those measurements that tell about a single level: one flat step over one axis that is a level, or sends."""
    found = []
    flat = {f"{goal.flat} all": goal.flat for goal in PROGRAM_GOALS if goal.flat}
    for one in measurements:
        names = [level["name"] for level in one.system["levels"]]
        if one.failed is not None or one.axes != names or len(one.over) != 1 or not one.seconds:
            continue
        if one.program in flat or one.program == SEND:
            found.append(Observation(one.over[0], flat.get(one.program), one.bytes, median(one.seconds), one.alone))
    return found


def fit(system: System, library: Library, seen: Sequence[Observation]) -> Fit:
    """Fit a system and a library to observations; both are first guesses, and keep what nothing tells about."""
    if not seen:
        raise SpecError("there is nothing to calibrate from: no send or flat collective inside one level was measured")
    known = [level.name for level in system.levels if level.count > 1]
    for one in seen:
        if one.level not in known:
            raise SpecError(
                f"what was observed does not fit the system {shown(system.name)}: "
                f"{unknown('level of several', one.level, known)}"
            )
    plain = replace(library, rules=tuple((c, tuple(replace(r, efficiency=1.0) for r in rs)) for c, rs in library.rules))
    reached: dict[tuple[str, Collective], tuple[float, float]] = {}  # of a level's bandwidth by a collective; its error
    levels = list(system.levels)
    shares: dict[str, tuple[float, float]] = {}
    latencies: dict[str, float] = {}
    residuals: list[float] = []
    for number, level in enumerate(system.levels):
        here = [one for one in seen if one.level == level.name]
        together = [one for one in here if not one.alone]
        kinds = sorted({one.collective for one in together if one.collective is not None})
        sends = [one for one in here if one.collective is None]
        if sends:
            shares[level.name] = _send_share(system, number, sends)
        if not kinds:
            continue
        solution: list[float] = []
        for _ in range(ROUNDS if library.handshake else 1):
            rows = []
            for one in together:
                if one.collective is None:
                    continue
                near = (solution[kinds.index(one.collective)], solution[-1]) if solution else None
                wide, deep = _terms(system, plain, level.name, one, near)
                row = [wide if one.collective is kind else 0.0 for kind in kinds]
                rows.append([value / one.seconds for value in (*row, deep)])
            solution, error, left = _least_squares(np.array(rows), np.ones(len(rows)))
        residuals += left
        for kind, value, off in zip(kinds, solution[:-1], error[:-1], strict=True):
            reached[level.name, kind] = 1 / max(float(value), 1e-9), float(off) / max(float(value), 1e-9)
        latency = max(float(solution[-1]), 0.0)
        latencies[level.name] = float(error[-1]) / latency if latency else 0.0
        levels[number] = replace(level, link=replace(level.link, latency=latency))
    # What a collective reaches beyond or below what the sends of a level do is the library's. That it is what was
    # guessed counts as an observation too, which noisy ones do not outweigh.
    efficiencies: dict[Collective, float] = {}
    efficiency_error: dict[Collective, float] = {}
    for kind in sorted({kind for _, kind in reached}):
        seen_at = [
            (log(share / shares.get(name, (1.0, 0.0))[0]), off)
            for (name, k), (share, off) in reached.items()
            if k == kind
        ]
        trust = [max(off, FINEST) ** -2 for _, off in seen_at]
        best = sum(t * value for t, (value, _) in zip(trust, seen_at, strict=True)) / (sum(trust) + GUESSED**-2)
        efficiencies[kind] = exp(best)
        efficiency_error[kind] = max(max(abs(value - best), off) for value, off in seen_at)
    excess = max([1.0, *efficiencies.values()])  # no library is better than its links: what exceeds them is theirs
    efficiencies = {kind: value / excess for kind, value in efficiencies.items()}
    for name in {name for name, _ in reached} | set(shares):
        share, off = shares.get(name, (1.0, 0.0))
        shares[name] = share * excess, off
    found = dict(library.rules)
    in_chunks = dict(library.in_chunks)
    for kind, value in efficiencies.items():
        for rules in (found, in_chunks):
            if kind in rules:
                rules[kind] = tuple(replace(rule, efficiency=max(0.001, min(1.0, value))) for rule in rules[kind])
    for number, level in enumerate(levels):
        if level.link.bandwidth is not None and level.name in shares:
            link = replace(level.link, bandwidth=level.link.bandwidth * shares[level.name][0])
            levels[number] = replace(level, link=link)
    return Fit(
        replace(system, levels=tuple(levels)),
        replace(
            library,
            name=f"{library.name}-calibrated",
            rules=tuple(found.items()),
            in_chunks=tuple(in_chunks.items()),
        ),
        {name: off for name, (_, off) in shares.items()},
        latencies,
        efficiency_error,
        float(np.sqrt(np.mean(np.square(residuals)))) if residuals else 0.0,
        len(seen),
    )


def message_rate(system: System, library: Library, seen: Sequence[Observation]) -> float:
    """How many messages per second all devices handle, where they share processors, from the smallest collectives.

    A quarter of the collectives reached at least this rate: the others wait for more than processors. Levels that were
    said to have latency tell nothing.
    """
    late = {level.name for level in system.levels if level.link.latency}
    together = [one for one in seen if one.collective is not None and not one.alone and one.level not in late]
    if not together:
        raise SpecError(
            "no collective in all groups at once was measured in a level without latency, so nothing tells the rate of "
            "messages; measure the same devices without latency"
        )
    tiny = min(one.bytes for one in together)
    levels = tuple(replace(each, link=replace(each.link, latency=0.0, bandwidth=MOST)) for each in system.levels)
    placement = by_level(replace(system, levels=levels, message_rate=1.0))
    rates = []
    for one in together:
        if one.bytes == tiny:
            goal = next(goal for goal in PROGRAM_GOALS if goal.flat is one.collective)
            model = CostModel(layout_of(placement, [one.level]), library, one.bytes)
            rates.append(model.seconds(flat_program(goal, 1), goal) / one.seconds)
    return float(np.percentile(rates, 75))


def shared_processors(fitted: System, rate: float, nominal: System, library: Library) -> System:
    """The fitted system with devices that share processors, which handle so many messages per second.

    A message takes its share of the processors' time; that is its latency, unless the network was said to have some.
    """
    latency = 1 / rate / library.trips
    levels = tuple(
        level if said.link.latency else replace(level, link=replace(level.link, latency=latency))
        for level, said in zip(fitted.levels, nominal.levels, strict=True)
    )
    return replace(fitted, levels=levels, message_rate=rate)


def _terms(
    system: System, library: Library, level: str, one: Observation, near: tuple[float, float] | None
) -> tuple[float, float]:
    """How often the model's seconds at full bandwidth count, and how often the level's latency.

    That is the same everywhere, or with handshakes depends on which of them takes longer: so near a solution, as how
    many times slower the links are than at full bandwidth, and the latency.
    """
    assert one.collective is not None
    goal = next(goal for goal in PROGRAM_GOALS if goal.flat is one.collective)

    def seconds(latency: float, slowness: float) -> float:
        widths = [max(LEAST, min((each.link.bandwidth or MOST) / slowness, MOST)) for each in system.levels]
        levels = tuple(
            replace(each, link=replace(each.link, latency=latency, bandwidth=width))
            for each, width in zip(system.levels, widths, strict=True)
        )
        placement = by_level(replace(system, levels=levels))
        model = CostModel(layout_of(placement, [level]), library, one.bytes)
        return model.seconds(flat_program(goal, 1), goal)

    if near is None:
        return seconds(0.0, 1.0), seconds(1.0, 1e-12)
    slowness, latency = max(near[0], 0.01), max(near[1], 1e-9)
    here = seconds(latency, slowness)
    deep = (seconds(latency * 1.001, slowness) - here) / (latency * 0.001)
    return (here - latency * deep) / slowness, deep


def _send_share(system: System, number: int, sends: Sequence[Observation]) -> tuple[float, float]:
    """Which share of a level's bandwidth the sends between two of its instances reached, and its error.

    All devices of an instance send at once, so that the level's port is full, unless their own ports are slower.
    """
    counts = system.counts
    inside = prod(counts[number + 1 :])
    pairs = inside if any(not one.alone for one in sends) else 1
    own = system.levels[number].link.bandwidth or 1.0
    inner = [
        (level.link.bandwidth or 1.0) * pairs / prod(counts[k + 1 :])
        for k, level in enumerate(system.levels)
        if k > number and pairs >= prod(counts[k + 1 :])
    ]
    limit = min([own, *inner])
    chosen = sorted((one.bytes, one.seconds) for one in sends if one.alone == (pairs == 1 and inside > 1))
    sizes = np.array([size * pairs for size, _ in chosen], dtype=float)
    times = np.array([seconds for _, seconds in chosen])
    if len(chosen) == 1:
        return float(sizes[0] / times[0] / limit), 0.0
    rows = np.stack([sizes / limit / times, 1 / times], axis=1)
    solution, error, _ = _least_squares(rows, np.ones(len(times)))
    if not solution[0] > 0:
        raise SpecError(
            f"the times of sends over {system.levels[number].name!r} do not grow with their bytes, so they tell no "
            "bandwidth; measure payloads of several sizes"
        )
    return float(1 / solution[0]), float(error[0] / solution[0])


def _least_squares(
    rows: NDArray[np.float64], values: NDArray[np.float64]
) -> tuple[list[float], list[float], list[float]]:
    """The solution, its standard errors, and the residuals; a negative last unknown is taken for zero."""
    solution, *_ = np.linalg.lstsq(rows, values, rcond=None)
    if solution[-1] < 0:
        solution = np.append(np.linalg.lstsq(rows[:, :-1], values, rcond=None)[0], 0.0)
    left = values - rows @ solution
    freedom = max(len(values) - rows.shape[1], 1)
    scale = float(left @ left) / freedom
    covariance = np.linalg.pinv(rows.T @ rows) * scale
    return list(solution), list(np.sqrt(np.maximum(np.diag(covariance), 0.0))), list(left)
