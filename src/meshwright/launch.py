"""Starting ranks on this machine, through the launchers that their libraries bring along."""

import os
import shutil
import subprocess
import sys

from meshwright.errors import EngineError


def torchrun_command(ranks: int) -> list[str]:
    """The command that starts so many ranks of a Python module that follows it, with torchrun."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]


def mpirun_command(ranks: int) -> list[str]:
    """The command that starts so many ranks of the command that follows it, with Open MPI's or MPICH's mpirun."""
    path = shutil.which("mpirun")
    if path is None:
        raise EngineError("there is no mpirun here; install Open MPI or MPICH, on Debian: apt-get install openmpi-bin")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    command = [path, "-n", str(ranks)]
    if "Open MPI" in version or "OpenRTE" in version:
        command += ["--oversubscribe", "--bind-to", "none"]
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
    return command
