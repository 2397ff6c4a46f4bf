"""Process groups: those that a plan's programs need, and a placement as a DeviceMesh, for DDP, FSDP2 and others."""

import contextlib
import os
from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import partial
from hashlib import sha256
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.device_mesh import DeviceMesh

from meshwright.errors import EngineError
from meshwright.placement.placement import Placement
from meshwright.planning.plan import Plan
from meshwright.runtime.agreement import judge_start
from meshwright.runtime.role import LaneGroup
from meshwright.runtime.seats import check_devices, seat
from meshwright.runtime.waiting import TIMEOUT
from meshwright.runtime.words import first_line, rank_list
from meshwright.torch.channel import ANSWER, StoreChannel, Waits, default_store, in_time


def check_initialized() -> None:
    """Refuse if init_process_group was not called yet."""
    if not dist.is_initialized():
        raise EngineError("there is no process group yet: call torch.distributed.init_process_group first")


def backends(config: str | None = None) -> dict[str, str]:
    """The backend for each type of device, like {"cpu": "gloo", "cuda": "nccl"}, of the default process group.

    config: the text that PyTorch has for them, of another group.
    """
    pairs = (pair.partition(":") for pair in (config or dist.get_backend_config()).split(","))
    return {device: backend for device, _, backend in pairs}


OURS = "meshwright"
"""The description of process groups in which programs run, so that no plan is looked for in them."""


def make_groups(wanted: Iterable[LaneGroup], timeout: float) -> dict[LaneGroup, dist.ProcessGroup]:
    """Make groups, and return those that this rank is in, by lane and ranks.

    Every process makes all of them, in the same order. PyTorch can also make a group with calls of its members alone.
    But then its name contains how many groups each member has, and here that differs between ranks.
    """
    rank, store = dist.get_rank(), default_store()
    groups = {}
    for lane, ranks in wanted:
        new = partial(dist.new_group, list(ranks), timeout=timedelta(seconds=timeout), group_desc=OURS)
        try:
            group = in_time(store, timeout + ANSWER, rank, lambda timed, _: timed.call(new))  # noqa: B023 - done on return
        except RuntimeError as error:
            raise EngineError(
                f"rank {rank}: the group of {rank_list(ranks)} cannot be made: {first_line(error)}"
            ) from error
        if rank in ranks:
            groups[lane, ranks] = group
    return groups


def connect_groups(
    wanted: Iterable[LaneGroup], rank: int, kinds: Mapping[str, str], store: Store, timeout: float
) -> dict[LaneGroup, dist.ProcessGroup]:
    """Make groups that this rank is in, with calls of their members alone; `torch.distributed` does not know them.

    kinds: the backend for each type of device. store: one that nothing else uses.
    """
    groups = {}
    for lane, ranks in wanted:
        name = f"{lane}/{sha256(repr(ranks).encode()).hexdigest()[:16]}/"  # the ranks themselves may be thousands
        new = partial(_native, PrefixStore(name, store), ranks.index(rank), len(ranks), kinds, timeout)
        try:
            groups[lane, ranks] = in_time(store, timeout + ANSWER, rank, lambda line, _: line.call(new))  # noqa: B023
        except RuntimeError as error:
            raise EngineError(
                f"rank {rank}: the group of {rank_list(ranks)} cannot be made: {first_line(error)}"
            ) from error
    return groups


def _native(store: Store, position: int, size: int, kinds: Mapping[str, str], timeout: float) -> dist.ProcessGroup:
    """A process group as PyTorch makes it for gloo and NCCL."""
    group = dist.ProcessGroup(store, position, size)
    made: dict[str, Any] = {}
    patience = timedelta(seconds=timeout)
    for device, kind in kinds.items():
        if kind not in made and kind == "gloo":
            made[kind] = c10d.ProcessGroupGloo(PrefixStore("gloo/", store), position, size, timeout=patience)
        elif kind not in made:
            options = c10d.ProcessGroupNCCL.Options()
            options._timeout = patience
            made[kind] = c10d.ProcessGroupNCCL(PrefixStore("nccl/", store), position, size, options)
        group._register_backend(torch.device(device), dist.Backend.backend_type_map[kind], made[kind])
    first = "nccl" if "nccl" in made else "gloo"
    group._set_default_backend(dist.Backend.backend_type_map[first])
    return group


def give_back(groups: dict[LaneGroup, dist.ProcessGroup]) -> None:
    """Destroy groups, and empty the dictionary. With gloo, ranks that wait for this one in a group then fail at once.

    Destroying a group ends gloo's threads. A thread that outlives the interpreter would abort the process: gloo reports
    a collective as done before it releases its tensors, and to release a tensor that Python knows, it needs Python.
    """
    while groups:
        _, group = groups.popitem()
        if group not in c10d._world.pg_map:  # it is one of `connect_groups`, or the user has destroyed it
            group.shutdown()
            continue
        with contextlib.suppress(ValueError, AssertionError):
            dist.destroy_process_group(group)


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
    StoreChannel(default_store(), range(world), rank, Waits.of(TIMEOUT)).agree(key, None, said, judge)
    if device_type is None:
        device_type = "cuda" if "cuda" in backends() and torch.cuda.is_available() else "cpu"
    return placement, device_type
