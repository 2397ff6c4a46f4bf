from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import Reduction, SpecError, System, parse_system, placements, preset
from meshwright.export.mesh import mesh_code
from meshwright.planning.orders import (
    gain,
    habits,
    megatron_order,
    megatron_string,
    order_giving,
    row_major,
    torus,
)
from meshwright.planning.planner import Planner
from tests.strategies import systems_with_axes


@given(systems_with_axes(max_devices=256, primes=3), st.randoms(use_true_random=False))
def test_row_major_is_numpys(problem: tuple[System, dict[str, int]], random: Random) -> None:
    system, axes = problem
    order = list(axes)
    random.shuffle(order)
    at = row_major(system, axes, order)
    shape = [axes[axis] for axis in order]
    plain = np.arange(system.devices).reshape(shape)
    if at is not None:
        assert at.axes == tuple(order)
        assert np.array_equal(at.mesh(), plain)
        return
    # None means that no placement is this layout.
    for placement in placements(system, {axis: axes[axis] for axis in order}):
        assert not np.array_equal(placement.mesh(), plain)


@given(systems_with_axes(max_devices=128, primes=3), st.data())
def test_the_mesh_code_makes_the_mesh(problem: tuple[System, dict[str, int]], data: st.DataObject) -> None:
    system, axes = problem
    placement = data.draw(st.sampled_from(list(placements(system, axes))))
    code = mesh_code(placement)

    class Arange:
        arange = staticmethod(lambda count: Permuting(np.arange(count)))

    class Permuting:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def reshape(self, *shape: int) -> "Permuting":
            return Permuting(self.array.reshape(shape))

        def permute(self, *order: int) -> "Permuting":
            return Permuting(self.array.transpose(order))

    class Jax:
        devices = staticmethod(lambda: list(range(system.devices)))

    def torch_like(_kind: str, mesh: Any, mesh_dim_names: tuple[str, ...]) -> Any:
        assert mesh_dim_names == placement.axes
        return mesh

    def jax_like(mesh: Any, names: tuple[str, ...]) -> Any:
        assert names == placement.axes
        return mesh

    torch_mesh = eval(code["torch"], {"torch": Arange, "DeviceMesh": torch_like})
    jax_mesh = eval(code["jax"], {"jax": Jax, "np": np, "Mesh": jax_like})
    assert np.array_equal(torch_mesh.array, placement.mesh())
    assert np.array_equal(jax_mesh, placement.mesh())


def test_megatrons_order() -> None:
    axes = {"data": 2, "pipeline": 4, "tensor": 8, "expert": 2, "context": 2, "shard": 2}
    assert megatron_order(axes) == ["pipeline", "data", "shard", "expert", "context", "tensor"]
    assert megatron_string(["pipeline", "data", "shard", "expert", "context", "tensor"]) == "tp-cp-ep-dp-pp"
    assert megatron_order({"data": 2, "rows": 3}) is None
    assert megatron_string(["shard", "data", "tensor"]) is None  # the shards must be the faster part of dp
    assert megatron_string(["data", "tensor", "shard"]) is None  # dp in two places
    assert megatron_string(["rows"]) is None
    assert megatron_string(["data", "tensor", "expert"]) is None  # dp must be beside ep
    assert megatron_string(["pipeline", "expert"]) == "ep-dp-pp"


def test_an_order_that_gives_a_placement_gives_it_again() -> None:
    system = parse_system("node=4@1GB/s,gpu=8@1GB/s")
    axes = {"data": 4, "tensor": 8}
    at = row_major(system, axes, ["tensor", "data"])
    assert at is not None
    assert at.matrix == ((4, 2), (1, 4))
    assert order_giving(at) == ("tensor", "data")
    assert mesh_code(at)["megatron"] == "order dp-tp"
    split = next(p for p in placements(system, axes) if p.matrix == ((2, 2), (2, 4)))
    assert order_giving(split) is None
    assert mesh_code(split)["megatron"] == "no order string gives this"
    assert row_major(parse_system("node=4,gpu=6"), {"a": 8, "b": 3}, ["b", "a"]) is None


def test_jax_gives_whole_dimensions_of_a_torus_to_axes() -> None:
    system = preset("tpu-v5p")  # 24 x 16 x 16
    at = torus(system, {"data": 24, "model": 256}, ["data", "model"])
    assert at is not None
    assert at.matrix == ((24, 1, 1), (1, 16, 16))
    assert torus(system, {"data": 48, "model": 128}, ["data", "model"]) is None
    both = torus(system, {"one": 1, "data": 384, "model": 16}, ["one", "data", "model"])
    assert both is not None
    assert both.matrix == ((1, 1, 1), (24, 1, 16), (1, 16, 1))


def test_habits_are_scored_by_the_same_model() -> None:
    system = preset("dgx-h100:4")
    axes = {"tensor": 8, "data": 4}
    planner = Planner(system, axes, [Reduction(("tensor",), 2**26, 100), Reduction(("data",), 2**26)], "nccl")
    best = planner.best(1).candidates[0]
    found = {habit.name: habit for habit in habits(planner)}
    megatron = found["Megatron order tp-cp-ep-dp-pp"]
    assert megatron.plan is not None
    assert gain(megatron, best) == pytest.approx(1.0)  # tensor inside a node is best
    given_order = found["PyTorch init_device_mesh, axes as given"]
    assert given_order.plan is not None
    assert given_order.plan.placement.matrix == ((4, 2), (1, 4))
    assert gain(given_order, best) > 2
    worst = next(habit for name, habit in found.items() if name.startswith("worst of 2 orders that line up"))
    assert gain(worst, best) == gain(given_order, best)


def test_habits_that_cannot_be_are_said_to_be_missing() -> None:
    planner = Planner(preset("gb200-nvl72:2"), {"rows": 16, "columns": 9}, [Reduction(("rows",), 2**20)], "nccl")
    found = {habit.name: habit for habit in habits(planner)}
    assert found["Megatron order tp-cp-ep-dp-pp"].missing == "an axis has no name in it"
    assert found["PyTorch init_device_mesh, axes as given"].plan is not None
    reverse = Planner(preset("gb200-nvl72:2"), {"columns": 9, "rows": 16}, [Reduction(("rows",), 2**20)], "nccl")
    missing = {habit.name: habit for habit in habits(reverse)}["PyTorch init_device_mesh, axes as given"]
    assert missing.missing == "the sizes do not line up with the levels"
    with pytest.raises(SpecError, match="line up"):
        gain(missing, planner.best(1).candidates[0])


def test_on_rings_the_best_order_of_axes_is_found() -> None:
    both = [Reduction(("data",), 2**30), Reduction(("tensor",), 2**26, 100)]
    found = {}
    for axes in ({"tensor": 8, "data": 512}, {"data": 512, "tensor": 8}):
        planner = Planner(preset("tpu-v4"), axes, both)
        best = planner.best(1).candidates[0]
        found[tuple(axes)] = best.seconds
        assert all(habit.plan is None or gain(habit, best) >= 1 - 1e-9 for habit in habits(planner))
    first, second = found.values()
    assert first == pytest.approx(second)


def test_jax_is_row_major_on_gpus_even_with_a_ring_inside() -> None:
    planner = Planner(preset("gcp-v100:4"), {"data": 8, "tensor": 4}, [Reduction(("data",), 2**30)])
    jax = {habit.name: habit for habit in habits(planner)}["JAX make_mesh, axes as given"]
    assert jax.plan is not None
    assert jax.plan.placement.matrix == ((4, 2), (1, 4))
