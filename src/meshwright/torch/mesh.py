"""A placement as a DeviceMesh: its ranks in the plan's order, for DDP, FSDP2 and tensor parallelism."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from meshwright.engine import check_devices
from meshwright.placement import Placement
from meshwright.plan import Plan
from meshwright.torch.groups import backends, check_initialized


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
    placement = plan.placement if isinstance(plan, Plan) else plan
    check_initialized()
    check_devices(placement.system, dist.get_world_size())
    if device_type is None:
        device_type = "cuda" if "cuda" in backends() and torch.cuda.is_available() else "cpu"
    return placement, device_type
