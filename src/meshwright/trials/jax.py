"""Trials on JAX: all devices of this process, and with jax.distributed those of the others."""

import os
import time
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from meshwright.engine import share
from meshwright.jax import Reducer, factor_mesh
from meshwright.plan import Plan
from meshwright.program import Goal
from meshwright.trials import Array, Payload


def join() -> None:
    """Join the other processes, where a launcher has started several: Slurm, Open MPI, or JAX's own variables."""
    environment = os.environ
    if "JAX_COORDINATOR_ADDRESS" in environment and "JAX_NUM_PROCESSES" in environment:
        jax.distributed.initialize(
            environment["JAX_COORDINATOR_ADDRESS"],
            int(environment["JAX_NUM_PROCESSES"]),
            int(environment["JAX_PROCESS_ID"]),
        )
    elif any(int(environment.get(name, "1")) > 1 for name in ("OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")):
        jax.distributed.initialize()


class JaxEngine:
    """Runs a plan on jax.devices()."""

    name = "jax"

    def __init__(self) -> None:
        """Join the other processes, if there are any."""
        join()

    def load(self, plan: Plan) -> None:
        """Make the mesh."""
        self.plan = plan
        self._reducer = Reducer(plan)
        self._mesh = factor_mesh(plan)
        self._rank = {device: rank for rank, device in enumerate(jax.devices())}
        self.ranks = sorted(self._rank[device] for device in jax.local_devices())
        every = self._reducer.axes(*plan.placement.axes)
        self._sharding = NamedSharding(self._mesh, PartitionSpec(every))
        positions = plan.placement.factor_mesh().reshape(-1).tolist()
        self._row = {rank: row for row, rank in enumerate(positions)}

    def prepare(self, payload: Payload) -> None:
        """Make the data, and compile both functions."""
        self._payload = payload
        columns = share(payload.length, len(payload.group(0)), 0) if payload.goal is Goal.ALL_GATHER else payload.length
        ranks = {row: rank for rank, row in self._row.items()}

        def row(index: Any) -> Array:
            given = payload.given(ranks[index[0].start])
            return np.pad(given, (0, columns - given.size))[None]

        shape = (len(self._row), columns)
        self._rows = jax.make_array_from_callback(shape, self._sharding, row)
        self._functions = {False: self._compile(self._program), True: self._compile(self._default)}
        self._left: Any = None

    def _compile(self, work: Any) -> Any:
        spec = self._sharding.spec
        mapped = jax.shard_map(lambda row: work(row[0])[None], mesh=self._mesh, in_specs=spec, out_specs=spec)
        return jax.jit(mapped).lower(self._rows).compile()

    def _program(self, row: Any) -> Any:
        number = self._payload.number
        if self._payload.goal is Goal.ALL_REDUCE:
            return self._reducer.all_reduce(row, over=number)
        if self._payload.goal is Goal.REDUCE_SCATTER:
            return self._reducer.reduce_scatter(row, over=number)
        return self._reducer.all_gather(row, over=number)

    def _default(self, row: Any) -> Any:
        axes = self.plan.reductions[self._payload.number].reduction.axes
        placed = [axis for axis in self.plan.placement.axes if axis in axes]
        names = tuple(
            name
            for level in self.plan.placement.system.levels
            for axis in placed
            if (name := f"{axis}_{level.name}") in self._mesh.axis_names
        )
        if not names:
            return row
        if self._payload.goal is Goal.ALL_REDUCE:
            return lax.psum(row, names)
        if self._payload.goal is Goal.REDUCE_SCATTER:
            padded = jax.numpy.pad(row, (0, -row.size % len(self._payload.group(0))))
            return lax.psum_scatter(padded, names, tiled=True)
        return lax.all_gather(row, names, tiled=True)

    def run(self, default: bool) -> float:
        """Run the reduction once on all devices."""
        started = time.perf_counter()
        self._left = jax.block_until_ready(self._functions[default](self._rows))
        return time.perf_counter() - started

    def results(self) -> list[Array | None]:
        """What each device of this process has, without padding."""
        rows = {self._rank[shard.device]: np.asarray(shard.data)[0] for shard in self._left.addressable_shards}
        results: list[Array | None] = []
        for rank in self.ranks:
            length = self._payload.length
            if self._payload.goal is Goal.REDUCE_SCATTER:
                length = self._payload.share(rank)
            results.append(rows[rank][:length])
        return results

    def everyone(self, faults: list[str]) -> list[str]:
        """The faults of this process: each one prints its own."""
        return faults

    def shared(self, value: Any) -> Any:
        """Every process decides alike."""
        return value

    def close(self) -> None:
        """Give the compiled code back."""
        self._functions.clear()
