"""Whole workloads: what placing the axes well brings beside today's habits, and how long the search takes.

`python -m benchmarks.workloads` writes `benchmarks/results/workloads.json` and the tables of `docs/comparison.md`.
"""

import json
import platform
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.scale import RESULTS, measure
from meshwright import load_system, load_workload, parse_axes
from meshwright.export.mesh import mesh_code
from meshwright.planning.orders import Habit, gain, habits
from meshwright.planning.plan import Plan
from meshwright.planning.planner import Planner
from meshwright.text.units import format_seconds
from meshwright.workload.workload import derive

DOCUMENT = Path(__file__).parent.parent / "docs" / "comparison.md"


@dataclass(frozen=True)
class Case:
    """A workload on a system. batch: the global batch, where the example's own does not split evenly."""

    workload: str
    system: str
    axes: str
    library: str
    batch: int = 1024


CASES = (
    Case("dense-70b", "dgx-h100:128", "pipeline=4,data=4,shard=8,tensor=8", "nccl"),
    Case("moe-141b", "dgx-h100:128", "pipeline=2,data=2,shard=8,expert=8,tensor=4", "nccl"),
    Case("dense-70b", "gb200-nvl72:16", "pipeline=4,data=4,shard=9,tensor=8", "nccl", batch=1152),
    Case("moe-141b", "gb200-nvl72:16", "pipeline=2,data=2,shard=9,expert=8,tensor=4", "nccl", batch=1152),
    Case("dense-70b", "cpu-racks", "pipeline=8,data=8,shard=8,tensor=8", "openmpi"),
    Case("moe-141b", "cpu-racks", "pipeline=8,data=8,shard=4,expert=4,tensor=4", "openmpi"),
)


def measured(case: Case) -> dict[str, Any]:
    """The best plan of a case, and today's habits."""
    file = load_workload(case.workload)
    assert file.model is not None
    axes = parse_axes(case.axes)
    workload = derive(file.name, replace(file.model, global_batch=case.batch), axes, file.overlap)
    started = time.perf_counter()
    planner = Planner(load_system(case.system), axes, workload.communications, case.library)
    ranking = planner.best(10)
    seconds = time.perf_counter() - started
    best = ranking.candidates[0]
    return {
        "workload": case.workload,
        "system": case.system,
        "axes": case.axes,
        "library": case.library,
        "global_batch": case.batch,
        "placements": ranking.placements,
        "evaluated": ranking.evaluated,
        "search_seconds": seconds,
        "matrix": best.placement.matrix,
        "seconds": best.seconds,
        "default_seconds": best.default_seconds,
        "bound_seconds": best.bound_seconds,
        "mesh": mesh_code(best.placement),
        "habits": [_habit(one, best) for one in habits(planner)],
    }


def _habit(one: Habit, best: Plan) -> dict[str, Any]:
    if one.plan is None:
        return {"name": one.name, "missing": one.missing}
    rows = dict(zip(one.plan.placement.axes, one.plan.placement.matrix, strict=True))
    return {
        "name": one.name,
        "matrix": [rows[axis] for axis in best.placement.axes],
        "default_seconds": one.plan.default_seconds,
        "seconds": one.plan.seconds,
        "gain": gain(one, best),
    }


def page(rows: list[dict[str, Any]]) -> str:
    """The tables for people."""
    lines = [
        "# Beside what is done today",
        "",
        "Written by `python -m benchmarks.workloads`. Two models that ship with the package, on three clusters, with",
        "the axes in the order that guides recommend (the least talkative first). Each row is where a tool puts the",
        "axes when told nothing else; all are timed by the same model. *Default collectives* is what one gets today;",
        "*best programs* is the same placement with the programs that Meshwright finds. These are predictions, and",
        "they count what is not hidden behind computation.",
    ]
    lines += ["", "| Meshwright is faster by | over Megatron's order | over the best order | over the worst |"]
    lines += ["|---|---|---|---|"]
    for row in rows:
        gains = ["no placement" if "missing" in one else _gains(one, row) for one in row["habits"]]
        lines.append(f"| {row['workload']} on {row['system']} | {gains[2]} | {gains[3]} | {gains[4]} |")
    lines += ["", "On GPUs the usual order is already the best for the dense model, and nothing is gained there."]
    for row in rows:
        lines += [
            "",
            f"## {row['workload']} on {row['system']}",
            "",
            f"Axes {row['axes']}, global batch {row['global_batch']}, library {row['library']}; "
            f"{row['placements']:,} placements, of which {row['evaluated']:,} were timed.",
            "",
            "| order | placement | default collectives | best programs | Meshwright is faster by |",
            "|---|---|---|---|---|",
        ]
        for one in row["habits"]:
            if "missing" in one:
                lines.append(f"| {one['name']} | none: {one['missing']} | | | |")
                continue
            matrix = str([list(factors) for factors in one["matrix"]])
            times = f"{format_seconds(one['default_seconds'])} | {format_seconds(one['seconds'])}"
            lines.append(f"| {one['name']} | {matrix} | {times} | {one['gain']:.2f}x |")
        matrix = str([list(factors) for factors in row["matrix"]])
        times = f"{format_seconds(row['default_seconds'])} | {format_seconds(row['seconds'])}"
        lines.append(f"| **Meshwright** | {matrix} | {times} | |")
        lines += [
            "",
            f"Megatron: {row['mesh']['megatron']}. The bound on this placement is at "
            f"{format_seconds(row['bound_seconds'])}.",
        ]
    return "\n".join(lines) + "\n"


def _gains(one: dict[str, Any], row: dict[str, Any]) -> str:
    return f"{one['gain']:.2f}x (placement alone {one['seconds'] / row['seconds']:.2f}x)"


def main() -> None:
    rows = [measured(case) for case in CASES]
    found = {"python": platform.python_version(), "cases": rows, "scale": {}}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    DOCUMENT.write_text(page(rows))
    print(DOCUMENT.read_text())
    measure()


if __name__ == "__main__":
    main()
