"""A placement as a DeviceMesh: its ranks in the plan's order, for DDP, FSDP2 and tensor parallelism."""

import os
from functools import partial
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from meshwright.errors import EngineError
from meshwright.placement.placement import Placement
from meshwright.planning.plan import Plan
from meshwright.runtime.agreement import judge_start
from meshwright.runtime.seats import check_devices, seat
from meshwright.runtime.waiting import TIMEOUT
from meshwright.torch.groups import backends, check_initialized
from meshwright.torch.store import Patience, StoreChannel, default_store

_numbers = count()  # of the meshes in this process; every process makes the same ones


def device_mesh(plan: Plan | Placement, device_type: str | None = None) -> DeviceMesh:
    """A mesh with a dimension per parallelism axis, named like it; every process calls this.

    device_type: "cuda" or "cpu"; if not given, CUDA where the process group has a backend for it.

    Slices are what PyTorch's parallelisms take: `fully_shard(model, mesh=mesh["data", "shard"])` for HSDP.
    """
    placement, kind = _checked(plan, device_type)
    return DeviceMesh(kind, placement.mesh(), mesh_dim_names=placement.axes)


def factor_mesh(plan: Plan | Placement, device_type: str | None = None) -> DeviceMesh:
    """A mesh with a dimension per factor of the placement that is not 1, named like `data_node` and `data_gpu`.

    `placement.factors(["data"])` names those of an axis: the slice `mesh[tuple(placement.factors(["data"]))]`.
    """
    placement, kind = _checked(plan, device_type)
    return DeviceMesh(kind, placement.factor_mesh(), mesh_dim_names=tuple(placement.factors()))


def _checked(plan: Plan | Placement, device_type: str | None) -> tuple[Placement, str]:
    """Compare placements and seats between the processes, as a Reducer does, so that all have the same mesh."""
    placement = plan.placement if isinstance(plan, Plan) else plan
    check_initialized()
    rank, world = dist.get_rank(), dist.get_world_size()
    same = [placement.system.counts, placement.axes, placement.matrix]
    said: dict[str, Any] = {"plan": same, "seat": seat(os.environ), "check": "", "fault": ""}
    try:
        check_devices(placement.system, world)
    except EngineError as error:
        said["fault"] = str(error)
    judge = partial(judge_start, placement.system)
    key = f"meshwright/mesh/{next(_numbers)}"
    StoreChannel(default_store(), range(world), rank, Patience.of(TIMEOUT)).agree(key, None, said, judge)
    if device_type is None:
        device_type = "cuda" if "cuda" in backends() and torch.cuda.is_available() else "cpu"
    return placement, device_type
