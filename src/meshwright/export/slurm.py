"""A host file for Slurm: the host of every task, for `srun --distribution=arbitrary`."""

from meshwright.export.hosts import in_order, seats_of
from meshwright.export.request import OUT_OF_ORDER, Exported, Request

SORTED = (
    "Slurm sorts SLURM_NODELIST whatever the order of this file; Lightning and JAX take its first host for that of "
    "rank 0, so set MASTER_ADDR for the one, and coordinator_address for the other"
)


def slurm(request: Request) -> Exported:
    """The host of every rank: `SLURM_HOSTFILE=FILE srun --distribution=arbitrary`."""
    seats = seats_of(request)
    notes = (SORTED,) if in_order(seats) else (SORTED, OUT_OF_ORDER)
    return Exported("".join(f"{seat.host}\n" for seat in seats), notes)
