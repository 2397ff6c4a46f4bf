"""What discovery asks of the ranks of a job, whatever started them; and which library they talk through."""

import os
import re
from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec
from typing import Protocol, TypeVar

from meshwright.errors import EngineError
from meshwright.measure.trials.runners import require
from meshwright.runtime.dropin import launched
from meshwright.runtime.slurm import first_host, step_hosts

T = TypeVar("T")

ENGINES = ("torch", "mpi", "jax")

PORTS = range(20_000, 30_000)
"""Where ranks that Slurm has started meet, unless MASTER_PORT says another port."""


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


def with_slurm(environment: MutableMapping[str, str]) -> None:
    """Where srun started this process, add what PyTorch needs to know: its rank, and where ranks meet.

    >>> found = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "17", "SLURM_STEP_NODELIST": "n[07-10]"}
    >>> with_slurm(found)
    >>> found["RANK"], found["WORLD_SIZE"], found["MASTER_ADDR"], found["MASTER_PORT"]
    ('3', '8', 'n07', '20017')
    """
    found = launched(environment)
    if not step_hosts(environment) or found is None or "RANK" in environment:
        return
    if "MASTER_ADDR" not in environment:
        try:
            environment["MASTER_ADDR"] = first_host(environment)
        except EngineError as error:
            raise EngineError(f"{error}; set MASTER_ADDR") from None
    number = sum(int(environment[name]) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID") if _number(environment, name))
    environment.setdefault("MASTER_PORT", str(PORTS[number % len(PORTS)]))
    environment.update(RANK=str(found[0]), WORLD_SIZE=str(found[1]))


def _number(environment: Mapping[str, str], name: str) -> bool:
    return re.fullmatch("[0-9]{1,12}", environment.get(name, "")) is not None
