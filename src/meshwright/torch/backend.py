"""The backend: process groups whose collectives take a plan's programs where there are some, else the library's own."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.language.goals import Goal
from meshwright.torch.collectives import OP_NAMES
from meshwright.torch.queue import as_work
from meshwright.torch.record import Recorder, WatchedWork, total
from meshwright.torch.service import Members, Service
from meshwright.torch.tally import Tally

Pairs = list[tuple[Tensor, Tensor | None]]  # what is given, and where the result goes; None if in place


class Owner(Protocol):
    """Whoever makes planned groups."""

    tally: Tally
    recorder: Recorder | None

    def split(self, parent: "PlannedGroup", native: dist.ProcessGroup, positions: list[int]) -> "PlannedGroup":
        """A planned group around a part of another one."""

    def ended(self, group: "PlannedGroup") -> None:
        """A group is shut down."""


class PlannedGroup(dist.ProcessGroup):
    """A process group around one that PyTorch has made, which runs all that no program carries out.

    The native backends are registered here too, for those who ask for them. Every collective goes to the native group
    by a method of Python: PyTorch would run it with the interpreter's lock held if there was none, and so block gloo's
    threads, which need that lock to release tensors.
    """

    def __init__(self, native: dist.ProcessGroup, members: Members, service: Service | None, owner: Owner) -> None:
        """Stand in for a native group."""
        super().__init__(native.rank(), native.size())  # type: ignore[call-arg]
        self.native, self.members, self.service, self.owner = native, members, service, owner
        self._coalescing = False
        self._on_host = {device for device, kind in members.backends.items() if kind == "gloo"}
        self._left: set[tuple[str, int]] = set()  # methods and sizes of calls that the plan leaves to the library
        kinds = {device.type: members.backends[device.type] for device in native._device_types}
        types = {device: dist.Backend.backend_type_map[kind] for device, kind in kinds.items()}
        self._set_default_backend(types["cuda"] if kinds.get("cuda") == "nccl" else next(iter(types.values())))
        for device in native._device_types:
            self._register_backend(device, types[device.type], native._get_backend(device))
        self._set_group_name(native.group_name)
        self._set_group_desc(native.group_desc)
        if native.bound_device_id is not None:
            self.bound_device_id = native.bound_device_id

    def getBackendName(self) -> str:  # noqa: N802 - PyTorch's name
        """The name of the native backend."""
        return self.native.name()

    def split_group(self, new_ranks: list[int], *args: Any, **named: Any) -> dist.ProcessGroup | None:
        """A part of this group: natively made, and then planned for as well."""
        native = self.native.split_group(new_ranks, *args, **named)
        return None if native is None else self.owner.split(self, native, new_ranks)

    def shutdown(self) -> None:
        """Give back what belongs to programs, and shut the native group down."""
        if self.service is not None:
            self.service.close()
        self.owner.ended(self)
        self.native.shutdown()

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalescing = True
        self.native._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        self._coalescing = False
        return self.native._end_coalescing(device)

    def carry(self, name: str, goal: Goal, pairs_of: Callable[..., Pairs], taken: int, args: Any, named: Any) -> Any:
        """Carry out the collective that PyTorch calls `name`: its first `taken` arguments are tensors, then options."""
        native = getattr(self.native, name)
        options: Any = args[taken] if len(args) == taken + 1 and not named else None
        later = getattr(options, "asyncOp", None)
        if later is None:  # an older form, or defaults
            return native(*args, **named)
        pairs = pairs_of(*args[:taken])
        sizes = [given.nbytes if out is None else max(given.nbytes, out.nbytes) for given, out in pairs]
        size = sum(sizes)
        on_host = bool(pairs) and pairs[0][0].device.type in self._on_host
        if self.service is not None and (name, size) not in self._left:
            work = self._planned(self.service, name, goal, pairs, sizes, options, on_host)
            if work is not None:
                return work
        started = time.perf_counter()
        work = native(*args)
        seconds = None
        if not later and work is not None and on_host:
            work.wait()
            seconds = time.perf_counter() - started
        self.owner.tally.add(self.members.label, goal.value, size, False, seconds)
        if self.owner.recorder is None:
            return work
        return self._recorded(self.owner.recorder, goal, size, work, later, on_host)

    def _planned(
        self, service: Service, name: str, goal: Goal, pairs: Pairs, sizes: list[int], options: Any, on_host: bool
    ) -> Any:
        """Carry out a call by programs; None if it is the library's."""
        if not all(service.plans(goal, size) for size in sizes):
            if len(sizes) == 1:
                self._left.add((name, sizes[0]))  # such calls should cost next to nothing here
            return None
        if self._coalescing or getattr(options, "rootRank", None):
            return None
        op = OP_NAMES.get(options.reduceOp) if goal.reduces else "sum"
        if not op or not all(service.takes(goal, op, *pair) for pair in pairs):
            return None
        later, counts = options.asyncOp, [partial(self._count, goal, size, on_host) for size in sizes]
        done = [service.run(goal, *pair, op, later, count) for pair, count in zip(pairs, counts, strict=True)]
        work = as_work(done, [given if out is None else out for given, out in pairs])
        recorder = self.owner.recorder
        return work if recorder is None else self._recorded(recorder, goal, sum(sizes), work, later, on_host)

    def _count(self, goal: str, size: int, on_host: bool, seconds: float) -> None:
        """Count a planned call; on CUDA it is only enqueued when it returns, so its time is not known."""
        self.owner.tally.add(self.members.label, goal, size, True, seconds if on_host else None)

    def _recorded(self, recorder: Recorder, goal: str, size: int, work: Any, later: bool, on_host: bool) -> Any:
        """The work of a call, which is counted, and watched if its waits are seen by the host."""
        hidden = recorder.call(self.members, goal, size)
        return WatchedWork(work, hidden) if later and on_host and work is not None else work

    def run_natively(self, name: str, goal: str, taken: int, args: Any, named: Any) -> Any:
        """Run what no program carries out; argument `taken` has what is sent."""
        if goal:
            size = total(args[taken : taken + 1])
            self.owner.tally.add(self.members.label, goal, size, False, None)
            if self.owner.recorder is not None:
                to = self.members.ranks[args[1]] if goal is Goal.POINT_TO_POINT else None
                self.owner.recorder.call(self.members, goal, size, to)
        return getattr(self.native, name)(*args, **named)


def _in_place(tensors: list[Tensor]) -> Pairs:
    return [(tensor, None) for tensor in tensors]


def _gather(out: Tensor, part: Tensor) -> Pairs:
    return [(part, out)]


def _gather_all(outs: list[Tensor], parts: list[Tensor]) -> Pairs:
    return list(zip(parts, outs, strict=True))


_METHODS: tuple[tuple[Goal, int, Callable[..., Pairs], tuple[str, ...]], ...] = (
    (Goal.ALL_REDUCE, 1, _in_place, ("allreduce", "allreduce_coalesced")),
    (Goal.BROADCAST, 1, _in_place, ("broadcast",)),
    (Goal.REDUCE, 1, _in_place, ("reduce",)),
    (Goal.ALL_GATHER, 2, _gather, ("all_gather_single", "_allgather_base")),
    (Goal.ALL_GATHER, 2, _gather_all, ("all_gather_single_coalesced", "allgather_into_tensor_coalesced")),
    (Goal.REDUCE_SCATTER, 2, _gather, ("reduce_scatter_single", "_reduce_scatter_base")),
    (Goal.REDUCE_SCATTER, 2, _gather_all, ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced")),
)
"""The methods of process groups that programs may carry out, by all names that PyTorch has had for them: the goal, how
many arguments are tensors, and how to find among them what is given and where the result goes."""


_NATIVE: dict[str, tuple[str, int]] = {
    "allgather": (Goal.ALL_GATHER, 0),
    "allgather_coalesced": (Goal.ALL_GATHER, 0),
    "reduce_scatter": (Goal.REDUCE_SCATTER, 1),
    "alltoall": (Goal.ALL_TO_ALL, 1),
    "all_to_all_single": (Goal.ALL_TO_ALL, 1),
    "alltoall_base": (Goal.ALL_TO_ALL, 1),
    "gather": ("gather", 1),
    "scatter": ("scatter", 1),
    "send": (Goal.POINT_TO_POINT, 0),
    "recv": ("", 0),
    "recv_anysource": ("", 0),
    "barrier": ("", 0),
    "monitored_barrier": ("", 0),
    "merge_remote_group": ("", 0),
    "get_group_store": ("", 0),
    "set_timeout": ("", 0),
    "abort": ("", 0),
    "_set_sequence_number_for_group": ("", 0),
    "_get_sequence_number_for_group": ("", 0),
    "_enable_collectives_timing": ("", 0),
}
"""The other methods: what they are called in reports, if they are, and which of the arguments has the whole payload."""


def _override(name: str, goal: Goal, taken: int, pairs: Callable[..., Pairs]) -> None:
    def method(self: PlannedGroup, *args: Any, **named: Any) -> Any:
        return self.carry(name, goal, pairs, taken, args, named)

    _set_method(name, method)


def _pass_on(name: str, goal: str, taken: int) -> None:
    def method(self: PlannedGroup, *args: Any, **named: Any) -> Any:
        return self.run_natively(name, goal, taken, args, named)

    _set_method(name, method)


def _set_method(name: str, method: Any) -> None:
    if hasattr(dist.ProcessGroup, name):
        method.__name__ = method.__qualname__ = name
        setattr(PlannedGroup, name, method)


for _goal, _taken, _pairs, _names in _METHODS:
    for _name in _names:
        _override(_name, _goal, _taken, _pairs)
for _name, (_kind, _taken) in _NATIVE.items():
    _pass_on(_name, _kind, _taken)
