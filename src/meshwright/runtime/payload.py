"""The payload of a call: its chunks and their buffers, on the arrays of any library."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import prod
from typing import Any, Literal, NamedTuple

from meshwright.language.goals import Holding
from meshwright.runtime.role import Cut, Flow, Role, sizes
from meshwright.runtime.schedule import INPUT, OUTPUT, SCRATCH, Call, Copy

Array = Any
"""An array of a library. What NumPy and PyTorch spell alike is used as it is: slices, `reshape`, `array[...] = other`,
`array /= 2`, `dtype`, `itemsize` and `nbytes`. What they spell differently is in `Arrays`.
"""


@dataclass(frozen=True, slots=True)
class Arrays:
    """What libraries spell differently."""

    length: Callable[[Array], int]  # how many elements an array has
    is_flat: Callable[[Array], bool]  # whether elements lie one after another, so that `reshape(-1)` is a view
    permuted: Callable[[Array, tuple[int, ...]], Array]  # a view with the array axes in another order
    sendable: Callable[[Array], Array]  # a view of a flat array of any dtype that can be sent without reducing
    empty: Callable[[int, Array], Array]  # a new flat array of a length, with dtype and device like another one
    dtype: Callable[[Array], str]  # its name, as ranks compare it
    words: Callable[[Array], str]  # dtype, and device if there are several: alike in what is given and its result


Allocate = Callable[[int, int, Array], Array]
"""A flat array for a slot (one of the schedule's buffers), of a length, with dtype and device like another array."""

Divide = Literal["", "before", "after"]
"""When to divide by the number of ranks: never, or for an average before or after adding up."""


class Room:
    """Memory for calls: each slot is kept for the next call, as getting it from the system costs more than using it."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.kept: dict[tuple[int, Any], Array] = {}

    def __call__(self, slot: int, length: int, like: Array) -> Array:
        """See `Allocate`."""
        kept = self.kept.get((slot, like.dtype))
        if kept is None or len(kept) < length:
            kept = self.kept[slot, like.dtype] = self.arrays.empty(length, like)
        return kept[:length]


class Chunk(NamedTuple):
    """A chunk on its way through the steps."""

    arrays: Arrays
    flow: Flow
    buffers: list[Array]  # the schedule's, by number
    width: int  # of a block of them, in elements
    before: Callable[[], object]  # copies what is to be copied before the first step
    after: Callable[[], object]  # and after the last one

    def copy(self, move: Copy) -> None:
        """Reorder a buffer."""
        length, axes = move.given * self.width, (*move.axes, len(move.axes))
        source = self.arrays.permuted(self.buffers[move.source][:length].reshape(*move.shape, self.width), axes)
        self.buffers[move.target][:length].reshape(source.shape)[...] = source

    def ends(self, move: Call) -> tuple[Array, Array]:
        """What a collective takes, and where its result goes."""
        given = max(move.taken, move.given) if move.source == move.target else move.given
        return self.buffers[move.source][: move.taken * self.width], self.buffers[move.target][: given * self.width]


class Payload:
    """The buffers of a call.

    An array that is reduced in place is cut into consecutive chunks, of which only the last one is padded. For
    reduce-scatter and all-gather every rank's part is cut, and a chunk is made of the same piece of each. For example,
    the reduce-scatter of 8 elements over 2 ranks in 2 chunks: the parts are 0123 and 4567, and the chunks are 0145 and
    2367, so that a rank's results of both chunks make up its part.
    """

    def __init__(
        self,
        role: Role,
        cut: Sequence[Cut],
        given: Array,
        result: Array,
        arrays: Arrays,
        allocate: Allocate,
        divide: Divide = "",
    ) -> None:
        """Take `given` as input and `result` as output, which are the same array where the goal is in place."""
        self.goal, self.size = role.planned.communication.goal, len(role.ranks)
        self.arrays, self.given, self.result, self.divide = arrays, given, result, divide
        in_place = self.goal.in_place
        length = arrays.length(result if self.goal.start is Holding.PART else given)
        _, takes, gives = sizes(cut[0].flow.schedule, length)
        if in_place and len(cut) > 1:
            takes = gives = length
        changed = divide == "before" and not in_place  # but the caller's array must stay as it is
        copied = changed or not arrays.is_flat(given) or arrays.length(given) != takes
        self.source = _pad(allocate(INPUT, takes, given), given) if copied else given.reshape(-1)
        if divide == "before":
            self.source /= self.size
        if in_place:
            self.target, self.elsewhere = self.source, copied
        else:
            self.elsewhere = not arrays.is_flat(result) or arrays.length(result) != gives
            self.target = allocate(OUTPUT, gives, given) if self.elsewhere else result.reshape(-1)
        slots = count(SCRATCH)

        def new(elements: int) -> Array:
            return allocate(next(slots), elements, given)

        self.chunks = [self._chunk(each, len(cut) == 1, new) for each in cut]

    def _chunk(self, cut: Cut, whole: bool, new: Callable[[int], Array]) -> Chunk:
        flow, start, stop = cut
        source, target, ranks = self.source, self.target, self.size
        elements = (stop - start) * (1 if self.goal.in_place else ranks)
        width, takes, gives = sizes(flow.schedule, elements)
        before: Callable[[], object] = _nothing
        after: Callable[[], object] = _nothing
        if whole:
            taken, given = source, target
        elif self.goal.end is Holding.PART:
            taken, given = new(takes), target[start:stop]
            before = partial(_copy, taken.reshape(ranks, -1), source.reshape(ranks, -1)[:, start:stop])
        elif self.goal.start is Holding.PART:
            taken, given = source[start:stop], new(gives)
            after = partial(_copy, target.reshape(ranks, -1)[:, start:stop], given.reshape(ranks, -1))
        elif takes != elements:
            taken = given = new(takes)
            before = partial(_pad, taken, source[start:stop])
            after = partial(_copy, source[start:stop], taken[:elements])
        else:
            taken = given = source[start:stop]
        buffers = [taken, given, *(new(blocks * width) for blocks in flow.schedule.scratch)]
        if not self.goal.reduces:
            sent = [self.arrays.sendable(buffer) for buffer in buffers]
            width, buffers = width * taken.itemsize // sent[0].itemsize, sent
        return Chunk(self.arrays, flow, buffers, width, before, after)

    def used(self) -> Iterator[Array]:
        """All memory that is read or written until the end of the call."""
        yield from (self.source, self.target)
        for chunk in self.chunks:
            yield from chunk.buffers

    def finish(self) -> None:
        """Put the result where it is wanted."""
        if self.divide == "after":
            self.target /= self.size
        if self.elsewhere:
            result = self.result
            result[...] = self.target[: self.arrays.length(result)].reshape(result.shape)


def _nothing() -> None:
    """Nothing is to be copied."""


def _copy(target: Array, source: Array) -> None:
    target[...] = source


def _pad(room: Array, array: Array) -> Array:
    """Put an array at the front of a flat one that may be longer, and zeros behind it."""
    length = prod(array.shape)
    room[:length].reshape(array.shape)[...] = array
    room[length:] = 0
    return room
