"""Where each rank runs: which host, and which device of it; what all formats for launchers are made of.

They apply a placement to programs that number ranks by axes: such a program takes rank r for the r-th point in
row-major order over the axes, as a DeviceMesh does. Started so, rank r runs on the device that the placement has at
that point. Meshwright's own engines need no such order: there, rank r is device r.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from meshwright.errors import SpecError, TooLargeError
from meshwright.export.request import Request
from meshwright.language.program import Grouping
from meshwright.placement.layout import layout_of
from meshwright.placement.placement import Placement
from meshwright.planning.plan import Planned
from meshwright.system.model import System
from meshwright.text.spec import format_counts, one_of, shown

ORDERS = ("axes", "devices")
MOST_RANKS = 2**20
"""The most ranks in a file."""

CORES = ("core", "cpu", "pu", "thread")
"""What a level is called whose devices are cores. All other devices are taken for GPUs."""

HOSTS = ("node", "host")
"""What a level is called whose instances are hosts, where nobody says how many hosts there are."""

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


def seats_of(request: Request) -> list[Seating]:
    """Where each rank of a plan runs, on the hosts of a request."""
    if not request.hosts:
        raise SpecError("say where the plan is to run: either --hosts a,b,… or --hostfile FILE")
    return seatings(request.plan.placement, request.hosts, request.order)


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


def devices_per_host(request: Request) -> int | None:
    """How many devices a host has: by the number of hosts, or by the level that is called node or host; or unknown."""
    system = request.plan.placement.system
    if request.hosts:
        host_level(system, len(request.hosts))
        return system.devices // len(request.hosts)
    found = [prod(system.counts[k + 1 :]) for k, level in enumerate(system.levels) if level.name in HOSTS]
    return found[0] if found else None


def hosts_spanned(request: Request, planned: Planned, grouping: Grouping | None = None) -> int | None:
    """Over how many hosts a group of a reduction is spread, or a group of one of its steps; None if that is unknown."""
    each, layout = devices_per_host(request), layout_of(request.plan.placement, planned.communication.axes)
    chosen = layout.levels if grouping is None else layout.levels[grouping.first : grouping.last + 1]
    counts = layout.system.counts
    return None if each is None else prod(layout.radices[k] for k in chosen if prod(counts[k + 1 :]) >= each)


def in_order(seats: Sequence[Seating]) -> bool:
    """Whether on each host the positions increase with the ranks."""
    return all(positions == sorted(positions) for positions in by_host(seats).values())


def by_host(seats: Sequence[Seating]) -> dict[str, list[int]]:
    """The positions of every host's ranks, in the order of the ranks; hosts in the order of their first ranks."""
    found: dict[str, list[int]] = {}
    for seat in seats:
        found.setdefault(seat.host, []).append(seat.position)
    return found


def filled_in_turn(seats: Sequence[Seating], tool: str) -> dict[str, list[int]]:
    """`by_host`, for tools that fill one host after the other; refuses ranks that are not in such an order."""
    found = by_host(seats)
    each = len(seats) // len(found)
    for seat in seats:
        first = seats[seat.rank - seat.rank % each]
        if seat.host != first.host:
            raise SpecError(
                f"{tool} fills one host after the other, but by the axes rank {first.rank} belongs on {first.host} and "
                f"rank {seat.rank} on {seat.host}; write a rankfile, hostfile or slurm file instead, or say --order "
                "devices and make the mesh in the program with the line that `meshwright plan` shows"
            )
    return found


def devices_are_cores(system: System) -> bool:
    """Whether the devices of a system are cores."""
    return system.levels[-1].name.lower().removesuffix("s") in CORES


def gpu_wrapper(system: System, seats: Sequence[Seating]) -> str:
    """A shell script that starts a command with the one GPU that is meant for its rank in CUDA_VISIBLE_DEVICES."""
    if devices_are_cores(system):
        raise SpecError(
            f"a wrapper gives each rank its GPU, but the devices of this system are {system.levels[-1].name}s: --bind "
            "binds ranks to them in a rankfile"
        )
    ranks: dict[int, list[str]] = {}
    for seat in seats:
        ranks.setdefault(seat.position, []).append(str(seat.rank))
    cases = "".join(f"{'|'.join(ranks[position])}) CUDA_VISIBLE_DEVICES={position} ;;\n" for position in sorted(ranks))
    return (
        "#!/bin/sh\n# Starts a command with the GPU of its rank: mpirun … sh THIS_FILE COMMAND …\n"
        "rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${SLURM_PROCID:?start this with mpirun, mpiexec or srun}}}\n"
        f"case $rank in\n{cases}"
        f'*) echo "this is rank $rank, but the plan has {len(seats)} ranks" >&2; exit 2 ;;\nesac\n'
        'export CUDA_VISIBLE_DEVICES\nexec "$@"\n'
    )
