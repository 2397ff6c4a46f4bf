"""Rankings: plans, the fastest first, and what the search has proven of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite

from meshwright.placement.notation import format_placement
from meshwright.planning.constraints import Constraint
from meshwright.planning.plan import Plan, ratio
from meshwright.planning.terms import Found
from meshwright.text.spec import screenful
from meshwright.text.units import format_seconds


@dataclass(frozen=True, slots=True, repr=False)
class Ranking:
    """Plans, the fastest first.

    placements: how many matrices there are; evaluated: how many of them were completed and timed. The others cannot be
    among the candidates: their first rows alone are enough to know that they are no faster than the last candidate.
    gap: by which share of the best possible time the first may be slower than that, at most; 0 where it is proven to be
    the best.
    at_least: no placement takes less; given where the search was interrupted, so that the candidates are only the best
    found so far.
    least_seconds: on the first one's placement no program in chunks takes less, and under a library that adapts no mix
    of different programs.
    """

    candidates: tuple[Plan, ...]
    placements: int
    evaluated: int
    gap: float = 0.0
    least_seconds: float | None = None
    at_least: float | None = None

    def __repr__(self) -> str:
        """How many placements there are, and the first candidates with their times."""
        lines = []
        for number, one in enumerate(self.candidates):
            where = format_placement(one.placement.axes, one.placement.matrix)
            lines.append(f"candidates[{number}]: {where}, {format_seconds(one.seconds)}, {one.speedup:.2f}x as fast")
        return screenful(f"Ranking of {self.placements:,} placements, {self.evaluated:,} of them timed", lines)

    @property
    def pruned(self) -> int:
        """How many placements were ruled out without completing them."""
        return self.placements - self.evaluated

    def certificate(self, constraints: Sequence[Constraint] = ()) -> str:
        """What was searched under the constraints, and what that proves."""
        total, timed, pruned = self.placements, self.evaluated, self.pruned
        under = f" with {', '.join(map(str, constraints))}" if constraints else ""
        if total == 1:
            searched = f"One placement{under}"
        elif timed >= total:
            searched = f"All {total:,} placements{under} were timed"
        else:
            searched = f"{total:,} placements{under}: {timed:,} were timed, and bounds rule out the other {pruned:,}"
        if self.at_least is not None:
            searched = f"{total:,} placement{'s' if total > 1 else ''}{under}: {timed:,} were timed"
            gap = f" (gap {self.gap:.1%})" if isfinite(self.gap) else ""
            found = f"; not proven: interrupted; no placement can be faster than {format_seconds(self.at_least)}{gap}."
        elif self.gap:
            found = f": best found, not proven: a plan may be up to {self.gap:.1%} faster."
        else:
            found = ": under the model, none of them is faster." if total > 1 else "."
        if self.least_seconds is not None:
            least, where = format_seconds(self.least_seconds), "on it" if total == 1 else "on the best of them"
            mixes = " and no mix of different ones" if self.candidates[0].library.adapts else ""
            found += f" No program in chunks{mixes} takes less than {least} {where}."
        return searched + found


@dataclass(frozen=True)
class Sofar:
    """What a search has found so far, of how many placements; `found.best` is empty where that is nothing."""

    rank: Callable[[Found, int], Ranking]
    placements: int
    found: Found

    @property
    def gap(self) -> float:
        """By which share of the best possible time the first may be slower; infinite where nothing is known."""
        return ratio(self.found.best[0][0], self.found.at_least) - 1 if self.found.best and self.found.at_least else inf

    def ranking(self) -> Ranking:
        """The plans of the placements that are the best so far."""
        ranking = self.rank(self.found, self.placements)
        if self.found.proven:
            return ranking
        return replace(ranking, gap=max(0.0, self.gap), at_least=self.found.at_least, least_seconds=None)
