"""Trials with the interpreter: all ranks in this process, no network."""

import time
from collections.abc import Sequence

import numpy as np

from meshwright.errors import EngineError
from meshwright.language.goals import Holding, flat_program
from meshwright.language.interpreter import run_program
from meshwright.measure.trials.trial import Array, Payload, Runner, check_memory
from meshwright.planning.plan import Plan
from meshwright.runtime.role import program_at


class NumpyRunner(Runner):
    """Runs every group of a reduction in turn."""

    name = "numpy"
    ranks: Sequence[int] = (0,)  # and all the others, once a plan is loaded

    def load(self, plan: Plan) -> None:
        """All ranks are here."""
        self.plan = plan
        self.ranks = range(plan.placement.system.devices)

    def prepare(self, payload: Payload) -> None:
        """Make the data."""
        check_memory(payload, interpreted=True)
        self._payload = payload
        self._given = [payload.given(rank) for rank in self.ranks]
        self._left: list[Array | None] = []

    def send(self, pairs: Sequence[tuple[int, int]]) -> float:
        """Not here."""
        raise EngineError(f"the interpreter sends nothing from device to device, so {len(pairs)} sends cannot be timed")

    def run(self, default: bool, alone: bool = False) -> float:
        """Run the program, or the goal's own collective over the whole group."""
        if alone:
            raise EngineError("all groups run at once here")
        planned = self.plan.reductions[self._payload.number]
        hierarchy, goal = self.plan.hierarchy(planned), planned.communication.goal
        pipelined = program_at(planned, self._payload.bytes)
        programs = [flat_program(goal, len(hierarchy.names)) if default else pipelined.program]
        if not default and goal.in_place:
            programs = [program for program, chunks in pipelined.shares for _ in range(chunks)]
        left: list[Array | None] = [None] * len(self.ranks)
        started = time.perf_counter()
        for group in self.plan.placement.groups(planned.communication.axes):
            inputs = [None if goal.start is Holding.ROOT and rank != group[0] else self._given[rank] for rank in group]
            pieces: list[list[Array | None]] = [
                [None] * len(programs) if one is None else list(np.array_split(one, len(programs))) for one in inputs
            ]
            found = [
                run_program(program, hierarchy, [piece[k] for piece in pieces], goal)
                for k, program in enumerate(programs)
            ]
            for rank, results in zip(group, zip(*found, strict=True), strict=True):
                kept = [result for result in results if result is not None]
                left[rank] = np.concatenate(kept) if kept else None
        self._left = left
        return time.perf_counter() - started

    def results(self) -> list[Array | None]:
        """What every rank has."""
        return self._left

    def close(self) -> None:
        """Give the memory back."""
        self._given, self._left = [], []
