"""A communication hook for DistributedDataParallel."""

from typing import Any

import torch

from meshwright.torch.reducer import Reducer


def ddp_hook(reducer: Reducer, bucket: Any) -> "torch.futures.Future[torch.Tensor]":
    """Average a bucket of gradients with the plan's all-reduce: `model.register_comm_hook(reducer, ddp_hook)`.

    Where the plan has several all-reduces, make the hook with `partial(ddp_hook, over="data")`… see the docs.
    """
    return reducer.all_reduce(bucket.buffer(), "avg", async_op=True).get_future()
