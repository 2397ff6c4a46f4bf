"""One call: a rank's schedule on real tensors, with a thread or a CUDA stream for each lane."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.errors import EngineError
from meshwright.language.program import Collective
from meshwright.runtime.payload import Allocate, Arrays, Chunk, Divide, Payload
from meshwright.runtime.role import Cut, Flow, LaneGroup, Role
from meshwright.runtime.schedule import Call
from meshwright.runtime.walk import Run, by_lane, finish, most_under_way, walk, walk_alone
from meshwright.runtime.words import first_line, rank_list
from meshwright.torch.collectives import run_collective

ARRAYS = Arrays(
    length=Tensor.numel,
    is_flat=Tensor.is_contiguous,
    permuted=torch.permute,
    sendable=lambda tensor: tensor.view(torch.uint8),
    empty=lambda length, like: like.new_empty(length),
    dtype=lambda tensor: str(tensor.dtype).removeprefix("torch."),
    words=lambda tensor: f"{tensor.dtype} on {tensor.device}",
)


class Executor:
    """Runs calls over some process groups. Every lane is a thread of its own, or with CUDA a stream.

    give_up: called when a step has failed, so that the ranks that wait for this one fail too, and so do its own waits.
    """

    def __init__(
        self, groups: Mapping[LaneGroup, dist.ProcessGroup], allocate: Allocate, give_up: Callable[[], None]
    ) -> None:
        """Nothing is under way; threads and streams are made when they are first needed."""
        self.groups, self.allocate, self.give_up = groups, allocate, give_up
        self.threads: dict[int, ThreadPoolExecutor] = {}
        self.streams: dict[tuple[int, torch.device], torch.cuda.Stream] = {}

    def run(self, role: Role, cut: Sequence[Cut], tensor: Tensor, result: Tensor, operation: str, backend: str) -> None:
        """Play a rank's role with `tensor` as input and `result` as output: the same tensor if the goal is in place.

        On CUDA tensors all is enqueued on streams that the current one waits for; otherwise it is done on return.
        """
        early = role.planned.communication.goal.in_place or tensor.dtype is torch.float16  # sums of halves overflow
        divide: Divide = "" if operation != "avg" else "before" if early else "after"
        payload = Payload(role, cut, tensor, result, ARRAYS, self.allocate, divide)
        reduced = "sum" if divide else operation

        def run(flow: Flow, move: Call, where: LaneGroup, source: Tensor, target: Tensor) -> tuple[()]:
            try:
                run_collective(move.collective, source, target, reduced, self.groups[where], backend)
            except RuntimeError as error:
                words = role.words(flow, move)
                raise EngineError(f"rank {dist.get_rank()}: {words} failed: {first_line(error)}") from error
            return ()

        if len(payload.chunks) == 1:
            walk_alone(payload.chunks[0], run)
        elif tensor.is_cuda and backend != "gloo":
            self._on_streams(payload, run, tensor.device)
        else:
            self._on_threads(payload.chunks, run)
        payload.finish()

    def largest(self, role: Role, device: torch.device, backend: str, values: Sequence[float]) -> list[float]:
        """The largest of the values of all ranks of a role, one by one; their group is that of the library's own."""
        found = torch.tensor(values, dtype=torch.float64, device=device)
        try:
            run_collective(Collective.ALL_REDUCE, found, found, "max", self.groups[0, role.ranks], backend)
        except RuntimeError as error:
            words = f"comparing times with {rank_list(role.ranks)}"
            raise EngineError(f"rank {dist.get_rank()}: {words} failed: {first_line(error)}") from error
        return list(found.tolist())

    def close(self) -> None:
        """Give the threads back."""
        for thread in self.threads.values():
            thread.shutdown()
        self.threads.clear()

    def _on_threads(self, chunks: Sequence[Chunk], run: Run) -> None:
        done = [[threading.Event() for _ in chunk.flow.steps] for chunk in chunks]
        errors: list[BaseException] = []
        most = most_under_way(chunks)

        def work(queue: Iterable[tuple[int, int]]) -> None:
            for number, step in queue:
                if step:
                    done[number][step - 1].wait()
                elif number >= most:
                    done[number - most][-1].wait()
                if errors:
                    return
                try:
                    finish(walk(chunks[number], step, run))
                except BaseException as error:
                    errors.append(error)
                    self.give_up()
                    for event in chain(*done):
                        event.set()
                    return
                done[number][step].set()

        jobs = []
        for lane, queue in by_lane(chunks).items():
            thread = self.threads.get(lane)
            if thread is None:
                thread = self.threads[lane] = ThreadPoolExecutor(1, f"meshwright-step-{lane}")
            jobs.append(thread.submit(work, queue))
        wait(jobs)
        if errors:
            raise errors[0]

    def _on_streams(self, payload: Payload, run: Run, device: torch.device) -> None:
        current = torch.cuda.current_stream(device)
        ready = current.record_event()
        used, most = list(payload.used()), most_under_way(payload.chunks)
        ended: list[torch.cuda.Event] = []
        for number, chunk in enumerate(payload.chunks):
            before = ready if number < most else ended[number - most]
            for step, mine in enumerate(chunk.flow.steps):
                stream = self.streams.get((mine.lane, device))
                if stream is None:
                    stream = self.streams[mine.lane, device] = torch.cuda.Stream(device)
                stream.wait_event(before)
                with torch.cuda.stream(stream):
                    finish(walk(chunk, step, run))
                    before = stream.record_event()
                for tensor in used:  # their memory must not be given to others before the stream is done with it
                    tensor.record_stream(stream)
            ended.append(before)
            current.wait_event(before)
