"""Benches on Open MPI: `meshwright bench` as the ranks that mpirun starts on a testbed."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from meshwright import parse_system
from meshwright.measure.bench import Patience
from meshwright.testbed import temporary


def measure_mpi(system: str, axes: str, library: str, out: Path, patience: Patience, more: Sequence[str]) -> None:
    """Measure on a testbed of its own; `more` says what, in the words of `meshwright bench`."""
    command = [sys.executable, "-m", "meshwright", "bench", "--engine", "mpi", "--library", library]
    command += ["--system", system, "--axes", axes, "--out", str(out)]
    command += ["--least", str(patience.least), "--most", str(patience.most)]
    command += ["--width", str(patience.width), "--budget", f"{patience.budget}s", *more]
    with temporary(parse_system(system), f"mpi{os.getpid()}") as bed:
        subprocess.run(bed.mpirun(command), check=True, timeout=1200)
