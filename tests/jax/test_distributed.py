"""A plan on the devices of several processes, joined by jax.distributed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from meshwright import ROOTED, Collective, parse_reduction, parse_system, plan, write_plan
from meshwright.measure.trials.jax import join
from tests.ranks import free_port


def test_two_processes_of_four_devices(tmp_path: Path) -> None:
    unrooted = [collective for collective in Collective if collective not in ROOTED]
    reductions = [parse_reduction(text) for text in ("data=40KiB", "shard=1KiB", "reduce-scatter:data=1KiB")]
    system = parse_system("node=2@1GB/s,gpu=4@8GB/s")
    best = plan(system, {"data": 4, "shard": 2}, reductions, collectives=unrooted).candidates[0]
    write_plan(best, tmp_path / "plan.json")
    command = [sys.executable, "-m", "meshwright", "run", str(tmp_path / "plan.json"), "--engine", "jax", "--json"]
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
        "JAX_NUM_PROCESSES": "2",
    }
    processes = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment | {"JAX_PROCESS_ID": str(k)},
        )
        for k in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], outputs
    document = json.loads(outputs[0][0])
    assert document["devices"] == 8
    assert [row["correct"] for row in document["reductions"]] == [True] * 3
    assert outputs[1][0] == "", "only the first process reports"


def test_processes_that_a_host_file_spreads_meet_on_the_host_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX itself would take the first host that Slurm names."""
    asked: list[Any] = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda address, **_: asked.append(address))
    (tmp_path / "ranks").write_text("n3\nn1\n")
    for name, value in (("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_JOB_ID", "17"), ("SLURM_STEP_NODELIST", "n[1,3]")):
        monkeypatch.setenv(name, value)
    join(5)
    monkeypatch.setenv("SLURM_DISTRIBUTION", "arbitrary")
    monkeypatch.setenv("SLURM_HOSTFILE", str(tmp_path / "ranks"))
    join(5)
    assert asked == [None, "n3:20017"]
