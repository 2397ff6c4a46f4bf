"""Trials on MPI: one rank in each process, started by mpirun."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from meshwright.language.goals import Goal
from meshwright.measure.trials.trial import Array, Payload, Runner, program_call
from meshwright.mpi import Reducer
from meshwright.mpi.collectives import run_collective
from meshwright.planning.plan import Plan
from meshwright.runtime.role import part_length
from meshwright.runtime.waiting import Watchdog


class MpiRunner(Runner):
    """Runs a plan on the world communicator."""

    name = "mpi"

    def __init__(self, timeout: float) -> None:
        self._comm = MPI.COMM_WORLD
        self._timeout = timeout
        self._watchdog = Watchdog(timeout, self._comm.rank)
        self.ranks = (self._comm.rank,)
        self._reducer: Reducer | None = None
        self._whole: dict[tuple[str, ...], Any] = {}

    def load(self, plan: Plan) -> None:
        """Make the plan's communicators, and those of whole reduction groups for the library's own collectives."""
        self._unload()
        self._reducer = Reducer(plan, timeout=self._timeout, check="never")
        for planned in plan.reductions:
            axes = planned.communication.axes
            if axes not in self._whole:
                groups = plan.placement.groups(axes)
                color = next(k for k, group in enumerate(groups) if self._comm.rank in group)
                with self._watchdog("making communicators"):
                    self._whole[axes] = self._comm.Split(color, self._comm.rank)

    def _unload(self) -> None:
        with self._watchdog("giving communicators back"):
            for group in self._whole.values():
                group.Free()
        self._whole.clear()
        if self._reducer is not None:
            self._reducer.close()

    def prepare(self, payload: Payload) -> None:
        """Make the data."""
        self._payload = payload
        self._given = payload.given(self._comm.rank)
        self._buffer = self._given.copy()
        assert self._reducer is not None
        self._program = program_call(self._reducer, payload, np.empty(payload.length, self._buffer.dtype))
        self._left: Array | None = None

    def run(self, default: bool, alone: bool = False) -> float:
        """Run the reduction once on all ranks, or on the first group alone."""
        self._buffer[...] = self._given
        self._left = None
        with self._watchdog("the barrier before a run"):
            self._comm.Barrier()
        started = time.perf_counter()
        if not alone or 0 in self._payload.group(self._comm.rank):
            if default:
                with self._watchdog("the library's own collective"):
                    self._left = self._default()
            else:
                self._left = self._program(self._buffer)
        return self._slowest(time.perf_counter() - started)

    def _slowest(self, seconds: float) -> float:
        with self._watchdog("comparing times"):
            return float(self._comm.allreduce(seconds, MPI.MAX))

    def send(self, pairs: Sequence[tuple[int, int]]) -> float:
        """Send the buffer from some ranks to others, all at once."""
        with self._watchdog("the barrier before sends"):
            self._comm.Barrier()
        started = time.perf_counter()
        for sender, receiver in pairs:
            if self._comm.rank == sender:
                self._comm.Send(self._buffer, receiver)
                self._comm.recv(source=receiver)  # so that the sender knows when all has arrived
            elif self._comm.rank == receiver:
                self._comm.Recv(self._buffer, sender)
                self._comm.send(None, sender)
        return self._slowest(time.perf_counter() - started)

    def _default(self) -> Array:
        buffer, goal = self._buffer, self._payload.goal
        group = self._whole[self._payload.plan.reductions[self._payload.number].communication.axes]
        if goal.in_place:
            assert goal.flat is not None
            run_collective(goal.flat, group, buffer, buffer, "sum")
            return buffer
        sizes = [part_length(self._payload.length, group.size, k) for k in range(group.size)]
        result = np.empty(self._payload.end_length(self._comm.rank), buffer.dtype)
        if goal is Goal.REDUCE_SCATTER:
            group.Reduce_scatter(buffer, result, sizes)
        else:
            group.Allgatherv(buffer, [result, sizes])
        return result

    def results(self) -> list[Array | None]:
        """What this rank has."""
        return [self._left]

    def everyone(self, faults: list[str]) -> list[str]:
        """The faults of all ranks."""
        with self._watchdog("comparing results"):
            return [fault for each in self._comm.allgather(faults) for fault in each]

    def shared(self, value: Any) -> Any:
        """What the first rank has."""
        with self._watchdog("hearing from rank 0"):
            return self._comm.bcast(value)

    def close(self) -> None:
        """Give the communicators back."""
        self._unload()
