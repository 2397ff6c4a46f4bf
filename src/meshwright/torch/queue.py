"""The queue of calls: one at a time, in the order in which they are made; now, on a worker thread or a CUDA stream."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.errors import EngineError

_create_work_from_future: Any = getattr(torch._C._distributed_c10d, "_create_work_from_future")  # noqa: B009 - untyped

Job = Callable[[], Tensor]


class Work:
    """A call under way."""

    def __init__(self, future: "torch.futures.Future[Tensor]") -> None:
        self._future = future

    def wait(self, timeout: timedelta | None = None) -> Tensor:
        """The result, or the error that the call ended with; with CUDA, the current stream waits, not the CPU."""
        if timeout is not None:
            deadline = time.monotonic() + timeout.total_seconds()
            while not self._future.done():
                if time.monotonic() > deadline:
                    raise EngineError(f"the call did not end within {timeout.total_seconds():g} s")
                time.sleep(0.001)
        return self._future.wait()

    def is_completed(self) -> bool:
        """Whether the result is there, or an error."""
        return self._future.done()

    def get_future(self) -> "torch.futures.Future[Tensor]":
        """The future of the result, as PyTorch's communication hooks want it."""
        return self._future


def as_work(done: list[Tensor | Work], results: list[Tensor]) -> dist.Work:
    """The work of calls, as PyTorch knows it: its future has the results."""
    futures = [each.get_future() for each in done if isinstance(each, Work)]
    if not futures:
        future: Any = torch.futures.Future()
        future.set_result(results)
    elif len(futures) == 1:
        future = futures[0].then(lambda one: one.value() is None or results)
    else:
        future = torch.futures.collect_all(futures).then(lambda all_: [one.value() for one in all_.value()] and results)
    work: dist.Work = _create_work_from_future(future)
    return work


class CallQueue:
    """Does calls in the order in which they are made; refuses after a failure, as ranks are out of step then.

    user: what messages call whom the calls are made for.
    """

    def __init__(self, user: str) -> None:
        self._user = user
        self._busy = threading.Lock()  # held by the thread that communicates
        self._worker: ThreadPoolExecutor | None = None
        self._thread: threading.Thread | None = None  # the worker's
        self._last: Future[None] | None = None  # what the worker will do last
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._failure = ""

    def run(self, job: Job) -> Tensor:
        """Do a job now, after those that are under way."""
        if threading.current_thread() is self._thread:  # a callback of the call before this one
            with self._busy:
                return self._guarded(job)
        if self._last is not None:
            wait([self._last])
        if not self._busy.acquire(blocking=False):
            raise EngineError(
                f"another thread is in a call of {self._user}; calls must come in one order on every rank"
            )
        try:
            return self._guarded(job)
        finally:
            self._busy.release()

    def start(self, job: Job) -> Work:
        """Do a job on the worker thread."""
        if self._failure:
            raise EngineError(f"{self._user} can no longer be used: {self._failure}")
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "meshwright")
        future: torch.futures.Future[Tensor] = torch.futures.Future()

        def work() -> None:
            self._thread = threading.current_thread()
            try:
                with self._busy:
                    result = self._guarded(job)
            except Exception as error:
                future.set_exception(error)  # type: ignore[arg-type]
            else:
                future.set_result(result)

        self._last = self._worker.submit(work)
        return Work(future)

    def start_on_stream(self, job: Job, device: torch.device, used: Sequence[Tensor]) -> Work:
        """Enqueue a job that uses some tensors on a stream of its own, behind what the current stream has so far."""
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=[device])
        with torch.cuda.stream(stream):
            for tensor in used:  # their memory must not be given to others before the stream is done with it
                tensor.record_stream(stream)
            result = self.run(job)
            future.set_result(result)  # remembers where in the stream it is
        return Work(future)

    def idle(self) -> bool:
        """Whether nothing is under way."""
        return (self._last is None or self._last.done()) and not self._busy.locked()

    def healthy(self) -> bool:
        """Whether nothing has failed."""
        return not self._failure

    def close(self) -> bool:
        """Finish what is under way; whether nothing has failed."""
        if self._worker is not None:
            self._worker.shutdown()
        healthy = self.healthy()
        self._failure = self._failure or "it is closed"
        return healthy

    def _guarded(self, job: Job) -> Tensor:
        if self._failure:
            raise EngineError(f"{self._user} can no longer be used: {self._failure}")
        try:
            return job()
        except BaseException as error:
            self._failure = str(error) or type(error).__name__
            raise
