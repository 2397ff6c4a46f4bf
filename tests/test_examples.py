"""The examples run as their first lines say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright import ROOTED, Collective, parse_reduction, parse_system, plan, write_plan
from meshwright.runtime.launch import torchrun_command

EXAMPLES = Path(__file__).parent.parent / "examples"


def made(path: Path, system: str, devices: int) -> Path:
    unrooted = [collective for collective in Collective if collective not in ROOTED]
    ranking = plan(parse_system(system), {"data": devices}, [parse_reduction("data=1MiB")], collectives=unrooted)
    write_plan(ranking.candidates[0], path)
    return path


def finished(command: list[str], **environment: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=180, env=os.environ | environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ddp(tmp_path: Path) -> None:
    path = made(tmp_path / "plan.json", "node=2@1GB/s,gpu=2@8GB/s", 4)
    output = finished([*torchrun_command(4), str(EXAMPLES / "ddp.py"), str(path)], OMP_NUM_THREADS="1")
    assert output.startswith("loss after 50 steps: ")
    assert float(output.split()[-1]) < 5  # it is 64 for a model that knows nothing


def test_jax_step(tmp_path: Path) -> None:
    path = made(tmp_path / "plan.json", "node=2@1GB/s,gpu=4@8GB/s", 8)
    flags = "--xla_force_host_platform_device_count=8"
    output = finished([sys.executable, str(EXAMPLES / "jax_step.py"), str(path)], XLA_FLAGS=flags, JAX_PLATFORMS="cpu")
    words = output.split()
    assert float(words[-1]) < float(words[2]) / 10


@pytest.mark.parametrize("name", ["ddp.py", "jax_step.py"])
def test_three_lines_are_added(name: str) -> None:
    assert (EXAMPLES / name).read_text().count("# >>>") == 3
