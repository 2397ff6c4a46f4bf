"""What a rank can tell of where it runs, without rights: host, Slurm's switches, GPUs or TPUs, NUMA node."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.discovery.job import Told
from meshwright.measure.peers.peers import Peers
from meshwright.runtime.launch import find_program, safe_environment

NODES = Path("/sys/devices/system/node")
"""Where Linux lists its NUMA nodes."""

PATIENCE = 30.0
"""Seconds that nvidia-smi gets."""

MOST_LETTERS = 1 << 20
"""The most letters of its answer."""


def tell(peers: Peers) -> list[Told]:
    """What each rank tells, by rank. The first rank of every host looks for GPUs."""
    mine = told_by(os.environ)
    hosts = peers.everyone(mine.host)
    if hosts.index(mine.host) == peers.rank:
        mine = replace(mine, matrix=gpu_matrix())
    return peers.everyone(mine)


def told_by(environment: Mapping[str, str]) -> Told:
    """What this rank tells, without its GPUs."""
    host = environment.get("SLURMD_NODENAME") or socket.gethostname()
    address, pattern = (environment.get(f"SLURM_TOPOLOGY_ADDR{end}", "") for end in ("", "_PATTERN"))
    return Told(host, address, pattern, numa=numa_node(os.sched_getaffinity(0)), **_chips())


def _chips() -> dict[str, Any]:
    """What JAX knows of the devices of this process, if its ranks talk through JAX."""
    jax = sys.modules.get("jax")
    if jax is None:
        return {}
    local = jax.local_devices()
    chips = tuple(tuple(getattr(device, "coords", None) or ()) for device in local)
    return {"slice": getattr(local[0], "slice_index", None), "chips": chips}


def numa_node(processors: set[int], nodes: Path = NODES) -> int | None:
    """The NUMA node that has all these processors; None if there is no such, or no other."""
    found = {}
    for path in nodes.glob("node[0-9]*/cpulist"):
        with suppress(OSError):
            found[int(path.parent.name.removeprefix("node"))] = _processors(path.read_text())
    return next((node for node, here in found.items() if processors <= here), None) if len(found) > 1 else None


def _processors(text: str) -> set[int]:
    """The numbers in a list of Linux's, like 0-3,8.

    >>> sorted(_processors("0-2,8"))
    [0, 1, 2, 8]
    """
    ranges = re.findall(r"(\d+)(?:-(\d+))?", text[:10_000])
    return {number for first, last in ranges for number in range(int(first), min(int(last or first), 1 << 16) + 1)}


def gpu_matrix() -> str:
    """What `nvidia-smi topo -m` prints here; empty if it cannot."""
    path = find_program("nvidia-smi")
    if path is None:
        return ""
    command = [path, "topo", "-m"]
    try:
        done = subprocess.run(
            command, env=safe_environment(), capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""
    return done.stdout[:MOST_LETTERS] if done.returncode == 0 else ""
