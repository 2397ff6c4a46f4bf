"""Peers on MPI's world communicator."""

from typing import TypeVar

from mpi4py import MPI

from meshwright.runtime.waiting import Watchdog

T = TypeVar("T")


class MpiPeers:
    """The ranks of MPI's world. One that waits too long ends with a message, and mpirun then ends the others."""

    def __init__(self, timeout: float) -> None:
        self._comm = MPI.COMM_WORLD
        self.rank, self.size = self._comm.rank, self._comm.size
        self._watchdog = Watchdog(timeout, self.rank)

    def everyone(self, value: T) -> list[T]:
        """What each rank says, by rank."""
        with self._watchdog("hearing from all ranks"):
            return list(self._comm.allgather(value))

    def shared(self, value: T) -> T:
        """What rank 0 says."""
        with self._watchdog("hearing from rank 0"):
            said: T = self._comm.bcast(value)
            return said

    def close(self) -> None:
        """Watch no longer; MPI itself ends with the process."""
        self._watchdog.close()
