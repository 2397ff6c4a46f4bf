"""A host file for MPICH and Intel MPI (a machinefile): a line for every rank."""

from meshwright.export.hosts import in_order, seats_of
from meshwright.export.request import OUT_OF_ORDER, Exported, Request


def hostfile(request: Request) -> Exported:
    """The host of every rank, one rank at a time: `mpiexec -f FILE`."""
    seats = seats_of(request)
    return Exported("".join(f"{seat.host}:1\n" for seat in seats), () if in_order(seats) else (OUT_OF_ORDER,))
