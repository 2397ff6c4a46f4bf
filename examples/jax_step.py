"""A data-parallel step in JAX with a plan: the three lines marked with >>> are all that is added, and the mesh is the
plan's.

meshwright plan --system node=2@1GB/s,gpu=4@8GB/s --axes data=8 --reduce data=1MiB --engine jax --out plan.json
XLA_FLAGS=--xla_force_host_platform_device_count=8 python examples/jax_step.py plan.json
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

import meshwright  # >>>

reducer = meshwright.jax.Reducer(meshwright.read_plan(Path(sys.argv[1])))  # >>>
mesh, data = reducer.mesh(), reducer.axes("data")  # instead of jax.make_mesh((8,), ("data",)), "data"


def loss(weights: Any, inputs: Any) -> Any:
    hidden = jax.nn.relu(inputs @ weights["in"])
    return jnp.mean((hidden @ weights["out"] - inputs.sum(1, keepdims=True)) ** 2)


@jax.jit
@jax.shard_map(mesh=mesh, in_specs=(PartitionSpec(), PartitionSpec(data)), out_specs=(PartitionSpec(), PartitionSpec()))
def train(weights: Any, inputs: Any) -> Any:
    own = jax.lax.pcast(weights, data, to="varying")  # so that gradients are those of this device's inputs alone
    value, gradients = jax.value_and_grad(loss)(own, inputs)
    gradients = reducer.all_reduce(gradients, "avg")  # >>> (with psum, this would be jax.lax.pmean)
    return jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradients), jax.lax.pmean(value, data)


keys = jax.random.split(jax.random.key(0), 3)
weights = {"in": jax.random.normal(keys[0], (16, 64)) / 4, "out": jax.random.normal(keys[1], (64, 1)) / 8}
losses = []
for key in jax.random.split(keys[2], 60):
    weights, value = train(weights, jax.random.normal(key, (256, 16)))
    losses.append(float(value))  # waits: on emulated devices, XLA can stop for ever with two steps under way at once
print(f"loss from {losses[0]:.3f} to {losses[-1]:.3f}")
