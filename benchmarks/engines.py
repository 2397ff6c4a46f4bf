"""The overhead of the executor: a program through `Reducer` against the bare collectives that it calls, in one run.

And that of process groups that stand in for native ones, where they leave a call to them.
`python -m benchmarks.engines` starts four ranks on this machine for PyTorch (gloo) and for MPI.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from meshwright import (
    Hierarchy,
    Pipelined,
    Placement,
    Plan,
    Planned,
    Reduction,
    load_library,
    parse_program,
    parse_system,
    plan,
    write_plan,
)
from meshwright.runtime.launch import mpirun_command, torchrun_command

RANKS = 4
APART = max(2, min(RANKS, os.cpu_count() or 1))
"""Ranks with a core each: where they share cores, what one computes makes others wait, and these again others."""
BYTES = 4 * 2**20
ROUNDS, MORE_ROUNDS = 300, 2500  # the second where calls take a millisecond or less, and vary most
LAUNCHES = 5
TEXT = "ReduceScatter inside node; AllReduce across node; AllGather inside node"
RESULTS = Path(__file__).parent / "results" / "engines.json"


def the_plan() -> Plan:
    placement = Placement(parse_system("node=2,gpu=2"), ("data",), ((2, 2),))
    program = parse_program(TEXT, Hierarchy(("node", "gpu"), (2, 2)))
    planned = Planned(Reduction(("data",), BYTES), Pipelined.of(program), 1, 1, 1)
    return Plan(placement, load_library("ring"), (planned,))


def compare(
    bare: Callable[[], Any], ours: Callable[[], Any], barrier: Callable[[], Any], slowest: Any, rounds: int = ROUNDS
) -> dict[str, float]:
    """Medians of the slowest rank's times, in turn; the ratio is that of the medians."""
    times: dict[str, list[float]] = {"bare": [], "meshwright": []}
    order = [("bare", bare), ("meshwright", ours)]
    shuffle = random.Random(0).shuffle  # the same on every rank; what comes first in a round is often slower
    for k in range(rounds + 5):
        shuffle(order)
        for name, work in order:
            barrier()
            started = time.perf_counter()
            work()
            seconds = slowest(time.perf_counter() - started)
            if k >= 5:
                times[name].append(seconds)
    found = {name: median(each) for name, each in times.items()}
    return found | {"overhead": found["meshwright"] / found["bare"] - 1}


def processor(bare: Callable[[], Any], ours: Callable[[], Any]) -> float:
    """The seconds of processor time that a call of ours takes more on the thread that makes it: medians, in turn.

    Unlike the time of day, this does not depend much on what else the machine does.
    """
    times: tuple[list[int], list[int]] = ([], [])
    for _ in range(ROUNDS):
        for work, spent in zip((bare, ours), times, strict=True):
            started = time.thread_time_ns()
            work()
            spent.append(time.thread_time_ns() - started)
    return (median(times[1]) - median(times[0])) / 1e9


def torch_rank() -> dict[str, float]:
    import torch
    import torch.distributed as dist

    from meshwright.language.program import Collective
    from meshwright.torch import Reducer
    from meshwright.torch.collectives import run_collective

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    reducer = Reducer(the_plan())
    groups = {ranks: dist.new_group(list(ranks)) for ranks in ((0, 1), (2, 3), (0, 2), (1, 3))}
    inside = (0, 1) if rank < 2 else (2, 3)
    across = (0, 2) if rank % 2 == 0 else (1, 3)
    tensor = torch.zeros(BYTES // 4)
    reducer.all_reduce(tensor)
    (piece,) = reducer._driver.room.kept.values()  # the same memory for both: where it lies matters more than who calls

    def bare() -> None:
        run_collective(Collective.REDUCE_SCATTER, tensor, piece, "sum", groups[inside], "gloo")
        dist.all_reduce(piece, group=groups[across])
        run_collective(Collective.ALL_GATHER, piece, tensor, "sum", groups[inside], "gloo")

    def slowest(seconds: float) -> float:
        worst = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        return worst.item()

    found = compare(bare, lambda: reducer.all_reduce(tensor), dist.barrier, slowest)
    dist.destroy_process_group()
    return found if rank == 0 else {}


def backend_rank() -> dict[str, Any]:
    """All-reduces that a planned process group leaves to the native one, against the native one, by bytes."""
    import torch
    import torch.distributed as dist

    from meshwright import autoload

    system = parse_system(f"gpu={APART}@8GB/s")
    flat = plan(system, {"data": APART}, [Reduction(("data",), BYTES)], max_steps=1, library="gloo").candidates[0]
    with TemporaryDirectory() as folder:
        write_plan(flat, Path(folder) / "plan.json")
        os.environ["MESHWRIGHT_PLAN"] = f"{folder}/plan.json"
        autoload.start()
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
    group: Any = dist.distributed_c10d._get_default_group()

    def slowest(seconds: float) -> float:
        worst = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(worst, dist.ReduceOp.MAX, group=group.native)
        return worst.item()

    found = {}
    for size in (4, 2**20):
        tensor = torch.zeros(size // 4)
        bare, ours = (partial(dist.all_reduce, tensor, group=each) for each in (group.native, group))
        found[str(size)] = compare(bare, ours, dist.barrier, slowest, MORE_ROUNDS) | {
            "processor": processor(bare, ours)
        }
    dist.destroy_process_group()
    return found if os.environ["RANK"] == "0" else {}


def mpi_rank() -> dict[str, float]:
    from mpi4py import MPI

    from meshwright.mpi import Reducer

    comm = MPI.COMM_WORLD
    reducer = Reducer(the_plan())
    inside, across = comm.Split(comm.rank // 2, comm.rank), comm.Split(comm.rank % 2, comm.rank)
    array = np.zeros(BYTES // 4, np.float32)
    reducer.all_reduce(array)
    (piece,) = reducer._room.kept.values()

    def bare() -> None:
        inside.Reduce_scatter_block(array, piece)
        across.Allreduce(MPI.IN_PLACE, piece)
        inside.Allgather(piece, array)

    found = compare(bare, lambda: reducer.all_reduce(array), comm.Barrier, lambda s: comm.allreduce(s, MPI.MAX))
    return found if comm.rank == 0 else {}


def launched(command: list[str]) -> list[dict[str, Any]]:
    """What rank 0 found, of several launches."""
    found = []
    for _ in range(LAUNCHES):
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        found.append(json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{"))))
    return found


def middle(launches: list[dict[str, Any]]) -> dict[str, Any]:
    """The launch with the median overhead, and the overheads of all."""
    found = sorted(launches, key=lambda each: float(each["overhead"]))[len(launches) // 2]
    return found | {"overheads": [round(each["overhead"], 4) for each in launches]}


def main() -> None:
    document: dict[str, Any] = {"bytes": BYTES, "ranks": RANKS, "program": TEXT}
    for engine, launcher in (("torch", torchrun_command(RANKS)), ("mpi", [*mpirun_command(RANKS), sys.executable])):
        document[engine] = found = middle(launched([*launcher, "-m", "benchmarks.engines", engine]))
        print(
            f"{engine}: bare calls {found['bare'] * 1e3:.2f} ms, "
            f"through Meshwright {found['meshwright'] * 1e3:.2f} ms, overhead {found['overhead']:+.1%}"
        )
    launches = launched([*torchrun_command(APART), "-m", "benchmarks.engines", "backend"])
    document["backend"] = {"ranks": APART}
    for size in launches[0]:
        document["backend"][size] = found = middle([each[size] for each in launches])
        more, busy = found["meshwright"] - found["bare"], found["processor"]
        print(
            f"backend, native all-reduce of {size} bytes: {more * 1e6:+.1f} us, {found['overhead']:+.1%}, "
            f"{busy * 1e6:+.1f} us of processor time"
        )
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        answer = {"torch": torch_rank, "mpi": mpi_rank, "backend": backend_rank}[sys.argv[1]]()
        if answer:
            print(json.dumps(answer), flush=True)
    else:
        main()
