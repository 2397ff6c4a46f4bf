"""Flat NumPy arrays and the five collectives on them: blocking, and non-blocking for chunks.

They stay apart: libraries choose better algorithms for blocking calls, which are faster for a single chunk.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from meshwright.errors import EngineError
from meshwright.language.goals import Goal
from meshwright.language.program import Collective
from meshwright.runtime.calls import check_average, check_operation
from meshwright.runtime.payload import Arrays
from meshwright.runtime.role import part_length

Array = NDArray[Any]

KNOWN = frozenset("bBhHiIlLqQfdgFDG")  # NumPy's codes of the integers, floats and complex numbers of every MPI

ARRAYS = Arrays(
    length=lambda array: array.size,
    is_flat=lambda array: array.flags.c_contiguous,
    permuted=np.transpose,
    # Bytes only where MPI does not know the dtype, as a message may have no more than 2**31 elements.
    sendable=lambda array: array if array.dtype.char in KNOWN else array.view(np.uint8),
    empty=lambda length, like: np.empty(length, like.dtype),
    dtype=lambda array: array.dtype.str,
    words=lambda array: str(array.dtype),
)


def as_array(buffer: Any, *, written: bool) -> Array:
    """A buffer as a NumPy array that shares its memory."""
    try:
        array = buffer if isinstance(buffer, np.ndarray) else np.asarray(memoryview(buffer))
    except TypeError:
        raise EngineError(f"expected a NumPy array or another buffer, not {type(buffer).__name__}") from None
    if written and not array.flags.writeable:
        raise EngineError(f"the result goes into the given {type(buffer).__name__}, but it is read-only")
    return array


def check_array(goal: Goal, array: Array, op: str) -> None:
    """Refuse an array or an operation that is not supported."""
    check_operation(op)
    if array.dtype.hasobject:
        raise EngineError("arrays of Python objects cannot be sent")
    if goal.reduces:
        if not array.dtype.isnative or array.dtype.char not in KNOWN:
            raise EngineError(
                f"MPI cannot reduce {array.dtype}; it can reduce native integers, float32, float64 and complex numbers"
            )
        if array.dtype.kind == "c" and op in ("max", "min"):
            raise EngineError(f"{array.dtype} has no {op}")
        check_average(op, array.dtype.kind in "fc", array.dtype)


OPERATIONS = {"sum": MPI.SUM, "avg": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}


def run_collective(collective: Collective, group: Any, source: Array, target: Array, operation: str) -> None:
    """Run a collective in a group; AllReduce, Reduce and Broadcast work in place, on `target`."""
    op = OPERATIONS[operation]
    if collective is Collective.ALL_REDUCE:
        group.Allreduce(MPI.IN_PLACE, target, op)
    elif collective is Collective.REDUCE_SCATTER:
        group.Reduce_scatter_block(source, target, op)
    elif collective is Collective.ALL_GATHER:
        group.Allgather(source, target)
    elif collective is Collective.BROADCAST:
        group.Bcast(target)
    elif group.rank == 0:
        group.Reduce(MPI.IN_PLACE, target, op)
    else:
        group.Reduce(source, None, op)


def start_collective(
    collective: Collective, group: Any, source: Array, target: Array, operation: str, new: Callable[[int, Array], Array]
) -> Iterator[Any]:
    """The same with non-blocking calls: yields each request, and goes on when that is done.

    new: a flat array of a length, with the dtype of another one.

    Open MPI's non-blocking all-reduce in place goes up and down a tree with all of the payload, and so does its
    reduce-scatter. Both are made of sends to everyone here, which move the least that can be, with any library.
    """
    op = OPERATIONS[operation]
    if collective in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER):
        whole = target if collective is Collective.ALL_REDUCE else source
        parts = [part_length(whole.size, group.size, k) for k in range(group.size)]
        own = parts[group.rank]
        arrived = new(group.size * own, whole)
        yield group.Ialltoallv([whole, parts], [arrived, [own] * group.size])
        total = arrived[:own]
        for k in range(1, group.size):
            op.Reduce_local(arrived[k * own : (k + 1) * own], total)
        if collective is Collective.ALL_REDUCE:
            yield group.Iallgatherv(total, [target, parts])
        else:
            target[...] = total
    elif collective is Collective.ALL_GATHER:
        yield group.Iallgather(source, target)
    elif collective is Collective.BROADCAST:
        yield group.Ibcast(target)
    elif group.rank == 0:
        yield group.Ireduce(MPI.IN_PLACE, target, op)
    else:
        yield group.Ireduce(source, None, op)
