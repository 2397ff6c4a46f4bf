"""What discovery asks of the ranks of a job, whatever started them; and which library they talk through."""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Protocol, TypeVar

from meshwright.errors import EngineError
from meshwright.measure.trials.runners import require
from meshwright.runtime.dropin import launched
from meshwright.runtime.slurm import with_slurm

T = TypeVar("T")

ENGINES = ("torch", "mpi", "jax")


class Peers(Protocol):
    """The ranks of a job. All of them make the same calls in the same order."""

    rank: int
    size: int

    def everyone(self, value: T) -> list[T]:
        """What each rank says, by rank."""

    def shared(self, value: T) -> T:
        """What rank 0 says."""

    def wait(self) -> None:
        """Wait until all ranks have come here."""

    def trip(self, partner: int, begins: bool, count: int) -> float:
        """Send a tiny message to the partner and get it back, `count` times; the shortest time in seconds."""

    def transfer(self, to: int | None, source: int | None, size: int, blocks: int) -> list[float]:
        """Send blocks of `size` bytes to one rank, and receive as many from another, all at once; either may be None.

        Returns the seconds after which each block was received.
        """

    def close(self) -> None:
        """Leave the job."""


def job_engine(environment: Mapping[str, str]) -> str | None:
    """The library that a launcher's variables ask for; None if no launcher has started this process.

    >>> job_engine({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"})
    'mpi'
    """
    if "RANK" in environment and "MASTER_ADDR" in environment:
        return "torch"
    if "OMPI_COMM_WORLD_RANK" in environment or "MPI_LOCALRANKID" in environment:
        return "mpi"
    if launched(environment) is not None:  # Slurm, which has no library of its own
        return "torch" if find_spec("torch") is not None else "mpi"
    return None


def join(engine: str | None, timeout: float) -> Peers:
    """Meet the other ranks of this job."""
    engine = engine or job_engine(os.environ)
    if engine is None:
        raise EngineError(
            "no launcher has started this process: start it in every rank, with torchrun, srun or mpirun, as in: "
            "torchrun --nproc-per-node=8 -m meshwright discover"
        )
    require(engine)
    if engine == "mpi":
        from meshwright.measure.peers.mpi import MpiPeers

        return MpiPeers(timeout)
    if engine == "jax":
        from meshwright.measure.peers.jax import JaxPeers

        return JaxPeers(timeout)
    from meshwright.measure.peers.torch import TorchPeers

    with_slurm(os.environ)
    return TorchPeers(timeout)
