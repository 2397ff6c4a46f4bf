"""Recording: what a script sends in a step, and how much of it overlaps with computation, as a workload."""

import json
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from meshwright.errors import MeshwrightError
from meshwright.runtime.dropin import Wish
from meshwright.runtime.words import rank_list
from meshwright.torch.service import Members
from meshwright.workload.read import write_workload
from meshwright.workload.recorded import Recorded, to_workload

Kind = tuple[
    str, tuple[int, ...], int, int | None, str
]  # the collective, ranks, bytes, the receiver, and the dimension
NEVER = timedelta(0)  # PyTorch's word for the timeout of the group


class Recorder:
    """Counts the calls of one rank by step.

    A step ends when the optimizer that was used first has stepped. The first step also has what is sent only once, so
    it counts only if it is the only one, and so does what is sent after the last step. If the number of steps is
    given, all calls count.
    """

    def __init__(self, wish: Wish) -> None:
        """Nothing is counted yet."""
        self.wish = wish
        self.steps = 0
        self._optimizer: int | None = None
        self._parts: list[Counter[Kind]] = [Counter()]  # the first step, all others, and what is not over yet
        self._waits: dict[Kind, list[float]] = defaultdict(list)
        self._lock = threading.Lock()

    def step(self, optimizer: object) -> None:
        """An optimizer has stepped."""
        with self._lock:
            self._optimizer = self._optimizer or id(optimizer)
            if id(optimizer) != self._optimizer:
                return
            self.steps += 1
            if len(self._parts) == 3:
                self._parts[1] += self._parts.pop()
            self._parts.append(Counter())

    def call(self, members: Members, collective: str, size: int, to: int | None = None) -> Callable[[float], None]:
        """Count a call; what is returned takes the share of its time that was hidden behind computation."""
        kind = collective, members.ranks, size, to, members.dimension
        with self._lock:
            self._parts[-1][kind] += 1
        return self._waits[kind].append

    def calls(self, rank: int) -> tuple[int, list[Recorded]]:
        """The number of steps that count, and the calls in them."""
        with self._lock:
            if self.wish.steps is not None or not self.steps:
                parts, steps = self._parts, self.wish.steps or 1
            elif self.steps == 1:
                parts, steps = self._parts[:1], 1
            else:
                parts, steps = self._parts[1:2], self.steps - 1
            total = sum(parts, Counter[Kind]())
            found = []
            for (collective, ranks, size, to, label), count in total.items():
                shares = self._waits[collective, ranks, size, to, label]
                hidden = sum(shares) / len(shares) if shares else 0.0
                found.append(Recorded(rank, collective, ranks, size, count, hidden, to, label))
            return steps, found


def said(recorder: Recorder, rank: int) -> str:
    """What a rank tells the first one."""
    steps, calls = recorder.calls(rank)
    return json.dumps(
        [steps, [[one.kind, one.ranks, one.bytes, one.count, one.hidden, one.to, one.label] for one in calls]]
    )


def write(wish: Wish, world: int, told: Mapping[int, Any]) -> None:
    """Write the workload of a step, from what ranks have told; and say what it is, and what it does not have."""
    calls = [
        Recorded(rank, kind, tuple(ranks), size, count, hidden, to, label)
        for rank, (_, theirs) in told.items()
        for kind, ranks, size, count, hidden, to, label in theirs
    ]
    steps = max(steps for steps, _ in told.values())
    try:
        found = to_workload(calls, world, steps, wish.axes, name=wish.path.stem)
        write_workload(found.workload, wish.path)
    except MeshwrightError as error:
        _say(f"no workload was written: {error}")
        return
    _say(f"{wish.path} has what a step sends, from {steps} steps")
    if missing := [rank for rank in range(world) if rank not in told]:
        _say(f"{rank_list(missing)} did not tell what they sent")
    for line in (*(f"left out: {one}" for one in found.left_out), *found.notes):
        _say(line)


def _say(text: str) -> None:
    print(f"meshwright: {text}", file=sys.stderr, flush=True)


class WatchedWork(dist.Work):
    """A call under way whose waits are timed: how much of its time passed before someone waited for it."""

    def __init__(self, work: dist.Work, hidden: Callable[[float], None]) -> None:
        """Watch a work from now on."""
        super().__init__()
        self._work, self._hidden, self._started = work, hidden, time.perf_counter()
        self._told = False

    def _tell(self, waited: float) -> None:
        """Say once that the call took until now, and for how long someone has waited."""
        if not self._told:
            self._told = True
            took = time.perf_counter() - self._started
            self._hidden(max(0.0, 1.0 - waited / took) if took > 0 else 0.0)

    def wait(self, timeout: timedelta = NEVER) -> bool:
        """Wait, and time it."""
        started, done = time.perf_counter(), self._work.is_completed()
        result = self._work.wait(timeout)
        self._tell(0.0 if done else time.perf_counter() - started)
        return result

    def get_future(self) -> Any:
        """The future; in a backward pass it is waited for when that ends, as DDP does."""
        future = self._work.get_future()
        try:
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._backward_ends(future))
        except RuntimeError:  # there is no backward pass
            self._tell(0.0)
        return future

    def _backward_ends(self, future: Any) -> None:
        if future.done():
            self._tell(0.0)
            return
        ends = time.perf_counter()
        future.add_done_callback(lambda _: self._tell(time.perf_counter() - ends))

    def is_completed(self) -> bool:
        """Whether it is done."""
        return self._work.is_completed()

    def is_success(self) -> bool:
        """Whether it is done without an error."""
        return self._work.is_success()

    def result(self) -> Any:
        """The tensors."""
        return self._work.result()

    def synchronize(self) -> None:
        """Have the current stream wait."""
        self._work.synchronize()


def tensors(given: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors in lists, and in lists of lists."""
    for each in given:
        if isinstance(each, torch.Tensor):
            yield each
        elif each is not None:
            yield from tensors(each)


def total(given: Iterable[Any]) -> int:
    """The bytes of the tensors in lists."""
    return sum(each.nbytes for each in tensors(given))
