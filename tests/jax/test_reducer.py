"""Plans on JAX, with eight devices made of this host."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from meshwright import (
    ROOTED,
    Collective,
    EngineError,
    Goal,
    MeshwrightWarning,
    Pipelined,
    Placement,
    Plan,
    Planned,
    Reduction,
    load_library,
    parse_program,
    parse_system,
    plan,
    reduction_hierarchy,
)
from meshwright.jax import Reducer, factor_mesh, mesh
from meshwright.language.program import device_groups
from tests.engines import EXHAUSTIVE, hierarchical, plan_of, programs_of, ranged_plan

UNROOTED = tuple(collective for collective in Collective if collective not in ROOTED)


def shards(plan: Plan, axes: tuple[str, ...], work: Any, out_axes: tuple[str, ...] = ()) -> Any:
    """A jitted function that gives every device its row, and does some work on it."""
    devices = jax.devices()[: plan.placement.system.devices]
    return jax.jit(
        jax.shard_map(
            lambda row: work(row[0]),
            mesh=factor_mesh(plan, devices),
            in_specs=PartitionSpec(axes),
            out_specs=PartitionSpec(out_axes),
        )
    )


@pytest.mark.parametrize("spec", EXHAUSTIVE)
def test_every_program_without_rooted_steps_reduces_exactly(spec: str) -> None:
    programs = programs_of(spec, every=20 if spec.count(",") > 1 else 1, collectives=UNROOTED)
    assert len(programs) == (16 if spec.count(",") > 1 else 20)
    best = plan_of(spec, programs)
    reducer = Reducer(best)
    axes = reducer.axes("data")
    for number, program in enumerate(programs):
        rng = np.random.default_rng(number)
        length = int(rng.integers(1, 100))
        whole = rng.integers(-1000, 1000, (best.placement.system.devices, length)).astype(np.int32)
        reals = rng.standard_normal(whole.shape).astype(np.float32)
        reduce: Any = jax.jit(  # compiling takes longer than all the rest
            jax.shard_map(
                lambda a, b, k=number: (reducer.all_reduce(a[0], over=k), reducer.all_reduce(b[0], over=k)[None]),
                mesh=reducer.mesh(jax.devices()[: len(whole)]),
                in_specs=PartitionSpec(axes),
                out_specs=(PartitionSpec(), PartitionSpec(axes)),
            )
        )
        total, each = reduce(whole, reals)
        assert np.array_equal(total, whole.sum(0)), program
        np.testing.assert_allclose(each[0], reals.sum(0), rtol=1e-4, atol=1e-5)
        assert len({np.asarray(row).tobytes() for row in each}) == 1, f"{program} differs between devices"


def hlo_collectives(function: Any, *arguments: Any) -> Iterator[tuple[str, frozenset[tuple[int, ...]]]]:
    text = function.lower(*arguments).compile().as_text()
    pattern = (
        r"= \S+ (all-reduce|reduce-scatter|all-gather|all-to-all|collective-permute)(?:-start)?\(.*replica_groups=(\S+)"
    )
    for line in text.splitlines():
        if found := re.search(pattern, line):
            groups = re.findall(r"\{([\d,]+)\}", found[2])
            yield found[1], frozenset(tuple(map(int, group.split(","))) for group in groups)


PLACED = Placement(parse_system("node=2,gpu=4"), ("data", "shard", "tensor"), ((2, 1), (1, 2), (1, 2)))
NAMES = {
    Collective.ALL_REDUCE: "all-reduce",
    Collective.REDUCE_SCATTER: "reduce-scatter",
    Collective.ALL_GATHER: "all-gather",
}


@pytest.mark.parametrize("axes", [("data", "shard"), ("data", "tensor"), ("tensor", "data"), ("shard", "tensor")])
def test_the_compiled_code_has_exactly_the_collectives_of_the_program(axes: tuple[str, ...]) -> None:
    hierarchy = reduction_hierarchy(PLACED, axes)
    for program in programs_of(str(hierarchy), collectives=UNROOTED):
        planned = Planned(Reduction(axes, 1 << 20), Pipelined.of(program), 1, 1, 1)
        placed = Plan(PLACED, load_library("ring"), (planned,))
        reducer = Reducer(placed)
        every = reducer.axes("data", "shard", "tensor")
        kept = tuple(name for name in every if name not in reducer.axes(*axes))
        function = shards(placed, every, lambda row, r=reducer: r.all_reduce(row)[None], kept)
        expected = [
            (
                NAMES[step.collective],
                frozenset(
                    tuple(group[device] for device in devices)
                    for group in PLACED.groups(axes)
                    for devices in device_groups(step.grouping, hierarchy.radices)
                ),
            )
            for step in program.steps
        ]
        assert list(hlo_collectives(function, np.zeros((8, 64), np.float32))) == expected, program.text(hierarchy)


def one_program(text: str, goal: Goal = Goal.ALL_REDUCE) -> Plan:
    placement = Placement(parse_system("node=2,gpu=4"), ("data",), ((2, 4),))
    hierarchy = reduction_hierarchy(placement, ["data"])
    pipelined = Pipelined.of(parse_program(text, hierarchy))
    planned = Planned(Reduction(("data",), 1 << 20, goal=goal), pipelined, 1, 1, 1)
    return Plan(placement, load_library("ring"), (planned,))


HIERARCHICAL = "ReduceScatter inside node; AllReduce across node; AllGather inside node"


@pytest.mark.parametrize(("op", "reduce"), [("sum", np.sum), ("avg", np.mean), ("max", np.max), ("min", np.min)])
def test_operations(op: str, reduce: Any) -> None:
    placed = one_program(HIERARCHICAL)
    reducer = Reducer(placed)
    rows = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)
    result = shards(placed, reducer.axes("data"), lambda row: reducer.all_reduce(row, op))(rows)
    np.testing.assert_allclose(result, reduce(rows, axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tracked", [True, False])
def test_gradients_flow_as_through_psum(tracked: bool) -> None:
    placed = one_program(HIERARCHICAL)
    reducer = Reducer(placed)
    axes = reducer.axes("data")
    rows = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)

    def loss(reduce: Any) -> Any:
        function: Any = jax.shard_map(
            lambda row: jnp.sin(reduce(jnp.exp(row[0]))),
            mesh=factor_mesh(placed),
            in_specs=PartitionSpec(axes),
            out_specs=PartitionSpec(),
            check_vma=tracked,
        )
        return jax.grad(lambda rows: function(rows).sum())(rows)

    ours, theirs = loss(reducer.all_reduce), loss(lambda row: jax.lax.psum(row, axes))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert np.abs(theirs).max() > 0.01


def test_trees_are_reduced_as_one_array_per_dtype() -> None:
    placed = one_program(HIERARCHICAL)
    reducer = Reducer(placed)
    tree = {"a": np.ones((8, 3), np.float32), "b": [np.ones((8, 2, 2), np.float32), np.ones((8, 5), np.int32)]}
    function = jax.jit(
        jax.shard_map(
            lambda tree: reducer.all_reduce(jax.tree.map(lambda leaf: leaf[0], tree)),
            mesh=factor_mesh(placed),
            in_specs=PartitionSpec(reducer.axes("data")),
            out_specs=PartitionSpec(),
        )
    )
    result = function(tree)
    assert result["a"].tolist() == [8] * 3
    assert result["b"][0].tolist() == [[8, 8], [8, 8]]
    assert (result["b"][1].tolist(), result["b"][1].dtype) == ([8] * 5, np.int32)
    assert [name for name, _ in hlo_collectives(function, tree)].count("reduce-scatter") == 2


def test_parts_of_a_reduce_scatter_are_in_rank_order_and_gathered_again() -> None:
    scatter = one_program("ReduceScatter inside node; ReduceScatter across node", Goal.REDUCE_SCATTER)
    gather = one_program("AllGather inside node; AllGather across node", Goal.ALL_GATHER)
    rows = np.arange(8 * 11, dtype=np.float32).reshape(8, 11)
    axes = Reducer(scatter).axes("data")
    parts = shards(scatter, axes, Reducer(scatter).reduce_scatter, axes)(rows)
    assert np.array_equal(parts, np.pad(rows.sum(0), (0, 5)))
    whole = shards(gather, axes, Reducer(gather).all_gather)(parts.reshape(8, 2))
    assert np.array_equal(whole, parts)


def test_rooted_steps_are_refused_by_name() -> None:
    with pytest.raises(EngineError, match=r"step 1 \(Reduce inside node\) of the all-reduce over data cannot run"):
        Reducer(one_program("Reduce inside node; AllReduce masters of node; Broadcast inside node"))


@pytest.mark.parametrize(("goal", "text"), [(Goal.REDUCE, HIERARCHICAL), (Goal.BROADCAST, "Broadcast all")])
def test_rooted_goals_are_refused(goal: Goal, text: str) -> None:
    with pytest.raises(EngineError, match=f"so the {goal} over data cannot run: plan an all-reduce instead"):
        Reducer(one_program(text, goal))


def test_the_planner_can_leave_rooted_steps_out() -> None:
    best = plan(
        parse_system("node=2@1GB/s,gpu=4@8GB/s"),
        {"data": 8},
        [Reduction(("data",), 1 << 24)],
        collectives=UNROOTED,
    ).candidates[0]
    reducer = Reducer(best)
    rows = np.ones((8, 16), np.float32)
    assert shards(best, reducer.axes("data"), reducer.all_reduce)(rows).tolist() == [8] * 16


def test_meshes_have_the_placements_order() -> None:
    placement = Placement(parse_system("node=2,gpu=4"), ("data", "shard"), ((1, 2), (2, 2)))
    ids = np.vectorize(lambda device: device.id)
    plain, factors = mesh(placement), factor_mesh(placement)
    assert plain.axis_names == ("data", "shard")
    assert ids(plain.devices).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert factors.axis_names == ("data_gpu", "shard_node", "shard_gpu")
    assert ids(factors.devices).reshape(2, 4).tolist() == ids(plain.devices).tolist()
    for rank in range(8):
        at = placement.coordinates(rank)
        assert plain.devices[at["data"], at["shard"]].id == rank


def test_another_number_of_devices_is_refused() -> None:
    placement = Placement(parse_system("node=2,gpu=2"), ("data",), ((2, 2),))
    with pytest.raises(EngineError, match="there are 8 JAX devices, but the plan is for 4 devices"):
        mesh(placement)


def test_an_unknown_operation_is_refused() -> None:
    placed = one_program(HIERARCHICAL)
    with pytest.raises(EngineError, match="op='prod': expected sum, avg, max or min"):
        shards(placed, ("data_node", "data_gpu"), lambda row: Reducer(placed).all_reduce(row, "prod"))(np.ones((8, 4)))


def test_averages_of_whole_numbers_are_refused() -> None:
    placed = one_program(HIERARCHICAL)
    with pytest.raises(EngineError, match="op='avg' needs floating point numbers, not int32"):
        shards(placed, Reducer(placed).axes("data"), lambda row: Reducer(placed).all_reduce(row, "avg"))(
            np.ones((8, 4), np.int32)
        )


def test_another_mesh_is_refused() -> None:
    placed = one_program(HIERARCHICAL)
    reducer = Reducer(placed)
    devices = np.array(jax.devices())
    others = {
        "data_node=2,data_gpu=2": devices[:4].reshape(2, 2),
        "data_gpu=4,data_node=2": devices.reshape(4, 2),
        "data_node=2,data_gpu=2,more=2": devices.reshape(2, 2, 2),
    }
    for spec, array in others.items():
        names = tuple(each.partition("=")[0] for each in spec.split(","))
        other: Any = jax.shard_map(
            lambda row: reducer.all_reduce(row[0]),
            mesh=jax.sharding.Mesh(array, names),
            in_specs=PartitionSpec(reducer.axes("data")),
            out_specs=PartitionSpec(),
        )
        with pytest.raises(
            EngineError, match=f"^the mesh is {spec}, but the plan's is data_node=2,data_gpu=4: use fac"
        ):
            other(np.ones((8, 4), np.float32))
    with pytest.raises(EngineError, match="there is no mesh axis 'data_node' here: call this inside shard_map"):
        reducer.all_reduce(jnp.ones(4))


@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("marked", [(), ("data_node",), ("data_node", "data_gpu")])
def test_gradients_that_jax_has_already_summed_are_refused(op: str, marked: tuple[str, ...]) -> None:
    placed = one_program(HIERARCHICAL)
    reducer = Reducer(placed)
    axes = reducer.axes("data")
    rows = np.arange(16, dtype=np.float32).reshape(8, 2)

    def gradient(weights: Any, row: Any) -> Any:
        own = jax.lax.pcast(weights, marked, to="varying") if marked else weights
        return reducer.all_reduce(jax.grad(lambda w: jnp.sum(w * row[0]))(own), op)

    step: Any = jax.shard_map(
        gradient, mesh=reducer.mesh(), in_specs=(PartitionSpec(), PartitionSpec(axes)), out_specs=PartitionSpec()
    )
    if marked == axes:
        assert step(np.ones(2, np.float32), rows).tolist() == (rows.sum(0) if op == "sum" else rows.mean(0)).tolist()
        return
    same = ", ".join(axes[len(marked) :])
    with pytest.raises(EngineError, match=f"data is the same along the mesh axes {same}, so adding") as caught:
        step(np.ones(2, np.float32), rows)
    assert "jax.lax.pcast(weights, ('data_node', 'data_gpu'), to='varying')" in str(caught.value)


def test_what_is_the_same_everywhere_has_a_maximum_and_can_be_gathered() -> None:
    placed = one_program(HIERARCHICAL)
    gather = one_program("AllGather inside node; AllGather across node", Goal.ALL_GATHER)
    reducer, gatherer = Reducer(placed), Reducer(gather)
    work: Any = jax.shard_map(
        lambda x: (reducer.all_reduce(x, "max"), gatherer.all_gather(x)),
        mesh=reducer.mesh(),
        in_specs=PartitionSpec(),
        out_specs=(PartitionSpec(), PartitionSpec(reducer.axes("data"))),
    )
    largest, gathered = work(np.array([3.0], np.float32))
    assert largest.tolist() == [3.0]
    assert set(gathered.tolist()) == {3.0}


def test_without_check_vma_nothing_is_known_to_be_the_same() -> None:
    reducer = Reducer(one_program(HIERARCHICAL))
    work: Any = jax.shard_map(
        reducer.all_reduce, mesh=reducer.mesh(), in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False
    )
    assert work(np.ones(3, np.float32)).tolist() == [8.0] * 3


def test_chunks_that_vanish_are_said_once() -> None:
    (base,) = hierarchical().reductions
    best = replace(hierarchical(), communications=(replace(base, pipelined=Pipelined.of(base.program, 4)),))
    reducer = Reducer(best)
    with pytest.warns(MeshwrightWarning, match="planned for 1MiB in 4 chunks, but a call with 16B is a single chunk"):
        shards(best, reducer.axes("data"), reducer.all_reduce)(np.ones((4, 4), np.float32))
    shards(best, reducer.axes("data"), reducer.all_reduce)(np.ones((4, 8), np.float32))


def test_empty_arrays_stay_empty() -> None:
    placed = one_program(HIERARCHICAL)
    reducer = Reducer(placed)
    assert shards(placed, reducer.axes("data"), reducer.all_reduce, reducer.axes("data"))(np.ones((8, 0))).shape == (0,)


def test_trees_may_mix_what_is_sharded_and_what_is_not() -> None:
    placement = Placement(parse_system("node=2,gpu=4"), ("data", "tensor"), ((2, 2), (1, 2)))
    hierarchy = reduction_hierarchy(placement, ["data"])
    pipelined = Pipelined.of(parse_program(HIERARCHICAL, hierarchy))
    planned = Planned(Reduction(("data",), 1 << 20), pipelined, 1, 1, 1)
    placed = Plan(placement, load_library("ring"), (planned,))
    reducer = Reducer(placed)
    data, tensor = reducer.axes("data"), reducer.axes("tensor")
    function: Any = jax.shard_map(
        lambda norm, weight: reducer.all_reduce({"norm": norm[0], "weight": weight[0]}),
        mesh=reducer.mesh(),
        in_specs=(PartitionSpec(data), PartitionSpec(data, tensor)),
        out_specs={"norm": PartitionSpec(), "weight": PartitionSpec(tensor)},
    )
    result = function(np.ones((4, 3), np.float32), np.ones((4, 6), np.float32))
    assert result["norm"].tolist() == [4] * 3
    assert result["weight"].tolist() == [4] * 6


@pytest.mark.parametrize("goal", [Goal.ALL_REDUCE, Goal.REDUCE_SCATTER, Goal.ALL_GATHER])
@pytest.mark.parametrize("length", [1, 11, 40, 41])
def test_chunks_reduce_exactly(goal: Goal, length: int) -> None:
    (base,) = hierarchical(goal).reductions
    others = [p for p in programs_of("node=2,gpu=2", goal, collectives=UNROOTED) if p != base.program]
    pipelined = Pipelined(((base.program, 3), (others[0], 1)))
    planned = replace(base, communication=replace(base.communication, bytes=1), pipelined=pipelined)
    best = replace(hierarchical(goal), communications=(planned,))
    reducer = Reducer(best)
    axes = reducer.axes("data")
    whole = np.random.default_rng(length).integers(-1000, 1000, (4, length)).astype(np.int32)
    width = -(-length // 4)
    if goal is Goal.ALL_REDUCE:
        assert np.array_equal(shards(best, axes, reducer.all_reduce)(whole), whole.sum(0))
    elif goal is Goal.REDUCE_SCATTER:
        parts = shards(best, axes, reducer.reduce_scatter, axes)(whole)
        assert np.array_equal(np.asarray(parts)[:length], whole.sum(0))
        assert parts.shape == (4 * width,)
    else:
        assert np.array_equal(shards(best, axes, reducer.all_gather)(whole), whole.reshape(-1))


def test_chunks_are_separate_collectives() -> None:
    (base,) = hierarchical().reductions
    pipelined = Pipelined.of(base.program, 3)
    planned = replace(base, communication=replace(base.communication, bytes=1), pipelined=pipelined)
    best = replace(hierarchical(), communications=(planned,))
    reducer = Reducer(best)
    function = shards(best, reducer.axes("data"), reducer.all_reduce)
    kinds = [kind for kind, _ in hlo_collectives(function, jnp.ones((4, 12)))]
    assert kinds.count("reduce-scatter") == kinds.count("all-gather") == 3  # all-reduces XLA may combine


def test_a_call_takes_the_program_for_its_size() -> None:
    best = ranged_plan(Goal.ALL_REDUCE)
    reducer = Reducer(best)
    function = shards(best, reducer.axes("data"), reducer.all_reduce)
    found = []
    for length in (4, 24, 100):
        whole = np.random.default_rng(length).integers(-1000, 1000, (4, length)).astype(np.int32)
        assert np.array_equal(function(whole), whole.sum(0))
        found.append([kind for kind, _ in hlo_collectives(function, whole)].count("reduce-scatter"))
    assert found == [0, 1, 3]
