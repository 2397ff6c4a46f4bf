"""Trials on JAX: all devices of this process, and with jax.distributed those of the others."""

import os
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from meshwright.errors import EngineError
from meshwright.jax import Reducer, factor_mesh
from meshwright.language.goals import Goal, Holding
from meshwright.measure.trials.trial import Array, Payload, Runner
from meshwright.planning.plan import Plan
from meshwright.runtime.role import part_length
from meshwright.runtime.slurm import first_host, meeting_port, spread_by_file
from meshwright.runtime.waiting import Watchdog
from meshwright.runtime.words import first_line


def join(timeout: float) -> None:
    """Join the other processes, where a launcher has started several: Slurm, Open MPI, or JAX's own variables."""
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    given = [os.environ[name] for name in names if name in os.environ]
    launched = any(
        os.environ.get(name, "1") not in ("", "1") for name in ("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
    )
    if given and len(given) < len(names):
        raise EngineError(f"to join processes, all of {', '.join(names)} must be set")
    try:
        patience = max(1, int(timeout))
        if given:
            address, processes, process = given
            jax.distributed.initialize(address, int(processes), int(process), initialization_timeout=patience)
        elif launched:
            # JAX takes the first host that Slurm names for that of process 0, wherever a host file has put it.
            where = f"{first_host(os.environ)}:{meeting_port(os.environ)}" if spread_by_file(os.environ) else None
            jax.distributed.initialize(where, initialization_timeout=patience)
    except (ValueError, RuntimeError) as error:
        raise EngineError(f"cannot join the other processes: {first_line(error)}") from error


class JaxRunner(Runner):
    """Runs a plan on jax.devices()."""

    name = "jax"

    def __init__(self, timeout: float, local: bool) -> None:
        """Join the other processes, if there are any, unless all devices are to be here."""
        if not local:
            join(timeout)
        jax.config.update("jax_enable_x64", True)  # or 64 bits would silently be 32
        self._watchdog = Watchdog(timeout, jax.process_index())
        self._rank = {device: rank for rank, device in enumerate(jax.devices())}
        self.ranks = sorted(self._rank[device] for device in jax.local_devices())

    def load(self, plan: Plan) -> None:
        """Make the mesh."""
        self.plan = plan
        self._reducer = Reducer(plan)
        self._mesh = factor_mesh(plan)
        every = self._reducer.axes(*plan.placement.axes)
        self._sharding = NamedSharding(self._mesh, PartitionSpec(every))
        positions = plan.placement.factor_mesh().reshape(-1).tolist()
        self._row = {rank: row for row, rank in enumerate(positions)}

    def prepare(self, payload: Payload) -> None:
        """Make the data, and compile both functions."""
        self._payload = payload
        columns = payload.length
        if payload.goal.start is Holding.PART:
            columns = part_length(payload.length, len(payload.group(0)), 0)
        ranks = {row: rank for rank, row in self._row.items()}

        def row(index: Any) -> Array:
            given = payload.given(ranks[index[0].start or 0])
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
        method = getattr(self._reducer, self._payload.goal.replace("-", "_"))
        return method(row, over=self._payload.number)

    def _default(self, row: Any) -> Any:
        levels = self._reducer.levels(self.plan.reductions[self._payload.number])
        names = tuple(name for level in levels for name in level)
        if not names:
            return row
        if self._payload.goal is Goal.ALL_REDUCE:
            return lax.psum(row, names)
        if self._payload.goal is Goal.REDUCE_SCATTER:
            padded = jax.numpy.pad(row, (0, -row.size % len(self._payload.group(0))))
            return lax.psum_scatter(padded, names, tiled=True)
        return lax.all_gather(row, names, tiled=True)

    def send(self, pairs: Sequence[tuple[int, int]]) -> float:
        """Not here."""
        raise EngineError(f"JAX sends nothing from device to device, so {len(pairs)} sends cannot be timed")

    def run(self, default: bool, alone: bool = False) -> float:
        """Run the reduction once on all devices."""
        if alone:
            raise EngineError("all groups run at once here")
        with self._watchdog("a reduction"):
            self._everywhere(0.0)  # so that all start together
            started = time.perf_counter()
            self._left = jax.block_until_ready(self._functions[default](self._rows))
            return max(self._everywhere(time.perf_counter() - started))

    def _everywhere(self, value: float) -> list[float]:
        """What every process has."""
        if jax.process_count() == 1:
            return [value]
        gathered = multihost_utils.process_allgather(np.array([value]))
        return [float(each) for each in np.ravel(gathered)]

    def results(self) -> list[Array | None]:
        """What each device of this process has, without padding."""
        rows = {self._rank[shard.device]: np.asarray(shard.data)[0] for shard in self._left.addressable_shards}
        return [rows[rank][: self._payload.end_length(rank)] for rank in self.ranks]

    def everyone(self, faults: list[str]) -> list[str]:
        """The faults of this process, and which others have some."""
        with self._watchdog("comparing results"):
            counts = self._everywhere(len(faults))
        others = [k for k, count in enumerate(counts) if count and k != jax.process_index()]
        return faults + [f"process {k} has {int(counts[k])} wrong results" for k in others]

    def close(self) -> None:
        """Give the compiled code back."""
        self._functions.clear()
