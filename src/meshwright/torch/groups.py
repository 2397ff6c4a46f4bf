"""Process groups: what there is, and making those that a plan needs."""

from collections.abc import Iterable
from datetime import timedelta

import torch.distributed as dist

from meshwright.engine import LaneGroup, first_line, rank_list
from meshwright.errors import EngineError


def check_initialized() -> None:
    """Refuse where no process group was made yet."""
    if not dist.is_initialized():
        raise EngineError("there is no process group yet: call torch.distributed.init_process_group first")


def backends() -> dict[str, str]:
    """The backend for each type of device, like {"cpu": "gloo", "cuda": "nccl"}."""
    pairs = (pair.partition(":") for pair in dist.get_backend_config().split(","))
    return {device: backend for device, _, backend in pairs}


def make_groups(wanted: Iterable[LaneGroup], timeout: float) -> dict[LaneGroup, dist.ProcessGroup]:
    """Make groups, by lane and ranks, and return those that this rank is in.

    Every process makes all of them, in the same order.

    PyTorch can also make a group from its members alone, but then names it by how many groups each of them has, which
    differs between ranks here.
    """
    rank = dist.get_rank()
    groups = {}
    for lane, ranks in wanted:
        try:
            group = dist.new_group(list(ranks), timeout=timedelta(seconds=timeout))
        except RuntimeError as error:
            raise EngineError(
                f"rank {rank}: the group of {rank_list(ranks)} cannot be made: {first_line(error)}"
            ) from error
        if rank in ranks:
            groups[lane, ranks] = group
    return groups
