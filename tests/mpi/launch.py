"""Starts the ranks of the MPI tests through mpirun, on this machine."""

import shutil
import subprocess
import sys

import pytest

from meshwright.runtime.launch import mpirun_command


def mpirun(ranks: int, *functions: str, limit: float = 300) -> "subprocess.CompletedProcess[str]":
    """Run functions of tests.mpi.programs in every rank, one after another: `NAME`, or `NAME:ARGUMENT`."""
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed (Debian: openmpi-bin libopenmpi-dev)")
    assert "mpi4py.MPI" not in sys.modules, "a process that has imported MPI is a rank, and cannot start ranks"
    command = [*mpirun_command(ranks), sys.executable, "-m", "tests.mpi.programs", *functions]
    return subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
