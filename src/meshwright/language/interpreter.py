"""The interpreter: runs a program on real NumPy arrays, one per device of a group.

It shares no code with the semantics, so that each can catch a mistake in the other: it does not know who contributed
what, it only moves and adds up numbers. The payload has one part per device. Every device has a buffer for all parts,
and a mask of the parts that it holds; `parts[3, 5]` are the elements of part 5 in the buffer of device 3. For example,
in a group of 2 nodes of 4 GPUs, device 6 is GPU 2 of node 1, and after `ReduceScatter inside node` it holds the parts
2 and 6. A step is done for all its groups at once: their members are picked from the arrays, and put back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import InvalidProgramError, MeshwrightError
from meshwright.language.goals import Goal, Holding, as_goal
from meshwright.language.program import Collective, Grouping, Program, Step, check_fits
from meshwright.placement.hierarchy import Hierarchy
from meshwright.text.spec import as_tuple, check_type, shown

Array = NDArray[Any]
Operation = Callable[[Array, Array], Array]


@dataclass
class _Buffers:
    """What all devices hold: numbers by device, part and element, and whether a device holds a part."""

    parts: Array
    holds: NDArray[np.bool_]


def run_program(
    program: Program,
    hierarchy: Hierarchy,
    inputs: Sequence[Array | None],
    goal: Goal = Goal.ALL_REDUCE,
    operation: Operation = np.add,
) -> list[Array | None]:
    """What every device of a group holds after a program, given what it holds before.

    Arrays may have any shape and dtype; a payload that the parts do not divide evenly is padded, and cut again at the
    end. all-reduce, reduce-scatter and reduce take an array of the same shape from every device; all-gather takes each
    device's part; broadcast takes the first device's array and None from the others. reduce gives the first device's
    result, and None for the others; a part is flat, and the last ones are shorter or empty where padding was cut.

    >>> from meshwright import parse_hierarchy, parse_program
    >>> h = parse_hierarchy("node=2,gpu=2")
    >>> program = parse_program("ReduceScatter inside node; AllReduce across node; AllGather inside node", h)
    >>> run_program(program, h, [np.arange(3) * 10**rank for rank in range(4)])[2]
    array([   0, 1111, 2222])
    """
    check_type(program, Program, "a Program; parse_program makes one from text")
    check_type(hierarchy, Hierarchy, "a Hierarchy; parse_hierarchy makes one from text")
    if not callable(operation):
        raise MeshwrightError(f"expected an operation on two arrays, like np.add, not {shown(operation)}")
    goal = as_goal(goal)
    check_fits(program, len(hierarchy.radices))
    inputs = [None if array is None else _plain(array) for array in as_tuple(inputs, object, "arrays")]
    if len(inputs) != hierarchy.size:
        raise MeshwrightError(
            f"{len(inputs)} arrays were given, one is needed for each of the {hierarchy.size} devices"
        )
    shape, length, dtype = _payload(inputs, goal)
    buffers = _load(inputs, goal, -(-length // hierarchy.size), dtype)
    for number, step in enumerate(program.steps, 1):
        try:
            _take(step, hierarchy.radices, buffers, operation)
        except _CannotRunError as error:
            raise InvalidProgramError(
                "runs", f"step {number} ({step.collective}) cannot run: {error}", number
            ) from None
    results = [_unload(buffers, rank, goal, shape, length) for rank in range(hierarchy.size)]
    return [None if result is None else result.astype(dtype, copy=False) for result in results]


def _plain(array: Array) -> Array:
    if isinstance(array, np.ma.MaskedArray):
        raise MeshwrightError("masked arrays cannot be reduced: their masks would be lost")
    try:
        return np.asarray(array)
    except (ValueError, TypeError) as error:
        raise MeshwrightError(f"expected an array from each device, not {shown(array)}: {error}") from None


def _payload(inputs: Sequence[Array | None], goal: Goal) -> tuple[tuple[int, ...], int, np.dtype[Any]]:
    """The shape, the number of elements and the dtype of the whole payload."""
    given = [array for rank, array in enumerate(inputs) if goal.start is not Holding.ROOT or rank == 0]
    arrays = [array for array in given if array is not None]
    if len(arrays) < len(given):
        who = "the first device" if goal.start is Holding.ROOT else "every device"
        raise MeshwrightError(f"{goal} needs an array from {who}, but got None")
    if goal.start is Holding.ROOT and any(array is not None for array in inputs[1:]):
        raise MeshwrightError(f"{goal} takes an array from the first device only; the others give None")
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) > 1:
        raise MeshwrightError(f"all arrays must have the same dtype, not {', '.join(sorted(map(str, dtypes)))}")
    if goal.start is Holding.PART:
        length = sum(array.size for array in arrays)
        return (length,), length, arrays[0].dtype
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise MeshwrightError(f"all arrays must have the same shape, not {', '.join(sorted(map(str, shapes)))}")
    return arrays[0].shape, arrays[0].size, arrays[0].dtype


def _load(inputs: Sequence[Array | None], goal: Goal, width: int, dtype: np.dtype[Any]) -> _Buffers:
    size = len(inputs)
    buffers = _Buffers(np.zeros((size, size, width), dtype), np.zeros((size, size), np.bool_))
    length = sum(array.size for array in inputs if array is not None)
    for rank, array in enumerate(inputs):
        if array is None:
            continue
        flat = array.reshape(-1)
        if goal.start is Holding.PART:
            expected = _part_length(rank, width, length)
            if flat.size != expected:
                raise MeshwrightError(
                    f"device {rank} gave {flat.size} elements, its part of the payload has {expected}: parts are "
                    "equal, but for the last ones that may be shorter or empty"
                )
            buffers.parts[rank, rank, : flat.size] = flat
            buffers.holds[rank, rank] = True
        else:
            buffers.parts[rank].reshape(-1)[: flat.size] = flat
            buffers.holds[rank] = True
    return buffers


def _part_length(rank: int, width: int, length: int) -> int:
    """How long the part of a device is, where padding was cut from the payload's end."""
    return max(0, min(width, length - rank * width))


def _unload(buffers: _Buffers, rank: int, goal: Goal, shape: tuple[int, ...], length: int) -> Array | None:
    size, _, width = buffers.parts.shape
    if goal.end is Holding.ROOT and rank > 0:
        return None
    wanted = np.arange(size) == rank if goal.end is Holding.PART else np.ones(size, np.bool_)
    if not np.array_equal(buffers.holds[rank], wanted):
        raise InvalidProgramError(
            "reaches the goal", f"device {rank} ends with other parts than the goal ({goal}) asks for"
        )
    if goal.end is Holding.PART:
        return np.array(buffers.parts[rank, rank, : _part_length(rank, width, length)])
    whole: Array = buffers.parts[rank].reshape(-1)[:length].reshape(shape)
    return whole


def _take(step: Step, radices: tuple[int, ...], buffers: _Buffers, operation: Operation) -> None:
    """One step of a program, in all its groups at once."""
    members = _members(step.grouping, radices)
    block = _Block(buffers.parts[members], buffers.holds[members], members, step.grouping, radices)
    parts, holds = _COLLECTIVES[step.collective](block, operation)
    buffers.parts[members], buffers.holds[members] = parts, holds


def _members(grouping: Grouping, radices: tuple[int, ...]) -> NDArray[np.int64]:
    """The devices of every group, by array slicing: the grouping's levels stay whole, every other digit is fixed."""
    devices = np.arange(prod(radices)).reshape(radices)
    if grouping.masters:
        below = devices.ndim - 1 - grouping.last
        devices = devices[tuple([slice(None)] * (grouping.last + 1) + [slice(0, 1)] * below)]
    inside = list(range(grouping.first, grouping.last + 1))
    outside = [axis for axis in range(devices.ndim) if axis not in inside]
    groups = prod(devices.shape[axis] for axis in outside)
    return devices.transpose(outside + inside).reshape(groups, -1)


@dataclass(frozen=True)
class _Block:
    """The buffers of the members of all groups of a step: numbers by group, member, part and element."""

    parts: Array
    holds: NDArray[np.bool_]
    members: NDArray[np.int64]
    grouping: Grouping
    radices: tuple[int, ...]

    def sums(self, operation: Operation) -> Array:
        """The sum of every group, in a dimension of one member."""
        if (self.holds != self.holds[:, :1]).any():
            raise _CannotRunError("the devices of a group hold different parts, so their buffers do not match")
        if not self.holds[:, 0].any(axis=-1).all():
            raise _CannotRunError("the devices of a group hold nothing")
        sums: Array = reduce(operation, self.parts.swapaxes(0, 1))[:, None]
        return sums

    def own(self) -> NDArray[np.bool_]:
        """Which parts are a member's own: those whose digits at the levels of the grouping are the member's."""
        digits = np.array(np.unravel_index(np.arange(prod(self.radices)), self.radices))
        digits = digits[self.grouping.first : self.grouping.last + 1]
        found: NDArray[np.bool_] = (digits[:, self.members, None] == digits[:, None, None, :]).all(axis=0)
        return found


class _CannotRunError(Exception):
    """The data does not allow the collective, as it would not in a real library."""


_Held = tuple[Array, NDArray[np.bool_]]
"""Numbers and masks as in a block; where all members of a group get the same, it may have one member for all."""


def _all_reduce(block: _Block, operation: Operation) -> _Held:
    return block.sums(operation), block.holds


def _reduce_scatter(block: _Block, operation: Operation) -> _Held:
    return block.sums(operation), block.holds & block.own()


def _reduce(block: _Block, operation: Operation) -> _Held:
    sums = block.sums(operation)
    holds = block.holds.copy()
    holds[:, 1:] = False
    return sums, holds


def _all_gather(block: _Block, _operation: Operation) -> _Held:
    sizes = block.holds.sum(axis=-1)
    bad = (sizes != sizes[:, :1]).any(axis=1) | (sizes[:, 0] == 0)
    if bad.any():
        found = sorted({int(size) for size in sizes[bad][0]})
        raise _CannotRunError(f"the devices of a group hold different numbers of parts, or none: {found}")
    gathered = np.zeros_like(block.parts[:, 0])
    for parts, holds in zip(block.parts.swapaxes(0, 1), block.holds.swapaxes(0, 1), strict=True):
        gathered[holds] = parts[holds]
    return gathered[:, None], np.logical_or.reduce(block.holds, axis=1, keepdims=True)


def _broadcast(block: _Block, _operation: Operation) -> _Held:
    if not block.holds[:, 0].any(axis=-1).all():
        raise _CannotRunError("the first device of a group holds nothing to send")
    return block.parts[:, :1], block.holds[:, :1]


_COLLECTIVES: dict[Collective, Callable[[_Block, Operation], _Held]] = {
    Collective.ALL_REDUCE: _all_reduce,
    Collective.REDUCE_SCATTER: _reduce_scatter,
    Collective.ALL_GATHER: _all_gather,
    Collective.REDUCE: _reduce,
    Collective.BROADCAST: _broadcast,
}
