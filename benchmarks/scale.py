"""How long the search takes where there are millions of placements, and how much memory: each in a process of its own.

`python -m benchmarks.scale [TEXT]` measures those whose names contain the text, prints each as it is done, and writes
them to `benchmarks/results/workloads.json`. `python -m benchmarks.workloads` measures all of them.
"""

import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from meshwright import Goal, Level, Link, Reduction, System, Transfer, TransferKind, parse_system
from meshwright.planning.planner import Planner
from meshwright.workload.communication import Communication

RESULTS = Path(__file__).parent / "results" / "workloads.json"

MILLION = "pod=16@400GB/s+10us,rack=16@100GB/s+5us,node=16@50GB/s+4us,board=16@200GB/s+2us,gpu=16@450GB/s+1us"
SMALL = "pod=4@400GB/s+10us,rack=8@100GB/s+5us,node=16@50GB/s+4us,gpu=8@450GB/s+1us"

TRAINING: list[Communication] = [
    Reduction(("data", "expert"), 2**28),
    Reduction(("data",), 2**27),
    Reduction(("data", "shard"), 2**20),
    Reduction(("shard",), 2**26, 160, Goal.ALL_GATHER),
    Reduction(("shard",), 2**27, 80, Goal.REDUCE_SCATTER),
    Reduction(("tensor",), 2**24, 640),
    Transfer(("pipeline",), 2**24, TransferKind.POINT_TO_POINT, 32),
    Transfer(("expert",), 2**24, TransferKind.ALL_TO_ALL, 320),
]


@dataclass(frozen=True)
class Size:
    """Drawn systems and axes: the level counts, the sizes of the axes, and how many seconds and MiB one may take."""

    counts: tuple[int, ...]
    sizes: tuple[int, ...]
    seconds: float
    memory: int


FIVE = Size((16,) * 5, (16,) * 5, 5.0, 300)
SIX = Size((16, 16, 16, 8, 8, 4), (16, 8, 16, 8, 16, 4), 20.0, 600)  # 44 million placements

KINDS = {"pairs": (2,), "pairs and triples": (2, 3), "any subsets": (1, 2, 3, 4, 5)}
"""Over how many axes the communications of a drawn workload are."""

LIBRARIES = ("ring", "nccl", "openmpi")


@dataclass(frozen=True)
class Hard:
    """Eight reductions of similar volume over different sets of axes, so that many placements are nearly as fast."""

    kind: str
    seed: int
    library: str
    size: Size = FIVE
    chunks: int = 1

    @property
    def name(self) -> str:
        chunks = f", in up to {self.chunks} chunks" if self.chunks > 1 else ""
        return f"{len(self.size.counts)} levels, {self.kind}, seed {self.seed}, library {self.library}{chunks}"

    def planner(self) -> Planner:
        drawn = random.Random(f"{self.kind} {self.seed}")
        names = ("pod", "rack", "node", "board", "gpu", "core")
        rates = sorted(drawn.choice([10, 25, 50, 100, 200, 300, 450, 900]) for _ in self.size.counts)
        links = [Link(bandwidth=rate * 1e9, latency=drawn.choice([0, 1e-6, 5e-6])) for rate in rates]
        levels = [Level(*each) for each in zip(names, self.size.counts, links, strict=False)]
        axes = {f"a{number}": size for number, size in enumerate(self.size.sizes)}
        some = [over for many in KINDS[self.kind] for over in combinations(axes, many)]
        goals = [Goal.ALL_REDUCE, Goal.ALL_REDUCE, Goal.ALL_REDUCE, Goal.REDUCE_SCATTER, Goal.ALL_GATHER]
        what = [
            Reduction(over, int(2 ** drawn.uniform(28, 31)), 1, drawn.choice(goals)) for over in drawn.sample(some, 8)
        ]
        return Planner(System("drawn", tuple(levels)), axes, what, self.library, max_chunks=self.chunks)

    @property
    def limits(self) -> tuple[float, int]:
        """The seconds and MiB that it may take: in chunks, three times as long."""
        return self.size.seconds * (3 if self.chunks > 1 else 1), self.size.memory


@dataclass(frozen=True)
class Training:
    """A training step on a large cluster."""

    system: str
    sizes: tuple[int, ...]
    library: str

    @property
    def name(self) -> str:
        system = parse_system(self.system)
        return f"{system.devices} devices, {len(system.levels)} levels, training step, library {self.library}"

    def planner(self) -> Planner:
        axes = dict(zip(("data", "shard", "tensor", "pipeline", "expert"), self.sizes, strict=True))
        return Planner(parse_system(self.system), axes, TRAINING, self.library)

    limits = (5.0, 300)


CASES: Sequence[Hard | Training] = (
    *(Training(MILLION, (16,) * 5, library) for library in ("ring", "nccl", "gloo", "openmpi", "ideal")),
    *(Training(SMALL, (8, 8, 8, 4, 2), library) for library in ("ring", "nccl", "gloo", "openmpi", "ideal")),
    *(Hard(kind, seed, library) for seed in (1, 2, 3) for kind in KINDS for library in LIBRARIES),
    *(Hard(kind, 1, library, SIX) for kind in KINDS for library in LIBRARIES),
    *(Hard(kind, 1, library, chunks=16) for kind in KINDS for library in LIBRARIES),
)


def measured(case: Hard | Training) -> dict[str, Any]:
    """One search, with the time and the memory of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    planner = case.planner()
    ranking = planner.best(10)
    return {
        "placements": ranking.placements,
        "evaluated": ranking.evaluated,
        "layouts priced": len(planner.models),
        "seconds": ranking.candidates[0].seconds,
        "search seconds": time.perf_counter() - wall,
        "cpu seconds": time.process_time() - cpu,
        "peak MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def measure(text: str = "") -> None:
    """Measure the cases whose names contain a text; each is printed and written when it is done."""
    for number, case in enumerate(CASES):
        if text in case.name:
            done = subprocess.run([sys.executable, "-m", __spec__.name, f"#{number}"], capture_output=True, text=True)
            row = json.loads(done.stdout) if done.returncode == 0 else {"failed": done.stderr.strip().split("\n")[-1]}
            results = json.loads(RESULTS.read_text())
            results["scale"][case.name] = row
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            print(f"{case.name}: {_told(case, row)}", flush=True)


def _told(case: Hard | Training, row: dict[str, Any]) -> str:
    if "failed" in row:
        return str(row["failed"])
    seconds, memory = case.limits
    over = row["cpu seconds"] > seconds or row["peak MiB"] > memory
    told = f"{row['cpu seconds']:.1f} s of CPU, {row['search seconds']:.1f} s in all, {row['peak MiB']} MiB"
    return f"{told}, {row['layouts priced']} layouts priced{'; over the limit' if over else ''}"


def main() -> None:
    text = sys.argv[1] if len(sys.argv) > 1 else ""
    if text.startswith("#"):
        print(json.dumps(measured(CASES[int(text[1:])])))
    else:
        measure(text)


if __name__ == "__main__":
    main()
