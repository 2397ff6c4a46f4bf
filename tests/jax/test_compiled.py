"""Workloads from programs that XLA compiled, and programs with NamedShardings on a plan's mesh."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright import EngineError, MeshwrightError, Placement, parse_system, plan
from meshwright.jax import mesh, placed, workload
from meshwright.workload.recorded import Translation, to_workload
from meshwright.workload.traces.hlo import hlo_calls
from meshwright.workload.traces.read import workload_of_traces

TURNS = 5


def own_mesh(order: list[int] | None = None) -> Mesh:
    devices = np.array(jax.devices())[order or list(range(8))]
    return Mesh(devices.reshape(4, 2), ("data", "tensor"))


def told(found: Translation) -> dict[tuple[str, str, int], int]:
    lines = found.workload.communications
    assert found.left_out == ()
    return {(str(one.goal), "+".join(one.axes), one.bytes): one.count for one in lines}


def everything(x: Any) -> Any:
    """Each kind of collective once, on a part of 16 values."""
    both = jax.lax.psum(x, "data") + jax.lax.pmax(x, ("data", "tensor"))
    gathered = jax.lax.all_gather(x, "tensor", tiled=True)
    scattered = jax.lax.psum_scatter(gathered, "tensor", tiled=True)
    swapped = jax.lax.all_to_all(x.reshape(4, 4), "data", 0, 0).reshape(-1)
    around = jax.lax.ppermute(x, "data", [(k, (k + 1) % 4) for k in range(4)])
    exchanged = jax.lax.ppermute(x, "tensor", [(0, 1), (1, 0)])
    return both + scattered + swapped + around + exchanged


CALLED = {
    ("all-reduce", "data", 64): 1,
    ("all-reduce", "data+tensor", 64): 1,
    ("all-gather", "tensor", 128): 1,
    ("reduce-scatter", "tensor", 128): 1,
    ("all-to-all", "data", 64): 1,
    ("point-to-point", "data", 64): 1,
    ("point-to-point", "tensor", 64): 1,
}


def compiled(order: list[int] | None = None) -> Any:
    spec = P(("data", "tensor"))
    step = partial(jax.shard_map, mesh=own_mesh(order), in_specs=spec, out_specs=spec, check_vma=False)(everything)
    return jax.jit(step).lower(jnp.ones(128, jnp.float32)).compile()


@pytest.mark.parametrize("order", [None, [0, 2, 4, 6, 1, 3, 5, 7]], ids=["plain", "reordered"])
def test_every_kind_of_collective(order: list[int] | None) -> None:
    program = compiled(order)
    assert told(workload(program, {"data": 4, "tensor": 2})) == CALLED
    assert told(workload(program)) == CALLED  # the mesh is in the shardings of the result
    calls = hlo_calls(program.as_text(), "t")
    assert dict(to_workload(calls.calls, 8).workload.axes) == {"axis1": 4, "axis2": 2}


def gradients(weights: Any, x: Any) -> Any:
    """A network that XLA shards by itself: two matrices, each cut along tensor, in a loop."""

    def layer(value: Any, _: None) -> Any:
        return jnp.tanh(value @ weights[0]) @ weights[1], None

    value, _ = jax.lax.scan(layer, x, None, length=TURNS)
    return (value**2).sum()


def arguments(cut: Mesh) -> tuple[Any, Any]:
    weights = jax.device_put(jnp.ones((2, 64, 64)) / 64, NamedSharding(cut, P(None, None, "tensor")))
    return weights, jax.device_put(jnp.ones((32, 64)), NamedSharding(cut, P("data", None)))


def test_loops_count_as_often_as_they_turn(tmp_path: Path) -> None:
    weights, x = arguments(own_mesh())
    program = jax.jit(jax.grad(gradients), out_shardings=weights.sharding).lower(weights, x).compile()
    found = workload(program)
    assert dict(found.workload.axes) == {"data": 4, "tensor": 2}  # from the shardings
    sent = told(found)
    # The gradients of both halves of both matrices are summed over data in every turn of the loop backward.
    assert sent["all-reduce", "data", 2 * 64 * 32 * 4] == TURNS
    assert sent["all-gather", "tensor", 8 * 64 * 4] % TURNS == 0
    assert found.notes == ()
    dumped = tmp_path / "module.txt"
    dumped.write_text(program.as_text() or "")
    assert workload_of_traces([dumped], {"data": 4, "tensor": 2}, name="compiled") == found
    with pytest.raises(MeshwrightError, match="a compiled program tells the calls of all ranks; give it alone"):
        workload_of_traces([dumped, dumped])


def test_from_compiled_code_to_the_plans_mesh() -> None:
    weights, x = arguments(own_mesh())
    step = jax.jit(jax.grad(gradients))
    found = workload(step.lower(weights, x).compile()).workload
    best = plan("node=2@1GB/s,gpu=4@8GB/s", found.axes, found).candidates[0]
    moved, batch = placed((weights, x), best)
    assert [device.id for device in moved.sharding.mesh.devices.flat] == best.placement.mesh().ravel().tolist()
    assert moved.sharding.spec == weights.sharding.spec
    np.testing.assert_allclose(step(moved, batch), step(weights, x), rtol=1e-5)
    assert workload(step.lower(moved, batch).compile()).workload == found


SPREAD = Placement(parse_system("node=2,gpu=4"), ("tensor", "data"), ((2, 1), (1, 4)))  # other axes first


def test_shardings_are_placed_with_the_same_specs() -> None:
    before = Mesh(np.array(jax.devices()).reshape(4, 1, 2), ("data", "one", "tensor"), axis_types=(AxisType.Auto,) * 3)
    tree = {"w": NamedSharding(before, P(("one", "data"), "tensor")), "steps": 3, "none": None}
    after = placed(tree, SPREAD)
    assert after["steps"] == 3
    assert after["w"].spec == tree["w"].spec  # type: ignore[attr-defined]
    assert dict(after["w"].mesh.shape) == {"tensor": 2, "data": 4, "one": 1}
    assert (after["w"].mesh.devices.reshape(2, 4) == mesh(SPREAD).devices).all()
    step = jax.jit(lambda x: x.sum(0), in_shardings=after["w"])
    assert np.array_equal(step(np.ones((8, 4))), [8.0] * 4)


def test_another_mesh_is_refused() -> None:
    flat = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
    message = "an array is on a mesh with the axes data=8, but the plan has tensor=2,data=4: plan for the axes"
    with pytest.raises(EngineError, match=message):
        placed(flat, SPREAD)
