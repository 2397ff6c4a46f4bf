"""Peers on JAX's processes: they tell each other things, through JAX's own gathering of arrays; they do not measure."""

import pickle
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from meshwright.errors import SpecError
from meshwright.measure.trials.jax import join
from meshwright.runtime.waiting import Watchdog

T = TypeVar("T")


class JaxPeers:
    """The processes of a JAX program; each may have several devices."""

    def __init__(self, timeout: float) -> None:
        join(timeout)
        self.rank, self.size = jax.process_index(), jax.process_count()
        self._watchdog = Watchdog(timeout, self.rank)

    def everyone(self, value: T) -> list[T]:
        """What each process says, by its number."""
        said = np.frombuffer(pickle.dumps(value), dtype=np.uint8)
        with self._watchdog("hearing from all processes"):
            lengths = _gathered(np.array([len(said)])).reshape(-1)
            padded = np.zeros(int(lengths.max()), dtype=np.uint8)
            padded[: len(said)] = said
            rows = _gathered(padded).reshape(self.size, -1)
        return [pickle.loads(row[:length].tobytes()) for row, length in zip(rows, lengths, strict=True)]

    def shared(self, value: T) -> T:
        """What process 0 says."""
        return self.everyone(value)[0]

    def close(self) -> None:
        """Watch no longer; JAX itself ends with the process."""
        self._watchdog.close()

    def wait(self) -> NoReturn:
        """Refuse."""
        raise SpecError("JAX's processes cannot be measured between: use ranks of PyTorch or MPI")

    def trip(self, *_: Any) -> NoReturn:
        """Refuse."""
        self.wait()

    def transfer(self, *_: Any) -> NoReturn:
        """Refuse."""
        self.wait()


def _gathered(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The arrays of all processes, one after another."""
    return np.asarray(multihost_utils.process_allgather(array))
