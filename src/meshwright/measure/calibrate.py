"""Calibration: bandwidth, latency and the library's efficiency, fitted to observations.

Inside one level, the model's time of a collective is linear in two unknowns. One is how many times slower the links
are than at the bandwidth that was given, the other is the latency. So each level is a linear least-squares fit over
all its collectives and sizes.

For example, rings of 4 at 10 MB/s. An all-reduce of 1 MB takes 0.15 s at full bandwidth and 6 messages one after
another; one of 0.5 MB takes 0.075 s and 6 messages. They were measured to take 0.1787 s and 0.0953 s:

    0.150 s * slowness + 6 * latency = 0.1787 s
    0.075 s * slowness + 6 * latency = 0.0953 s

That gives a slowness of 1.111, so the ring reached 1 / 1.111 = 90% of the bandwidth, and a latency of 2 ms. Both sides
are divided by the measured time, so that relative errors are fitted. Each collective has a slowness of its own; the
latency is common to all.

How much of the 90% is the link's, and how much the library's? Sends between two instances tell a level's bandwidth. If
they reached 95%, the library's efficiency in all-reduces is 90 / 95 = 0.947 there, and close to that at other levels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import exp, log, prod

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.contention import step_kind
from meshwright.cost.library import LEAST_EFFICIENCY, Library, LibraryRule
from meshwright.cost.model import CostModel
from meshwright.errors import SpecError
from meshwright.language.goals import PROGRAM_GOALS, Goal, flat_program
from meshwright.language.program import Collective
from meshwright.language.symbolic import run_symbolically
from meshwright.measure.observations import Observation, by_level
from meshwright.placement.layout import layout_of
from meshwright.system.model import LEAST, MOST, Level, System
from meshwright.text.spec import shown, unknown

ROUNDS = 6  # how often a fit is repeated where its result decides which terms count: with handshakes
GUESSED = 0.03  # how far off, as a share, the guess may well be that a collective reaches what sends do
FINEST = 0.002  # no observation counts for more than one with this error


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


@dataclass(frozen=True, slots=True)
class Estimate:
    """A fitted figure, and its standard error as a share of it."""

    value: float
    error: float


@dataclass(frozen=True, slots=True)
class LevelFit:
    """What the observations of one level tell."""

    sends: Estimate | None = None  # the share of the level's bandwidth that sends reached, if there were any
    collectives: dict[Collective, Estimate] = field(default_factory=dict)  # the share that each of them reached
    latency: Estimate | None = None  # in seconds, if there were collectives
    residuals: tuple[float, ...] = ()  # the relative errors that are left


@dataclass(frozen=True, slots=True)
class Solution:
    """The solution of a least-squares problem: its unknowns, their standard errors, and the residuals."""

    values: list[float]
    errors: list[float]
    residuals: list[float]


def fit(system: System, library: Library, seen: Sequence[Observation]) -> Fit:
    """Fit a system and a library to observations; both are first guesses, and keep what nothing tells about."""
    _check(system, seen)
    # What a call and a message cost is in the latencies that are fitted.
    plain = replace(
        library,
        call=0.0,
        message=0.0,
        rules=tuple((kind, _at(rules, 1.0)) for kind, rules in library.rules),
    )
    levels = {
        level.name: _fit_level(system, plain, number, [one for one in seen if one.level == level.name])
        for number, level in enumerate(system.levels)
    }
    efficiencies = _efficiencies(list(levels.values()))
    excess = max([1.0, *(one.value for one in efficiencies.values())])
    # No library is better than its links: where one seems to be, the links are better than the sends said.
    bandwidths = {
        name: Estimate(reached.value * excess, reached.error)
        for name, one in levels.items()
        if (reached := one.sends or (Estimate(1.0, 0.0) if one.collectives else None)) is not None
    }
    latencies = {name: one.latency for name, one in levels.items() if one.latency is not None}
    residuals = [residual for one in levels.values() for residual in one.residuals]
    return Fit(
        replace(system, levels=tuple(_fitted_level(level, bandwidths, latencies) for level in system.levels)),
        _fitted_library(library, {kind: one.value / excess for kind, one in efficiencies.items()}),
        {name: one.error for name, one in bandwidths.items()},
        {name: one.error for name, one in latencies.items()},
        {kind: one.error for kind, one in efficiencies.items()},
        float(np.sqrt(np.mean(np.square(residuals)))) if residuals else 0.0,
        len(seen),
    )


def _check(system: System, seen: Sequence[Observation]) -> None:
    """Refuse to fit a system to nothing, or to observations of other levels."""
    if not seen:
        raise SpecError("there is nothing to calibrate from: no send or flat collective inside one level was measured")
    known = [level.name for level in system.levels if level.count > 1]
    for one in seen:
        if one.level not in known:
            raise SpecError(
                f"what was observed does not fit the system {shown(system.name)}: "
                f"{unknown('level of several', one.level, known)}"
            )


def _fit_level(system: System, library: Library, number: int, here: Sequence[Observation]) -> LevelFit:
    """Fit one level to its own observations, with a library whose best efficiencies are 1."""
    sends = [one for one in here if one.collective is None]
    reached = _reached_by_sends(system, number, sends) if sends else None
    together = [one for one in here if one.collective is not None and not one.alone]
    if not together:
        return LevelFit(reached)
    kinds = sorted({one.collective for one in together if one.collective is not None})
    columns = [kinds.index(one.collective) for one in together if one.collective is not None]
    rows = np.zeros((len(together), len(kinds) + 1))  # factors of each slowness and of the latency, over the time
    found: Solution | None = None
    for _ in range(ROUNDS if library.handshake else 1):
        for row, column, one in zip(rows, columns, together, strict=True):
            near = None if found is None else (found.values[column], found.values[-1])
            slowness, latency = _terms(system, library, one, near)
            row[[column, -1]] = slowness / one.seconds, latency / one.seconds
        found = _least_squares(rows)
    assert found is not None
    collectives = {}
    for kind, value, off in zip(kinds, found.values, found.errors, strict=False):
        slowness = max(value, 1e-9)
        collectives[kind] = Estimate(1 / slowness, off / slowness)
    latency = max(found.values[-1], 0.0)
    error = found.errors[-1] / latency if latency else 0.0
    return LevelFit(reached, collectives, Estimate(latency, error), tuple(found.residuals))


def _efficiencies(levels: Sequence[LevelFit]) -> dict[Collective, Estimate]:
    """What each collective reaches of what sends do, over all levels.

    It is a mean of logarithms, each weighted by 1 / error², with the guess that it is 1 as one more observation. So
    noisy levels move it less than precise ones. For example, 0.90 with an error of 1% at one level and 0.80 with 10%
    at another, beside the guess of 1 with 3%: the weights are 10,000, 100 and 1,111, and the result is 0.91.
    """
    found = {}
    for kind in sorted({kind for one in levels for kind in one.collectives}):
        here = [(one.collectives[kind], one.sends) for one in levels if kind in one.collectives]
        seen = [Estimate(log(one.value / (sends.value if sends else 1.0)), one.error) for one, sends in here]
        weights = [max(one.error, FINEST) ** -2 for one in seen]
        best = sum(weight * one.value for weight, one in zip(weights, seen, strict=True)) / (sum(weights) + GUESSED**-2)
        found[kind] = Estimate(exp(best), max(max(abs(one.value - best), one.error) for one in seen))
    return found


def _fitted_level(level: Level, bandwidths: dict[str, Estimate], latencies: dict[str, Estimate]) -> Level:
    link = level.link
    if level.name in latencies:
        link = replace(link, latency=latencies[level.name].value)
    if link.bandwidth is not None and level.name in bandwidths:
        link = replace(link, bandwidth=link.bandwidth * bandwidths[level.name].value)
    return replace(level, link=link)


def _fitted_library(library: Library, efficiencies: dict[Collective, float]) -> Library:
    """The library with other efficiencies, for whole payloads and for chunks."""
    changed = []
    for rules in (dict(library.rules), dict(library.in_chunks)):
        for kind in rules.keys() & efficiencies.keys():
            rules[kind] = _at(rules[kind], efficiencies[kind])
        changed.append(tuple(rules.items()))
    own = []  # slower than the rest by as much as before
    for kind, slower in library.own:
        value = min(1.0, efficiencies.get(kind, 1.0))
        own.append((kind, tuple(replace(rule, efficiency=max(0.001, rule.efficiency * value)) for rule in slower)))
    fitted = replace(library, rules=changed[0], in_chunks=changed[1], own=tuple(own), call=0.0, message=0.0)
    return replace(fitted, name=f"{library.name}-calibrated")


def _at(rules: Sequence[LibraryRule], efficiency: float) -> tuple[LibraryRule, ...]:
    """The rules of a collective with another efficiency; those with less than others keep their distance."""
    most = max(rule.efficiency for rule in rules)
    return tuple(
        replace(rule, efficiency=max(LEAST_EFFICIENCY, min(1.0, efficiency * rule.efficiency / most))) for rule in rules
    )


def _settled(system: System, library: Library, one: Observation) -> Library:
    """The library with the algorithm that it chooses for an observation, whatever the links are taken to be."""
    goal = _goal(one.collective)
    if not any(rule.forecasts for kind, rules in library.rules for rule in rules if kind is goal.flat):
        return library
    model = CostModel(layout_of(by_level(system), [one.level]), library, one.bytes)
    program = flat_program(goal, 1)
    state, *_ = run_symbolically(program, 1, goal)
    rule = model.rule(step_kind(1, state, program.steps[0]))
    rules = [(kind, (replace(rule, forecasts=()),) if kind is goal.flat else each) for kind, each in library.rules]
    return replace(library, rules=tuple(rules))


def _goal(collective: Collective | None) -> Goal:
    """The goal that a collective over the whole group achieves."""
    return next(goal for goal in PROGRAM_GOALS if goal.flat is collective)


def message_rate(system: System, library: Library, seen: Sequence[Observation]) -> float:
    """How many messages per second all devices handle, where they share processors, from the smallest collectives.

    A quarter of the collectives reached at least this rate; the others had to wait for more than the processors.
    Levels that were said to have latency tell nothing.

    For example, a tiny all-reduce for which all devices send 96 messages took 20 ms: that is 4,800 per second.
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
            goal = _goal(one.collective)
            model = CostModel(layout_of(placement, [one.level]), _settled(system, library, one), one.bytes)
            rates.append(model.seconds(flat_program(goal, 1), goal) / one.seconds)
    return float(np.percentile(rates, 75))


def shared_processors(fitted: System, rate: float, nominal: System, library: Library) -> System:
    """The fitted system with devices that share processors, which handle `rate` messages per second."""
    latency = 1 / rate / library.trips  # a message's share of the processors' time; unless the network has some
    levels = tuple(
        level if said.link.latency else replace(level, link=replace(level.link, latency=latency))
        for level, said in zip(fitted.levels, nominal.levels, strict=True)
    )
    return replace(fitted, levels=levels, message_rate=rate)


def _terms(system: System, library: Library, one: Observation, near: tuple[float, float] | None) -> tuple[float, float]:
    """The factors of slowness and latency in the model's time: its seconds at full bandwidth, its messages in a row.

    Without handshakes they are the same everywhere. With them, each turn waits for what takes longer, so they depend
    on slowness and latency themselves: the model's time is taken as linear near the solution so far.
    """
    goal, settled = _goal(one.collective), _settled(system, library, one)

    def seconds(latency: float, slowness: float) -> float:
        widths = [max(LEAST, min((each.link.bandwidth or MOST) / slowness, MOST)) for each in system.levels]
        levels = tuple(
            replace(each, link=replace(each.link, latency=latency, bandwidth=width))
            for each, width in zip(system.levels, widths, strict=True)
        )
        placement = by_level(replace(system, levels=levels))
        model = CostModel(layout_of(placement, [one.level]), settled, one.bytes)
        return model.seconds(flat_program(goal, 1), goal)

    if near is None:  # no latency at full bandwidth, then a latency of 1 s with links that take no time
        return seconds(0.0, 1.0), seconds(1.0, 1e-12)
    slowness, latency = max(near[0], 0.01), max(near[1], 1e-9)
    here = seconds(latency, slowness)
    slope = (seconds(latency * 1.001, slowness) - here) / (latency * 0.001)
    return (here - latency * slope) / slowness, slope


def _reached_by_sends(system: System, number: int, sends: Sequence[Observation]) -> Estimate:
    """Which share of a level's bandwidth the sends between two of its instances reached.

    All devices of an instance send at once, so that the level's port is full, unless their own ports are slower. For
    example, on node=4@10MB/s,gpu=4@2MB/s four devices send 4 * 2 = 8 MB/s at most: that is the limit, and not 10.
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
    chosen = sorted((one.bytes * pairs, one.seconds) for one in sends if one.alone == (pairs == 1 and inside > 1))
    if len(chosen) == 1:
        return Estimate(chosen[0][0] / chosen[0][1] / limit, 0.0)
    rows = [(size / limit / seconds, 1 / seconds) for size, seconds in chosen]
    found = _least_squares(np.array(rows).reshape(-1, 2))  # there may be none
    slowness = found.values[0]
    if not slowness > 0:
        raise SpecError(
            f"the times of sends over {system.levels[number].name!r} do not grow with their bytes, so they tell no "
            "bandwidth; measure payloads of several sizes"
        )
    return Estimate(1 / slowness, found.errors[0] / slowness)


def _least_squares(rows: NDArray[np.float64]) -> Solution:
    """The unknowns whose products with the rows are closest to 1; a negative last unknown is taken for zero."""
    ones = np.ones(len(rows))
    solution, *_ = np.linalg.lstsq(rows, ones, rcond=None)
    if solution[-1] < 0:
        solution = np.append(np.linalg.lstsq(rows[:, :-1], ones, rcond=None)[0], 0.0)
    left = ones - rows @ solution
    freedom = max(len(ones) - rows.shape[1], 1)
    covariance = np.linalg.pinv(rows.T @ rows) * (float(left @ left) / freedom)
    return Solution(solution.tolist(), np.sqrt(np.maximum(np.diag(covariance), 0.0)).tolist(), left.tolist())
