"""What ranks of a job do in tests of `discover`; `tests.ranks` starts them."""

import json
import os
from functools import partial
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner

from meshwright.cli import main
from tests.ranks import free_port


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
    code, _, said = discovered(rank, ["a", "b", "c"], "s.t.{host}", "--timeout", "20s")
    return code, said


def cut_off(rank: int) -> tuple[int, str]:
    """Two ranks that look for each other at different ports."""
    if rank:
        os.environ["MASTER_PORT"] = str(free_port())
    code, _, said = discovered(rank, ["a", "b"], "s.t.{host}", "--timeout", "3s")
    return code, said
