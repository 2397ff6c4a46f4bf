"""The five collectives on flat tensors, each with what the backend does best."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from meshwright.language.program import Collective

OPERATIONS: dict[str, Any] = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}

REDUCED = frozenset(
    {
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.uint8,
        torch.int8,
        torch.int32,
        torch.int64,
    }
)

SMALL = 2**14
"""In bytes: up to here gloo's ReduceScatter is one exchange, as rounds cost more than bytes; above, a ring. The library
profile `gloo` says the same."""

# PyTorch 2.13 has new names for these, and warns about the old ones.
reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def run_collective(
    collective: Collective,
    source: torch.Tensor,
    target: torch.Tensor,
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
    source: torch.Tensor, target: torch.Tensor, operation: str, group: dist.ProcessGroup, ranks: tuple[int, ...]
) -> None:
    """gloo's own moves as much as an all-reduce; either of these moves what a reduce-scatter needs."""
    pieces = source.view(len(ranks), -1)
    if source.nbytes <= SMALL:
        received = torch.empty_like(pieces)
        dist.all_to_all_single(received.view(-1), source, group=group)
        _fold(received, target, operation)
        return
    me, size = ranks.index(dist.get_rank()), len(ranks)
    following, previous = ranks[(me + 1) % size], ranks[me - 1]
    # The piece of rank k starts at rank k + 1 and takes up a contribution at each rank on its way round to k. What has
    # arrived is sent on while the next arrives in the other buffer; the last to arrive is in the target.
    buffers = (target, torch.empty_like(target))
    running = pieces[me - 1]
    for left in range(size - 2, -1, -1):
        arriving = buffers[left % 2]
        # In this order: with the send first, gloo often takes the two ways of a connection one after the other.
        receiving = dist.irecv(arriving, previous, group)
        sending = dist.isend(running, following, group)
        for work in (receiving, sending):
            if work is not None:
                work.wait()
        _COMBINE[operation](arriving, pieces[(me + left) % size], out=arriving)
        running = arriving


_COMBINE: dict[str, Callable[..., Any]] = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}


def _fold(pieces: torch.Tensor, target: torch.Tensor, operation: str) -> None:
    if operation == "sum":
        torch.sum(pieces, 0, dtype=target.dtype, out=target)
    else:
        (torch.amax if operation == "max" else torch.amin)(pieces, 0, out=target)
