"""Runs a function in several processes, as a launcher would: real ranks on loopback, each with its own outcome.

A fresh interpreter imports the function's module once and forks the ranks, so that eight of them do not import PyTorch
eight times. A process that has one thread and has imported PyTorch already may say `fork_here()`, and forks its ranks
itself from then on. Whatever happens, it ends within the time limit and leaves no process behind.
"""

import faulthandler
import importlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """What became of a rank: what its function returned, or how it ended."""

    result: Any = None
    error: str = ""
    status: int = 0


_here = False


def fork_here() -> None:
    """Fork ranks from this process, which has one thread and has imported what they need."""
    global _here
    _here = True


def run_ranks(function: str, ranks: int, *arguments: Any, limit: float = 120.0) -> list[Outcome]:
    """Call `module:function` with the rank and the arguments in every rank; unfinished ones are killed."""
    with TemporaryDirectory() as folder:
        if _here:
            statuses, said = _run(function, ranks, arguments, Path(folder), limit), "see above"
        else:
            (Path(folder) / "arguments").write_bytes(pickle.dumps(arguments))
            command = [sys.executable, "-W", "error", "-m", "tests.ranks", function, str(ranks), folder, str(limit)]
            done = subprocess.run(command, timeout=limit + 60, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            statuses, said = json.loads(done.stdout.splitlines()[-1]), done.stderr
        outcomes = []
        for rank, status in enumerate(statuses):
            path = Path(folder) / f"{rank}"
            result, error = pickle.loads(path.read_bytes()) if path.exists() else (None, f"no result:\n{said}")
            outcomes.append(Outcome(result, error, status))
        return outcomes


def results(function: str, ranks: int, *arguments: Any, limit: float = 120.0) -> list[Any]:
    """What every rank returned; none may fail."""
    outcomes = run_ranks(function, ranks, *arguments, limit=limit)
    for rank, outcome in enumerate(outcomes):
        assert not outcome.error, f"rank {rank}: {outcome.error}"
        assert outcome.status == 0, f"rank {rank} ended with {outcome.status}"
    return [outcome.result for outcome in outcomes]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def start_ranks(ranks: int, work: Callable[[int], int], end: Callable[[int], Any] = os._exit) -> list[int]:
    """Fork ranks with the variables of a launcher; each ends with what the work returns. Their process ids, by rank."""
    everyone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    pids = []
    for rank in range(ranks):
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os.environ.update(everyone, LOCAL_WORLD_SIZE=str(ranks), RANK=str(rank), LOCAL_RANK=str(rank))
            end(work(rank))
        pids.append(pid)
    return pids


def wait_ranks(pids: Sequence[int], deadline: float) -> dict[int, int]:
    """The exit codes of ranks, by process id, of those that have ended by the deadline."""
    statuses: dict[int, int] = {}
    while len(statuses) < len(pids) and time.monotonic() < deadline:
        for pid in pids:
            if pid not in statuses and (ended := os.waitpid(pid, os.WNOHANG))[0]:
                statuses[pid] = os.waitstatus_to_exitcode(ended[1])
        time.sleep(0.01)
    return statuses


def _run(function: str, ranks: int, arguments: tuple[Any, ...], folder: Path, limit: float) -> list[int]:
    """The exit codes of ranks that call a function, by rank; those unfinished at the limit are killed."""
    module, _, name = function.partition(":")
    call = getattr(importlib.import_module(module), name)

    def work(rank: int) -> int:
        warnings.simplefilter("error")
        faulthandler.dump_traceback_later(limit * 0.9)  # where a rank hangs
        return _rank(call, rank, arguments, folder / str(rank))

    pids = start_ranks(ranks, work)
    statuses = wait_ranks(pids, time.monotonic() + limit)
    late = [pid for pid in pids if pid not in statuses]
    for pid in late:
        os.kill(pid, signal.SIGKILL)
    statuses |= wait_ranks(late, time.monotonic() + 60)
    return [statuses[pid] for pid in pids]


def main(function: str, ranks: int, folder: Path, limit: float) -> None:
    arguments = pickle.loads((folder / "arguments").read_bytes())
    print(json.dumps(_run(function, ranks, arguments, folder, limit)))


def _rank(call: Any, rank: int, arguments: tuple[Any, ...], path: Path) -> int:
    try:
        outcome = call(rank, *arguments), ""
    except BaseException:
        outcome = None, traceback.format_exc()
    partial = path.with_suffix(".partial")
    partial.write_bytes(pickle.dumps(outcome))
    partial.rename(path)
    sys.stdout.flush()
    sys.stderr.flush()
    return 1 if outcome[1] else 0


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]))
