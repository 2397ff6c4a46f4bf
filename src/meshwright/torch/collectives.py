"""The five collectives on flat tensors, each by the fastest way that the backend has."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BroadcastOptions,
    ReduceOptions,
    ReduceScatterOptions,
)

from meshwright.language.program import Collective

OPERATIONS: dict[str, Any] = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}

OP_NAMES: dict[Any, str] = {
    dist.ReduceOp(getattr(dist.ReduceOp, op.upper())): op for op in ("sum", "avg", "max", "min")
}
"""The operations that programs know, by PyTorch's names: its two types for them are equal, and found, the same way."""

_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
REDUCED = frozenset(_FLOATS | {torch.uint8, torch.int8, torch.int32, torch.int64})

# A ReduceScatter on gloo is one exchange for at most so many bytes, in groups of at least so many ranks; otherwise it
# is a ring. libraries/gloo.yaml says the same.
SMALL, SEVERAL = 2**14, 3


def _name(new: str, old: str) -> str:
    """The name of a method of process groups: PyTorch 2.13 has new ones, and warns about the old ones."""
    return new if hasattr(dist.ProcessGroup, new) else old


ALL_GATHER = _name("all_gather_single", "_allgather_base")
REDUCE_SCATTER = _name("reduce_scatter_single", "_reduce_scatter_base")
ALL_TO_ALL = _name("all_to_all_single", "alltoall_base")


def run_collective(
    collective: Collective,
    source: Tensor,
    target: Tensor,
    operation: str,
    group: dist.ProcessGroup,
    backend: str,
) -> None:
    """Run a collective in a group; AllReduce, Reduce and Broadcast work in place, on `target`.

    The group's first rank is the root. On CUDA tensors the collective is enqueued on the current stream; otherwise it
    is done on return. It is called on the group itself, which may be unknown to `torch.distributed`.
    """
    reduction = OPERATIONS[operation]
    if collective is Collective.ALL_REDUCE:
        _wait(group.allreduce([target], _options(AllreduceOptions, reduceOp=reduction)))
    elif collective is Collective.REDUCE:
        _wait(group.reduce([target], _options(ReduceOptions, reduceOp=reduction, rootRank=0)))
    elif collective is Collective.BROADCAST:
        _wait(group.broadcast([target], _options(BroadcastOptions, rootRank=0, rootTensor=0)))
    elif backend == "gloo":
        if collective is Collective.ALL_GATHER:
            _gloo_all_gather(source, target, group)
        else:
            _gloo_reduce_scatter(source, target, operation, group)
    elif collective is Collective.ALL_GATHER:
        _wait(getattr(group, ALL_GATHER)(target, source, _options(AllgatherOptions)))
    else:
        _wait(getattr(group, REDUCE_SCATTER)(target, source, _options(ReduceScatterOptions, reduceOp=reduction)))


def _options(kind: Callable[[], Any], **values: Any) -> Any:
    """The options of a call that is not asynchronous."""
    options = kind()
    for name, value in values.items():
        setattr(options, name, value)
    if hasattr(options, "asyncOp"):  # since PyTorch 2.7
        options.asyncOp = False
    return options


def _wait(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()


def _gloo_reduce_scatter(source: Tensor, target: Tensor, operation: str, group: dist.ProcessGroup) -> None:
    """A ReduceScatter that moves no more than needed; gloo's own moves as much as an all-reduce.

    The ring, for example, with ranks 0, 1 and 2: part 0 starts at rank 1 with its contribution, rank 2 adds its own and
    sends it on, and rank 0 adds its own and keeps it. Parts 1 and 2 do the same, one and two ranks further, at the same
    time. `left` counts how many ranks a part still has to pass.

    gloo sends a message when its receiver has said that it is ready to receive. So every receive but the first is
    posted while the message before it is on its way. Three buffers take turns: one to send from, one that fills, and
    one that is ready for the next message; the last part arrives in the target.
    """
    me, size = group.rank(), group.size()
    parts = source.view(size, -1)
    if source.nbytes <= SMALL and size >= SEVERAL:
        received = torch.empty_like(parts)
        _wait(getattr(group, ALL_TO_ALL)(received.view(-1), source, [], [], _options(AllToAllOptions)))
        if operation == "sum":
            torch.sum(received, 0, dtype=target.dtype, out=target)
        else:
            (torch.amax if operation == "max" else torch.amin)(received, 0, out=target)
        return
    following, previous = (me + 1) % size, (me - 1) % size
    buffers = (target, *(torch.empty_like(target) for _ in range(min(size - 2, 2))))
    running = parts[me - 1]
    receiving: dist.Work | None = group.recv([buffers[(size - 2) % 3]], previous, 0)
    for left in range(size - 2, -1, -1):
        arriving = buffers[left % 3]
        # Receive first: with the send first, as in all_to_all, gloo often uses the two directions of a connection one
        # after the other.
        ahead = group.recv([buffers[(left - 1) % 3]], previous, 0) if left else None
        sending = group.send([running], following, 0)
        _wait(receiving)
        _COMBINE[operation](arriving, parts[(me + left) % size], out=arriving)
        _wait(sending)  # before the buffer is to fill again
        running, receiving = arriving, ahead


def _gloo_all_gather(source: Tensor, target: Tensor, group: dist.ProcessGroup) -> None:
    """An AllGather as one ring, whose receives are all posted at the beginning.

    gloo's own ring posts each receive when its sender could send already, so that every turn also waits until the
    sender hears of that. And it sends in two halves, each of which has its own headers and handshake.
    """
    me, size = group.rank(), group.size()
    following, previous = (me + 1) % size, (me - 1) % size
    parts = target.view(size, -1)
    if parts[me].data_ptr() != source.data_ptr():
        parts[me].copy_(source.view(-1))  # first, as it may be where another part arrives
    receiving = [group.recv([parts[me - turn]], previous, 0) for turn in range(1, size)]
    for turn, arriving in enumerate(receiving):
        sending = group.send([parts[me - turn]], following, 0)
        _wait(arriving)
        _wait(sending)


_COMBINE: dict[str, Callable[..., Any]] = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}
