"""The paper's four synthesis hierarchies, compared: size of the search, programs found, programs lost.

For a placement and its reduction axes, programs can be searched over
  system:    the system's own levels,
  columns:   all factors of the matrix, column by column (level by level),
  rows:      all factors of the matrix, row by row (axis by axis),
  reduction: the factors of the reduction axes alone, one radix per level: what Meshwright uses.
The first three act on all devices at once and must reduce within every reduction group; the exact semantics decides
what is valid. Programs are compared as what they make the devices do: for each step, the collective and the groups of
ranks.
Writes benchmarks/results/hierarchies.json.

    python benchmarks/hierarchies.py [--max-steps 4]
"""

import argparse
import json
import time
from collections.abc import Sequence
from functools import cache
from math import prod
from pathlib import Path

import numpy as np

from meshwright import Placement, parse_system, placements, reduction_hierarchy
from meshwright.program import Goal, Step, all_steps, device_groups
from meshwright.semantics import RuleBrokenError, State, apply_step, start_state

RESULTS = Path(__file__).parent / "results" / "hierarchies.json"

Lowered = tuple[tuple[str, frozenset[tuple[int, ...]]], ...]

CASES = [
    ("node=2,gpu=4", {"data": 2, "shard": 4}, ["data"]),
    ("node=2,gpu=4", {"data": 2, "shard": 4}, ["shard"]),
    ("node=2,gpu=4", {"data": 4, "shard": 2}, ["data"]),
    ("node=2,gpu=8", {"data": 8, "shard": 2}, ["data"]),
    ("node=4,gpu=4", {"data": 4, "shard": 4}, ["data"]),
    ("node=4,gpu=4", {"data": 4, "shard": 4}, ["data", "shard"]),
    ("node=2,socket=2,gpu=4", {"data": 8, "shard": 2}, ["data"]),
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


def search(placement: Placement, order: str, axes: Sequence[str], max_steps: int) -> dict[str, object]:
    """All valid programs over one hierarchy, by trying every step in every state."""
    radices, instances = numbering(placement, order, axes)
    begin = time.perf_counter()
    group_of = {rank: group for group in placement.groups(axes) for rank in group}
    ranks, size = instances[0], prod(radices)
    number = {rank: k for k, rank in enumerate(ranks)}
    wanted = [sum(1 << number[other] for other in group_of[rank]) for rank in ranks]
    end: State = tuple((bits,) * size for bits in wanted)
    steps = all_steps(len(radices))
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
                after = apply_step(state, step, radices)
            except RuleBrokenError:
                continue
            # What has been mixed across reduction groups cannot be separated again.
            if any(who & ~wanted[d] for d, held in enumerate(after) for who in held):
                continue
            found += [(step, *rest) for rest in completions(after, left - 1)]
        return tuple(found)

    programs = completions(start_state(Goal.ALL_REDUCE, size), max_steps)

    @cache
    def lower(step: Step) -> tuple[str, frozenset[tuple[int, ...]]]:
        groups = device_groups(step.grouping, radices)
        mapped = (tuple(sorted(instance[k] for k in group)) for instance in instances for group in groups)
        return str(step.collective), frozenset(mapped)

    lowered: set[Lowered] = {tuple(lower(step) for step in program) for program in programs}
    return {
        "levels": len(radices),
        "steps": len(steps),
        "tried": tried,
        "programs": len(programs),
        "lowered": lowered,
        "seconds": time.perf_counter() - begin,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-steps", type=int, default=4)
    max_steps = parser.parse_args().max_steps
    rows = []
    print(f"{'system':24} {'matrix':28} {'reduce':12} {'hierarchy':10} steps    tried programs distinct  lost  seconds")
    for spec, axes, reduce_axes in CASES:
        for placement in placements(parse_system(spec), axes):
            found = {
                order: search(placement, order, reduce_axes, max_steps)
                for order in ("system", "columns", "rows", "reduction")
            }
            ours = found["reduction"].pop("lowered")
            assert isinstance(ours, set)
            for order, row in found.items():
                theirs = row.pop("lowered", ours)
                assert isinstance(theirs, set)
                row |= {
                    "system": spec,
                    "matrix": [list(r) for r in placement.matrix],
                    "reduce": reduce_axes,
                    "hierarchy": order,
                    "distinct": len(theirs),
                    "lost": len(theirs - ours),
                }
                rows.append(row)
                print(
                    f"{spec:24} {row['matrix']!s:28} {'+'.join(reduce_axes):12} {order:10} {row['steps']:5} "
                    f"{row['tried']:8} {row['programs']:8} {row['distinct']:8} {row['lost']:5} {row['seconds']:8.3f}",
                    flush=True,
                )
    RESULTS.write_text(json.dumps({"max_steps": max_steps, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
