"""Peers on MPI's world communicator."""

import time
from typing import TypeVar

import numpy as np
from mpi4py import MPI

from meshwright.runtime.waiting import Watchdog

T = TypeVar("T")


class MpiPeers:
    """The ranks of MPI's world. One that waits too long ends with a message, and mpirun then ends the others."""

    def __init__(self, timeout: float) -> None:
        self._comm = MPI.COMM_WORLD
        self.rank, self.size = self._comm.rank, self._comm.size
        self._watchdog = Watchdog(timeout, self.rank)
        self._given = self._taken = np.zeros(0, dtype=np.uint8)

    def everyone(self, value: T) -> list[T]:
        """What each rank says, by rank."""
        with self._watchdog("hearing from all ranks"):
            return list(self._comm.allgather(value))

    def shared(self, value: T) -> T:
        """What rank 0 says."""
        with self._watchdog("hearing from rank 0"):
            said: T = self._comm.bcast(value)
            return said

    def wait(self) -> None:
        """Wait until all ranks have come here."""
        with self._watchdog("waiting for all ranks"):
            self._comm.Barrier()

    def trip(self, partner: int, begins: bool, count: int) -> float:
        """The shortest time of a tiny message to the partner and back."""
        token = np.zeros(1, dtype=np.uint8)
        times = []
        with self._watchdog(f"a round trip with rank {partner}"):
            for _ in range(count):
                started = time.perf_counter()
                if begins:
                    self._comm.Send(token, partner)
                self._comm.Recv(token, partner)
                if not begins:
                    self._comm.Send(token, partner)
                times.append(time.perf_counter() - started)
        return min(times)

    def transfer(self, to: int | None, source: int | None, size: int, blocks: int) -> list[float]:
        """Send blocks to one rank and receive some from another; when each block was received."""
        if len(self._given) < size:
            self._given, self._taken = np.zeros((2, size), dtype=np.uint8)
        given, taken = self._given[:size], self._taken[:size]
        times = []
        with self._watchdog("a transfer"):
            started = time.perf_counter()
            coming = [self._comm.Irecv(taken, source) for _ in range(blocks)] if source is not None else []
            going = [self._comm.Isend(given, to) for _ in range(blocks)] if to is not None else []
            for request in coming:
                request.Wait()
                times.append(time.perf_counter() - started)
            for request in going:
                request.Wait()
        return times

    def close(self) -> None:
        """Watch no longer; MPI itself ends with the process."""
        self._watchdog.close()
