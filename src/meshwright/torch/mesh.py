"""A placement as a DeviceMesh: its ranks in the plan's order, for DDP, FSDP2 and tensor parallelism."""

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from meshwright.engine import check_devices
from meshwright.placement import Placement
from meshwright.plan import Plan


def device_mesh(plan: Plan | Placement, device_type: str = "cuda") -> DeviceMesh:
    """A mesh with a dimension per parallelism axis, named like it; every process calls this.

    Slices are what PyTorch's parallelisms take: `fully_shard(model, mesh=mesh["data", "shard"])` for HSDP.
    """
    placement = _placement(plan)
    return DeviceMesh(device_type, placement.mesh(), mesh_dim_names=placement.axes)


def factor_mesh(plan: Plan | Placement, device_type: str = "cuda") -> DeviceMesh:
    """A mesh with a dimension per factor of the placement that is not 1, named like `data_node` and `data_gpu`.

    `placement.factors(["data"])` names those of an axis: the slice `mesh[tuple(placement.factors(["data"]))]`.
    """
    placement = _placement(plan)
    return DeviceMesh(device_type, placement.factor_mesh(), mesh_dim_names=tuple(placement.factors()))


def _placement(plan: Plan | Placement) -> Placement:
    placement = plan.placement if isinstance(plan, Plan) else plan
    if dist.is_initialized():
        check_devices(placement.system, dist.get_world_size())
    return placement
