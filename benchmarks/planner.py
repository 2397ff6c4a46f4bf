"""Times of the planner. Writes benchmarks/results/planner.json.

python -m benchmarks.planner
"""

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from meshwright import Reduction, load_library, parse_system, placements, plan, preset, program_graph
from meshwright.cost.model import CostModel
from meshwright.placement.layout import layout_of

RESULTS = Path(__file__).parent / "results" / "planner.json"


def seconds(work: Callable[[], object], repeat: int = 3) -> float:
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return median(times)


def command() -> None:
    """The whole command, the interpreter's start included."""
    arguments = ["plan", "--system", "gcp-a100:4", "--axes", "data=4,shard=16"]
    arguments += ["--reduce", "data=2GiB", "--reduce", "shard=64MiB*80", "--json"]
    subprocess.run([sys.executable, "-m", "meshwright", *arguments], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    results: dict[str, float] = {"plan gcp-a100:4, two axes, whole command, s": seconds(command, 9)}

    large = parse_system("a=16@1GB/s+20us,b=16@10GB/s+10us,c=16@50GB/s+5us,d=16@100GB/s+2us,e=16@300GB/s+1us")
    axes = {"v": 32, "w": 32, "x": 32, "y": 32}
    mixed = [Reduction(("v",), 2**30), Reduction(("w",), 2**28, 10), Reduction(("x",), 2**26, 100)]
    mixed.append(Reduction(("v", "w"), 2**20))
    alike = [Reduction((axis,), 2**30) for axis in axes]
    nested = [Reduction(tuple(axes)[:k], 2**30) for k in (1, 2, 4)]
    problems = [(mixed, "mixed", library) for library in ("ring", "nccl", "ideal")]
    problems += [(alike, "alike", "ideal"), (nested, "nested", "openmpi")]
    for reductions, name, library in problems:
        ranking = plan(large, axes, reductions, library=library)
        what = f"2^20 devices, 5 levels, 4 axes, {name} reductions, library {library}"
        results[f"{what}: placements"] = ranking.placements
        results[f"{what}: evaluated"] = ranking.evaluated
        results[f"{what}: s"] = seconds(partial(plan, large, axes, reductions, library=library))

    (placement,) = placements(preset("gcp-a100:4"), {"data": 64})
    programs = list(program_graph(2).programs())
    model = CostModel(layout_of(placement, ["data"]), load_library("ring"), 2**31)
    repeats = 50
    evaluate = seconds(lambda: [model.seconds(program) for _ in range(repeats) for program in programs])
    results["programs costed per second"] = repeats * len(programs) / evaluate
    rank = seconds(lambda: list(program_graph(2).ranked(CostModel(model.layout, model.library, 2**31))))
    results["programs ranked per second, costs from scratch"] = len(programs) / rank

    for name, value in results.items():
        print(f"{name:80} {value:12.6g}")
    RESULTS.write_text(json.dumps({"python": platform.python_version(), **results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
