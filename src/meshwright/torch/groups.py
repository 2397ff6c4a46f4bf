"""Process groups: making those that a plan needs, and giving them up."""

import contextlib
from collections.abc import Iterable
from datetime import timedelta

import torch.distributed as dist

from meshwright.errors import EngineError
from meshwright.runtime.role import LaneGroup
from meshwright.runtime.words import first_line, rank_list
from meshwright.torch.store import ANSWER, Line, default_store, in_time


def check_initialized() -> None:
    """Refuse if init_process_group was not called yet."""
    if not dist.is_initialized():
        raise EngineError("there is no process group yet: call torch.distributed.init_process_group first")


def backends() -> dict[str, str]:
    """The backend for each type of device, like {"cpu": "gloo", "cuda": "nccl"}."""
    pairs = (pair.partition(":") for pair in dist.get_backend_config().split(","))
    return {device: backend for device, _, backend in pairs}


def make_groups(wanted: Iterable[LaneGroup], timeout: float) -> dict[LaneGroup, dist.ProcessGroup]:
    """Make groups, and return those that this rank is in, by lane and ranks.

    Every process makes all of them, in the same order. PyTorch can also make a group with calls of its members alone.
    But then its name contains how many groups each member has, and here that differs between ranks.
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
    """Destroy groups, and empty the dictionary. With gloo, ranks that wait for this one in a group then fail at once.

    Destroying a group ends gloo's threads. A thread that outlives the interpreter would abort the process: gloo reports
    a collective as done before it releases its tensors, and to release a tensor that Python knows, it needs Python.
    """
    while groups:
        _, group = groups.popitem()
        with contextlib.suppress(ValueError, AssertionError):  # the user has destroyed it, or all groups
            if dist.is_initialized():
                dist.destroy_process_group(group)
