"""Rank files and host orders for mpirun and Slurm: they apply a placement to programs that number ranks by axes.

Such a program takes rank r for the r-th point in row-major order over the axes, as a DeviceMesh does. Started with one
of these files, rank r runs on the device that the placement has at that point. Meshwright's own engines need no such
file: there, rank r is device r.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from meshwright.errors import SpecError, TooLargeError
from meshwright.placement.placement import Placement
from meshwright.system.model import System
from meshwright.text.spec import format_counts, one_of

ORDERS = ("axes", "devices")
FORMATS = ("rankfile", "machinefile", "slurm")

MOST_HOSTS = 65_536
"""The most hosts in a host list, as in Slurm."""

MOST_RANKS = 2**20
"""The most ranks in a file."""

UNBOUND = "S*"
"""The slot in Open MPI's rank files that means all cores of all sockets. Every line needs a slot, and Open MPI takes a
plain `*` for core 0.
"""

_NAME = re.compile(r"[\w+][\w.@+-]*", re.ASCII)
_TOKEN = re.compile(r"\[[^\[\]]*\]|[^\[\],]+|.", re.DOTALL)
_NUMBERS = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,15}))?")


@dataclass(frozen=True, slots=True)
class Seating:
    """Where a rank runs: its device, which is the device at `position` on `host`."""

    rank: int
    host: str
    position: int
    device: int


def parse_hosts(text: str) -> list[str]:
    """The names in a host list as Slurm writes it, for example in SLURM_JOB_NODELIST.

    >>> parse_hosts("login,n[08-10,12],r[1-2]n[1-2]-ib")
    ['login', 'n08', 'n09', 'n10', 'n12', 'r1n1-ib', 'r1n2-ib', 'r2n1-ib', 'r2n2-ib']
    """
    found: list[str] = []
    for item in _items(text):
        choices = [_numbers(token) if token.startswith("[") else [token] for token in item]
        if len(found) + prod(map(len, choices)) > MOST_HOSTS:
            raise SpecError(f"the host list names more than {MOST_HOSTS:,} hosts: {_shortened(text)}")
        found += map("".join, product(*choices))
    return found


def _items(text: str) -> Iterator[list[str]]:
    """The items between the commas of a host list, each as its tokens: "n[1-2]-ib" is ["n", "[1-2]", "-ib"]."""
    item: list[str] = []
    for token in _TOKEN.findall(text):
        if token == ",":
            yield item or [""]
            item = []
        elif token in ("[", "]"):
            raise SpecError(f"a bracket is open or closed alone in the host list {_shortened(text)}")
        else:
            item.append(token if token.startswith("[") else token.strip())
    yield item or [""]


def _numbers(bracket: str) -> list[str]:
    """The numbers in a bracket, padded to the width of the first of their range: [08-10] is 08, 09, 10."""
    found: list[str] = []
    for item in bracket[1:-1].split(","):
        match = _NUMBERS.fullmatch(item.strip())
        if match is None:
            raise SpecError(f"expected numbers and ranges in brackets, like [1-4,7] or [001-010], not {bracket[:80]}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise SpecError(f"the range {item.strip()} in {bracket[:80]} counts down")
        if len(found) + last - first >= MOST_HOSTS:
            raise SpecError(f"the host list names more than {MOST_HOSTS:,} hosts: {bracket[:80]}")
        found += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return found


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:79] + "…")


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
            raise SpecError(f"{_shortened(host)} is not the name of a host")
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
