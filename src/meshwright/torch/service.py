"""What a plan does for one process group: which of its collectives the plan's programs carry out, and how."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store

from meshwright.language.goals import Goal, Holding
from meshwright.planning.plan import Plan
from meshwright.planning.tuning import gain
from meshwright.runtime.agreement import call_checks
from meshwright.runtime.calls import Calls, Prepared
from meshwright.runtime.role import Role, program_at, role_groups
from meshwright.torch.channel import StoreChannel, Waits, own_connection
from meshwright.torch.collectives import REDUCED
from meshwright.torch.driver import Driver
from meshwright.torch.executor import ARRAYS
from meshwright.torch.groups import connect_groups
from meshwright.torch.queue import Work


@dataclass(frozen=True, slots=True)
class Members:
    """A process group: its name, what it is called in reports, its ranks by their positions in it, and this rank.

    dimension: the name of the dimension of a DeviceMesh that the group belongs to, or nothing.
    backends: the native one for each type of device. store: one that nothing else uses. timeout: in seconds.
    """

    name: str
    label: str
    dimension: str
    ranks: tuple[int, ...]
    rank: int
    backends: dict[str, str]
    store: Store
    timeout: float


class Service:
    """Carries out collectives over one process group with the plan's programs.

    roles: this rank's roles in the plan's reductions, in the ranks of the script. Those count whose ranks are the
    group's, in any order: a role has them in the order of devices, and the group perhaps in another.
    """

    def __init__(self, plan: Plan, roles: Sequence[Role], members: Members, tune: bool = False) -> None:
        """Nothing is connected before the first call. tune: as for `Calls`."""
        self.plan, self.members = plan, members
        mine = [role for role in roles if set(role.ranks) == set(members.ranks)]
        goals = [role.planned.communication for role in mine]
        self.over = {each.goal: "+".join(each.axes) for each in reversed(goals)}
        position = {rank: number for number, rank in enumerate(members.ranks)}
        order = [position[rank] for rank in mine[0].ranks] if mine else []
        self.order = None if order == sorted(order) else torch.tensor(order)
        self.rooted = order[:1] == [0]
        store = own_connection(members.store)
        waits = Waits.of(members.timeout)
        self.driver = Driver(
            f"process group {members.name}",
            store,
            members.rank,
            members.backends,
            partial(connect_groups, role_groups(mine), members.rank, members.backends, store, members.timeout),
            lambda _: None,
        )
        checks = call_checks(
            roles,
            "first",
            lambda _, ranks: StoreChannel(store, ranks, members.rank, waits, self.driver.give_up),
            "calls",
        )
        self.calls = Calls(plan, members.rank, roles, checks, ARRAYS, tune)
        self.calls.notices.silent = True  # a script that nobody changed should not see warnings that nobody expects
        self._known: dict[tuple[Any, ...], bool] = {}

    def takes(self, goal: Goal, op: str, given: Tensor, out: Tensor | None) -> bool:
        """Whether the plan carries a call out. It depends on nothing in which correct ranks differ."""
        whole = given if out is None or given.numel() > out.numel() else out
        kind = goal, op, given.dtype, given.device.type, whole.nbytes
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = self._plans(goal, op, given, whole.nbytes)
        return known and _dense(given) and (out is None or _dense(out))

    def plans(self, goal: Goal, size: int) -> bool:
        """Whether the plan has something else for calls of a size than the library's own collective."""
        if goal not in self.over or not size:
            return False
        if self.calls.tuner:  # ranks do not settle at the same moment, so none may leave calls to the library then
            return True
        found = program_at(self.plan.reductions[self.calls.choose(goal, self.over[goal], size)], size)
        return found.chunks > 1 or len(found.program.steps) > 1

    def leaves(self, goal: Goal, size: int, dtype: torch.dtype) -> bool:
        """Whether calls of a size and a dtype are the library's, whatever else they are."""
        return not self.plans(goal, size) or (goal.reduces and dtype not in REDUCED)

    def _plans(self, goal: Goal, op: str, given: Tensor, size: int) -> bool:
        if self.leaves(goal, size, given.dtype) or given.device.type not in self.members.backends:
            return False
        if op == "avg" and not given.dtype.is_floating_point:
            return False
        return self.rooted or Holding.ROOT not in (goal.start, goal.end)

    def run(
        self, goal: Goal, given: Tensor, out: Tensor | None, op: str, later: bool, after: Callable[[float], None]
    ) -> Tensor | Work:
        """Carry a call out; `out` is None where it is in place."""
        given, out = given.detach(), None if out is None else out.detach()
        if out is None:
            return self.driver.call(self._prepare(goal, given, None, op), op, later, after)
        if given.untyped_storage().data_ptr() == out.untyped_storage().data_ptr():
            given = given.clone()  # FSDP gathers from a part of the result, which a program may use before the end
        if self.order is None:
            return self.driver.call(self._prepare(goal, given, out, op), op, later, after)
        order, size = self.order.to(given.device), len(self.members.ranks)
        if goal.end is Holding.PART:  # part k goes to the rank that is the k-th in the order of devices
            given = given.reshape(size, -1)[order].reshape(-1)
            return self.driver.call(self._prepare(goal, given, out, op), op, later, after)
        gathered = torch.empty_like(out, memory_format=torch.contiguous_format)
        parts = out.view(size, -1)

        def put(seconds: float) -> None:
            parts[order] = gathered.view(size, -1)
            after(seconds)

        return self.driver.call(self._prepare(goal, given, gathered, op), op, later, put)

    def _prepare(self, goal: Goal, given: Tensor, out: Tensor | None, op: str) -> Prepared:
        return self.calls.prepare(goal, given, out, op, self.over[goal])

    def gain(self, goal: Goal, size: int) -> float | None:
        """How many times as fast as the library's own collective calls of a size were measured to be; None if not."""
        if goal not in self.over:
            return None
        plan = self.plan if self.calls.tuner is None else self.calls.tuner.plan_with("torch")
        return gain(plan, plan.reductions[self.calls.choose(goal, self.over[goal], size)], size)

    def close(self) -> None:
        """Finish what is under way, and give all back."""
        self.driver.close(self.calls)


def _dense(tensor: Tensor) -> bool:
    """Whether the elements of a tensor can be taken as they are."""
    return (
        tensor.layout is torch.strided
        and not (tensor.is_conj() or tensor.is_neg())
        and (not tensor.is_inference() or torch.is_inference_mode_enabled())
    )
