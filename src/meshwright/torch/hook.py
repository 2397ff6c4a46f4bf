"""A communication hook for DistributedDataParallel."""

import torch
import torch.distributed as dist

from meshwright.engine import Over
from meshwright.torch.reducer import Reducer


def ddp_hook(
    state: Reducer | tuple[Reducer, Over],
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients with the plan's all-reduce: `model.register_comm_hook(reducer, ddp_hook)`.

    Where the plan has several all-reduces, say which: `model.register_comm_hook((reducer, "data"), ddp_hook)`. The
    plan's reduction group must be the process group of the model.
    """
    reducer, over = state if isinstance(state, tuple) else (state, None)
    future = reducer.all_reduce(bucket.buffer(), "avg", over=over, async_op=True).get_future()
    return future.then(lambda done: done.value())  # so that an error reaches DDP as one
