"""What ranks of a job do in tests of `discover`; `tests.ranks` starts them."""

import json
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner

from meshwright.cli import main
from meshwright.measure.peers.torch import TorchPeers
from tests.ranks import free_port

HOSTS = ["a", "b", "c"]


def discovered(rank: int, hosts: list[str], address: str, *arguments: str) -> tuple[int, Any, str]:
    """`meshwright discover` in a rank on one of the hosts: its exit code, its JSON if it wrote any, what it said.

    address: Slurm's, with {host} and {half} in it for the rank's host and the half of all ranks that it is in.
    """
    half = 2 * rank // int(os.environ["WORLD_SIZE"])
    host = hosts[rank]
    os.environ.update(SLURMD_NODENAME=host, SLURM_TOPOLOGY_ADDR=address.format(host=host, half=half))
    os.environ["SLURM_TOPOLOGY_ADDR_PATTERN"] = "switch.switch.node"
    done = CliRunner().invoke(main, ["discover", "--json", *arguments])
    return done.exit_code, json.loads(done.stdout) if done.stdout else None, done.stderr


def one_dies(rank: int, number: int) -> tuple[int, str]:
    """The same, but one of the ranks ends when the others have met it."""
    if rank == number:
        patch("meshwright.measure.here.gpu_matrix", partial(os._exit, 9)).start()
    code, _, said = discovered(rank, HOSTS, "s.t.{host}", "--timeout", "20s")
    return code, said


def one_is_slow(rank: int, folder: str) -> tuple[int, str]:
    """Rank 1 ends, and rank 2 does not come before rank 0 has said so."""
    spoken = Path(folder) / "spoken"

    def slow() -> str:
        while not spoken.exists():
            time.sleep(0.01)
        return ""

    if rank == 2:
        patch("meshwright.measure.here.gpu_matrix", slow).start()
    outcome = one_dies(rank, 1)
    spoken.touch()
    return outcome


def one_stops(rank: int) -> tuple[int, str]:
    """Rank 1 stops, and rank 2 leaves, which makes the call of rank 0 fail."""
    peers = TorchPeers(20.0)
    peers.wait()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    if rank == 2:
        peers.close()
        return 0, ""
    with patch("meshwright.cli.injob.join", lambda *_: peers), patch.object(peers._watch, "_timeout", 2.0):
        code, _, said = discovered(rank, HOSTS, "s.t.{host}")
    return code, said


def cut_off(rank: int) -> tuple[int, str]:
    """Two ranks that look for each other at different ports."""
    if rank:
        os.environ["MASTER_PORT"] = str(free_port())
    code, _, said = discovered(rank, ["a", "b"], "s.t.{host}", "--timeout", "3s")
    return code, said
