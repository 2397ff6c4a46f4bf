"""Peers on PyTorch's process group with gloo, which torchrun's environment describes."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist
from torch.distributed import DistNetworkError

from meshwright.errors import EngineError
from meshwright.runtime.words import first_line, rank_list
from meshwright.torch.channel import default_store, tell_first

T = TypeVar("T")

HEARING = 6.0
"""Seconds that rank 0 waits for the others to say that they failed too."""

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
        self.rank, self.size, self._store = dist.get_rank(), dist.get_world_size(), default_store()

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

    def close(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()

    @contextmanager
    def _words(self, what: str) -> Iterator[None]:
        """Say what failed, and which ranks are gone: those that do not tell rank 0 through the store that they failed.

        A rank that fails leaves the process group first, so that those who wait for it fail too.
        """
        try:
            yield
        except RuntimeError as error:
            reason = first_line(error)
            dist.destroy_process_group()
            everyone = range(self.size)
            alive = tell_first(self._store, everyone, self.rank, "meshwright/failed", json.dumps(reason), HEARING)
            gone = [rank for rank in everyone if rank not in alive]
            who = f"{rank_list(gone)} died or hung" if gone and self.rank == 0 else "a rank died or hung"
            raise EngineError(f"{who}: {what} failed: {reason}", agreed=True) from error
