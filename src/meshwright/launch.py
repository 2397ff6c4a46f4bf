"""Starting ranks on this machine, through the launchers that their libraries bring along."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from meshwright.errors import EngineError


def require(engine: str) -> None:
    """Load an engine; where its library is missing, refuse with what the import says: how to install it."""
    try:
        import_module(f"meshwright.{engine}")
    except ImportError as error:
        raise EngineError(str(error)) from None


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

    Whatever ends this process ends the ranks: signals are passed on, and the launcher is told should it just vanish.
    """
    if find_spec({"torch": "torch", "mpi": "mpi4py"}[engine]) is None:
        require(engine)
    if engine == "mpi":
        command = [*mpirun_command(ranks), sys.executable, "-m", "meshwright", *arguments]
    else:
        command = [*torchrun_command(ranks), "-m", "meshwright", *arguments]
    environment = {"OMP_NUM_THREADS": "1"} | os.environ  # ranks share the cores
    launcher: subprocess.Popen[bytes] | None = None

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)}
    try:
        launcher = subprocess.Popen(command, env=environment, start_new_session=True, preexec_fn=_die_with_parent)
        return launcher.wait()
    finally:
        if launcher is not None and launcher.poll() is None:
            _end(launcher)
        for number, handler in before.items():
            signal.signal(number, handler)


def _die_with_parent() -> None:
    """Have Linux send SIGTERM to this process when the one that started it ends, however that happens."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _end(launcher: "subprocess.Popen[bytes]") -> None:
    """End a launcher, which ends its ranks; if it does not, end them all."""
    launcher.terminate()
    try:
        launcher.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()
