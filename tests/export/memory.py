"""What the interpreters share: who may have read or written a place at the same time, by vector clocks."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Clock = np.ndarray[Any, np.dtype[np.int64]]


class RaceError(AssertionError):
    """Two threads use the same memory, one of them writes, and nothing says who is first."""


class Clocks:
    """For every thread, how much of all threads has surely happened before; and the last uses of every place."""

    def __init__(self, threads: int) -> None:
        self.now = [np.zeros(threads, np.int64) for _ in range(threads)]
        self.writer: dict[int, tuple[int, int]] = {}
        self.readers: dict[int, dict[int, int]] = {}

    def tick(self, thread: int) -> Clock:
        """The thread does something; what it has done so far, for others who wait for it."""
        self.now[thread][thread] += 1
        return self.now[thread].copy()

    def join(self, thread: int, other: Clock) -> None:
        """The thread has waited for another one that was so far."""
        np.maximum(self.now[thread], other, out=self.now[thread])

    def use(self, thread: int, rows: Array, writes: bool) -> None:
        """The thread reads or writes some rows of an array."""
        for row in rows:
            place = row.__array_interface__["data"][0]
            before = [self.writer[place]] if place in self.writer else []
            if writes:
                before += list(self.readers.get(place, {}).items())
            for other, at in before:
                if other != thread and self.now[thread][other] < at:
                    raise RaceError(f"threads {other} and {thread} use the same place at the same time")
            at = int(self.now[thread][thread]) + 1
            if writes:
                self.writer[place], self.readers[place] = (thread, at), {}
            else:
                self.readers.setdefault(place, {})[thread] = at


JUNK = -1_000_003


def buffers(goal: str, sizes: list[tuple[int, int, int]], width: int, in_place: bool, seed: int) -> Any:
    """For every device its input, output and scratch buffer, with a row for each chunk; and the true results.

    In place, input and output are the same memory, or one lies inside the other, as NCCL has it.
    """
    rng = np.random.default_rng(seed)
    found, results = [], []
    inputs = [rng.integers(0, 1000, (size[0], width)) for size in sizes]
    total = np.sum(inputs, axis=0)
    for device, (given, result, scratch) in enumerate(sizes):
        if not in_place:
            i, o = inputs[device].copy(), np.full((result, width), JUNK)
        elif goal == "reducescatter":
            i = inputs[device].copy()
            o = i[device * result : (device + 1) * result]
        elif goal == "allgather":
            o = np.full((result, width), JUNK)
            i = o[device * given : (device + 1) * given]
            i[:] = inputs[device]
        else:
            i = o = inputs[device].copy()
        found.append({"i": i, "o": o, "s": np.full((scratch, width), JUNK)})
        results.append(
            {
                "allreduce": total,
                "reducescatter": total[device * result : (device + 1) * result],
                "allgather": np.concatenate(inputs),
                "broadcast": inputs[0],
                "reduce": total if device == 0 else None,
            }[goal]
        )
    return found, inputs, results
