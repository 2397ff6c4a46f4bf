"""The five collectives on flat tensors, each by the fastest way that the backend has."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.language.program import Collective

OPERATIONS: dict[str, Any] = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}

_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
REDUCED = frozenset(_FLOATS | {torch.uint8, torch.int8, torch.int32, torch.int64})

SMALL = 2**14  # bytes up to which a ReduceScatter on gloo is one exchange; above, a ring: as in libraries/gloo.yaml

# PyTorch 2.13 has new names for these, and warns about the old ones.
reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def run_collective(
    collective: Collective,
    source: Tensor,
    target: Tensor,
    operation: str,
    group: dist.ProcessGroup,
    ranks: tuple[int, ...],
    backend: str,
) -> None:
    """Run a collective in a group; AllReduce, Reduce and Broadcast work in place, on `target`.

    On CUDA tensors it is enqueued on the current stream; otherwise it is done on return.
    """
    reduction = OPERATIONS[operation]
    if collective is Collective.ALL_REDUCE:
        dist.all_reduce(target, reduction, group)
    elif collective is Collective.REDUCE:
        dist.reduce(target, ranks[0], reduction, group)
    elif collective is Collective.BROADCAST:
        dist.broadcast(target, ranks[0], group)
    elif collective is Collective.ALL_GATHER:
        all_gather(target, source, group)
    elif backend == "gloo":
        _gloo_reduce_scatter(source, target, operation, group, ranks)
    else:
        reduce_scatter(target, source, reduction, group)


def _gloo_reduce_scatter(
    source: Tensor, target: Tensor, operation: str, group: dist.ProcessGroup, ranks: tuple[int, ...]
) -> None:
    """A ReduceScatter that moves no more than needed; gloo's own moves as much as an all-reduce.

    The ring, for example, with ranks 0, 1 and 2: part 0 starts at rank 1 with its contribution, rank 2 adds its own and
    sends it on, and rank 0 adds its own and keeps it. Parts 1 and 2 do the same, one and two ranks further, at the same
    time. `left` counts how many ranks a part still has to pass. The two buffers take turns, one to receive and one to
    send from, so that the last part arrives in the target.
    """
    parts = source.view(len(ranks), -1)
    if source.nbytes <= SMALL:
        received = torch.empty_like(parts)
        dist.all_to_all_single(received.view(-1), source, group=group)
        if operation == "sum":
            torch.sum(received, 0, dtype=target.dtype, out=target)
        else:
            (torch.amax if operation == "max" else torch.amin)(received, 0, out=target)
        return
    me, size = ranks.index(dist.get_rank()), len(ranks)
    following, previous = ranks[(me + 1) % size], ranks[me - 1]
    buffers = (target, torch.empty_like(target))
    running = parts[me - 1]
    for left in range(size - 2, -1, -1):
        arriving = buffers[left % 2]
        # Receive first: with the send first, gloo often uses the two directions of a connection one after the other.
        receiving = dist.irecv(arriving, previous, group)
        sending = dist.isend(running, following, group)
        for work in (receiving, sending):
            if work is not None:
                work.wait()
        _COMBINE[operation](arriving, parts[(me + left) % size], out=arriving)
        running = arriving


_COMBINE: dict[str, Callable[..., Any]] = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}
