"""The interpreter: runs a program on real NumPy arrays, one per device of a group.

It shares no code with the semantics, so that each can catch a mistake in the other: it does not know who contributed
what, it only moves and adds up numbers. The payload has one part per device, and a part has a digit per level. Every
device has a buffer for all parts, with a dimension per level and one for the elements of a part, and a mask of the
parts that it holds. For example, in a group of 2 nodes of 4 GPUs, `device.parts[1, 2]` are the elements of the part of
GPU 2 of node 1, and after `ReduceScatter inside node` the device at (1, 2) holds the parts (0, 2) and (1, 2).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import InvalidProgramError, MeshwrightError
from meshwright.language.goals import Goal, Holding, as_goal
from meshwright.language.program import Collective, Grouping, Program, check_fits
from meshwright.placement.hierarchy import Hierarchy
from meshwright.text.spec import as_tuple, check_type, shown

Array = NDArray[Any]
Operation = Callable[[Array, Array], Array]


@dataclass
class _Device:
    position: tuple[int, ...]
    parts: Array  # a dimension per level, then the elements of a part
    holds: NDArray[np.bool_]  # a dimension per level


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
    width = -(-length // hierarchy.size)
    devices = _load(hierarchy.radices, inputs, goal, width, dtype)
    for number, step in enumerate(program.steps, 1):
        for group in _groups(devices, step.grouping):
            try:
                _COLLECTIVES[step.collective](group, step.grouping, operation)
            except _CannotRunError as error:
                raise InvalidProgramError(
                    "runs", f"step {number} ({step.collective}) cannot run: {error}", number
                ) from None
    results = [_unload(device, rank, goal, shape, length, width) for rank, device in enumerate(devices.flat)]
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


def _load(
    radices: tuple[int, ...], inputs: Sequence[Array | None], goal: Goal, width: int, dtype: np.dtype[Any]
) -> NDArray[Any]:
    devices = np.empty(radices, dtype=object)
    for rank, (position, array) in enumerate(zip(np.ndindex(radices), inputs, strict=True)):
        parts = np.zeros((*radices, width), dtype)
        holds = np.zeros(radices, np.bool_)
        flat = None if array is None else array.reshape(-1)
        if goal.start is Holding.PART and flat is not None:
            expected = _part_length(rank, width, sum(a.size for a in inputs if a is not None))
            if flat.size != expected:
                raise MeshwrightError(
                    f"device {rank} gave {flat.size} elements, its part of the payload has {expected}: parts are "
                    "equal, but for the last ones that may be shorter or empty"
                )
            parts[position][: flat.size] = flat
            holds[position] = True
        elif flat is not None and (goal.start is not Holding.ROOT or rank == 0):
            parts.reshape(-1)[: flat.size] = flat
            holds[...] = True
        devices[position] = _Device(position, parts, holds)
    return devices


def _part_length(rank: int, width: int, length: int) -> int:
    """How long the part of a device is, where padding was cut from the payload's end."""
    return max(0, min(width, length - rank * width))


def _unload(device: _Device, rank: int, goal: Goal, shape: tuple[int, ...], length: int, width: int) -> Array | None:
    if goal.end is Holding.PART:
        wanted = np.zeros_like(device.holds)
        wanted[device.position] = True
    elif goal.end is Holding.ROOT and rank > 0:
        return None
    else:
        wanted = np.ones_like(device.holds)
    if not np.array_equal(device.holds, wanted):
        raise InvalidProgramError(
            "reaches the goal", f"device {rank} ends with other parts than the goal ({goal}) asks for"
        )
    if goal.end is Holding.PART:
        return np.array(device.parts[device.position][: _part_length(rank, width, length)])
    return device.parts.reshape(-1)[:length].reshape(shape)


def _groups(devices: NDArray[Any], grouping: Grouping) -> Iterable[list[_Device]]:
    """The groups, by array slicing: the levels of the grouping stay whole, every other digit is fixed."""
    if grouping.masters:
        below = devices.ndim - 1 - grouping.last
        devices = devices[tuple([slice(None)] * (grouping.last + 1) + [slice(0, 1)] * below)]
    outside = [axis for axis in range(devices.ndim) if not grouping.first <= axis <= grouping.last]
    inside = [axis for axis in range(devices.ndim) if axis not in outside]
    fixed = int(np.prod([devices.shape[axis] for axis in outside], dtype=np.int64))
    return [list(row) for row in devices.transpose(outside + inside).reshape(fixed, -1)]


class _CannotRunError(Exception):
    """The data does not allow the collective, as it would not in a real library."""


def _sum(group: list[_Device], operation: Operation) -> Array:
    if any((device.holds != group[0].holds).any() for device in group[1:]):
        raise _CannotRunError("the devices of a group hold different parts, so their buffers do not match")
    if not group[0].holds.any():
        raise _CannotRunError("the devices of a group hold nothing")
    return reduce(operation, (device.parts for device in group))


def _all_reduce(group: list[_Device], _grouping: Grouping, operation: Operation) -> None:
    total = _sum(group, operation)
    for device in group:
        device.parts = total.copy()


def _reduce_scatter(group: list[_Device], grouping: Grouping, operation: Operation) -> None:
    total = _sum(group, operation)
    for device in group:
        own = tuple(
            digit if grouping.first <= level <= grouping.last else slice(None)
            for level, digit in enumerate(device.position)
        )
        kept = np.zeros_like(device.holds)
        kept[own] = device.holds[own]
        device.holds, device.parts = kept, total.copy()


def _reduce(group: list[_Device], _grouping: Grouping, operation: Operation) -> None:
    total = _sum(group, operation)
    for device in group[1:]:
        device.holds = np.zeros_like(device.holds)
    group[0].parts = total


def _all_gather(group: list[_Device], _grouping: Grouping, _operation: Operation) -> None:
    sizes = {int(device.holds.sum()) for device in group}
    if len(sizes) > 1 or sizes == {0}:
        raise _CannotRunError(f"the devices of a group hold different numbers of parts, or none: {sorted(sizes)}")
    gathered = np.zeros_like(group[0].parts)
    holds = np.zeros_like(group[0].holds)
    for device in group:
        gathered[device.holds] = device.parts[device.holds]
        holds |= device.holds
    for device in group:
        device.parts, device.holds = gathered.copy(), holds.copy()


def _broadcast(group: list[_Device], _grouping: Grouping, _operation: Operation) -> None:
    if not group[0].holds.any():
        raise _CannotRunError("the first device of a group holds nothing to send")
    for device in group[1:]:
        device.parts, device.holds = group[0].parts.copy(), group[0].holds.copy()


_COLLECTIVES: dict[Collective, Callable[[list[_Device], Grouping, Operation], None]] = {
    Collective.ALL_REDUCE: _all_reduce,
    Collective.REDUCE_SCATTER: _reduce_scatter,
    Collective.ALL_GATHER: _all_gather,
    Collective.REDUCE: _reduce,
    Collective.BROADCAST: _broadcast,
}
