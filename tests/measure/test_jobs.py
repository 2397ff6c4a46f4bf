"""Ranks that a benchmark forks."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = """
import os, signal, sys, time
from types import SimpleNamespace
from meshwright.measure.jobs import fork_ranks

bed = SimpleNamespace(system=SimpleNamespace(devices=2), enter=lambda _: None, environment=lambda *_: {})

def work(rank):
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(60)

fork_ranks(bed, 0, work)
time.sleep(60)
"""


def runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_ranks_end_with_a_benchmark_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ranks = [process.stdout.readline().strip() for _ in range(2)]
        assert all(runs(rank) for rank in ranks)
        process.kill()
    deadline = time.monotonic() + 10
    while any(runs(rank) for rank in ranks) and time.monotonic() < deadline:
        time.sleep(0.01)
    left = [rank for rank in ranks if runs(rank)]
    for rank in left:
        os.kill(int(rank), signal.SIGKILL)
    assert left == []
