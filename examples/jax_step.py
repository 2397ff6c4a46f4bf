"""A data-parallel step in JAX with a plan: the lines marked with >>> are all that is added.

meshwright plan --system node=2@1GB/s,gpu=4@8GB/s --axes data=8 --reduce data=1MiB --no-rooted --out plan.json
XLA_FLAGS=--xla_force_host_platform_device_count=8 python examples/jax_step.py plan.json
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from meshwright import read_plan  # >>>
from meshwright.jax import Reducer, factor_mesh  # >>>

plan = read_plan(Path(sys.argv[1]))
reducer, mesh = Reducer(plan), factor_mesh(plan)  # >>>
over_data = PartitionSpec(reducer.axes("data"))


def loss(weights: Any, inputs: Any) -> Any:
    hidden = jax.nn.relu(inputs @ weights["in"])
    return jnp.mean((hidden @ weights["out"] - inputs.sum(1, keepdims=True)) ** 2)


def step(weights: Any, inputs: Any) -> Any:
    local = jax.lax.pcast(weights, reducer.axes("data"), to="varying")  # gradients of this device's share alone
    value, gradients = jax.value_and_grad(loss)(local, inputs)
    gradients = reducer.all_reduce(gradients, "avg")  # instead of jax.lax.pmean
    return jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradients), jax.lax.pmean(value, reducer.axes("data"))


sharded = jax.shard_map(
    step, mesh=mesh, in_specs=(PartitionSpec(), over_data), out_specs=(PartitionSpec(), PartitionSpec())
)
train = jax.jit(sharded)
keys = jax.random.split(jax.random.key(0), 3)
weights = {"in": jax.random.normal(keys[0], (16, 64)) / 4, "out": jax.random.normal(keys[1], (64, 1)) / 8}
first = last = None
for key in jax.random.split(keys[2], 60):
    weights, last = train(weights, jax.random.normal(key, (256, 16)))
    first = last if first is None else first
print(f"loss from {first:.3f} to {last:.3f}")
