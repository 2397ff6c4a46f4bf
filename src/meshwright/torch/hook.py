"""A communication hook for DistributedDataParallel."""

import gc
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import WeakIdKeyDictionary

from meshwright.errors import EngineError, MeshwrightWarning
from meshwright.language.goals import Goal
from meshwright.runtime.calls import Over
from meshwright.runtime.words import rank_list
from meshwright.torch.reducer import Reducer

_checked: Any = WeakIdKeyDictionary()  # first parameters of buckets whose models have the plan's process group


def ddp_hook(
    state: Reducer | tuple[Reducer, Over],
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    """Average a bucket of gradients with the plan's all-reduce: `model.register_comm_hook(reducer, ddp_hook)`.

    Where the plan has several all-reduces, say which: `model.register_comm_hook((reducer, "data"), ddp_hook)`. The
    process group of the model must be the plan's reduction group, or this refuses:
    `DistributedDataParallel(model, process_group=mesh["data"].get_group())`.
    """
    reducer, over = state if isinstance(state, tuple) else (state, None)
    first = bucket.parameters()[0]
    if first not in _checked:
        _check_group(state, reducer, over)
        _checked[first] = True
    future = reducer.all_reduce(bucket.buffer(), "avg", over=over, async_op=True).get_future()
    return future.then(lambda done: done.value())  # so that an error reaches DDP as one


def _check_group(state: Reducer | tuple[Reducer, Over], reducer: Reducer, over: Over) -> None:
    """Refuse a model that averages over other ranks than the plan does.

    A hook is not told which model it works for, so the model with the hook's state is looked for.
    """
    role = reducer.role(Goal.ALL_REDUCE, over)
    models = [each for each in gc.get_objects() if issubclass(type(each), DistributedDataParallel)]
    models = [model for model in models if any(kept is state for _, kept in getattr(model, "_comm_hooks", ()))]
    if not models:
        warnings.warn(
            "the model that this hook works for was not found: see to it that its process group has "
            f"{rank_list(role.ranks)} here, as the plan does",
            MeshwrightWarning,
            stacklevel=3,
        )
    for model in models:
        has = tuple(dist.get_process_group_ranks(model.process_group))
        if set(has) != set(role.ranks):
            axes = role.planned.communication.axes
            names = ", ".join(f'"{axis}"' for axis in axes)
            raise EngineError(
                f"the model averages gradients over {rank_list(has)}, but the plan's all-reduce over {'+'.join(axes)} "
                f"has {rank_list(role.ranks)} here: DistributedDataParallel(…, process_group=…) must get the plan's "
                f"group, which is device_mesh(plan)[{names}]{'._flatten()' if len(axes) > 1 else ''}.get_group()"
            )
