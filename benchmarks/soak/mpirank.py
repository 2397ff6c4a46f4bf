"""What an MPI rank does in a trial of `ranks`: `mpirun … python -m benchmarks.soak.mpirank FOLDER`."""

import json
import os
import sys
from pathlib import Path

from mpi4py import MPI

from benchmarks.soak.ranks import (
    CLOSING,
    DONE,
    JOINED,
    MADE,
    WRONG,
    Progress,
    Scenario,
    call_of,
    groups_of,
    note,
)
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
    try:
        plan = scenario.plan()
        tune = scenario.programs == "tuned"
        reducer = Reducer(plan, timeout=scenario.timeout, check=scenario.check, tune=tune)
        groups = groups_of(plan, rank)
        for number in range(scenario.calls):
            progress.set(rank, MADE + number)
            call = call_of(scenario, groups, number, rank)
            mine = call.given.copy()
            reducer.all_reduce(mine, over=call.number)
            if not call.same or mine.tolist() != call.right:
                print(f"WRONG RESULT on rank {rank} in call {number}", flush=True)
                return WRONG
        progress.set(rank, CLOSING)
        if scenario.closes:
            reducer.close()
    except Exception as error:
        note(folder, rank, error)
        raise
    progress.set(rank, DONE)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
