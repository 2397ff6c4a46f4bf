"""FSDP2 by hand: parameters and gradients take a plan's programs, through FSDP2's own setters."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.errors import EngineError
from meshwright.language.goals import Goal
from meshwright.runtime.calls import Over
from meshwright.runtime.words import rank_list
from meshwright.torch.collectives import OP_NAMES
from meshwright.torch.queue import as_work
from meshwright.torch.reducer import Reducer


def fsdp(model: torch.nn.Module, reducer: Reducer, replicate: Over = None) -> None:
    """Have all modules of a model that `fully_shard` has sharded use the plan's all-gathers and reduce-scatters.

    What the plan has no reduction for stays as it is. The process group of a module must be the plan's, or its first
    call is refused.

    replicate: the axes over which the model is replicated, for HSDP. FSDP2 does its all-reduce itself if its mesh has
    two dimensions, and offers no way to replace it. So shard over one, `fully_shard(model, mesh=mesh["shard"])`, and
    name the other here: gradients are then averaged over it with the plan's all-reduce. Replicas must start alike.
    """
    from torch.distributed.fsdp import FSDPModule  # older PyTorch has it elsewhere, and a Reducer needs none of it

    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not sharded:
        raise EngineError("no module of the model is sharded: call fully_shard first")
    has = {role.planned.communication.goal for role in reducer.roles}
    if replicate is not None:
        reducer.role(Goal.ALL_REDUCE, replicate)  # refuses what the plan does not have

    def average(gradient: Tensor) -> None:
        reducer.all_reduce(gradient, "avg", over=replicate)

    for module in sharded:
        if Goal.ALL_GATHER in has:
            module.set_custom_all_gather(_Gather(reducer))  # type: ignore[arg-type]
        if Goal.REDUCE_SCATTER in has:
            module.set_custom_reduce_scatter(_Scatter(reducer))  # type: ignore[arg-type]
        if replicate is not None:
            module.set_all_reduce_hook(average)


class _Communication:
    """What FSDP2 asks of a custom communication."""

    goal: Goal

    def __init__(self, reducer: Reducer) -> None:
        self.reducer = reducer
        self._over: dict[int, str] = {}  # by the process group

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for a call."""
        return torch.empty(*size, dtype=dtype, device=device)

    def over(self, group: dist.ProcessGroup) -> str:
        """The axes of the plan's reduction over the ranks of a group."""
        found = self._over.get(id(group))
        if found is None:
            found = self._over[id(group)] = self._find(tuple(dist.get_process_group_ranks(group)))
        return found

    def _find(self, ranks: tuple[int, ...]) -> str:
        roles = [role for role in self.reducer.roles if role.planned.communication.goal is self.goal]
        for role in roles:
            if role.ranks == ranks:
                return "+".join(role.planned.communication.axes)
        planned = "; ".join(f"{'+'.join(role.planned.communication.axes)}: {rank_list(role.ranks)}" for role in roles)
        raise EngineError(
            f"the model is sharded over {rank_list(ranks)}, but the plan's {self.goal} here is over {planned}: give "
            "fully_shard a dimension of device_mesh(plan)"
        )


class _Gather(_Communication):
    goal = Goal.ALL_GATHER

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        """Gather parameters. FSDP2 gives a part of the output as input, which a program may overwrite too early."""
        over = self.over(group)
        done = self.reducer.call(self.goal, input_tensor.clone(), output_tensor, "sum", over, async_op)
        return as_work([done], [output_tensor]) if async_op else None


class _Scatter(_Communication):
    goal = Goal.REDUCE_SCATTER

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> dist.Work | None:
        """Reduce gradients. Sums that are scaled on the way are left to the library."""
        if op not in OP_NAMES:
            scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
            work: dist.Work | None = scatter(output_tensor, input_tensor, op, group, async_op)
            return work
        done = self.reducer.call(self.goal, input_tensor, output_tensor, op, self.over(group), async_op)
        return as_work([done], [output_tensor]) if async_op else None
