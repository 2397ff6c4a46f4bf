"""Starting ranks on this machine, through the launchers that their libraries bring along."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence

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


def run_locally(engine: str, ranks: int, arguments: Sequence[str]) -> int:
    """Run Meshwright with arguments in so many ranks on this machine; returns the launcher's exit code.

    Whatever ends this process ends the ranks.
    """
    if engine == "mpi":
        command = [*mpirun_command(ranks), sys.executable, "-m", "meshwright", *arguments]
    else:
        command = [*torchrun_command(ranks), "-m", "meshwright", *arguments]
    environment = {"OMP_NUM_THREADS": "1"} | os.environ  # ranks share the cores
    launcher = subprocess.Popen(command, env=environment, start_new_session=True)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        return launcher.wait()
    finally:
        signal.signal(signal.SIGTERM, before)
        if launcher.poll() is None:
            _end(launcher)


def _end(launcher: "subprocess.Popen[bytes]") -> None:
    """End a launcher, which ends its ranks; if it does not, end them all."""
    launcher.terminate()
    try:
        launcher.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()
