"""A rank file for Open MPI: the host of every rank, and its cores where devices are cores."""

from meshwright.errors import SpecError
from meshwright.export.hosts import devices_are_cores, in_order, seats_of
from meshwright.export.request import OUT_OF_ORDER, Exported, Request

UNBOUND = "S*"
"""The slot in Open MPI's rank files that means all cores of all sockets. Every line needs a slot, and Open MPI takes a
plain `*` for core 0.
"""


def rankfile(request: Request) -> Exported:
    """A line for every rank; with `bind`, each is bound to the core whose number is the rank's position."""
    seats, system = seats_of(request), request.plan.placement.system
    if request.bind and not devices_are_cores(system):
        raise SpecError(
            f"--bind binds ranks to cores, but the devices of this system are {system.levels[-1].name}s: --wrapper "
            "FILE writes a script that gives each rank its GPU"
        )
    slots = ((seat, seat.position if request.bind else UNBOUND) for seat in seats)
    text = "".join(f"rank {seat.rank}={seat.host} slot={slot}\n" for seat, slot in slots)
    return Exported(text, () if request.bind or in_order(seats) else (OUT_OF_ORDER,))
