"""Buffers as NumPy arrays, as the runtime sees arrays, and which of them MPI can reduce."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import EngineError
from meshwright.language.goals import Goal
from meshwright.runtime.calls import check_average, check_operation
from meshwright.runtime.payload import Arrays

Array = NDArray[Any]

KNOWN = frozenset("bBhHiIlLqQfdgFDG")
"""NumPy's codes of the integers, floating point and complex numbers that every MPI has."""


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
