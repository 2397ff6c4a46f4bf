"""Peers on PyTorch's process group with gloo, which torchrun's environment describes."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed import DistNetworkError

from meshwright.errors import EngineError
from meshwright.measure.peers.watch import Watched, Watcher
from meshwright.runtime.words import first_line, rank_list
from meshwright.torch.channel import default_store

T = TypeVar("T")

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class TorchPeers:
    """The ranks of a process group of its own."""

    def __init__(self, timeout: float) -> None:
        if missing := [name for name in VARIABLES if name not in os.environ]:
            raise EngineError(f"{', '.join(missing)} missing: PyTorch's ranks need them to meet; torchrun sets them")
        try:
            dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
        except (RuntimeError, ValueError) as error:
            where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            lost = isinstance(error, DistNetworkError)  # this rank alone may be cut off; others would not know
            message = f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} cannot meet the others at {where}"
            raise EngineError(f"{message}: {first_line(error)}", agreed=not lost) from error
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        store = default_store()
        self._watch = Watched(store, self.rank, timeout) if self.rank else Watcher(store, self.size, timeout)
        self._given = self._taken = torch.zeros(0, dtype=torch.uint8)

    def everyone(self, value: T) -> list[T]:
        """What each rank says, by rank."""
        said: list[T] = [value] * self.size
        with self._words("hearing from all ranks"):
            dist.all_gather_object(said, value)
        return said

    def shared(self, value: T) -> T:
        """What rank 0 says."""
        said = [value]
        with self._words("hearing from rank 0"):
            dist.broadcast_object_list(said)
        return said[0]

    def wait(self) -> None:
        """Wait until all ranks have come here."""
        with self._words("waiting for all ranks"):
            dist.barrier()

    def trip(self, partner: int, begins: bool, count: int) -> float:
        """The shortest time of a tiny message to the partner and back."""
        token = torch.zeros(1, dtype=torch.uint8)
        times = []
        with self._words(f"a round trip between ranks {self.rank} and {partner}"):
            for _ in range(count):
                started = time.perf_counter()
                if begins:
                    dist.send(token, partner)
                dist.recv(token, partner)
                if not begins:
                    dist.send(token, partner)
                times.append(time.perf_counter() - started)
        return min(times)

    def transfer(self, to: int | None, source: int | None, size: int, blocks: int) -> list[float]:
        """Send blocks to one rank and receive some from another; when each block was received."""
        if len(self._given) < size:
            self._given, self._taken = (torch.zeros(size, dtype=torch.uint8) for _ in range(2))
        given, taken = self._given[:size], self._taken[:size]
        times = []
        with self._words(f"a transfer of rank {self.rank}"):
            started = time.perf_counter()
            coming = [dist.irecv(taken, source) for _ in range(blocks)] if source is not None else []
            going = [dist.isend(given, to) for _ in range(blocks)] if to is not None else []
            for work in coming:
                assert work is not None
                work.wait()
                times.append(time.perf_counter() - started)
            for sent in going:
                assert sent is not None
                sent.wait()
        return times

    def close(self) -> None:
        """Leave the process group."""
        self._watch.close()
        dist.destroy_process_group()

    @contextmanager
    def _words(self, what: str) -> Iterator[None]:
        """Say what failed, and on rank 0 which ranks are gone.

        A rank that fails leaves the process group first, so that those who wait for it fail too.
        """
        self._watch.call(begins=True)
        try:
            yield
        except RuntimeError as error:
            reason = first_line(error)
            dist.destroy_process_group()
            gone = self._watch.gone() if isinstance(self._watch, Watcher) else []
            self._watch.close()
            who = f"{rank_list(gone)} died or hung" if gone else "a rank died, hung or came late"
            raise EngineError(f"{who}: {what} failed: {reason}", agreed=True) from error
        self._watch.call(begins=False)
