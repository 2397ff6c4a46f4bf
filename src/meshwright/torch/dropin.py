"""Drop-in: process groups that a script makes get a plan's programs, and the script does not notice."""

import os
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from inspect import signature
from typing import Any, NoReturn

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import PrefixStore, Store, _register_process_group, _unregister_process_group
from torch.optim.optimizer import register_optimizer_step_post_hook

from meshwright.errors import EngineError, MeshwrightError
from meshwright.language.goals import Goal
from meshwright.planning.plan import Plan
from meshwright.planning.planfile import read_plan, write_plan
from meshwright.planning.tuning import retuned
from meshwright.runtime.agreement import introduce, judge_start
from meshwright.runtime.dropin import DEVICE, PLAN, TUNE, device_ranks, launched, wish
from meshwright.runtime.role import Role, renumbered
from meshwright.runtime.seats import seat
from meshwright.runtime.waiting import TIMEOUT
from meshwright.torch.backend import PlannedGroup
from meshwright.torch.channel import StoreChannel, Waits, leave, own_connection, tell_first
from meshwright.torch.driver import FAREWELL, FAREWELL_AFTER_FAILURE, at_end
from meshwright.torch.groups import OURS, backends
from meshwright.torch.record import Recorder, said, write
from meshwright.torch.service import Members, Service
from meshwright.torch.tally import Tally

WRAPPED = {"gloo", "nccl"}
"""The native backends around which a planned group can stand."""

Make = Callable[..., tuple[Any, Any]]


class Session:
    """A plan for the ranks of one `init_process_group`."""

    def __init__(self, plan: Plan | None, default: str, rank: int, world: int, store: Store) -> None:
        """Compare the plan and the seats between the ranks."""
        self.default = default  # the name of the default group
        self.plan, self.rank, self.world, self.store = plan, rank, world, own_connection(store)
        self.tally, self.recorder = _tally, _recorder()
        self.tuned = os.environ.get(TUNE)  # the file for what the first calls find out
        self.roles: list[Role] = [] if plan is None else self._roles(plan)
        self.services: list[Service] = []
        at_end[id(self)] = partial(self.end, os.getpid())

    def _roles(self, plan: Plan) -> list[Role]:
        """This rank's roles in the plan, after ranks have agreed that it is the same plan and fits."""
        world, system = self.world, plan.placement.system
        moved = DEVICE in os.environ and world == system.devices
        ranks = device_ranks(plan.placement) if moved else range(world)
        device = ranks.index(self.rank)
        said, roles = introduce(plan, world, device, seat(os.environ), tune=bool(self.tuned))
        judge = partial(judge_start, None if said["fault"] else system)
        StoreChannel(self.store, range(world), device, Waits.of(TIMEOUT)).agree("start", None, said, judge)
        return [renumbered(role, ranks) for role in roles]

    def wrap(
        self, native: dist.ProcessGroup, ranks: tuple[int, ...], kinds: dict[str, str], store: Store, timeout: float
    ) -> PlannedGroup:
        """A planned group around a native one."""
        fitting = [role.planned.communication.axes for role in self.roles if set(role.ranks) == set(ranks)]
        named = native.group_desc.removeprefix("mesh_") if native.group_desc.startswith("mesh_") else ""
        plain = named or ("all ranks" if len(ranks) == self.world else f"{len(ranks)} ranks")
        label = "+".join(fitting[0]) if fitting else plain
        members = Members(native.group_name, label, named, ranks, self.rank, kinds, store, timeout)
        planned = self.plan if fitting and len(ranks) > 1 else None
        service = None if planned is None else Service(planned, self.roles, members, bool(self.tuned))
        if service is not None:
            self.services.append(service)
        return PlannedGroup(native, members, service, self)

    def split(self, parent: PlannedGroup, native: dist.ProcessGroup, positions: list[int]) -> PlannedGroup:
        """A planned group around a part of another one."""
        old = parent.members
        ranks = tuple(old.ranks[position] for position in sorted(positions))
        return self.wrap(native, ranks, old.backends, _fresh(native.group_name, native.get_group_store()), old.timeout)

    def ended(self, group: PlannedGroup) -> None:
        """With the default group all others are shut down too."""
        if group.members.name == self.default:
            self.end(os.getpid())

    def end(self, process: int) -> None:
        """Say goodbye, as the process of rank 0 may have the store through which the others compare their calls."""
        at_end.pop(id(self), None)
        if process != os.getpid():
            return
        if self.rank == 0 and self.tuned and self.plan is not None:
            self._write(self.tuned, self.plan)
        well = all(service.driver.queue.healthy() for service in self.services) and not hasattr(sys, "last_type")
        everyone, patience = range(self.world), FAREWELL if well else FAREWELL_AFTER_FAILURE
        if self.recorder is None:
            leave(self.store, everyone, self.rank, "end", patience)
            return
        told = tell_first(self.store, everyone, self.rank, "record", said(self.recorder, self.rank), patience)
        if self.rank == 0:
            write(self.recorder.wish, self.world, told)

    def gain(self, group: str, collective: str, size: int) -> float | None:
        """How many times as fast as the library's own collective the plan's programs were measured to be."""
        found = (
            service.gain(Goal(collective), size)
            for service in self.services
            if service.members.label == group and collective in list(Goal)
        )
        return next((each for each in found if each is not None), None)

    def _write(self, path: str, plan: Plan) -> None:
        """Write the plan with what the first calls have found out."""
        for service in self.services:
            if service.calls.tuner:
                plan = retuned(plan, service.calls.tuner.settled("torch"))
        try:
            write_plan(plan, path)
        except MeshwrightError as error:
            print(f"meshwright: {error}", file=sys.stderr, flush=True)


_made: Counter[str] = Counter()  # process groups, by name: a name may be used again after all groups are destroyed
_tally = Tally()
_session: Session | None = None


@cache
def _recorder() -> Recorder | None:
    """What counts the calls of this process, if they are to be recorded."""
    found = wish(os.environ)
    if found is None:
        return None
    recorder = Recorder(found)
    register_optimizer_step_post_hook(lambda optimizer, _args, _named: recorder.step(optimizer))
    return recorder


def _fresh(name: str, store: Store) -> Store:
    """A part of a group's store that no group of the same name has used before."""
    _made[name] += 1
    return PrefixStore(f"meshwright/{_made[name]}/", store)


def make_group(make: Make, *args: Any, **named: Any) -> tuple[Any, Any]:
    """Make a process group as PyTorch does, with `make`; if a plan may carry out its collectives, a planned one."""
    global _session
    given = signature(make).bind(*args, **named).arguments
    kinds = backends(str(c10d.BackendConfig(c10d.Backend(given["backend"]))))
    kinds = {device: kind for device, kind in kinds.items() if device in ("cpu", "cuda")}
    ranks = tuple(given["global_ranks_in_group"]) or tuple(range(given["group_size"]))
    is_default = not given["global_ranks_in_group"]
    if is_default and not WRAPPED.issuperset(kinds.values()):
        asked = ", ".join(sorted(set(kinds.values()) - WRAPPED))
        _refuse(f"a plan can be carried out on gloo and nccl, but the script asks for {asked}", given["group_rank"])
    native, store = make(*args, **named)
    ours = given.get("group_desc") == OURS or isinstance(native, PlannedGroup) or not WRAPPED.issuperset(kinds.values())
    if ours or not isinstance(native, dist.ProcessGroup):
        return native, store
    here = _fresh(native.group_name, store)
    if is_default:
        plan = read_plan(os.environ[PLAN]) if os.environ.get(PLAN) else None
        try:
            _session = Session(plan, native.group_name, given["group_rank"], len(ranks), here)
        except EngineError as error:
            if not error.agreed:
                raise
            _refuse(str(error), given["group_rank"])
    assert _session is not None
    planned = _session.wrap(native, ranks, kinds, here, given["timeout"].total_seconds())
    _replace(native, planned)
    return planned, store


def _refuse(why: str, rank: int) -> NoReturn:
    """End a script that cannot have its plan, as all ranks know; `launch` ends so too, before a script starts.

    rank: if PyTorch knows it, which it does not in the case of MPI.
    """
    if (rank if rank >= 0 else (launched(os.environ) or (0, 1))[0]) == 0:
        print(f"Error: {why}", file=sys.stderr, flush=True)
    sys.exit(3)


def _replace(native: dist.ProcessGroup, planned: PlannedGroup) -> None:
    """Have PyTorch know a planned group in place of a native one."""
    world: Any = c10d._world
    for table in (world.pg_map, world.pg_names, world.pg_backend_config, world.pg_to_tag):
        table[planned] = table.pop(native)
    for groups in world.tags_to_pg.values():
        groups[:] = [planned if group is native else group for group in groups]
    _unregister_process_group(native.group_name)
    _register_process_group(native.group_name, planned)


@partial(at_end.__setitem__, 0)
def _report() -> None:
    """Rank 0 says what was carried out by the plan, and what natively."""
    if _session is not None and _session.rank == 0 and (table := _tally.table(_session.gain)):
        print(f"meshwright: the collectives of rank 0\n{table}", end="", file=sys.stderr, flush=True)
