"""Starting ranks on this machine: with torchrun or mpirun, or a command for each rank.

Nothing in the current folder is imported or executed: Python is started with a safe path, and programs are looked for
only in the absolute folders of PATH.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from meshwright.errors import EngineError, TooLargeError
from meshwright.runtime.signals import die_with_parent, interrupting

MOST_LOCAL = 1024  # the most ranks that are started on one machine, and the most devices that JAX makes of it
MOMENT = 0.1  # seconds after which a rank that the others have missed has ended for the system, too


def check_local(ranks: int) -> None:
    """Refuse more ranks than one machine can have."""
    if ranks > MOST_LOCAL:
        raise TooLargeError(
            f"{ranks:,} ranks are too many for this machine: --local starts at most {MOST_LOCAL:,}; start them on the "
            "machines that the plan is for"
        )


def safe_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """An environment without the current folder in its search paths: no relative PATH, no empty entries elsewhere."""
    safe = dict(environment)
    for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH"):
        entries = safe.pop(name, "").split(os.pathsep)
        kept = [entry for entry in entries if (Path(entry).is_absolute() if name == "PATH" else entry)]
        if kept:
            safe[name] = os.pathsep.join(kept)
    return safe


def find_program(name: str) -> str | None:
    """The path of a program, from the absolute folders of PATH."""
    return shutil.which(name, path=safe_environment().get("PATH", os.defpath))


def torchrun_command(ranks: int) -> list[str]:
    """The start of a command line: torchrun with `ranks` ranks; the Python module to run follows."""
    return [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]


def mpirun_command(ranks: int) -> list[str]:
    """The start of a command line: Open MPI's or MPICH's mpirun with `ranks` ranks; the command to run follows."""
    path = find_program("mpirun")
    if path is None:
        raise EngineError("there is no mpirun here; install Open MPI or MPICH, on Debian: apt-get install openmpi-bin")
    asked = subprocess.run([path, "--version"], env=safe_environment(), capture_output=True, text=True, check=False)
    version = asked.stdout
    command = [path, "-n", str(ranks)]
    if "Open MPI" in version or "OpenRTE" in version:
        command += ["--oversubscribe", "--bind-to", "none"]
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
    return command


def run_locally(engine: str, ranks: int, arguments: Sequence[str]) -> int:
    """Run Meshwright with `arguments` in `ranks` ranks on this machine; returns the launcher's exit code.

    The ranks end with this process: it passes on signals, and if it is killed, the kernel sends the launcher SIGTERM.
    """
    check_local(ranks)
    if engine == "mpi":
        command = [*mpirun_command(ranks), sys.executable, "-P", "-m", "meshwright", *arguments]
    else:
        command = [*torchrun_command(ranks), "-m", "meshwright", *arguments]
    environment = {"OMP_NUM_THREADS": "1"} | safe_environment()  # ranks share the cores
    environment["PYTHONSAFEPATH"] = "1"  # also for the ranks that torchrun starts
    launcher: subprocess.Popen[bytes] | None = None
    die = partial(die_with_parent, os.getpid(), signal.SIGTERM)
    with interrupting():
        try:
            launcher = subprocess.Popen(command, env=environment, start_new_session=True, preexec_fn=die)
            return launcher.wait()
        finally:
            if launcher is not None and launcher.poll() is None:
                launcher.terminate()  # which ends its ranks
                try:
                    launcher.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(launcher.pid, signal.SIGKILL)
                    launcher.wait()


def run_ranks(commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]], grace: float) -> int:
    """Run a command for each rank, all at once; 0, or the exit code of the first one to fail.

    They have no stdin. When one fails it is named on stderr, and the others, with what they started, are ended after
    `grace` seconds. When this process is interrupted they are ended too; when it is killed, only the ranks themselves.
    """
    started: list[subprocess.Popen[bytes]] = []
    die = partial(die_with_parent, os.getpid(), signal.SIGTERM)
    nothing = subprocess.DEVNULL
    failed = 0
    try:
        for command, environment in zip(commands, environments, strict=True):
            started.append(subprocess.Popen(command, env=environment, stdin=nothing, process_group=0, preexec_fn=die))
        failed, reason = wait_for_ranks({rank: process.poll for rank, process in enumerate(started)})
        if failed:
            print(f"{reason}: the others are ended", file=sys.stderr, flush=True)
    finally:
        if any(process.poll() != 0 for process in started):
            _end_ranks(started, grace if failed else 0.0)
    return failed if failed >= 0 else 128 - failed


def wait_for_ranks(
    waiting: dict[int, Callable[[], int | None]], stuck: Callable[[], str] = lambda: ""
) -> tuple[int, str]:
    """Wait until all ranks end, one fails, or `stuck` gives a reason; the exit code, 0 if all is well, and why.

    waiting: for each rank a function that returns its exit code, or None; ranks that have ended are taken out.
    Where several fail at about the same time, one that a signal ended is named: the others fail because it is gone.
    """
    while waiting:
        time.sleep(0.02)
        if reason := stuck():
            return 1, reason
        failed = _failures(waiting)
        if failed and min(failed.values()) > 0:
            time.sleep(MOMENT)
            failed |= _failures(waiting)
        if failed:
            rank, code = min(failed.items(), key=lambda each: each[1] > 0)
            return code, f"rank {rank} {f'was ended by signal {-code}' if code < 0 else f'ended with exit code {code}'}"
    return 0, ""


def _failures(waiting: dict[int, Callable[[], int | None]]) -> dict[int, int]:
    """The exit codes of ranks that have failed; all that have ended are taken out."""
    codes = {rank: code for rank, poll in waiting.items() if (code := poll()) is not None}
    for rank in codes:
        del waiting[rank]
    return {rank: code for rank, code in codes.items() if code}


def _end_ranks(processes: Sequence["subprocess.Popen[Any]"], grace: float) -> None:
    """End processes that were started here, and what they started, after some time to end by themselves."""
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(0.05)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        deadline = time.monotonic() + 5
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
