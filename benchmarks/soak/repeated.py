"""The examples and the fault tests, over and over; what is tested is in the examples and the tests themselves."""

import contextlib
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.ranks import fork_here, start_ranks

from benchmarks.soak.cell import ROOT, Outcome, ended, first_fault, guarded, python_end, start, text_of, wait_for
from benchmarks.soak.verdict import aborted
from meshwright import ROOTED, Collective, parse_reduction, parse_system, plan, write_plan
from meshwright.runtime.launch import torchrun_command

DDP, JAX = ROOT / "examples" / "ddp.py", ROOT / "examples" / "jax_step.py"


def made(folder: Path, system: str, devices: int) -> Path:
    """The plan of an example, in a file."""
    unrooted = [collective for collective in Collective if collective not in ROOTED]
    ranking = plan(parse_system(system), {"data": devices}, [parse_reduction("data=1MiB")], collectives=unrooted)
    write_plan(ranking.candidates[0], folder / "plan.json")
    return folder / "plan.json"


def ddp_torchrun(folder: Path, _: Random) -> Outcome:
    """examples/ddp.py as its first lines say."""
    path = made(folder, "node=2@1GB/s,gpu=2@8GB/s", 4)
    command = [*torchrun_command(4), str(DDP), str(path)]
    return _finished(start(command, folder / "job", {"OMP_NUM_THREADS": "1"}), folder / "job", _ddp_is_right)


def ddp_forked(folder: Path, _: Random) -> Outcome:
    """The same script in ranks that are forked, and that end as Python ends; much quicker."""
    path = made(folder, "node=2@1GB/s,gpu=2@8GB/s", 4)
    pids = start_ranks(4, lambda rank: guarded(partial(_script, DDP, path), folder / f"rank{rank}"), python_end)
    return first_fault(
        [
            _finished(pid, folder / f"rank{rank}", _ddp_is_right if rank == 0 else lambda said: not said)
            for rank, pid in enumerate(pids)
        ]
    )


def jax_step(folder: Path, _: Random) -> Outcome:
    """examples/jax_step.py as its first lines say."""
    path = made(folder, "node=2@1GB/s,gpu=4@8GB/s", 8)
    settings = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    return _finished(
        start([sys.executable, str(JAX), str(path)], folder / "job", settings), folder / "job", _jax_is_right
    )


def _script(script: Path, path: Path) -> int:
    sys.argv = [str(script), str(path)]
    runpy.run_path(str(script), run_name="__main__")
    return 0


def _ddp_is_right(said: str) -> bool:
    return said.startswith("loss after 50 steps: ") and float(said.split()[-1]) < 5


def _jax_is_right(said: str) -> bool:
    words = said.split()
    return len(words) == 5 and float(words[-1]) < float(words[2]) / 10


def _finished(pid: int, said: Path, right: Callable[[str], bool], limit: float = 150.0) -> Outcome:
    """How a process that should do its work has ended."""
    statuses: dict[int, int] = {}
    if not wait_for(lambda: ended(pid, statuses), limit, 0.02):
        os.kill(pid, signal.SIGKILL)
        return Outcome("hang", text_of(said)[-300:])
    text = text_of(said)
    if statuses[pid] < 0 or aborted(text):
        return Outcome("abort", f"it ended with {statuses[pid]}: {aborted(text)}")
    if statuses[pid]:
        return Outcome("unclear error", f"it ended with {statuses[pid]}: {text.strip()[-300:]}")
    try:
        return Outcome() if right(text) else Outcome("wrong result", text[-300:])
    except (ValueError, IndexError):
        return Outcome("wrong result", text[-300:])


class _Collector:
    """Puts down how each test has ended."""

    def __init__(self) -> None:
        self.ended: dict[str, str] = {}
        self.why: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.ended[report.nodeid] = report.outcome
            if report.outcome == "failed":
                self.why[report.nodeid] = report.longreprtext[-300:]


def fault_tests(arguments: tuple[str, ...], folder: Path, _: Random) -> Outcome:
    """Some tests, once; ranks are forked from this process where the tests use `tests.ranks`."""
    os.chdir(ROOT)
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    fork_here()
    collector = _Collector()
    began = time.monotonic()
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={folder / 'tests'}"]
    with contextlib.suppress(SystemExit):
        pytest.main([*options, *arguments], plugins=[collector])
    count = sum(outcome == "passed" for outcome in collector.ended.values())
    details = {"tests": len(collector.ended), "passed": count, "seconds": round(time.monotonic() - began, 1)}
    if not collector.ended:
        return Outcome("failed", "no test ran", details)
    if count == len(collector.ended):
        return Outcome(details=details)
    bad = [name for name, outcome in collector.ended.items() if outcome != "passed"]
    return Outcome("failed", f"{bad}: {collector.why.get(bad[0], '')}"[:800], details)
