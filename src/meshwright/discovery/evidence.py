"""Evidence: whether things of one cluster are nearer to each other than to others, from rounds made to test it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import erf, exp, inf, log, sqrt

import numpy as np

ENOUGH = {("rate", True): 1.25, ("rate", False): 1.5, ("latency", True): 1.5, ("latency", False): 2.0}
"""A level is one if transfers between its groups, when all send at once, are slower than inside them by this factor, or
round trips longer. Groups of different sizes need more, as chance suggests such groups first.
"""

SURE = 2.3
"""How many standard errors decide."""

LEAST_ERROR = 0.02
"""The smallest standard error, however few values agree: of the logarithm of a ratio."""

LOW = 0.9
"""Confidences below this are low."""

Pair = tuple[int, int]
Closest = tuple[Pair, float]
"""A pair, and how near it is."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What tests of clusters say.

    ratio: how much nearer things are inside a cluster than across.
    exists: whether that makes a level. decided: whether more trials would hardly change that.
    confidence: from 0.5 to 1, that this is right.
    doubtful: things that are not nearer to their own cluster than to others.
    inside, across: the two pairs that were closest to deciding otherwise, each with its nearness.
    """

    ratio: float
    exists: bool
    decided: bool
    confidence: float
    doubtful: tuple[int, ...] = ()
    inside: Closest | None = None
    across: Closest | None = None


Nearnesses = Mapping[Pair, float]
"""How near each pair of things was in one round."""


def weigh(trials: Sequence[tuple[Nearnesses, Nearnesses]], enough: float) -> Evidence:
    """What trials say: each is a round inside clusters, and one across.

    enough: the ratio that makes a level.
    """
    differences = [np.mean(list(near.values())) - np.mean(list(far.values())) for near, far in trials if near and far]
    if len(differences) < 2:
        return Evidence(1.0, False, False, 0.5)
    mean = float(np.mean(differences))
    few = 1.0 + 2.0 / (len(differences) - 1)  # the standard deviation of few values may be far too small
    error = max(LEAST_ERROR, few * float(np.std(differences, ddof=1)) / sqrt(len(differences)))
    least = log(enough)
    margin = abs(mean - least) / error
    confidence = 0.5 * (1.0 + erf(margin / sqrt(2.0)))
    doubtful = tuple(sorted(one for one, gained in _margins(trials).items() if gained <= min(least, mean / 3)))
    closest = _closest([near for near, _ in trials], -1), _closest([far for _, far in trials], 1)
    return Evidence(exp(mean), mean > least, margin >= SURE, confidence, doubtful, *closest)


def _margins(trials: Sequence[tuple[Nearnesses, Nearnesses]]) -> dict[int, float]:
    """How much nearer each thing is to those of its cluster than to others, on average."""
    found: tuple[dict[int, list[float]], dict[int, list[float]]] = ({}, {})
    for trial in trials:
        for side, values in zip(found, trial, strict=True):
            for pair, value in values.items():
                for one in pair:
                    side.setdefault(one, []).append(value)
    near, far = found
    return {one: float(np.median(near[one]) - np.median(far[one])) for one in near if one in far}


def _closest(rounds: Sequence[Nearnesses], sign: int) -> Closest | None:
    """The pair with the largest nearness, or the smallest where the sign is negative, by the average of its rounds."""
    values: dict[Pair, list[float]] = {}
    for each in rounds:
        for pair, value in each.items():
            values.setdefault(pair, []).append(value)
    averages = {pair: float(np.mean(each)) for pair, each in values.items()}
    return max(averages.items(), key=lambda item: sign * item[1]) if averages else None


def slow_share(rounds: Sequence[Nearnesses]) -> float:
    """The share of pairs that were slower by a quarter than the usual of their round, beyond those that were faster.

    Where all links are alike, chance makes as many slow as fast. Where groups share links that only some rounds fill,
    there are slow ones in some rounds.
    """
    slow = fast = count = 0
    for each in rounds:
        values = np.array(list(each.values()))
        if len(values) > 2:
            usual = float(np.median(values))
            slow += int((values < usual + log(0.75)).sum())
            fast += int((values > usual - log(0.75)).sum())
            count += len(values)
    return max(0, slow - fast) / count if count else 0.0


def certain() -> Evidence:
    """Evidence for what was told and not measured."""
    return Evidence(inf, True, True, 1.0)
