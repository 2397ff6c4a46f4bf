"""The backend: process groups whose collectives take a plan's programs where there are some, else the library's own."""

import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.language.goals import Goal
from meshwright.torch.collectives import OP_NAMES
from meshwright.torch.queue import as_work
from meshwright.torch.record import Recorder, WatchedWork, tensors, total
from meshwright.torch.service import Members, Service
from meshwright.torch.tally import Sum, Tally

Pairs = list[tuple[Tensor, Tensor | None]]  # what is given, and where the result goes; None if in place
PairsOf = Callable[..., Pairs] | None  # finds them among the arguments of a call; None if no program carries it out
Kind = tuple[str, int, torch.dtype | None]  # of calls: the method, the bytes, and the dtype if it is one tensor

EACH = 17
"""Of many native calls of a kind, one in so many is timed. A prime, as steps repeat their calls in other rhythms."""


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
        self._host = {device for device, kind in members.backends.items() if kind == "gloo"}
        self.left: dict[Kind | None, tuple[Any, Sum]] = {}  # kinds of calls that are the library's: its method, a count
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

    def carry(self, name: str, goal: str, pairs_of: PairsOf, kind: Kind | None, args: Any, named: Any) -> Any:
        """Carry out the collective that PyTorch calls `name`, where it is not yet known to be the library's."""
        native = getattr(self.native, name)
        if kind is None:  # PyTorch says what is wrong, if anything is
            return native(*args, **named)
        service, recorder, (_, size, dtype) = self.service, self.owner.recorder, kind
        if service is not None and pairs_of is not None and not named:
            work = self._planned(service, Goal(goal), pairs_of, args)
            if work is not None:
                return work
        found = self.owner.tally.sum_of(self.members.label, goal, size, planned=False)
        found.calls += 1
        if recorder is not None:
            return self._recorded(recorder, goal, size, self.run_natively(native, found, 1, args, named), args)
        if service is None or pairs_of is None or (dtype is not None and service.leaves(Goal(goal), size, dtype)):
            self.left[kind] = native, found
        return self.run_natively(native, found, 1, args, named)

    def run_natively(self, native: Any, found: Sum, standing: int, args: Any, named: Any) -> Any:
        """Run a native call; if the host waits for it, take its time, as that of `standing` calls."""
        started = time.perf_counter()
        work = native(*args, **named)
        if work is not None and not _later(args, True) and self._on_host(args):
            work.wait()
            self.owner.tally.ended(found, time.perf_counter() - started, standing)
        return work

    def _planned(self, service: Service, goal: Goal, pairs_of: Callable[..., Pairs], args: Any) -> Any:
        """Carry out a call by programs; None if it is the library's."""
        options: Any = args[-1]
        later = _later(args, None)
        if later is None or self._coalescing or getattr(options, "rootRank", None):  # no options: an older form
            return None
        op = OP_NAMES.get(options.reduceOp) if goal.reduces else "sum"
        pairs = pairs_of(*args[:-1])
        if not op or not all(service.takes(goal, op, *pair) for pair in pairs):
            return None
        on_host, sizes = self._on_host(args), [max(each.nbytes for each in tensors(pair)) for pair in pairs]
        counts = [partial(self._count, goal, size, on_host) for size in sizes]
        done = [service.run(goal, *pair, op, later, count) for pair, count in zip(pairs, counts, strict=True)]
        work = as_work(done, [given if out is None else out for given, out in pairs])
        recorder = self.owner.recorder
        return work if recorder is None else self._recorded(recorder, goal, sum(sizes), work, args)

    def _count(self, goal: str, size: int, on_host: bool, seconds: float) -> None:
        """Count a planned call; on CUDA it is only enqueued when it returns, so its time is not known."""
        found = self.owner.tally.sum_of(self.members.label, goal, size, planned=True)
        found.calls += 1
        if on_host:
            self.owner.tally.ended(found, seconds)

    def _recorded(self, recorder: Recorder, goal: str, size: int, work: Any, args: Any) -> Any:
        """The work of a call, which is counted, and watched if its waits are seen by the host."""
        to = self.members.ranks[args[1]] if goal == Goal.POINT_TO_POINT else None
        hidden = recorder.call(self.members, goal, size, to)
        return WatchedWork(work, hidden) if work is not None and _later(args, False) and self._on_host(args) else work

    def _on_host(self, args: Any) -> bool:
        """Whether the host sees the end of a call, of which all but the last argument are tensors, or lists of them."""
        return any(each.device.type in self._host for each in islice(tensors(args[:-1]), 1))


def _later(args: Any, default: bool | None) -> bool | None:
    """Whether a call is asynchronous, if its last argument says so."""
    found: bool | None = getattr(args[-1], "asyncOp", default)
    return found


def _kind(name: str, args: Any, sent: int) -> Kind | None:
    """The kind of a call, whose argument `sent` has the whole payload; None if that is missing, sparse or no tensor."""
    try:
        given = args[sent]
        if type(given) is list and len(given) == 1:
            given = given[0]
        if isinstance(given, Tensor):
            return name, given.nbytes, given.dtype
        return name, total(given), None
    except (IndexError, TypeError, RuntimeError):
        return None


def _in_place(tensors: list[Tensor]) -> Pairs:
    return [(tensor, None) for tensor in tensors]


def _gather(out: Tensor, part: Tensor) -> Pairs:
    return [(part, out)]


def _gather_all(outs: list[Tensor], parts: list[Tensor]) -> Pairs:
    return list(zip(parts, outs, strict=True))


_PLANNED: tuple[tuple[Goal, int, Callable[..., Pairs], tuple[str, ...]], ...] = (
    (Goal.ALL_REDUCE, 0, _in_place, ("allreduce", "allreduce_coalesced")),
    (Goal.BROADCAST, 0, _in_place, ("broadcast",)),
    (Goal.REDUCE, 0, _in_place, ("reduce",)),
    (Goal.ALL_GATHER, 0, _gather, ("all_gather_single", "_allgather_base")),
    (Goal.ALL_GATHER, 0, _gather_all, ("all_gather_single_coalesced", "allgather_into_tensor_coalesced")),
    (Goal.REDUCE_SCATTER, 1, _gather, ("reduce_scatter_single", "_reduce_scatter_base")),
    (Goal.REDUCE_SCATTER, 1, _gather_all, ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced")),
)
"""The methods of process groups that programs may carry out, by all names that PyTorch has had for them: the goal,
which argument has the whole payload, and how to find among the tensors what is given and where the result goes."""


_COUNTED: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    (Goal.ALL_GATHER, 0, ("allgather", "allgather_coalesced")),
    (Goal.REDUCE_SCATTER, 1, ("reduce_scatter",)),
    (Goal.ALL_TO_ALL, 1, ("alltoall", "all_to_all_single", "alltoall_base")),
    ("gather", 1, ("gather",)),
    ("scatter", 1, ("scatter",)),
    (Goal.POINT_TO_POINT, 0, ("send",)),
)
"""Those that none does, but reports have: what they are called there, and which argument has the whole payload."""

_OTHERS = (
    "recv",
    "recv_anysource",
    "barrier",
    "monitored_barrier",
    "merge_remote_group",
    "get_group_store",
    "set_timeout",
    "abort",
    "_set_sequence_number_for_group",
    "_get_sequence_number_for_group",
    "_enable_collectives_timing",
)


def _override(name: str, goal: str, sent: int, pairs_of: PairsOf = None) -> None:
    def method(self: PlannedGroup, *args: Any, **named: Any) -> Any:
        kind = _kind(name, args, sent)
        known = self.left.get(kind)
        if known is None:
            return self.carry(name, goal, pairs_of, kind, args, named)
        native, found = known  # from here on all that a native call costs more; its work stays as it is
        found.calls += 1
        if found.calls > EACH and found.calls % EACH:
            return native(*args, **named)
        return self.run_natively(native, found, 1 if found.calls <= EACH else EACH, args, named)

    _set_method(name, method)


def _pass_on(name: str) -> None:
    def method(self: PlannedGroup, *args: Any, **named: Any) -> Any:
        return getattr(self.native, name)(*args, **named)

    _set_method(name, method)


def _set_method(name: str, method: Any) -> None:
    if hasattr(dist.ProcessGroup, name):
        method.__name__ = method.__qualname__ = name
        setattr(PlannedGroup, name, method)


for _goal, _sent, _pairs, _names in _PLANNED:
    for _name in _names:
        _override(_name, _goal, _sent, _pairs)
for _word, _sent, _names in _COUNTED:
    for _name in _names:
        _override(_name, _word, _sent)
for _name in _OTHERS:
    _pass_on(_name)
