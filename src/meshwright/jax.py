"""Plans on JAX meshes: functions for `shard_map` that carry out the plan's programs with XLA's collectives.

The mesh has an axis per factor of the placement, so that every group of a program is a set of mesh axes. Arrays of JAX
cannot be written to, and XLA decides what overlaps, so the runtime's payload and its walk are of no use here.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from meshwright.errors import EngineError
from meshwright.language.goals import Goal, Holding
from meshwright.language.program import ROOTED, Collective, Step, step_text
from meshwright.placement.placement import Placement
from meshwright.planning.plan import Plan, Planned
from meshwright.runtime.calls import Chooser, Notices, Over, check_average, check_operation, describe
from meshwright.runtime.role import Flow, Role, role_of
from meshwright.runtime.schedule import Copy
from meshwright.runtime.seats import Seat, check_devices, layout_fault
from meshwright.text.spec import format_counts, is_name
from meshwright.workload.recorded import Translation, to_workload
from meshwright.workload.traces.hlo import hlo_calls

try:
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import Mesh, NamedSharding
except ImportError as error:
    raise ImportError(f"meshwright.jax needs JAX ({error}): pip install 'meshwright[jax]'") from error

__all__ = ["Reducer", "factor_mesh", "mesh", "placed", "workload"]


def mesh(plan: Plan | Placement, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh with an axis per parallelism axis, named like it; devices are in the system's order (jax.devices())."""
    placement, array = _devices(plan, devices)
    return Mesh(array[placement.mesh()], placement.axes)


def factor_mesh(plan: Plan | Placement, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh with an axis per factor of the placement that is not 1, named like `data_node` and `data_gpu`.

    `PartitionSpec(tuple(placement.factors(["data"])))` shards over the whole axis, in the same order as `mesh` does.
    """
    placement, array = _devices(plan, devices)
    return Mesh(array[placement.factor_mesh()], tuple(placement.factors()))


def _devices(plan: Plan | Placement, devices: Sequence[Any] | None) -> tuple[Placement, Any]:
    placement = plan.placement if isinstance(plan, Plan) else plan
    devices = jax.devices() if devices is None else list(devices)
    check_devices(placement.system, len(devices), "JAX devices")
    hosts = [device.process_index for device in devices]
    seats: dict[int, Seat | None] = {
        number: Seat(hosts[:number].count(host), hosts.count(host)) for number, host in enumerate(hosts)
    }
    if len(set(hosts)) > 1 and (fault := layout_fault(placement.system, seats)):
        raise EngineError(fault)
    array = np.empty(len(devices), dtype=object)
    array[:] = devices
    return placement, array


def placed(tree: Any, plan: Plan | Placement, devices: Sequence[Any] | None = None) -> Any:
    """A tree whose arrays and NamedShardings are on the plan's mesh, each cut along the same axes as before.

    With these a program that is written for its own mesh, with the axes of the plan, runs on the plan's: jit takes the
    mesh from its arguments, or from the shardings that it is given. What else is in the tree stays as it is.
    """
    own = mesh(plan, devices)

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, NamedSharding):
            return NamedSharding(_with_axes_of(leaf.mesh, own), leaf.spec, memory_kind=leaf.memory_kind)
        if isinstance(leaf, jax.Array) and isinstance(leaf.sharding, NamedSharding):
            return jax.device_put(leaf, moved(leaf.sharding))
        return leaf

    return jax.tree.map(moved, tree, is_leaf=lambda leaf: isinstance(leaf, NamedSharding))


def _with_axes_of(other: Any, own: Mesh) -> Mesh:
    """The plan's mesh with the kinds of axes of another, and with the axes of size 1 that the plan does not have."""
    sizes = {name: size for name, size in other.shape.items() if size > 1}
    planned = {name: size for name, size in own.shape.items() if size > 1}
    if sizes != planned:
        raise EngineError(
            f"an array is on a mesh with the axes {format_counts(sizes)}, but the plan has {format_counts(planned)}: "
            "plan for the axes of the program"
        )
    kinds = dict(zip(other.axis_names, other.axis_types, strict=True))
    names = (*(name for name in own.axis_names if name in kinds), *(name for name in kinds if name not in own.shape))
    shape = [other.shape[name] for name in names]
    return Mesh(own.devices.reshape(shape), names, axis_types=tuple(kinds[name] for name in names))


def workload(compiled: Any, axes: Mapping[str, int] | None = None, name: str = "compiled") -> Translation:
    """What a compiled program sends in one run, as a workload; `jax.jit(step).lower(…).compile()` gives a program.

    axes: those of its mesh, in order. If they are not given, they are those of the mesh in its shardings, or, where
    there is none, the fewest that fit.
    """
    calls = hlo_calls(compiled.as_text() or "", "the compiled program")
    known = jax.tree.leaves((compiled.input_shardings, compiled.output_shardings))
    meshes = [sharding.mesh for sharding in known if isinstance(sharding, NamedSharding)]
    if axes is None and meshes and meshes[0].size == calls.world and all(map(is_name, meshes[0].shape)):
        axes = dict(meshes[0].shape)
    found = to_workload(calls.calls, calls.world, 1, axes, name=name)
    return Translation(found.workload, found.left_out, (*calls.notes, *found.notes))


class Reducer:
    """Carries out the programs of a plan; its methods are for use inside `shard_map` over `factor_mesh(plan)`.

    They can be jitted and differentiated, and take an array or a tree of arrays. JAX has no rooted collectives, so the
    programs must do without Reduce and Broadcast.

    >>> from meshwright import Reduction, load_system, plan
    >>> system = load_system("node=2@8GB/s+9us,gpu=4@200GB/s+2us")
    >>> best = plan(system, {"data": 8}, [Reduction(("data",), 2**20)]).candidates[0]
    >>> Reducer(best).axes("data")
    ('data_node', 'data_gpu')
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._choose = Chooser(plan)
        self._notices = Notices(plan, jax.process_index())
        self._factors = plan.placement.factors()
        self._roles = [_role(plan, number) for number in range(len(plan.reductions))]

    def mesh(self, devices: Sequence[Any] | None = None) -> Mesh:
        """The mesh that the methods are for, `factor_mesh(plan)`."""
        return factor_mesh(self.plan, devices)

    def axes(self, *axes: str) -> tuple[str, ...]:
        """The mesh axes of some of the plan's axes: what to put into a PartitionSpec."""
        return tuple(self.plan.placement.factors(axes))

    def all_reduce(self, tree: Any, op: str = "sum", *, over: Over = None) -> Any:
        """Reduce over all devices of the reduction group; op is sum, avg, max or min.

        over: which of the plan's reductions; it may be left out where the plan has one all-reduce.
        """
        return _by_kind(tree, lambda flat: self._run(Goal.ALL_REDUCE, flat, op, over)[: flat.size])

    def reduce_scatter(self, array: Any, op: str = "sum", *, over: Over = None) -> Any:
        """Reduce, and return this device's part of the flat result, padded with zeros where that does not divide."""
        return self._run(Goal.REDUCE_SCATTER, jnp.ravel(array), op, over)

    def all_gather(self, part: Any, *, over: Over = None) -> Any:
        """Put the parts of all devices of the reduction group one after another, flat."""
        return self._run(Goal.ALL_GATHER, jnp.ravel(part), "sum", over)

    def _run(self, goal: Goal, flat: Any, op: str, over: Over) -> Any:
        check_operation(op)
        check_average(op, jnp.issubdtype(flat.dtype, jnp.inexact), flat.dtype)
        number = self._choose(goal, over, flat.nbytes, goal.start is Holding.PART)
        role = self._roles[number]
        levels = self.levels(role.planned)
        names = [name for level in levels for name in level]
        self._check_mesh(names)
        if op in ("sum", "avg") and goal.reduces:
            _check_varying(role.planned, flat, names)
        if flat.size == 0:
            return flat
        size = len(role.ranks)
        if goal.end is Holding.PART:
            flat = jnp.pad(flat, (0, -flat.size % size))
        length = flat.size * (size if goal.start is Holding.PART else 1)
        cut = role.cut(length, flat.dtype.itemsize)
        self._notices.chunks(number, len(cut), length * flat.dtype.itemsize)
        if len(cut) == 1:
            flat = self._program(cut[0].flow, flat, levels, op)
        else:
            # Chunks do not depend on each other, so XLA may let their steps overlap.
            seen = flat.reshape(size, -1) if goal.end is Holding.PART else flat.reshape(1, -1)
            pieces = []
            for flow, start, stop in cut:
                piece = self._program(flow, seen[:, start:stop].reshape(-1), levels, op)
                if goal.in_place:
                    piece = piece[: stop - start]
                pieces.append(piece.reshape(size if goal.start is Holding.PART else 1, -1))
            flat = jnp.concatenate(pieces, axis=1).reshape(-1)
        return flat / size if op == "avg" else flat

    def _program(self, flow: Flow, flat: Any, levels: list[list[str]], op: str) -> Any:
        if flow.schedule.goal.start is not Holding.PART:
            flat = jnp.pad(flat, (0, -flat.size % flow.schedule.blocks))
        for move in flow.schedule.moves:
            if isinstance(move, Copy):
                flat = flat.reshape(*move.shape, -1).transpose(*move.axes, len(move.axes)).reshape(-1)
                continue
            step = flow.program.steps[move.step]
            inside = levels[step.grouping.first : step.grouping.last + 1]
            flat = _collective(step, flat, tuple(name for level in inside for name in level), op)
        return flat

    def levels(self, planned: Planned) -> list[list[str]]:
        """The mesh axes that a reduction goes over, for each level of its hierarchy, most significant first."""
        axes = [axis for axis in self.plan.placement.axes if axis in planned.communication.axes]
        names = self.plan.hierarchy(planned).names
        return [[name for axis in axes if (name := f"{axis}_{level}") in self._factors] for level in names]

    def _check_mesh(self, names: Sequence[str]) -> None:
        """Refuse another mesh than the plan's, as far as JAX tells inside shard_map: its axes, but not its devices."""
        found = jax.sharding.get_abstract_mesh()
        if missing := [name for name in names if name not in found.manual_axes]:
            raise EngineError(
                f"there is no mesh axis {missing[0]!r} here: call this inside shard_map over factor_mesh(plan)"
            )
        has = {name: size for name, size in found.shape.items() if size > 1}
        if list(has.items()) != list(self._factors.items()):
            raise EngineError(
                f"the mesh is {format_counts(has)}, but the plan's is {format_counts(self._factors)}: use "
                "factor_mesh(plan)"
            )


def _check_varying(planned: Planned, flat: Any, names: Sequence[str]) -> None:
    """Refuse to add up what JAX knows to be the same on all devices, as it has added up gradients of such values."""
    varying = _varying(flat)
    same = [name for name in names if name not in varying]
    if not same or not _varying(lax.axis_index(same[0])):  # with check_vma=False nothing is known to vary
        return
    raise EngineError(
        f"the array for the {describe(planned)} is the same along the mesh axes {', '.join(same)}, so adding it up "
        "would only multiply it. Is it a gradient? JAX has already summed the gradients of values that do not vary, "
        f"like weights: before jax.grad, mark those with jax.lax.pcast(weights, {tuple(names)!r}, to='varying')"
    )


def _role(plan: Plan, number: int) -> Role:
    """What every device does in a reduction: without rooted collectives, all do the same as the first."""
    role = role_of(plan, number, 0)
    goal = role.planned.communication.goal
    if Holding.ROOT in (goal.start, goal.end):
        raise EngineError(
            f"JAX has no rooted collectives, so the {describe(role.planned)} cannot run: plan an all-reduce instead"
        )
    for flow in chain(*role.flows.values()):
        for k, step in enumerate(flow.program.steps, 1):
            if step.collective in ROOTED or step.grouping.masters:
                raise EngineError(
                    f"JAX has no rooted collectives, so step {k} ({step_text(step, role.names)}) of the "
                    f"{describe(role.planned)} cannot run: plan without them (plan --no-rooted)"
                )
    return role


def _collective(step: Step, flat: Any, names: tuple[str, ...], op: str) -> Any:
    if step.collective is Collective.ALL_REDUCE:
        return _REDUCE[op](flat, names)
    if step.collective is Collective.ALL_GATHER:
        # What everyone has gathered is the same for all; JAX is told so where it keeps track of what varies.
        known = {"to": "invarying"} if set(names) <= _varying(flat) else {}
        return lax.all_gather(flat, names, tiled=True, **known)
    if op in ("sum", "avg"):
        return lax.psum_scatter(flat, names, tiled=True)
    pieces = lax.all_to_all(flat.reshape(lax.axis_size(names), -1), names, 0, 0)
    return (jnp.max if op == "max" else jnp.min)(pieces, axis=0)


_REDUCE: dict[str, Any] = {"sum": lax.psum, "avg": lax.psum, "max": lax.pmax, "min": lax.pmin}


def _varying(array: Any) -> frozenset[str]:
    """The mesh axes along which an array differs, as far as JAX keeps track (`check_vma`)."""
    kind = jax.typeof(array)
    axes = getattr(kind, "mat", None) or getattr(kind, "manual_axis_type", None)
    return frozenset(axes.varying if axes is not None else getattr(kind, "vma", ()))


def _by_kind(tree: Any, reduce: Any) -> Any:
    """A tree whose arrays have been reduced, those of one dtype that vary along the same mesh axes as one."""
    leaves, structure = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    kinds = [(leaf.dtype, _varying(leaf)) for leaf in leaves]
    results: list[Any] = [None] * len(leaves)
    for kind in dict.fromkeys(kinds):
        chosen = [k for k, each in enumerate(kinds) if each == kind]
        flats = [jnp.ravel(leaves[k]) for k in chosen]
        reduced = reduce(flats[0] if len(flats) == 1 else jnp.concatenate(flats))
        for k, piece in zip(chosen, jnp.split(reduced, np.cumsum([f.size for f in flats])[:-1]), strict=True):
            results[k] = piece.reshape(leaves[k].shape)
    return jax.tree.unflatten(structure, results)
