"""The executor that users hold: runs a plan's programs over PyTorch process groups."""

import os
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Literal, overload

import torch
import torch.distributed as dist

from meshwright.engine import (
    CallCheck,
    Chooser,
    Over,
    check_devices,
    digest,
    judge_start,
    part_of,
    plan_groups,
    seat,
    share,
)
from meshwright.errors import EngineError
from meshwright.plan import Plan
from meshwright.program import REDUCING, Goal
from meshwright.torch.collectives import OPERATIONS, REDUCED
from meshwright.torch.executor import execute
from meshwright.torch.lane import Lane, Work
from meshwright.torch.store import agree

_numbers = count()  # of the reducers in this process; every process makes the same ones


class Reducer:
    """Runs the programs of a plan; every process makes one, after init_process_group.

    Making it checks that all processes have the same plan and sit where it says, and creates the process groups that
    the programs need. A call is collective over its reduction group, and every rank makes its calls in the same
    order.

    timeout: seconds after which a call fails whose other ranks do not come or have died.
    check: "first" compares size, dtype and operation between ranks before the first call of each kind, and all calls
    so far every 64 calls; "always" before every call; "never" trusts the caller.
    """

    def __init__(self, plan: Plan, *, timeout: float = 300.0, check: str = "first") -> None:
        """Check that processes and plan fit, and create the groups."""
        if not timeout > 0:
            raise EngineError(f"timeout={timeout!r}: expected a number of seconds above 0")
        if not dist.is_initialized():
            raise EngineError("there is no process group yet: call torch.distributed.init_process_group first")
        self.plan = plan
        self.rank, world = dist.get_rank(), dist.get_world_size()
        check_devices(plan.placement.system, world)
        self._parts = [part_of(plan, number, self.rank) for number in range(len(plan.reductions))]
        self._backends = _backends()
        key = f"meshwright/{next(_numbers)}"
        self._checks = [
            CallCheck(f"{key}/{number}", part.ranks, check, partial(agree, part.ranks, self.rank, timeout))
            for number, part in enumerate(self._parts)
        ]
        introduction = {"plan": digest(plan), "seat": seat(os.environ)}
        agree(range(world), self.rank, timeout, f"{key}/start", None, introduction, partial(judge_start, plan))
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        for ranks in plan_groups(plan):  # PyTorch wants every process to create every group, in the same order
            group = dist.new_group(list(ranks), timeout=timedelta(seconds=timeout))
            if self.rank in ranks:
                self._groups[ranks] = group
        self._choose = Chooser(plan)
        self._lane = Lane()
        self._scratch: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    @overload
    def all_reduce(
        self, tensor: torch.Tensor, op: str = "sum", *, over: Over = None, async_op: Literal[False] = False
    ) -> torch.Tensor: ...
    @overload
    def all_reduce(
        self, tensor: torch.Tensor, op: str = "sum", *, over: Over = None, async_op: Literal[True]
    ) -> Work: ...
    def all_reduce(
        self, tensor: torch.Tensor, op: str = "sum", *, over: Over = None, async_op: bool = False
    ) -> torch.Tensor | Work:
        """Reduce over all ranks of the reduction group, in place; op is sum, avg, max or min.

        over: which of the plan's reductions; it may be left out where the plan has one all-reduce.
        async_op: return at once, with a handle to wait for; the tensor must be left alone until then.
        """
        return self._call(Goal.ALL_REDUCE, tensor, tensor, op, over, async_op)

    @overload
    def reduce(
        self, tensor: torch.Tensor, op: str = "sum", *, over: Over = None, async_op: Literal[False] = False
    ) -> torch.Tensor: ...
    @overload
    def reduce(self, tensor: torch.Tensor, op: str = "sum", *, over: Over = None, async_op: Literal[True]) -> Work: ...
    def reduce(
        self, tensor: torch.Tensor, op: str = "sum", *, over: Over = None, async_op: bool = False
    ) -> torch.Tensor | Work:
        """Reduce to the first rank of the reduction group, in place; the others' tensors are of no use afterwards."""
        return self._call(Goal.REDUCE, tensor, tensor, op, over, async_op)

    @overload
    def broadcast(
        self, tensor: torch.Tensor, *, over: Over = None, async_op: Literal[False] = False
    ) -> torch.Tensor: ...
    @overload
    def broadcast(self, tensor: torch.Tensor, *, over: Over = None, async_op: Literal[True]) -> Work: ...
    def broadcast(self, tensor: torch.Tensor, *, over: Over = None, async_op: bool = False) -> torch.Tensor | Work:
        """Send the tensor of the first rank of the reduction group to all others, in place."""
        return self._call(Goal.BROADCAST, tensor, tensor, "sum", over, async_op)

    @overload
    def reduce_scatter(
        self, tensor: torch.Tensor, op: str = "sum", *, over: Over = None, async_op: Literal[False] = False
    ) -> torch.Tensor: ...
    @overload
    def reduce_scatter(
        self, tensor: torch.Tensor, op: str = "sum", *, over: Over = None, async_op: Literal[True]
    ) -> Work: ...
    def reduce_scatter(
        self, tensor: torch.Tensor, op: str = "sum", *, over: Over = None, async_op: bool = False
    ) -> torch.Tensor | Work:
        """Reduce, and return this rank's part of the flat result; the tensor stays as it is.

        Parts are equal; where the size does not divide, the last ones are shorter or empty.
        """
        return self._call(Goal.REDUCE_SCATTER, tensor, None, op, over, async_op)

    @overload
    def all_gather(
        self,
        part: torch.Tensor,
        *,
        out: torch.Tensor | None = None,
        over: Over = None,
        async_op: Literal[False] = False,
    ) -> torch.Tensor: ...
    @overload
    def all_gather(
        self, part: torch.Tensor, *, out: torch.Tensor | None = None, over: Over = None, async_op: Literal[True]
    ) -> Work: ...
    def all_gather(
        self, part: torch.Tensor, *, out: torch.Tensor | None = None, over: Over = None, async_op: bool = False
    ) -> torch.Tensor | Work:
        """Put the parts of all ranks of the reduction group one after another.

        out: where to put them; needed where the last parts are shorter, as its size tells the whole. Otherwise the
        result is a new flat tensor.
        """
        return self._call(Goal.ALL_GATHER, part, out, "sum", over, async_op)

    def close(self) -> None:
        """Finish what is under way, and give the process groups back; every process calls it."""
        self._lane.close()
        for group in self._groups.values():
            dist.destroy_process_group(group)
        self._groups.clear()

    def _call(
        self, goal: Goal, tensor: torch.Tensor, result: torch.Tensor | None, op: str, over: Over, async_op: bool
    ) -> torch.Tensor | Work:
        backend = self._refuse(goal, tensor, op)
        whole = tensor if goal is not Goal.ALL_GATHER or result is None else result
        number = self._choose(goal, over, whole.nbytes)
        ranks = self._parts[number].ranks
        tensor = tensor.detach()
        if result is not None:
            result = result.detach()
        kept = result
        if goal is Goal.REDUCE_SCATTER:
            length = tensor.numel()
            result = tensor.new_empty(share(length, len(ranks), 0))
            kept = result[: share(length, len(ranks), ranks.index(self.rank))]
        elif goal is Goal.ALL_GATHER:
            length = tensor.numel() * len(ranks) if result is None else result.numel()
            result = tensor.new_empty(length) if result is None else result
            kept = result
            self._refuse_part(tensor, result, ranks)
        else:
            length = tensor.numel()
        assert result is not None
        assert kept is not None
        done, into = kept, result
        call = ("gives", str(length), "elements of", str(tensor.dtype), "to", goal, op if goal in REDUCING else "")
        part, check = self._parts[number], self._checks[number]

        def communicate() -> torch.Tensor:
            check(call)
            if length == 0:
                return done
            if backend == "gloo" and tensor.device.type != "cpu":  # gloo talks from the host's memory
                there = into.cpu()
                execute(part, self._groups, there if into is tensor else tensor.cpu(), there, op, backend, self._room)
                into.copy_(there)
            else:
                execute(part, self._groups, tensor, into, op, backend, self._room)
            return done

        if not async_op:
            return self._lane.run(communicate)
        if backend == "gloo":
            return self._lane.start(communicate)
        return self._lane.start_on_stream(communicate, tensor.device)

    def _refuse(self, goal: Goal, tensor: torch.Tensor, op: str) -> str:
        """Complain about a tensor or an operation that cannot be; otherwise name the backend for it."""
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            raise EngineError(f"expected a dense tensor, not {getattr(tensor, 'layout', type(tensor).__name__)}")
        if op != "avg" and op not in OPERATIONS:
            raise EngineError(f"op={op!r}: expected sum, avg, max or min")
        if goal in REDUCING and tensor.dtype not in REDUCED:
            hint = "; reduce torch.view_as_real(tensor)" if tensor.dtype.is_complex else ""
            known = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in REDUCED))
            raise EngineError(f"{tensor.dtype} cannot be reduced, but {known} can{hint}")
        if op == "avg" and not tensor.dtype.is_floating_point:
            raise EngineError(
                f"op='avg' needs a floating point tensor, not {tensor.dtype}: reduce with 'sum', then divide"
            )
        backend = self._backends.get(tensor.device.type)
        if backend is None:
            has = ", ".join(f"{name} for {device}" for device, name in self._backends.items())
            raise EngineError(f"the tensor is on {tensor.device}, but the process group has {has}")
        return backend

    def _refuse_part(self, part: torch.Tensor, whole: torch.Tensor, ranks: tuple[int, ...]) -> None:
        mine = share(whole.numel(), len(ranks), ranks.index(self.rank))
        if part.numel() != mine:
            raise EngineError(
                f"rank {self.rank} gives {part.numel()} elements, but its part of {whole.numel()} over "
                f"{len(ranks)} ranks has {mine}"
            )
        if (whole.dtype, whole.device) != (part.dtype, part.device):
            raise EngineError(f"out is {whole.dtype} on {whole.device}, the part is {part.dtype} on {part.device}")

    def _room(self, slot: int, length: int, like: torch.Tensor) -> torch.Tensor:
        """Memory for a call: kept for the next one on the CPU, where getting it from the system costs more than using
        it.
        """
        if like.device.type != "cpu":
            return like.new_empty(length)
        kept = self._scratch.get((slot, like.dtype))
        if kept is None or kept.numel() < length:
            kept = self._scratch[slot, like.dtype] = like.new_empty(length)
        return kept[:length]


def _backends() -> dict[str, str]:
    """The backend for each type of device, like {"cpu": "gloo", "cuda": "nccl"}."""
    pairs = (pair.partition(":") for pair in dist.get_backend_config().split(","))
    return {device: backend for device, _, backend in pairs}
