"""The walk of chunks through the steps of a reduction.

Each step has a lane of its own, and takes the chunks in their order, so that all ranks use every group in the same
order. A library adds how a collective is run, and what lanes are to it: threads, streams, or turns on one thread.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from meshwright.runtime.payload import Array, Chunk
from meshwright.runtime.role import Flow, LaneGroup
from meshwright.runtime.schedule import Call, Copy

Pending = Any  # a communication under way, like a request of MPI's
Run = Callable[[Flow, Call, LaneGroup, Array, Array], Iterable[Pending]]
"""Runs a collective, from array to array. Yields what is under way, if anything, and goes on when that is done."""


def walk(chunk: Chunk, step: int, run: Run) -> Iterator[Pending]:
    """Do a step of a chunk; see `Run` for what is yielded."""
    mine = chunk.flow.steps[step]
    if step == 0:
        chunk.before()
    for move, ranks in zip(mine.moves, mine.groups, strict=True):
        if isinstance(move, Copy):
            chunk.copy(move)
        else:
            yield from run(chunk.flow, move, (mine.lane, ranks), *chunk.ends(move))
    if step == len(chunk.flow.steps) - 1:
        chunk.after()


def finish(moves: Iterable[Pending]) -> None:
    """Go through a walk on which every collective is done on return, so that nothing is yielded."""
    for _ in moves:
        raise AssertionError("a collective is still under way")


def walk_alone(chunk: Chunk, run: Run) -> None:
    """Do all steps of a chunk, where every collective is done on return."""
    for step in range(len(chunk.flow.steps)):
        finish(walk(chunk, step, run))


def by_lane(chunks: Sequence[Chunk]) -> dict[int, deque[tuple[int, int]]]:
    """What every lane does, in its order: the numbers of a chunk and of a step of its flow."""
    lanes: dict[int, deque[tuple[int, int]]] = {}
    for number, chunk in enumerate(chunks):
        for step, mine in enumerate(chunk.flow.steps):
            lanes.setdefault(mine.lane, deque()).append((number, step))
    return lanes


def most_under_way(chunks: Sequence[Chunk]) -> int:
    """How many chunks may be under way at the same time: one for each lane, and one more.

    If the first steps ran far ahead, their bytes would queue on the links that the slowest step needs, and those that
    limit this step would have nothing to do.
    """
    return 1 + len({step.lane for chunk in chunks for step in chunk.flow.steps})


def take_turns(chunks: Sequence[Chunk], run: Run, wait_any: Callable[[Sequence[Pending]], int]) -> None:
    """Walk chunks through the steps on one thread, with at most one communication under way in each lane.

    wait_any: waits until one of several communications is done, and returns its position.
    """
    lanes, most = by_lane(chunks), most_under_way(chunks)
    done = [0] * len(chunks)  # steps of each chunk
    under_way: dict[int, tuple[Pending, Iterator[Pending]]] = {}  # by lane: with what follows it

    def advance(lane: int, moves: Iterator[Pending]) -> None:
        for pending in moves:
            under_way[lane] = pending, moves
            return
        number, _ = lanes[lane].popleft()
        done[number] += 1

    def may_start(number: int, step: int) -> bool:
        if step or number < most:
            return done[number] == step
        return done[number - most] == len(chunks[number - most].flow.steps)

    def start() -> bool:
        """Start what can be; whether something was. A step without a collective on this rank ends at once."""
        heads = {lane: queue[0] for lane, queue in lanes.items() if queue and lane not in under_way}
        ready = {lane: head for lane, head in heads.items() if may_start(*head)}
        for lane, (number, step) in ready.items():
            advance(lane, walk(chunks[number], step, run))
        return bool(ready)

    while start() or under_way:
        if under_way:
            order = list(under_way)
            first = order[wait_any([under_way[lane][0] for lane in order])]
            advance(first, under_way.pop(first)[1])
