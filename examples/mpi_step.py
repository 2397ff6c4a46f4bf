"""Data-parallel steps with NumPy and MPI: the three lines marked with >>> are all that is added.

meshwright plan --system node=2@1GB/s,core=2@8GB/s --axes data=4 --reduce data=1MiB --library openmpi --out plan.json
mpirun -n 4 --oversubscribe python examples/mpi_step.py plan.json
"""

import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import meshwright  # >>>

reducer = meshwright.mpi.Reducer(meshwright.read_plan(Path(sys.argv[1])))  # >>>
generator = np.random.default_rng(MPI.COMM_WORLD.rank)
truth, weights, error = np.arange(64.0), np.zeros(64), 0.0
for _ in range(100):
    inputs = generator.normal(size=(32, 64))
    missed = inputs @ (weights - truth)
    gradient = 2 * missed @ inputs / len(inputs)
    reducer.all_reduce(gradient, "avg")  # >>> (with MPI alone, this would be Allreduce and a division)
    weights -= 0.1 * gradient
    error = float(np.abs(weights - truth).max())
if MPI.COMM_WORLD.rank == 0:
    print(f"largest error after 100 steps: {error:.3f}")
reducer.close()
