"""Process groups: what there is, and making those that a plan needs."""

import contextlib
from collections.abc import Iterable
from datetime import timedelta

import torch.distributed as dist

from meshwright.errors import EngineError
from meshwright.runtime.role import LaneGroup
from meshwright.runtime.words import first_line, rank_list
from meshwright.torch.store import ANSWER, Line, default_store, in_time


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

        def make(line: Line, _: object, ranks: tuple[int, ...] = ranks) -> dist.ProcessGroup:
            group: dist.ProcessGroup = line.call(
                lambda: dist.new_group(list(ranks), timeout=timedelta(seconds=timeout))
            )
            return group

        try:
            group = in_time(default_store(), timeout + ANSWER, rank, make)
        except RuntimeError as error:
            raise EngineError(
                f"rank {rank}: the group of {rank_list(ranks)} cannot be made: {first_line(error)}"
            ) from error
        if rank in ranks:
            groups[lane, ranks] = group
    return groups


def give_back(groups: dict[LaneGroup, dist.ProcessGroup]) -> None:
    """Give groups up, and forget them. With gloo, ranks that wait for this one in a group then fail at once.

    gloo ends the threads of a group with it. One that outlives the interpreter aborts the process: gloo says that a
    collective is done before it lets go of its tensors, and to let go of one that Python knows, it needs Python.
    """
    while groups:
        _, group = groups.popitem()
        with contextlib.suppress(ValueError, AssertionError):  # the user has given it up, or all of them
            if dist.is_initialized():
                dist.destroy_process_group(group)
