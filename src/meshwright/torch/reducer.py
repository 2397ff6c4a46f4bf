"""The executor that users hold: runs a plan's programs over PyTorch process groups."""

import atexit
import os
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Literal, Self, overload

import torch
import torch.distributed as dist

from meshwright.errors import EngineError
from meshwright.language.goals import REDUCING, Goal
from meshwright.planning.plan import Plan
from meshwright.runtime.agreement import call_checks, introduce, judge_start
from meshwright.runtime.choose import Chooser, Over
from meshwright.runtime.notices import Notices
from meshwright.runtime.role import LaneGroup, Role, part_length, plan_groups
from meshwright.runtime.schedule import IN_PLACE
from meshwright.runtime.seats import seat
from meshwright.runtime.waiting import TIMEOUT, check_timeout
from meshwright.torch.collectives import OPERATIONS, REDUCED
from meshwright.torch.executor import Executor
from meshwright.torch.groups import backends, check_initialized, give_back, make_groups
from meshwright.torch.queue import CallQueue, Work
from meshwright.torch.store import LATE, Patience, agree, announce, default_store, leave

Operation = str | dist.ReduceOp | dist.ReduceOp.RedOpType
"""sum, avg, max or min; PyTorch's names for them do too."""

_numbers = count()  # of the reducers in this process; every process makes the same ones


FAREWELL, FAREWELL_AFTER_FAILURE = 10.0, 1.0
"""Seconds that rank 0 waits for the others to leave when all is well, and otherwise, so that they hear of it."""


class Reducer:
    """Runs the programs of a plan; every process makes one, after init_process_group.

    Making it checks that all processes have the same plan and sit where it says, and creates the process groups that
    the programs need. A call is collective over its reduction group, and every rank makes its calls in the same
    order.

    timeout: seconds after which a call fails whose other ranks do not come or have died.
    check: "first" compares size, dtype and operation between ranks before the first call of each kind, and all calls
    so far every 64 calls or 64 MiB; "always" before every call; "never" trusts the caller.

    Forgetting `close` does no harm: what it gives back is given back when the interpreter ends.
    """

    def __init__(self, plan: Plan, *, timeout: float = TIMEOUT, check: str = "first") -> None:
        """Check that processes and plan fit, and create the groups."""
        check_timeout(timeout)
        check_initialized()
        self.plan = plan
        self.rank, world = dist.get_rank(), dist.get_world_size()
        self._backends, self._store = backends(), default_store()
        self._queue = CallQueue()
        self._key = f"meshwright/{next(_numbers)}"
        self._groups: dict[LaneGroup, dist.ProcessGroup] = {}
        patience = Patience.of(timeout)
        said, self._roles = introduce(plan, world, self.rank, seat(os.environ), check)
        checks = call_checks(
            self._roles,
            check,
            lambda _, ranks: partial(agree, self._store, ranks, self.rank, patience, wake=self._give_up),
            self._key,
        )  # a wrong `check` is refused before anyone is waited for
        judge = partial(judge_start, None if said["fault"] else plan.placement.system)
        agree(self._store, range(world), self.rank, patience, f"{self._key}/start", None, said, judge)
        self._checks = checks
        self._groups |= make_groups(plan_groups(plan), timeout)
        self._executor = Executor(self._groups, self._room, self._give_up)
        self._choose = Chooser(plan)
        self._notices = Notices(plan, self.rank)
        self._scratch: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._closed = False
        self._leave = partial(leave, self._store, world, self.rank, self._key)
        _unclosed[self._key] = partial(_end, os.getpid(), self._queue, self._groups, self._leave)

    @overload
    def all_reduce(
        self, tensor: torch.Tensor, op: Operation = "sum", *, over: Over = None, async_op: Literal[False] = False
    ) -> torch.Tensor: ...
    @overload
    def all_reduce(
        self, tensor: torch.Tensor, op: Operation = "sum", *, over: Over = None, async_op: Literal[True]
    ) -> Work: ...
    def all_reduce(
        self, tensor: torch.Tensor, op: Operation = "sum", *, over: Over = None, async_op: bool = False
    ) -> torch.Tensor | Work:
        """Reduce over all ranks of the reduction group, in place; op is sum, avg, max or min.

        over: which of the plan's reductions; it may be left out where the plan has one all-reduce.
        async_op: return at once, with a handle to wait for; the tensor must be left alone until then.
        """
        return self._call(Goal.ALL_REDUCE, tensor, None, op, over, async_op)

    @overload
    def reduce(
        self, tensor: torch.Tensor, op: Operation = "sum", *, over: Over = None, async_op: Literal[False] = False
    ) -> torch.Tensor: ...
    @overload
    def reduce(
        self, tensor: torch.Tensor, op: Operation = "sum", *, over: Over = None, async_op: Literal[True]
    ) -> Work: ...
    def reduce(
        self, tensor: torch.Tensor, op: Operation = "sum", *, over: Over = None, async_op: bool = False
    ) -> torch.Tensor | Work:
        """Reduce to the first rank of the reduction group, in place; the others' tensors are of no use afterwards."""
        return self._call(Goal.REDUCE, tensor, None, op, over, async_op)

    @overload
    def broadcast(
        self, tensor: torch.Tensor, *, over: Over = None, async_op: Literal[False] = False
    ) -> torch.Tensor: ...
    @overload
    def broadcast(self, tensor: torch.Tensor, *, over: Over = None, async_op: Literal[True]) -> Work: ...
    def broadcast(self, tensor: torch.Tensor, *, over: Over = None, async_op: bool = False) -> torch.Tensor | Work:
        """Send the tensor of the first rank of the reduction group to all others, in place."""
        return self._call(Goal.BROADCAST, tensor, None, "sum", over, async_op)

    @overload
    def reduce_scatter(
        self, tensor: torch.Tensor, op: Operation = "sum", *, over: Over = None, async_op: Literal[False] = False
    ) -> torch.Tensor: ...
    @overload
    def reduce_scatter(
        self, tensor: torch.Tensor, op: Operation = "sum", *, over: Over = None, async_op: Literal[True]
    ) -> Work: ...
    def reduce_scatter(
        self, tensor: torch.Tensor, op: Operation = "sum", *, over: Over = None, async_op: bool = False
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

    def role(self, goal: Goal, over: Over = None) -> Role:
        """This rank's role in one of the plan's reductions, with the ranks of its group."""
        return self._roles[self._choose(goal, over, 1)]

    def close(self) -> None:
        """Finish what is under way, compare the last calls, give the groups back; every process calls it.

        Rank 0 waits for the others for some seconds, as its process may be the one through which they agree.
        """
        if self._closed:
            return
        self._closed = True
        healthy = self._queue.close()
        self._executor.close()
        patience = FAREWELL_AFTER_FAILURE
        try:
            if healthy:
                for check in dict.fromkeys(self._checks):
                    check.finish()
                patience = FAREWELL
        finally:
            self._leave(patience)
            give_back(self._groups)
            self._scratch.clear()
            del _unclosed[self._key]

    def __enter__(self) -> Self:
        """Use it for the time of a with statement."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Close it, unless something failed."""
        if kind is None:
            self.close()

    def _call(
        self, goal: Goal, tensor: torch.Tensor, out: torch.Tensor | None, op: Any, over: Over, async_op: bool
    ) -> torch.Tensor | Work:
        op = _NAMES.get(op, op) if isinstance(op, dist.ReduceOp | dist.ReduceOp.RedOpType) else op
        try:
            backend = self._refuse(goal, tensor, op)
            if out is not None:
                self._refuse(goal, out, op, "out")
            tensor = tensor.detach()
            whole = tensor if goal is not Goal.ALL_GATHER or out is None else out
            number = self._choose(goal, over, whole.nbytes, goal is Goal.ALL_GATHER and out is None)
            role, check = self._roles[number], self._checks[number]
            length = tensor.numel() * len(role.ranks) if goal is Goal.ALL_GATHER and out is None else whole.numel()
            result, kept = self._result(goal, tensor, out, length, role.ranks)
        except EngineError as error:
            self._tell(goal, over, error)
            raise
        kind = op if goal in REDUCING else "any"
        dtype = str(tensor.dtype).removeprefix("torch.")
        call = ("gives", str(length), "elements of", dtype, "to", goal, kind, "of", f"reduction {number}")
        staged = backend == "gloo" and tensor.device.type != "cpu"  # gloo talks from the host's memory
        ready = torch.cuda.current_stream(tensor.device).record_event() if staged else None

        def run() -> None:
            if ready is not None:
                ready.synchronize()
                there = result.cpu() if goal in IN_PLACE else torch.empty_like(result, device="cpu")
                given = there if goal in IN_PLACE else tensor.cpu()
            else:
                given, there = tensor, result
            try:
                self._executor.run(role, given, there, op, backend)
            except EngineError as error:
                self._give_up()
                raise check.explain(call, error, partial(agree, self._store, role.ranks, self.rank, LATE)) from error
            if ready is not None:
                result.copy_(there)
                torch.cuda.current_stream(tensor.device).synchronize()

        def communicate() -> torch.Tensor:
            try:
                check(call, length * tensor.element_size())
                if length:
                    run()
            except BaseException:
                self._give_up()  # others may be in the call, and wait for this rank
                raise
            return kept

        self._notices.library(backend)
        self._notices.chunks(number, len(role.cut(length, tensor.element_size())), length * tensor.element_size())
        if not async_op:
            return self._queue.run(communicate)
        if backend == "gloo":
            return self._queue.start(communicate)
        return self._queue.start_on_stream(communicate, tensor.device, (tensor, result))

    def _give_up(self) -> None:
        """Have the ranks fail that wait for this one. Groups of other libraries than gloo may still be at work."""
        if set(self._backends.values()) == {"gloo"}:
            give_back(self._groups)

    def _tell(self, goal: Goal, over: Over, error: EngineError) -> None:
        """Let the others know, who may be about to wait for this rank."""
        if not self._queue.idle():
            return  # calls before this one are still to be counted
        try:
            number = self._choose(goal, over, 1)
        except EngineError:
            return
        ranks, check = self._roles[number].ranks, self._checks[number]
        check.refuse(str(error), partial(announce, self._store, ranks, self.rank))

    def _result(
        self, goal: Goal, tensor: torch.Tensor, out: torch.Tensor | None, length: int, ranks: tuple[int, ...]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the result goes, and the part of it that the caller gets."""
        if goal in IN_PLACE:
            return tensor, tensor
        mine = part_length(length, len(ranks), ranks.index(self.rank))
        if goal is Goal.ALL_GATHER:
            if tensor.numel() != mine:
                raise EngineError(
                    f"rank {self.rank} gives {tensor.numel()} elements, but its part of {length} over {len(ranks)} "
                    f"ranks has {mine}"
                )
            result = tensor.new_empty(length) if out is None else out.detach()
            kept = result
        else:
            result = tensor.new_empty(part_length(length, len(ranks), 0))
            kept = result[:mine]
        if (result.dtype, result.device) != (tensor.dtype, tensor.device):
            raise EngineError(
                f"out is {result.dtype} on {result.device}, the part is {tensor.dtype} on {tensor.device}"
            )
        return result, kept

    def _refuse(self, goal: Goal, tensor: torch.Tensor, op: str, name: str = "the tensor") -> str:
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
        if tensor.requires_grad and torch.is_grad_enabled():
            raise EngineError(
                f"{name} requires a gradient, but none goes through a Reducer: call it under torch.no_grad(), or give "
                "tensor.detach(); torch.distributed.nn.functional has collectives that are differentiable"
            )
        if tensor.is_conj() or tensor.is_neg():
            raise EngineError(f"{name} is a conjugate or negative view: give tensor.resolve_conj().resolve_neg()")
        if goal in IN_PLACE or name == "out":
            if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
                raise EngineError(f"{name} is expanded: several of its elements are one, so it cannot be written to")
            if tensor.is_inference() and not torch.is_inference_mode_enabled():
                raise EngineError(f"{name} is an inference tensor, which cannot be written to outside inference mode")
        backend = self._backends.get(tensor.device.type)
        if backend is None:
            has = ", ".join(f"{name} for {device}" for device, name in self._backends.items())
            raise EngineError(f"{name} is on {tensor.device}, but the process group has {has}")
        return backend

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


_unclosed: dict[str, Callable[[], None]] = {}
"""What is to be done for the Reducers that nobody has closed when the interpreter ends. No Reducer is kept alive."""


def _end(
    process: int, queue: CallQueue, groups: dict[LaneGroup, dist.ProcessGroup], leave: Callable[[float], None]
) -> None:
    if process != os.getpid():  # a process that was forked off: groups and store are its parent's
        return
    leave(FAREWELL if queue.healthy() else FAREWELL_AFTER_FAILURE)
    give_back(groups)


@atexit.register
def _end_all() -> None:
    while _unclosed:
        _unclosed.popitem()[1]()


_NAMES: dict[Any, str] = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "avg",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.MIN: "min",
}
