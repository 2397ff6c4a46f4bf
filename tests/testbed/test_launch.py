"""`launch` on several emulated hosts, started by torchrun and by mpirun: ranks are those of the plan's placement.

The script only writes down its ranks. What scripts compute with a plan is tested in tests/torch.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from meshwright.runtime.dropin import DEVICE
from meshwright.testbed import Testbed
from tests.torch.conftest import inductor as inductor
from tests.torch.conftest import installed as installed
from tests.torch.conftest import plan as plan

SCRIPT = """
import os, pathlib, socket
rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["RANK"]
local = os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK") or os.environ["LOCAL_RANK"]
pathlib.Path(__file__).with_name(rank).write_text(f"{socket.gethostname()} {local} {os.environ['DEVICE']}")
""".replace("DEVICE", DEVICE)


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_ranks_are_renumbered_across_hosts(
    launcher: str, plan: str, emulate: Callable[[str], Testbed], installed: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    words = ["-m", "meshwright", "launch", "--plan", plan, str(tmp_path / "script.py")]
    if launcher == "torchrun":  # hosts with two ranks each, which meet by the rendezvous that numbers hosts by name
        bed = emulate("node=2@1Gbit/s")
        meeting = f"--rdzv-backend=c10d --rdzv-endpoint={bed.network.address(0)}:{bed.port()} --local-addr=$(hostname)"
        start = f'exec "$0" -m torch.distributed.run --nnodes=2 --nproc-per-node=2 {meeting} "$@"'
        assert bed.run(["sh", "-c", start, sys.executable, *words], installed) == 0
        seats = ["198.18.0.1 0", "198.18.0.2 0", "198.18.0.1 1", "198.18.0.2 1"]
    else:  # a rank on each of four hosts
        if shutil.which("mpirun") is None:
            pytest.skip("there is no mpirun here")
        bed = emulate("node=4@1Gbit/s")
        command = bed.mpirun(["-x", "PYTHONPATH", sys.executable, *words])
        done = subprocess.run(command, env=installed, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        seats = [f"198.18.0.{device + 1} 0" for device in (0, 2, 1, 3)]
    found = [(tmp_path / str(rank)).read_text() for rank in range(4)]
    assert found == [f"{seat} {device}" for seat, device in zip(seats, (0, 2, 1, 3), strict=True)]
