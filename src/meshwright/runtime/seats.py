"""Seats: where launchers put the processes, and whether that fits the plan."""

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from meshwright.errors import EngineError
from meshwright.system.model import System

TESTBED = "MESHWRIGHT_TESTBED"
"""Set in the environment of processes inside a testbed: its name. They share one machine, and so one clock."""


def check_devices(system: System, world: int, what: str = "processes", tuned: bool = False) -> None:
    """Refuse a number of processes that is not the number of devices; tuned: whether the plan was."""
    if world != system.devices:
        again = f", and tune that: what was measured with {system.devices} no longer counts" if tuned else ""
        raise EngineError(
            f"there are {world} {what}, but the plan is for {system.devices} devices ({_counts(system)}): start "
            f"{system.devices}, or make a plan for {world}{again}"
        )


class Seat(NamedTuple):
    """Where a launcher put a process: its position on its host, and how many processes its host has."""

    local_rank: int
    local_size: int


_LAUNCHERS = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),  # torchrun
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH
)


def seat(environment: Mapping[str, str]) -> Seat | None:
    """The seat that a launcher's variables in the environment give; None if there are none."""
    for rank, size in _LAUNCHERS:
        if environment.get(rank, "").isdecimal() and environment.get(size, "").isdecimal():
            return Seat(int(environment[rank]), int(environment[size]))
    return None


def layout_fault(system: System, seats: Mapping[int, Seat | None]) -> str:
    """What is wrong with the ranks' seats; empty if they fit the system.

    Hosts must be the instances of one of the system's levels, with ranks in order. All ranks on one host, or each on a
    host of its own, are fine too: a system does not say which of its levels are hosts.
    """
    counts = system.counts
    fitting = sorted({prod(counts[k:]) for k in range(len(counts) + 1)}, reverse=True)
    for rank, at in sorted(seats.items()):
        if at is None:
            continue
        if at.local_size not in fitting:
            sizes = ", ".join(map(str, fitting[:-1])) + f" or {fitting[-1]}"
            return (
                f"rank {rank} is on a host with {at.local_size} processes, but a host of the plan's system "
                f"{_counts(system)} can have {sizes}"
            )
        if rank % at.local_size != at.local_rank:
            return (
                f"rank {rank} is number {at.local_rank} of {at.local_size} on its host, but the plan numbers devices "
                f"host by host, so it should be number {rank % at.local_size}: start a host's ranks one after another"
            )
    sizes_seen = {at.local_size: rank for rank, at in sorted(seats.items(), reverse=True) if at is not None}
    if len(sizes_seen) > 1:
        (size_a, rank_a), (size_b, rank_b) = sorted(sizes_seen.items())[:2]
        return (
            f"hosts have different numbers of processes (rank {rank_a}: {size_a}, rank {rank_b}: {size_b}), but "
            f"those of the plan's system {_counts(system)} are alike"
        )
    return ""


def _counts(system: System) -> str:
    return ",".join(f"{level.name}={level.count}" for level in system.levels)
