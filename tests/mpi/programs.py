"""What the ranks of the MPI tests do: `mpirun … python -m tests.mpi.programs FUNCTION ARGUMENTS`."""

import sys

import numpy as np
from mpi4py import MPI

from meshwright.mpi import Reducer
from tests.engines import EXHAUSTIVE, plan_of, programs_of


def every_program(spec: str) -> None:
    every, count = EXHAUSTIVE[spec]
    programs = programs_of(spec, every=every)
    assert len(programs) == count
    plan = plan_of(spec, programs)
    comm = MPI.COMM_WORLD
    reducer = Reducer(plan)
    for number, program in enumerate(programs):
        rng = np.random.default_rng(number)
        length = int(rng.integers(1, 300))  # mostly one that does not divide
        whole = rng.integers(-1000, 1000, (comm.size, length))
        integers = whole[comm.rank].copy()
        reducer.all_reduce(integers, over=number)
        assert integers.tolist() == whole.sum(0).tolist(), program
        reals = rng.standard_normal((comm.size, length)).astype(np.float32)
        floats = reals[comm.rank].copy()
        reducer.all_reduce(floats, over=number)
        np.testing.assert_allclose(floats, reals.sum(0, dtype=np.float64), rtol=1e-4, atol=1e-5)
        assert len(set(comm.allgather(floats.tobytes()))) == 1, f"{program} differs between ranks"
    reducer.close()
    done(len(programs))


def done(count: int) -> None:
    """Say what was done, once all ranks have."""
    MPI.COMM_WORLD.Barrier()
    if MPI.COMM_WORLD.rank == 0:
        print("done", count)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
