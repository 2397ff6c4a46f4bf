"""The paper's four synthesis hierarchies, compared: size of the search, programs found, and what the rest would add.

For a placement and its reduction axes, programs can be searched over
  system:    the system's own levels,
  columns:   all factors of the matrix, column by column (level by level),
  rows:      all factors of the matrix, row by row (axis by axis),
  reduction: the factors of the reduction axes alone, one radix per level: what Meshwright uses.
The first three act on all devices at once and must reduce within every reduction group; the exact semantics decides
what is valid. Programs are compared as what they make the devices do: for each step, the collective and the groups of
ranks. `else` counts the programs that the reduction hierarchy does not have. They split one level into two, act in some
reduction groups only, or take inner levels first where that is against the links; `best` shows what that is worth: the
time of the hierarchy's best program, plain rings on explicit groups, over that of the reduction hierarchy's best. It
never falls below 1: nothing is lost. Writes benchmarks/results/hierarchies.json.

    python -m benchmarks.hierarchies [--max-steps 4] [--hierarchy rows]
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

import numpy as np
from tests.naive import Naive

from meshwright import Placement, parse_system, placements, reduction_hierarchy
from meshwright.language.goals import Goal
from meshwright.language.program import Step, all_steps, device_groups
from meshwright.language.semantics import RuleBrokenError, State, apply_step, state_of

PAYLOAD = 2**30
RESULTS = Path(__file__).parent / "results" / "hierarchies.json"

Lowered = tuple[tuple[str, frozenset[tuple[int, ...]]], ...]

ORDERS = ("system", "columns", "rows", "reduction")

CASES = [
    ("node=2@8GB/s,gpu=4@270GB/s", {"data": 2, "shard": 4}, ["data"]),
    ("node=2@8GB/s,gpu=4@270GB/s", {"data": 2, "shard": 4}, ["shard"]),
    ("node=2@8GB/s,gpu=4@270GB/s", {"data": 4, "shard": 2}, ["data"]),
    ("node=2@8GB/s,gpu=8@270GB/s", {"data": 8, "shard": 2}, ["data"]),
    ("node=4@8GB/s,gpu=4@270GB/s", {"data": 4, "shard": 4}, ["data"]),
    ("node=4@8GB/s,gpu=4@270GB/s", {"data": 4, "shard": 4}, ["data", "shard"]),
    ("node=2@8GB/s,socket=2@60GB/s,gpu=4@270GB/s", {"data": 8, "shard": 2}, ["data"]),
]


def factors(placement: Placement, order: str) -> list[tuple[str, int, int]]:
    """(axis, level, factor) in the order of a hierarchy that names all of them; factors of 1 are left out."""
    rows, columns = range(len(placement.axes)), range(len(placement.system.levels))
    cells = [(i, j) for j in columns for i in rows] if order == "columns" else [(i, j) for i in rows for j in columns]
    return [(placement.axes[i], j, placement.matrix[i][j]) for i, j in cells if placement.matrix[i][j] > 1]


def numbering(placement: Placement, order: str, axes: Sequence[str]) -> tuple[tuple[int, ...], list[list[int]]]:
    """The radices of a hierarchy, and for each of its instances the rank of every device in the hierarchy's order."""
    if order == "system":
        counts = placement.system.counts
        return tuple(c for c in counts if c > 1), [list(range(placement.system.devices))]
    if order == "reduction":
        return reduction_hierarchy(placement, axes).radices, [list(group) for group in placement.groups(axes)]
    cells = factors(placement, order)
    by_columns = factors(placement, "columns")
    ranks = np.arange(placement.system.devices).reshape([factor for _, _, factor in by_columns])
    moved = ranks.transpose([by_columns.index(cell) for cell in cells])
    return tuple(factor for _, _, factor in cells), [moved.reshape(-1).tolist()]


@dataclass(frozen=True)
class Search:
    """All valid programs over one hierarchy, and what they do to the devices."""

    placement: Placement
    axes: Sequence[str]
    radices: tuple[int, ...]
    instances: list[list[int]]

    @property
    def size(self) -> int:
        return prod(self.radices)

    def programs(self, max_steps: int) -> tuple[tuple[tuple[Step, ...], ...], int]:
        """The programs, by trying every step in every state; and how many steps were tried."""
        group_of = {rank: group for group in self.placement.groups(self.axes) for rank in group}
        number = {rank: k for k, rank in enumerate(self.instances[0])}
        wanted = [sum(1 << number[other] for other in group_of[rank]) for rank in self.instances[0]]
        end: State = tuple((bits,) * self.size for bits in wanted)
        steps = all_steps(len(self.radices))
        tried = 0

        @cache
        def completions(state: State, left: int) -> tuple[tuple[Step, ...], ...]:
            nonlocal tried
            if state == end:
                return ((),)
            if left == 0:
                return ()
            found: list[tuple[Step, ...]] = []
            for step in steps:
                tried += 1
                try:
                    after = apply_step(state, step, self.radices)
                except RuleBrokenError:
                    continue
                # What has been mixed across reduction groups cannot be separated again.
                if any(who & ~wanted[d] for d, held in enumerate(after) for who in held):
                    continue
                found += [(step, *rest) for rest in completions(after, left - 1)]
            return tuple(found)

        return completions(state_of(Goal.ALL_REDUCE.start, self.size), max_steps), tried

    def best(self, programs: Sequence[tuple[Step, ...]]) -> float:
        """The time of the fastest program, with plain rings in all groups of a step, routed over the explicit tree."""
        naive = Naive(self.placement, list(self.axes), PAYLOAD, rotates=False)

        @cache
        def price(step: Step, chunks: tuple[int, ...]) -> float:
            edges: dict[tuple[int, int], float] = defaultdict(float)
            for instance in self.instances:
                for group in device_groups(step.grouping, self.radices):
                    members = sorted(instance[k] for k in group)
                    held = chunks[group[0]] * PAYLOAD / self.size
                    ((variants, _),) = naive.phases("ring", step.collective, members)
                    for a, b, amount in variants[0]:
                        edges[members[a], members[b]] += amount * held
            return naive.time(edges)

        def time_of(program: tuple[Step, ...]) -> float:
            state, total = state_of(Goal.ALL_REDUCE.start, self.size), 0.0
            for step in program:
                total += price(step, tuple(sum(1 for who in held if who) for held in state))
                state = apply_step(state, step, self.radices)
            return total

        return min(map(time_of, programs), default=float("inf"))

    def lowered(self, programs: Sequence[tuple[Step, ...]]) -> set[Lowered]:
        """The programs as what they make the devices do."""

        @cache
        def lower(step: Step) -> tuple[str, frozenset[tuple[int, ...]]]:
            groups = device_groups(step.grouping, self.radices)
            mapped = (tuple(sorted(instance[k] for k in group)) for instance in self.instances for group in groups)
            return str(step.collective), frozenset(mapped)

        return {tuple(lower(step) for step in program) for program in programs}


def search(placement: Placement, order: str, axes: Sequence[str], max_steps: int) -> dict[str, object]:
    """The figures of one hierarchy."""
    begin = time.perf_counter()
    here = Search(placement, axes, *numbering(placement, order, axes))
    programs, tried = here.programs(max_steps)
    seconds = time.perf_counter() - begin
    return {
        "levels": len(here.radices),
        "steps": len(all_steps(len(here.radices))),
        "tried": tried,
        "programs": len(programs),
        "lowered": here.lowered(programs),
        "best": here.best(programs),
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-steps", type=int, default=4)
    parser.add_argument("--hierarchy", choices=ORDERS[:-1], help="compare with this one only")
    arguments = parser.parse_args()
    max_steps = arguments.max_steps
    orders = ORDERS if arguments.hierarchy is None else (arguments.hierarchy, ORDERS[-1])
    rows = []
    head = f"{'system':8} {'matrix':24} {'reduce':12} {'hierarchy':10} "
    print(f"{head}steps    tried programs  else   best  seconds")
    for spec, axes, reduce_axes in CASES:
        for placement in placements(parse_system(spec), axes):
            found = {order: search(placement, order, reduce_axes, max_steps) for order in orders}
            ours = found["reduction"].pop("lowered")
            assert isinstance(ours, set)
            fastest = found["reduction"]["best"]
            assert isinstance(fastest, float)
            for order, row in found.items():
                theirs = row.pop("lowered", ours)
                assert isinstance(theirs, set)
                row |= {
                    "system": spec,
                    "matrix": [list(r) for r in placement.matrix],
                    "reduce": reduce_axes,
                    "hierarchy": order,
                    "else": len(theirs - ours),
                }
                best = row["best"]
                assert isinstance(best, float)
                row["best"] = best / fastest if best < float("inf") else None
                assert best >= fastest * (1 - 1e-9), "a program that the reduction hierarchy lacks is faster"
                rows.append(row)
                name = "x".join(map(str, placement.system.counts))
                share = "none" if row["best"] is None else f"{row['best']:.4f}"
                print(
                    f"{name:8} {row['matrix']!s:24} {'+'.join(reduce_axes):12} {order:10} {row['steps']:5} "
                    f"{row['tried']:8} {row['programs']:8} {row['else']:5} {share:>6} {row['seconds']:8.3f}",
                    flush=True,
                )
    if arguments.hierarchy is None:
        RESULTS.write_text(json.dumps({"max_steps": max_steps, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
