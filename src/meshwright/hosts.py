"""Rank files and host orders: a placement for launchers, so that programs which number ranks by axes need no change.

Such a program takes rank r for the r-th place in row-major order over the axes. Started in the order given here, that
rank runs on the device that the placement has for it. Meshwright's own engines number ranks like devices instead, in
the system's order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from meshwright.errors import SpecError
from meshwright.placement import Placement
from meshwright.spec import unknown

ORDERS = ("axes", "devices")
FORMATS = ("rankfile", "machinefile", "slurm")


@dataclass(frozen=True, slots=True)
class Seating:
    """Where a rank runs: on which device of the system, that is, on which host and at which position there."""

    rank: int
    device: int
    host: str
    position: int


def seatings(placement: Placement, hosts: Sequence[str], order: str = "axes") -> list[Seating]:
    """Where each rank runs on some hosts, which are given in the system's order.

    >>> from meshwright import parse_system
    >>> placement = Placement(parse_system("node=2,gpu=2"), ("data", "tensor"), ((1, 2), (2, 1)))
    >>> [(seat.rank, seat.host, seat.position) for seat in seatings(placement, ["a", "b"])]
    [(0, 'a', 0), (1, 'b', 0), (2, 'a', 1), (3, 'b', 1)]
    """
    if order not in ORDERS:
        raise SpecError(unknown("order", order, ORDERS))
    counts = placement.system.counts
    fitting = [prod(counts[:k]) for k in range(len(counts) + 1)]
    for host in hosts:
        if not host or any(c.isspace() or c in "=,:#" for c in host):
            raise SpecError(f"{host!r} is not the name of a host")
        if list(hosts).count(host) > 1:
            raise SpecError(f"host {host!r} is given {list(hosts).count(host)} times")
    if len(hosts) not in fitting:
        sizes = ", ".join(map(str, fitting[:-1])) + f" or {fitting[-1]}"
        levels = ",".join(f"{level.name}={level.count}" for level in placement.system.levels)
        raise SpecError(f"{len(hosts)} hosts were given, but the system {levels} can be {sizes} hosts")
    each = placement.system.devices // len(hosts)
    devices = placement.mesh().reshape(-1).tolist() if order == "axes" else range(placement.system.devices)
    return [Seating(rank, device, hosts[device // each], device % each) for rank, device in enumerate(devices)]


def in_order(seats: Sequence[Seating]) -> bool:
    """Whether on each host the first rank has the first position, the second the next, and so on."""
    positions: dict[str, list[int]] = {}
    for seat in seats:
        positions.setdefault(seat.host, []).append(seat.position)
    return all(found == sorted(found) for found in positions.values())


def host_file(seats: Sequence[Seating], form: str) -> str:
    """Seatings as a file: Open MPI's rankfile, a machinefile for MPICH, or a SLURM_HOSTFILE."""
    if form not in FORMATS:
        raise SpecError(unknown("format", form, FORMATS))
    if form == "rankfile":
        return "".join(f"rank {seat.rank}={seat.host} slot={seat.position}\n" for seat in seats)
    return "".join(f"{seat.host}{':1' if form == 'machinefile' else ''}\n" for seat in seats)
