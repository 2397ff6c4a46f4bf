"""Rank files and host orders for mpirun and Slurm: they apply a placement to programs that number ranks by axes.

Such a program takes rank r for the r-th point in row-major order over the axes, as a DeviceMesh does. Started with one
of these files, rank r runs on the device that the placement has at that point. Meshwright's own engines need no such
file: there, rank r is device r.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from meshwright.errors import SpecError, TooLargeError
from meshwright.placement.placement import Placement
from meshwright.system.model import System
from meshwright.text.spec import format_counts, one_of, shown

ORDERS = ("axes", "devices")
FORMATS = ("rankfile", "machinefile", "slurm")

MOST_RANKS = 2**20
"""The most ranks in a file."""

UNBOUND = "S*"
"""The slot in Open MPI's rank files that means all cores of all sockets. Every line needs a slot, and Open MPI takes a
plain `*` for core 0.
"""

_NAME = re.compile(r"[\w+][\w.@+-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Seating:
    """Where a rank runs: its device, which is the device at `position` on `host`."""

    rank: int
    host: str
    position: int
    device: int


def seatings(placement: Placement, hosts: Sequence[str], order: str = "axes") -> list[Seating]:
    """Where each rank runs; `hosts` are in the order of the system's devices.

    >>> from meshwright import parse_system
    >>> placement = Placement(parse_system("node=2,gpu=2"), ("data", "tensor"), ((1, 2), (2, 1)))
    >>> [(seat.rank, seat.host, seat.position) for seat in seatings(placement, ["a", "b"])]
    [(0, 'a', 0), (1, 'b', 0), (2, 'a', 1), (3, 'b', 1)]
    """
    one_of(ORDERS, "order", order)
    for host, times in Counter(hosts).items():
        if not _NAME.fullmatch(host):
            raise SpecError(f"{shown(host)} is not the name of a host")
        if times > 1:
            raise SpecError(f"host {host!r} is given {times} times")
    host_level(placement.system, len(hosts))
    if placement.system.devices > MOST_RANKS:
        raise TooLargeError(
            f"{placement.system.devices:,} devices are too many for a line each; at most {MOST_RANKS:,} can be listed"
        )
    each = placement.system.devices // len(hosts)
    devices = placement.mesh().reshape(-1).tolist() if order == "axes" else range(placement.system.devices)
    return [Seating(rank, hosts[device // each], device % each, device) for rank, device in enumerate(devices)]


def host_level(system: System, hosts: int) -> str:
    """Which instance of the system one of `hosts` hosts is, like "one node"; refuses a number that fits no level."""
    fitting = {1: "the whole system"}
    for k, level in enumerate(system.levels):
        fitting.setdefault(prod(system.counts[: k + 1]), f"one {level.name}")
    if hosts not in fitting:
        *most, last = (f"{count} ({what}{' each' * (count > 1)})" for count, what in fitting.items())
        levels = format_counts({level.name: level.count for level in system.levels})
        sizes = f"{', '.join(most)} or {last}" if most else last
        raise SpecError(f"{hosts} hosts were given, but the system {levels} can be {sizes} hosts")
    return fitting[hosts]


def in_order(seats: Sequence[Seating]) -> bool:
    """Whether on each host the positions increase with the ranks."""
    positions: dict[str, list[int]] = {}
    for seat in seats:
        positions.setdefault(seat.host, []).append(seat.position)
    return all(found == sorted(found) for found in positions.values())


def host_file(seats: Sequence[Seating], form: str, bind: bool = False) -> str:
    """The text of a file with seatings: a rankfile for Open MPI, a machinefile for MPICH, or a SLURM_HOSTFILE.

    bind: in a rankfile, bind each rank to the core whose number is the rank's position.
    """
    one_of(FORMATS, "format", form)
    if bind and form != "rankfile":
        raise SpecError(f"a {form} file cannot bind ranks to cores, only a rankfile can")
    if form == "rankfile":
        slots = ((seat, seat.position if bind else UNBOUND) for seat in seats)
        return "".join(f"rank {seat.rank}={seat.host} slot={slot}\n" for seat, slot in slots)
    return "".join(f"{seat.host}{':1' if form == 'machinefile' else ''}\n" for seat in seats)
