"""Runs a function in several processes, as a launcher would: real ranks on loopback, each with its own outcome.

A fresh interpreter imports the function's module once and forks the ranks, so that eight of them do not import PyTorch
eight times. Whatever happens, it ends within the time limit and leaves no process behind.
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


def run_ranks(function: str, ranks: int, *arguments: Any, limit: float = 120.0) -> list[Outcome]:
    """Call `module:function` with the rank and the arguments in every rank; unfinished ones are killed."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "arguments").write_bytes(pickle.dumps(arguments))
        command = [sys.executable, "-W", "error", "-m", "tests.ranks", function, str(ranks), folder, str(limit)]
        done = subprocess.run(command, timeout=limit + 60, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        statuses = json.loads(done.stdout.splitlines()[-1])
        outcomes = []
        for rank, status in enumerate(statuses):
            path = Path(folder) / f"{rank}"
            result, error = pickle.loads(path.read_bytes()) if path.exists() else (None, f"no result:\n{done.stderr}")
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


def main(function: str, ranks: int, folder: Path, limit: float) -> None:
    module, _, name = function.partition(":")
    call = getattr(importlib.import_module(module), name)
    arguments = pickle.loads((folder / "arguments").read_bytes())
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(ranks))
    os.environ.update(LOCAL_WORLD_SIZE=str(ranks))
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
            faulthandler.dump_traceback_later(limit * 0.9)  # where a rank hangs
            os._exit(_rank(call, rank, arguments, folder / str(rank)))
        pids.append(pid)
    deadline = time.monotonic() + limit
    statuses: dict[int, int] = {}
    while len(statuses) < ranks:
        for rank, pid in enumerate(pids):
            if rank in statuses:
                continue
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                statuses[rank] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    print(json.dumps([statuses[rank] for rank in range(ranks)]))


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
