"""One call: a rank's schedule on real tensors."""

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

from meshwright.engine import Part, first_line, sizes
from meshwright.errors import EngineError
from meshwright.program import REDUCING, Goal
from meshwright.schedule import IN_PLACE, INPUT, OUTPUT, SCRATCH, Copy
from meshwright.torch.collectives import run_collective

Groups = Mapping[tuple[int, ...], dist.ProcessGroup]

Allocate = Callable[[int, int, torch.Tensor], torch.Tensor]
"""A flat tensor for a slot (one of the schedule's buffers), of a length, with dtype and device like another tensor."""


def execute(
    part: Part,
    groups: Groups,
    tensor: torch.Tensor,
    result: torch.Tensor,
    operation: str,
    backend: str,
    allocate: Allocate,
) -> None:
    """Run a rank's part with `tensor` as input and `result` as output, which are the same where the goal is in place.

    On CUDA tensors everything is enqueued on the current stream; otherwise it is done on return.
    """
    schedule, goal = part.schedule, part.planned.reduction.goal
    length = result.numel() if goal is Goal.ALL_GATHER else tensor.numel()
    width, taken, given = sizes(schedule, length)
    early = operation == "avg" and (goal in IN_PLACE or tensor.dtype is torch.float16)  # halves would overflow
    ready = tensor.is_contiguous() and tensor.numel() == taken and not (early and goal not in IN_PLACE)
    source = tensor.view(-1) if ready else _padded(tensor, allocate(INPUT, taken, tensor))
    if early:
        source.div_(len(part.ranks))
    if goal in IN_PLACE:
        target = source
    elif result.is_contiguous() and result.numel() == given:
        target = result.view(-1)
    else:
        target = allocate(OUTPUT, given, result)
    buffers = [source, target]
    buffers += [allocate(SCRATCH + k, parts * width, tensor) for k, parts in enumerate(schedule.scratch)]
    if goal not in REDUCING:  # whatever the dtype, these only move bytes
        buffers = [buffer.view(torch.uint8) for buffer in buffers]
        width *= tensor.element_size()
    _run(part, groups, buffers, width, "sum" if operation == "avg" else operation, backend)
    if operation == "avg" and not early:
        target.div_(len(part.ranks))
    if target.data_ptr() != result.data_ptr() or target.numel() != result.numel():
        result.copy_(target[: result.numel()].view(result.shape))


def _padded(tensor: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
    length = tensor.numel()
    room[:length].view(tensor.shape).copy_(tensor)
    room[length:].zero_()
    return room


def _run(part: Part, groups: Groups, buffers: list[torch.Tensor], width: int, operation: str, backend: str) -> None:
    for move, ranks in zip(part.schedule.moves, part.groups, strict=True):
        if isinstance(move, Copy):
            shape = [*move.shape, width]
            source = buffers[move.source][: move.parts * width].view(shape).permute(*move.axes, len(move.axes))
            buffers[move.target][: move.parts * width].view(source.shape).copy_(source)
            continue
        size = max(move.taken, move.given) if move.source == move.target else move.given
        try:
            run_collective(
                move.collective,
                buffers[move.source][: move.taken * width],
                buffers[move.target][: size * width],
                operation,
                groups[ranks],
                ranks,
                backend,
            )
        except RuntimeError as error:
            raise EngineError(f"rank {dist.get_rank()}: {part.words(move)} failed: {first_line(error)}") from error
