"""The bound against plans of random problems: is any plan below it, and how far above it are the best?

Draws a system of one kind (plain switches, buses, rings, ports that are bypassed, devices with limits of their own,
switches that reduce, all of these mixed, or a small preset), axes, a placement, a goal, a payload and a library, and
plans the best program, with or without chunks. A plan below the bound is shown, and the script ends with status 1.
How far the best plans are above the bound is reported for the library `ideal` in chunks where there is no latency.

    python -m benchmarks.bounds --cases 200000

The results are kept every 1,000 cases; a later run with the same seed goes on from there, `--again` begins anew.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import dropwhile
from math import prod
from pathlib import Path
from random import Random
from typing import Any

from meshwright import Fabric, Level, Link, Placement, Reduction, System, placements, preset
from meshwright.cost.bound import bound
from meshwright.cost.library import library_names
from meshwright.language.goals import PROGRAM_GOALS
from meshwright.placement.layout import layout_of
from meshwright.planning.explain import NOTABLE
from meshwright.planning.planner import Planner

RESULTS = Path(__file__).parent / "results" / "bounds.json"
DOCUMENT = Path(__file__).parent.parent / "docs" / "cost.md"
MARK = "<!-- drawn by python -m benchmarks.bounds -->"

KINDS = ("switch", "bus", "ring", "bypass", "per_device", "reduces", "mixed", "preset")
DETOURS, PARTLY = "slow inner links", "reduces in part"
"""Problems in which the bound counts on detours, or on switches that reduce in only some of the steps."""

PRESETS = ("dgx-h100", "dgx-a100", "gb200-nvl72", "tpu-v4", "cpu-racks", "gcp-a100", "gcp-v100")
MOST_DEVICES = 64
MOST_CASES = 10_000_000
KEPT_EVERY = 1_000
ROUNDING = 1e-9


@dataclass(frozen=True)
class Problem:
    """A reduction on a placement, with a library and the most chunks; kind: of the system."""

    kind: str
    placement: Placement
    reduction: Reduction
    library: str
    chunks: int

    def times(self) -> tuple[float, float]:
        """The time of the best program, and the bound."""
        system, sizes = self.placement.system, self.placement.sizes
        planner = Planner(system, sizes, [self.reduction], self.library, max_chunks=self.chunks)
        (best,) = planner.programs(self.placement, 1)
        return best.seconds, best.bound_seconds

    @property
    def reported(self) -> bool:
        """Whether it tells how loose the bound is: nothing but bandwidth matters, to the best library there is."""
        free = all(level.link.latency == 0 for level in self.placement.system.levels)
        return free and self.library == "ideal" and self.chunks > 1

    def row(self, least: float) -> str:
        """The row of the report that it belongs to, where its bound is `least`."""
        layout = layout_of(self.placement, self.reduction.axes)
        what = layout, self.reduction.goal, self.reduction.bytes
        if bound(*what, detours=False) > NOTABLE * least:
            return DETOURS
        return PARTLY if bound(*what, reducing=False) > NOTABLE * least and not _all_reduce(self) else self.kind


def _all_reduce(problem: Problem) -> bool:
    """Whether the switches of all levels that a group spans reduce, and can pass on to each other what they add up."""
    layout = layout_of(problem.placement, problem.reduction.axes)
    links = [layout.system.levels[level].link for level in layout.levels]
    return all(link.reduces for link in links) and not any(link.bypass for link in links[1:])


def draw(random: Random) -> Problem:
    """A random problem."""
    kind = random.choice(KINDS)
    system = _small_preset(random) if kind == "preset" else _system(random, kind)
    latency = random.choice([0.0, 0.0, 1e-6])
    levels = [replace(level, link=replace(level.link, latency=latency)) for level in system.levels]
    system = replace(system, levels=tuple(levels))
    axes = dict(zip("abcd", _dealt(random, _primes(system.devices), random.randint(1, 4)), strict=False))
    names = random.sample(list(axes), len(axes))  # the order matters on rings
    return Problem(
        kind,
        random.choice(list(placements(system, {name: axes[name] for name in names}))),
        Reduction(
            tuple(random.sample(names, random.randint(1, len(names)))),
            random.choice([2**36, 2**30, random.randint(1, 2**24)]),
            goal=random.choice(PROGRAM_GOALS),
        ),
        random.choice([*library_names(), "ideal", "ideal", "ideal"]),
        random.choice([1, 1, 1, 64]),
    )


def _system(random: Random, kind: str) -> System:
    """Up to three levels; about every second one has what the kind is named after."""
    primes = [random.choice([2, 2, 2, 3]) for _ in range(random.randint(1, 6))]
    while prod(primes) > MOST_DEVICES:
        primes.pop()
    levels = []
    for k, count in enumerate(_dealt(random, primes, random.randint(1, 3))):
        has = {name: kind in (name, "mixed") and random.random() < 0.5 for name in KINDS}
        fabric = Fabric.BUS if has["bus"] else Fabric.RING if has["ring"] else Fabric.SWITCH
        bandwidth = 10 ** random.uniform(8, 11)
        link = Link(
            bandwidth=bandwidth,
            per_device=bandwidth / random.choice([1, 2, 4, 8]) if has["per_device"] else None,
            fabric=fabric,
            bypass=has["bypass"],
            reduces=has["reduces"] and fabric is Fabric.SWITCH,
        )
        levels.append(Level(f"l{k}", count, link))
    return System("drawn", tuple(levels))


def _small_preset(random: Random) -> System:
    """A preset with few children at each level, each with its port as before."""
    levels = []
    left = MOST_DEVICES
    for level in preset(random.choice(PRESETS)).levels:
        count = random.choice([count for count in (1, 2, 4, 6, 8) if count <= left])
        left //= count
        levels.append(replace(level, count=count))
    return System("drawn", tuple(levels))


def _dealt(random: Random, primes: Sequence[int], parts: int) -> list[int]:
    """The primes, multiplied to some parts."""
    sizes = [1] * parts
    for prime in primes:
        sizes[random.randrange(parts)] *= prime
    return sizes


def _primes(number: int) -> list[int]:
    """The prime factors of a number that has no others than 2 and 3."""
    found = []
    for prime in (2, 3):
        while number % prime == 0:
            found.append(prime)
            number //= prime
    return found


def examine(seed: int, first: int, last: int) -> dict[str, Any]:
    """Plan the numbered cases from `first` up to `last`: each depends on the seed and its own number alone.

    looseness: for each kind and goal, how many plans took how many times as long as the bound.
    """
    found: dict[str, Any] = {"below": [], "looseness": {}}
    for number in range(first, last):
        problem = draw(Random(f"{seed}/{number}"))
        seconds, least = problem.times()
        if seconds < least * (1 - ROUNDING):
            found["below"].append(f"case {number} of seed {seed}: {problem} takes {seconds}, but the bound is {least}")
        if problem.reported and least > 0:
            cell = found["looseness"].setdefault(problem.row(least), {}).setdefault(str(problem.reduction.goal), {})
            ratio = f"{seconds / least:.3g}"
            cell[ratio] = cell.get(ratio, 0) + 1
    return found


def add(found: dict[str, Any], block: dict[str, Any]) -> None:
    """Add what was found in a block of cases to what was found before."""
    found["below"] += block["below"]
    for row, goals in block["looseness"].items():
        for goal, counts in goals.items():
            cell = found["looseness"].setdefault(row, {}).setdefault(goal, {})
            for ratio, count in counts.items():
                cell[ratio] = cell.get(ratio, 0) + count


def table(found: dict[str, Any]) -> list[str]:
    """How many times the bound the best plans took: median, 90th percentile and worst of each kind and goal."""
    cases = f"{found['cases']:,} cases, {len(found['below'])} below the bound"
    lines = [f"| {cases} | {' | '.join(map(str, PROGRAM_GOALS))} |", f"|---|{'---|' * len(PROGRAM_GOALS)}"]
    for kind in (*KINDS, DETOURS, PARTLY):
        cells = [_cell(found["looseness"].get(kind, {}).get(str(goal), {})) for goal in PROGRAM_GOALS]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return lines


def _cell(counts: dict[str, int]) -> str:
    ratios = sorted(float(ratio) for ratio, count in counts.items() for _ in range(count))
    if not ratios:
        return ""
    return f"{ratios[len(ratios) // 2]:.2f}, {ratios[len(ratios) * 9 // 10]:.2f}, {ratios[-1]:.3g}"


def write_document(found: dict[str, Any], document: Path) -> None:
    """The table takes the place of the last one."""
    before, _, rest = document.read_text().partition(MARK)
    after = dropwhile(lambda line: not line or line.startswith("|"), rest.splitlines())
    document.write_text("\n".join([before + MARK, "", *table(found), "", *after]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2_000, help="plan this many cases in all (default: 2,000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="plan in this many processes at once (default: 1)")
    parser.add_argument("--again", action="store_true", help="forget the results that are there")
    parser.add_argument("--out", type=Path, default=RESULTS, help=f"the results (default: {RESULTS.name})")
    chosen = parser.parse_args()
    if chosen.jobs < 1:
        parser.error("--jobs must be at least 1")
    if not 0 < chosen.cases <= MOST_CASES:
        parser.error(f"--cases must be from 1 to {MOST_CASES:,}")
    found: dict[str, Any] = {"seed": chosen.seed, "cases": 0, "below": [], "looseness": {}}
    if chosen.out.exists() and not chosen.again:
        kept = json.loads(chosen.out.read_text())
        found = kept if kept["seed"] == chosen.seed else found
    firsts = range(found["cases"], chosen.cases, KEPT_EVERY)
    lasts = [min(first + KEPT_EVERY, chosen.cases) for first in firsts]
    with ProcessPoolExecutor(chosen.jobs) as pool:
        for last, block in zip(lasts, pool.map(partial(examine, chosen.seed), firsts, lasts), strict=True):
            add(found, block)
            found["cases"] = last
            chosen.out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
            print(f"{last:,} cases, {len(found['below'])} below the bound", file=sys.stderr, flush=True)
    print("\n".join(table(found)))
    if chosen.out == RESULTS:
        write_document(found, DOCUMENT)
    sys.exit("\n".join(found["below"]) or 0)


if __name__ == "__main__":
    main()
