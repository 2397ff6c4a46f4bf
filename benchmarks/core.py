"""Times of the core: synthesis and placements. Writes benchmarks/results/core.json.

python -m benchmarks.core
"""

import json
import platform
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median

from meshwright import Hierarchy, System, count_placements, parse_system, placements, program_graph
from meshwright.language.program import step_text
from meshwright.language.synthesis import _program_graph
from meshwright.placement.matrices import (
    _common_divisors,
    _count_rows,
    _count_tables,
    _listed,
    prime_factors,
)

CACHES = (_program_graph, _count_tables, prime_factors, _listed, _count_rows, _common_divisors, step_text)
RESULTS = Path(__file__).parent / "results" / "core.json"


def seconds(work: Callable[[], object], repeat: int = 5) -> float:
    """The median time of some work, each time from scratch: what was found is forgotten first."""
    times = []
    for _ in range(repeat):
        for cached in CACHES:
            cached.cache_clear()
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return median(times)


def enumerate_programs(radices: tuple[int, ...]) -> int:
    """All programs of at most 5 steps, as text."""
    hierarchy = Hierarchy(tuple(f"level{k}" for k in range(len(radices))), radices)
    return len([program.text(hierarchy) for program in program_graph(len(radices)).programs()])


def size_ratio() -> float:
    """Enumeration for a large hierarchy over that for a small one, measured in turns."""
    ratios = []
    for _ in range(15):
        small = seconds(lambda: enumerate_programs((2, 2, 2)), 3)
        large = seconds(lambda: enumerate_programs((64, 32, 512)), 3)
        ratios.append(large / small)
    return median(ratios)


def main() -> None:
    enumerate_programs((2, 2))  # imports and tables
    results: dict[str, float] = {"size ratio, (64,32,512) over (2,2,2)": size_ratio()}
    for levels in (2, 3, 4, 5):
        work = partial(enumerate_programs, (4,) * levels)
        results[f"all programs of at most 5 steps, {levels} levels, s"] = seconds(work)
    results["best program, 5 levels, 16 devices each, s"] = seconds(
        lambda: next(program_graph(5).ranked(lambda state, step: 1.0 + state[0] % 7 + step.grouping.first))
    )

    system: System = parse_system("a=16,b=16,c=16,d=16,e=16")
    axes = dict.fromkeys("vwxyz", 16)
    results["count placements, 5 axes, 5 levels, 2^20 devices, s"] = seconds(lambda: count_placements(system, axes))
    results["first placement, s"] = seconds(lambda: next(placements(system, axes)))
    first_million = seconds(lambda: sum(1 for _ in islice(placements(system, axes), 1_000_000)), 3)
    results["placements per second"] = 1_000_000 / first_million

    for name, value in results.items():
        print(f"{name:55} {value:12.6g}")
    RESULTS.write_text(json.dumps({"python": platform.python_version(), **results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
