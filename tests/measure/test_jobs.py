"""Ranks that a benchmark forks."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright import EngineError, Reduction, load_library, parse_system, placements
from meshwright.measure import jobs
from meshwright.measure.bench import Patience, cases
from meshwright.measure.jobs import Job, measure_on, quiet
from meshwright.measure.records import Records
from meshwright.runtime.signals import fork

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


def job(out: Path) -> Job:
    system = parse_system("node=2@1GB/s,gpu=2@8GB/s")
    wanted = cases(placements(system, {"data": 4}), [Reduction(("data",), 1024)], load_library("gloo"), 0, 1)
    return Job(system, wanted, out, Patience(), timeout=10.0, device="cuda")


def test_ranks_that_repeat_a_measurement_are_not_stuck(tmp_path: Path) -> None:
    out, now = tmp_path / "m.jsonl", [0.0]
    stuck = quiet(job(out), lambda: now[0])
    now[0] = 9.0
    assert stuck() == ""  # they are starting
    with Records(out) as records:
        for _ in range(4):
            now[0] += 9.0
            assert stuck() == ""
            time.sleep(0.01)  # the clock of some file systems is no finer
            records.touch()
    assert stuck() == ""
    now[0] += 11.0
    assert stuck() == "nothing was measured for 10 s"


def test_what_a_job_needs_to_share_the_gpu_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)

    @contextmanager
    def shared(_: str | None) -> Iterator[dict[str, str]]:
        assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ  # or the next job would take it for a daemon that runs
        yield {"CUDA_MPS_PIPE_DIRECTORY": "/somewhere"}

    def fork_ranks(_bed: object, _port: int, work: Callable[[int], None]) -> dict[int, int]:
        return {0: fork(partial(work, 0))}

    def measure_here(*_: object) -> None:
        (tmp_path / "seen").write_text(os.environ["CUDA_MPS_PIPE_DIRECTORY"])

    for name, value in {"shared_gpu": shared, "fork_ranks": fork_ranks, "measure_here": measure_here}.items():
        monkeypatch.setattr(jobs, name, value)
    wanted = job(tmp_path / "m.jsonl")
    bed: Any = SimpleNamespace(system=wanted.system, port=lambda: 1)
    for _ in range(2):
        with pytest.raises(EngineError, match="the ranks ended, but 2 measurements are missing"):
            measure_on(bed, wanted)
        assert (tmp_path / "seen").read_text() == "/somewhere"
        (tmp_path / "seen").unlink()
