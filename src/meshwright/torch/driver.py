"""The driver: makes the calls of one rank, one after another, and finds out why one failed."""

import atexit
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from meshwright.errors import EngineError
from meshwright.runtime.calls import CallKind, Calls, Prepared
from meshwright.runtime.payload import Room
from meshwright.runtime.role import Cut, LaneGroup
from meshwright.torch.channel import LATE, StoreChannel
from meshwright.torch.executor import ARRAYS, Executor
from meshwright.torch.groups import give_back
from meshwright.torch.queue import CallQueue, Work

FAREWELL, FAREWELL_AFTER_FAILURE = 10.0, 1.0
"""Seconds that rank 0 waits for the others to leave when all is well, and otherwise, so that they hear of it."""


class Driver:
    """Makes calls: compares them between the ranks, runs their programs, and explains failures.

    user: what messages call whom the driver works for.
    make: makes the process groups that the programs need.
    leave: says goodbye to the other ranks, and waits for them for some seconds if they may still need this process.
    """

    def __init__(
        self,
        user: str,
        store: Store,
        rank: int,
        backends: Mapping[str, str],
        make: Callable[[], Mapping[LaneGroup, dist.ProcessGroup]],
        leave: Callable[[float], None],
    ) -> None:
        """No process groups are made yet."""
        self.store, self.rank, self.backends, self.leave = store, rank, backends, leave
        self.groups: dict[LaneGroup, dist.ProcessGroup] = {}
        self.queue = CallQueue(user)
        self.room = Room(ARRAYS)
        self.executor = Executor(self.groups, self._allocate, self.give_up)
        self._make: Callable[[], Mapping[LaneGroup, dist.ProcessGroup]] | None = make
        self._closed = False

    def connect(self) -> None:
        """Make the process groups, unless they are made already."""
        if self._make is None:
            return
        make, self._make = self._make, None
        self.groups |= make()
        at_end[id(self.groups)] = partial(_end, os.getpid(), self.queue, self.groups, self.leave)

    def call(
        self, call: Prepared, op: str, async_op: bool, after: Callable[[float], None] = lambda _: None
    ) -> Tensor | Work:
        """Make a call now, or later, on a worker thread or a CUDA stream.

        after: what is to be done with the result before others get it; it is told how many seconds the call took.
        """
        kind, device = call.kind, call.given.device
        backend = self.backends[device.type]
        staged = backend == "gloo" and device.type != "cpu"  # gloo talks from the host's memory
        ready = torch.cuda.current_stream(device).record_event() if staged else None

        def communicate() -> Tensor:
            started = time.perf_counter()
            try:
                self.connect()
                kind.check(kind.words, kind.bytes)
                if kind.length:
                    self._run(call, op, backend, ready)
                after(time.perf_counter() - started)
            except BaseException:
                self.give_up()  # others may be in the call, and wait for this rank
                raise
            kept: Tensor = call.kept
            return kept

        if not async_op:
            return self.queue.run(communicate)
        if backend == "gloo":
            return self.queue.start(communicate)
        return self.queue.start_on_stream(communicate, device, (call.given, call.result))

    def close(self, calls: Calls) -> None:
        """Finish what is under way, compare the last calls, leave the others, and give the groups back."""
        if self._closed:
            return
        self._closed = True
        healthy = self.queue.close()
        self.executor.close()
        patience = FAREWELL_AFTER_FAILURE
        try:
            if healthy:
                calls.finish()
                patience = FAREWELL
        finally:
            self.leave(patience)
            give_back(self.groups)
            self.room.kept.clear()
            at_end.pop(id(self.groups), None)

    def give_up(self) -> None:
        """Have the ranks fail that wait for this one. Groups of other libraries than gloo may still be at work."""
        if set(self.backends.values()) == {"gloo"}:
            give_back(self.groups)

    def _run(self, call: Prepared, op: str, backend: str, ready: torch.cuda.Event | None) -> None:
        """Run a call. ready: what to wait for before a tensor on the GPU is copied to the host's memory for gloo."""
        kind, given, result, _ = call
        if ready is not None:
            ready.synchronize()
            given = given.cpu()
            result = given if call.result is call.given else torch.empty_like(result, device="cpu")
        try:
            if kind.race is None:
                self.executor.run(kind.role, kind.cut, given, result, op, backend)
            else:
                self._try(kind, given, result, op, backend)
        except EngineError as error:
            self.give_up()
            late = StoreChannel(self.store, kind.role.ranks, self.rank, LATE)
            raise kind.check.explain(kind.words, error, late) from error
        if ready is not None:
            call.result.copy_(result)
            torch.cuda.current_stream(call.result.device).synchronize()

    def _try(self, kind: CallKind, given: Tensor, result: Tensor, op: str, backend: str) -> None:
        """Run a call with the programs whose turn it is."""
        assert kind.race is not None

        def run(cut: Sequence[Cut]) -> None:
            self.executor.run(kind.role, cut, given, result, op, backend)
            if given.is_cuda:
                torch.cuda.current_stream(given.device).synchronize()

        largest = partial(self.executor.largest, kind.role, given.device, backend)
        kind.race.call(kind.role, kind.length, kind.bytes // kind.length, run, largest)

    def _allocate(self, slot: int, length: int, like: Tensor) -> Tensor:
        """Memory for a call. PyTorch keeps that of other devices itself."""
        found: Tensor = self.room(slot, length, like) if like.device.type == "cpu" else like.new_empty(length)
        return found


at_end: dict[int, Callable[[], None]] = {}
"""What is to be done when the interpreter ends, the last first: for drivers that nobody has closed, give their groups
back. No driver is kept alive.
"""


def _end(
    process: int, queue: CallQueue, groups: dict[LaneGroup, dist.ProcessGroup], leave: Callable[[float], None]
) -> None:
    if process != os.getpid():  # a process that was forked off: groups and store are its parent's
        return
    leave(FAREWELL if queue.healthy() else FAREWELL_AFTER_FAILURE)
    give_back(groups)


@atexit.register
def _end_all() -> None:
    while at_end:
        at_end.popitem()[1]()
