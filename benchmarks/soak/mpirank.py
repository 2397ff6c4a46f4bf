"""What an MPI rank does in a trial of `ranks`: `mpirun … python -m benchmarks.soak.mpirank FOLDER`."""

import json
import os
import sys
from pathlib import Path

from mpi4py import MPI

from benchmarks.soak.ranks import CLOSING, DONE, JOINED, MADE, WRONG, Progress, Scenario, calls_of, payload
from meshwright.mpi import Reducer


def main(folder: Path) -> int:
    """Make a Reducer and call it; whole numbers, so that results are exact."""
    scenario = Scenario(**json.loads((folder / "scenario").read_text()))
    rank = MPI.COMM_WORLD.rank
    progress = Progress(folder / "progress", scenario.devices)
    partial = folder / f"pid{rank}.partial"
    partial.write_text(str(os.getpid()))
    partial.rename(folder / f"pid{rank}")
    progress.set(rank, JOINED)
    reducer = Reducer(scenario.plan(), timeout=scenario.timeout, check=scenario.check)
    for call, number in enumerate(calls_of(scenario)):
        progress.set(rank, MADE + call)
        given = payload(scenario, call)
        mine = given[rank].copy()
        reducer.all_reduce(mine, over=number)
        if mine.tolist() != given.sum(0).tolist():
            print(f"WRONG RESULT on rank {rank} in call {call}", flush=True)
            return WRONG
    progress.set(rank, CLOSING)
    if scenario.closes:
        reducer.close()
    progress.set(rank, DONE)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
