"""One call: a rank's schedule on real tensors, chunk by chunk."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from itertools import count

import torch
import torch.distributed as dist

from meshwright.errors import EngineError
from meshwright.language.goals import REDUCING, Goal
from meshwright.runtime.role import Flow, LaneGroup, Role, Stage, sizes
from meshwright.runtime.schedule import IN_PLACE, INPUT, OUTPUT, SCRATCH, Copy
from meshwright.runtime.words import first_line
from meshwright.torch.collectives import run_collective

Groups = Mapping[LaneGroup, dist.ProcessGroup]

GiveUp = Callable[[], None]
"""Called when a step has failed, so that the ranks that wait for this one fail too, and with them what this one waits
for.
"""

Allocate = Callable[[int, int, torch.Tensor], torch.Tensor]
"""A flat tensor for a slot (one of the schedule's buffers), of a length, with dtype and device like another tensor."""


class Executor:
    """Runs calls over some process groups. Chunks flow through the steps: each step has a thread of its own, or with
    CUDA a stream, and takes the chunks in their order, so that all ranks use every group in the same order.
    """

    def __init__(self, groups: Groups, allocate: Allocate, give_up: GiveUp) -> None:
        """Nothing is under way; threads and streams are made when they are first needed."""
        self.groups, self.allocate, self.give_up = groups, allocate, give_up
        self.threads: dict[int, ThreadPoolExecutor] = {}
        self.streams: dict[tuple[int, torch.device], torch.cuda.Stream] = {}

    def run(self, role: Role, tensor: torch.Tensor, result: torch.Tensor, operation: str, backend: str) -> None:
        """Play a rank's role with `tensor` as input and `result` as output, which are the same where the goal is in
        place.

        On CUDA tensors everything is enqueued on streams that the current one waits for; otherwise it is done on
        return.
        """
        goal = role.planned.communication.goal
        length = result.numel() if goal is Goal.ALL_GATHER else tensor.numel()
        payload = _Payload(role, role.cut(length, tensor.element_size()), tensor, result, operation, self.allocate)
        chunks = [_Chunk(role, *each, payload.operation, backend) for each in payload.chunks]
        if len(chunks) == 1:
            for stage in chunks[0].flow.stages:
                chunks[0].run(stage, self.groups)
        elif tensor.is_cuda and backend != "gloo":
            self._on_streams(chunks, tensor.device, payload.used)
        else:
            self._on_threads(chunks)
        payload.finish()

    def close(self) -> None:
        """Give the threads back."""
        for thread in self.threads.values():
            thread.shutdown()
        self.threads.clear()

    def _on_threads(self, chunks: "Sequence[_Chunk]") -> None:
        done = [[threading.Event() for _ in chunk.flow.stages] for chunk in chunks]
        errors: list[BaseException] = []

        def work(flow: Flow, number: int) -> None:
            for chunk, events in zip(chunks, done, strict=True):
                if chunk.flow is not flow:
                    continue
                if number:
                    events[number - 1].wait()
                if errors:
                    return
                try:
                    chunk.run(flow.stages[number], self.groups)
                except BaseException as error:
                    errors.append(error)
                    self.give_up()
                    for each in done:
                        for event in each:
                            event.set()
                    return
                events[number].set()

        flows = list({id(chunk.flow): chunk.flow for chunk in chunks}.values())
        jobs = []
        for flow in flows:
            for number, stage in enumerate(flow.stages):
                thread = self.threads.get(stage.lane)
                if thread is None:
                    thread = self.threads[stage.lane] = ThreadPoolExecutor(1, f"meshwright-step-{stage.lane}")
                jobs.append(thread.submit(work, flow, number))
        wait(jobs)
        if errors:
            raise errors[0]

    def _on_streams(self, chunks: "Sequence[_Chunk]", device: torch.device, used: Sequence[torch.Tensor]) -> None:
        current = torch.cuda.current_stream(device)
        ready = current.record_event()
        for chunk in chunks:
            before = ready
            for stage in chunk.flow.stages:
                stream = self.streams.get((stage.lane, device))
                if stream is None:
                    stream = self.streams[stage.lane, device] = torch.cuda.Stream(device)
                stream.wait_event(before)
                with torch.cuda.stream(stream):
                    chunk.run(stage, self.groups)
                    before = stream.record_event()
                for tensor in used:  # their memory must not be given to others before the stream is done with it
                    tensor.record_stream(stream)
            current.wait_event(before)


class _Payload:
    """The buffers of a call.

    A tensor that is reduced in place is cut into consecutive chunks. For reduce-scatter and all-gather, every rank's
    part is cut, and a chunk is made of the same piece of each.
    """

    def __init__(
        self,
        role: Role,
        cut: Sequence[tuple[Flow, int, int]],
        tensor: torch.Tensor,
        result: torch.Tensor,
        operation: str,
        allocate: Allocate,
    ) -> None:
        goal = role.planned.communication.goal
        self.result, self.size = result, len(role.ranks)
        length = result.numel() if goal is Goal.ALL_GATHER else tensor.numel()
        whole = len(cut) == 1
        _, taken, given = sizes(cut[0][0].schedule, length)
        if goal in IN_PLACE and not whole:
            taken = given = length  # only the last chunk is padded
        early = operation == "avg" and (goal in IN_PLACE or tensor.dtype is torch.float16)  # halves would overflow
        self.late = operation == "avg" and not early
        self.operation = "sum" if operation == "avg" else operation
        ready = tensor.is_contiguous() and tensor.numel() == taken and not (early and goal not in IN_PLACE)
        source = tensor.view(-1) if ready else _padded(tensor, allocate(INPUT, taken, tensor))
        if early:
            source.div_(self.size)
        if goal in IN_PLACE:
            self.target = source
        elif result.is_contiguous() and result.numel() == given:
            self.target = result.view(-1)
        else:
            self.target = allocate(OUTPUT, given, result)
        self.used = [source, self.target]
        self.chunks: list[tuple[Flow, list[torch.Tensor], int, _Move, _Move]] = []
        slots = count(SCRATCH)

        def room_for(elements: int) -> torch.Tensor:
            return allocate(next(slots), elements, tensor)

        for flow, start, stop in cut:
            elements = (stop - start) * (1 if goal in IN_PLACE else self.size)
            width, takes, gives = sizes(flow.schedule, elements)
            before: _Move = _nothing
            after: _Move = _nothing
            if whole:
                piece, into = source, self.target
            elif goal is Goal.REDUCE_SCATTER:
                piece, into = room_for(takes), self.target[start:stop]
                before = _copy(piece.view(self.size, -1), source.view(self.size, -1)[:, start:stop])
            elif goal is Goal.ALL_GATHER:
                piece, into = source[start:stop], room_for(gives)
                after = _copy(self.target.view(self.size, -1)[:, start:stop], into.view(self.size, -1))
            elif takes != elements:
                piece = into = room_for(takes)
                before = partial(_padded, source[start:stop], piece)
                after = _copy(source[start:stop], piece[:elements])
            else:
                piece = into = source[start:stop]
            buffers = [piece, into, *(room_for(blocks * width) for blocks in flow.schedule.scratch)]
            self.used += buffers
            self.chunks.append((flow, buffers, width, before, after))

    def finish(self) -> None:
        """Put the result where it is wanted."""
        if self.late:
            self.target.div_(self.size)
        result, target = self.result, self.target
        if target.data_ptr() != result.data_ptr() or target.numel() != result.numel():
            result.copy_(target[: result.numel()].view(result.shape))


_Move = Callable[[], object]


def _nothing() -> None:
    """Nothing is to be moved."""


def _copy(target: torch.Tensor, source: torch.Tensor) -> _Move:
    return lambda: target.copy_(source)


class _Chunk:
    """A chunk on its way through the steps."""

    def __init__(
        self,
        role: Role,
        flow: Flow,
        buffers: list[torch.Tensor],
        width: int,
        before: _Move,
        after: _Move,
        operation: str,
        backend: str,
    ) -> None:
        self.role, self.flow, self.operation, self.backend = role, flow, operation, backend
        self.before, self.after = before, after
        if role.planned.communication.goal not in REDUCING:  # whatever the dtype, these only move bytes
            width *= buffers[0].element_size()
            buffers = [buffer.view(torch.uint8) for buffer in buffers]
        self.buffers, self.width = buffers, width

    def run(self, stage: Stage, groups: Groups) -> None:
        """Do what one step asks for."""
        buffers, width = self.buffers, self.width
        if stage is self.flow.stages[0]:
            self.before()
        for move, ranks in zip(stage.moves, stage.groups, strict=True):
            if isinstance(move, Copy):
                shape = [*move.shape, width]
                source = buffers[move.source][: move.blocks * width].view(shape).permute(*move.axes, len(move.axes))
                buffers[move.target][: move.blocks * width].view(source.shape).copy_(source)
                continue
            size = max(move.taken, move.given) if move.source == move.target else move.given
            try:
                run_collective(
                    move.collective,
                    buffers[move.source][: move.taken * width],
                    buffers[move.target][: size * width],
                    self.operation,
                    groups[stage.lane, ranks],
                    ranks,
                    self.backend,
                )
            except RuntimeError as error:
                words = self.role.words(self.flow, move)
                raise EngineError(f"rank {dist.get_rank()}: {words} failed: {first_line(error)}") from error
        if stage is self.flow.stages[-1]:
            self.after()


def _padded(tensor: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
    length = tensor.numel()
    room[:length].view(tensor.shape).copy_(tensor)
    room[length:].zero_()
    return room
