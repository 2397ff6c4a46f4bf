"""The executor that users hold: runs a plan's programs over PyTorch process groups."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from typing import Any, Literal, overload

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.errors import EngineError
from meshwright.language.goals import Goal
from meshwright.planning.plan import Plan
from meshwright.runtime.agreement import call_checks, introduce, judge_start
from meshwright.runtime.calls import Calls, Over, check_average, check_operation
from meshwright.runtime.role import Role, plan_groups
from meshwright.runtime.seats import seat
from meshwright.runtime.waiting import TIMEOUT, check_timeout
from meshwright.torch.channel import StoreChannel, Waits, default_store, leave
from meshwright.torch.collectives import OP_NAMES, REDUCED
from meshwright.torch.driver import Driver
from meshwright.torch.executor import ARRAYS
from meshwright.torch.groups import backends, check_initialized, make_groups
from meshwright.torch.queue import Work

Op = str | dist.ReduceOp | dist.ReduceOp.RedOpType  # sum, avg, max or min; PyTorch's names for them do too
Now = Literal[False]  # the values of `async_op`
Later = Literal[True]
Result = Tensor | Work

_numbers = count()  # of the reducers in this process; every process makes the same ones


class Reducer(AbstractContextManager["Reducer"]):
    """Runs the programs of a plan; every process makes one, after init_process_group.

    Making it checks that all processes have the same plan and sit where it says, and creates the process groups that
    the programs need. A call is collective over its reduction group, and every rank makes its calls in the same
    order.

    timeout: seconds after which a call fails whose other ranks do not come or have died.
    check: "first" compares size, dtype and operation between ranks before a call that has not come right after the same
    call before, and all calls so far every 64 calls or 64 MiB; "always" before every call; "never" trusts the caller.
    tune: whether the first calls of each reduction and size find out which programs are fastest: at most 40 calls take
    the library's own collective and the best predicted programs in turn, and all others what was the fastest.

    Forgetting `close` does no harm: what it gives back is given back when the interpreter ends.
    """

    def __init__(self, plan: Plan, *, timeout: float = TIMEOUT, check: str = "first", tune: bool = False) -> None:
        """Check that processes and plan fit, and create the groups."""
        check_timeout(timeout)
        check_initialized()
        self.plan = plan
        self.rank, world = dist.get_rank(), dist.get_world_size()
        self._backends, store, key = backends(), default_store(), f"meshwright/{next(_numbers)}"
        waits = Waits.of(timeout)
        said, roles = introduce(plan, world, self.rank, seat(os.environ), check, tune)
        checks = call_checks(
            roles, check, lambda _, ranks: StoreChannel(store, ranks, self.rank, waits, self._give_up), key
        )  # a wrong `check` is refused before anyone is waited for
        judge = partial(judge_start, None if said["fault"] else plan.placement.system)
        everyone = range(world)
        StoreChannel(store, everyone, self.rank, waits).agree(f"{key}/start", None, said, judge)
        self._calls = Calls(plan, self.rank, roles, checks, ARRAYS, tune)
        self._calls.notices.tuned("torch")
        make, go = (
            partial(make_groups, plan_groups(plan, tune), timeout),
            partial(leave, store, everyone, self.rank, key),
        )
        self._driver = Driver("this Reducer", store, self.rank, self._backends, make, go)
        self._driver.connect()

    @overload
    def all_reduce(self, tensor: Tensor, op: Op = "sum", *, over: Over = None, async_op: Now = False) -> Tensor: ...
    @overload
    def all_reduce(self, tensor: Tensor, op: Op = "sum", *, over: Over = None, async_op: Later) -> Work: ...
    def all_reduce(self, tensor: Tensor, op: Op = "sum", *, over: Over = None, async_op: bool = False) -> Result:
        """Reduce over all ranks of the reduction group, in place; op is sum, avg, max or min.

        over: which of the plan's reductions; it may be left out where the plan has one all-reduce.
        async_op: return at once, with a handle to wait for; the tensor must be left alone until then.
        """
        return self.call(Goal.ALL_REDUCE, tensor, None, op, over, async_op)

    @overload
    def reduce(self, tensor: Tensor, op: Op = "sum", *, over: Over = None, async_op: Now = False) -> Tensor: ...
    @overload
    def reduce(self, tensor: Tensor, op: Op = "sum", *, over: Over = None, async_op: Later) -> Work: ...
    def reduce(self, tensor: Tensor, op: Op = "sum", *, over: Over = None, async_op: bool = False) -> Result:
        """Reduce to the first rank of the reduction group, in place; the others' tensors are of no use afterwards."""
        return self.call(Goal.REDUCE, tensor, None, op, over, async_op)

    @overload
    def broadcast(self, tensor: Tensor, *, over: Over = None, async_op: Now = False) -> Tensor: ...
    @overload
    def broadcast(self, tensor: Tensor, *, over: Over = None, async_op: Later) -> Work: ...
    def broadcast(self, tensor: Tensor, *, over: Over = None, async_op: bool = False) -> Result:
        """Send the tensor of the first rank of the reduction group to all others, in place."""
        return self.call(Goal.BROADCAST, tensor, None, "sum", over, async_op)

    @overload
    def reduce_scatter(self, tensor: Tensor, op: Op = "sum", *, over: Over = None, async_op: Now = False) -> Tensor: ...
    @overload
    def reduce_scatter(self, tensor: Tensor, op: Op = "sum", *, over: Over = None, async_op: Later) -> Work: ...
    def reduce_scatter(self, tensor: Tensor, op: Op = "sum", *, over: Over = None, async_op: bool = False) -> Result:
        """Reduce, and return this rank's part of the flat result; the tensor stays as it is.

        Parts are equal; where the size does not divide, the last ones are shorter or empty.
        """
        return self.call(Goal.REDUCE_SCATTER, tensor, None, op, over, async_op)

    @overload
    def all_gather(
        self, part: Tensor, *, out: Tensor | None = None, over: Over = None, async_op: Now = False
    ) -> Tensor: ...
    @overload
    def all_gather(self, part: Tensor, *, out: Tensor | None = None, over: Over = None, async_op: Later) -> Work: ...
    def all_gather(
        self, part: Tensor, *, out: Tensor | None = None, over: Over = None, async_op: bool = False
    ) -> Result:
        """Put the parts of all ranks of the reduction group one after another.

        out: where to put them; needed where the last parts are shorter, as its size tells the whole. Otherwise the
        result is a new flat tensor.
        """
        return self.call(Goal.ALL_GATHER, part, out, "sum", over, async_op)

    def role(self, goal: Goal, over: Over = None) -> Role:
        """This rank's role in one of the plan's reductions, with the ranks of its group."""
        return self._calls.roles[self._calls.choose(goal, over, 1)]

    def tuned(self) -> Plan:
        """The plan with what is settled so far, for `write_plan`; the plan as it was, if nothing is.

        Groups that reduce at the same time settle each for itself, so ranks may have settled on different programs.
        """
        return self._calls.tuner.plan_with("torch") if self._calls.tuner else self.plan

    def close(self) -> None:
        """Finish what is under way, compare the last calls, give the groups back; every process calls it.

        Rank 0 waits for the others for some seconds, as its process may be the one through which they agree.
        """
        self._driver.close(self._calls)

    def __exit__(self, kind: object, *_: object) -> None:
        """Close it, unless something failed."""
        if kind is None:
            self.close()

    @property
    def roles(self) -> Sequence[Role]:
        """This rank's roles in the plan's reductions, by their numbers."""
        return self._calls.roles

    def call(self, goal: Goal, tensor: Tensor, out: Tensor | None, op: Any, over: Over, async_op: bool) -> Result:
        """Make a call to any goal; `out` is where the result of a reduce-scatter or an all-gather goes, if given."""
        op = OP_NAMES.get(op, op) if isinstance(op, dist.ReduceOp | dist.ReduceOp.RedOpType) else op
        try:
            self._calls.notices.library(self._refuse(goal, tensor, op))
            if out is not None:
                self._refuse(goal, out, op, "out")
            call = self._calls.prepare(goal, tensor.detach(), None if out is None else out.detach(), op, over)
        except EngineError as error:
            if self._driver.queue.idle():  # otherwise calls before this one are still to be counted
                self._calls.refuse(goal, over, error)
            raise
        return self._driver.call(call, op, async_op)

    def _give_up(self) -> None:
        self._driver.give_up()

    def _refuse(self, goal: Goal, tensor: Tensor, op: str, name: str = "the tensor") -> str:
        """Refuse a tensor or an operation that is not supported; otherwise return the tensor's backend."""
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
            raise EngineError(f"expected a dense tensor, not {getattr(tensor, 'layout', type(tensor).__name__)}")
        check_operation(op)
        if goal.reduces and tensor.dtype not in REDUCED:
            hint = "; reduce torch.view_as_real(tensor)" if tensor.dtype.is_complex else ""
            known = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in REDUCED))
            raise EngineError(f"{tensor.dtype} cannot be reduced, but {known} can{hint}")
        check_average(op, tensor.dtype.is_floating_point, tensor.dtype, "a floating point tensor")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise EngineError(
                f"{name} requires a gradient, but none goes through a Reducer: call it under torch.no_grad(), or give "
                "tensor.detach(); torch.distributed.nn.functional has collectives that are differentiable"
            )
        if tensor.is_conj() or tensor.is_neg():
            raise EngineError(f"{name} is a conjugate or negative view: give tensor.resolve_conj().resolve_neg()")
        if goal.in_place or name == "out":
            if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
                raise EngineError(f"{name} is expanded: several of its elements are one, so it cannot be written to")
            if tensor.is_inference() and not torch.is_inference_mode_enabled():
                raise EngineError(f"{name} is an inference tensor, which cannot be written to outside inference mode")
        backend = self._backends.get(tensor.device.type)
        if backend is None:
            has = ", ".join(f"{name} for {device}" for device, name in self._backends.items())
            raise EngineError(f"{name} is on {tensor.device}, but the process group has {has}")
        return backend
