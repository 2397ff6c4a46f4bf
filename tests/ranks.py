"""Runs a function in several processes, as a launcher would: real ranks on loopback, each with its own outcome.

An interpreter beside the tests imports PyTorch once, does nothing with it, and forks the ranks of all calls. A process
that has one thread and has imported PyTorch already may say `fork_here()`, and forks its ranks itself from then on.
Whatever happens, a call ends within the time limit and leaves no process behind.
"""

import atexit
import faulthandler
import importlib
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
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
        (Path(folder) / "arguments").write_bytes(pickle.dumps(arguments))
        job: list[Any] = [function, ranks, folder, limit]
        statuses = _run(*job) if _here else _server().ask(job, limit + 60)
        said = (Path(folder) / "said").read_text()
        outcomes = []
        for rank, status in enumerate(statuses):
            path = Path(folder) / f"{rank}"
            result, error = pickle.loads(path.read_bytes()) if path.exists() else (None, f"no result:\n{said}")
            outcomes.append(Outcome(result, error, status))
        return outcomes


class _Server:
    """The interpreter that forks ranks: it takes a job per line, and answers with the exit codes."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "error", "-m", "tests.ranks"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(self.end)

    def end(self) -> None:
        self.process.communicate()

    def ask(self, job: list[Any], limit: float) -> list[int]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(job), file=self.process.stdin, flush=True)
        if not select.select([self.process.stdout], [], [], limit)[0]:
            self.process.kill()
        answer = self.process.stdout.readline()
        if not answer:
            _server.cache_clear()
            raise AssertionError(f"no answer within {limit} s, or an error: {self.process.wait()}")
        statuses: list[int] = json.loads(answer)
        return statuses


@cache
def _server() -> _Server:
    """The one of this process, with which it ends."""
    return _Server()


def results(function: str, ranks: int, *arguments: Any, limit: float = 120.0) -> list[Any]:
    """What every rank returned; none may fail."""
    outcomes = run_ranks(function, ranks, *arguments, limit=limit)
    for rank, outcome in enumerate(outcomes):
        assert not outcome.error, f"rank {rank}: {outcome.error}"
        assert outcome.status == 0, f"rank {rank} ended with {outcome.status}"
    return [outcome.result for outcome in outcomes]


_held: deque[socket.socket] = deque()


@atexit.register
def _release() -> None:
    while _held:
        _held.pop().close()


def free_port() -> int:
    """A port of loopback that nobody else gets meanwhile: it stays bound here, so that one process can listen to it."""
    holder = socket.socket()
    holder.bind(("127.0.0.1", 0))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do; both must for the port to be shared
    _held.append(holder)
    if len(_held) > 64:
        _held.popleft().close()
    port: int = holder.getsockname()[1]
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
            try:
                for inherited in list(weakref.finalize._registry):  # type: ignore[attr-defined]
                    inherited.atexit = False  # folders that are to go with the process that forks, not with a rank
                os.environ.update(everyone, LOCAL_WORLD_SIZE=str(ranks), RANK=str(rank), LOCAL_RANK=str(rank))
                end(work(rank))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(70)  # a rank never goes on with what the process that forked it does: it would fork ranks too
        pids.append(pid)
    return pids


def wait_ranks(pids: Sequence[int], deadline: float) -> dict[int, int]:
    """The exit codes of ranks, by process id, of those that have ended by the deadline or before only stopped ones are
    left.
    """
    statuses: dict[int, int] = {}
    stopped: set[int] = set()
    while len(statuses) + len(stopped) < len(pids) and time.monotonic() < deadline:
        for pid in pids:
            ended, status = (0, 0) if pid in statuses else os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
            if ended and os.WIFSTOPPED(status):
                stopped.add(pid)
            elif ended:
                statuses[pid] = os.waitstatus_to_exitcode(status)
                stopped.discard(pid)
        time.sleep(0.01)
    return statuses


def _run(function: str, ranks: int, folder: str, limit: float) -> list[int]:
    """The exit codes of ranks that call a function, by rank; those unfinished at the limit, or stopped, are killed."""
    module, _, name = function.partition(":")
    call = getattr(importlib.import_module(module), name)
    arguments = pickle.loads((Path(folder) / "arguments").read_bytes())
    said = os.open(Path(folder) / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def work(rank: int) -> int:
        for stream in (1, 2):
            os.dup2(said, stream)
        warnings.simplefilter("error")
        faulthandler.dump_traceback_later(limit * 0.9)  # where a rank hangs
        return _rank(call, rank, arguments, Path(folder) / str(rank))

    pids = start_ranks(ranks, work)
    os.close(said)
    statuses = wait_ranks(pids, time.monotonic() + limit)
    late = [pid for pid in pids if pid not in statuses]
    for pid in late:
        os.kill(pid, signal.SIGKILL)
    statuses |= wait_ranks(late, time.monotonic() + 60)
    return [statuses[pid] for pid in pids]


def main() -> None:
    importlib.import_module("torch._dynamo")  # PyTorch, and what DDP and DeviceMesh would import in every rank
    for line in sys.stdin:
        print(json.dumps(_run(*json.loads(line))), flush=True)


def _rank(call: Any, rank: int, arguments: tuple[Any, ...], path: Path) -> int:
    try:
        outcome = call(rank, *arguments), ""
    except BaseException:
        outcome = None, traceback.format_exc()
    partial = path.with_suffix(".partial")
    partial.write_bytes(pickle.dumps(outcome))
    partial.rename(path)
    atexit._run_exitfuncs()  # as an interpreter does that ends
    sys.stdout.flush()
    sys.stderr.flush()
    return 1 if outcome[1] else 0


if __name__ == "__main__":
    main()
