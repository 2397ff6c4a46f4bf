"""Plans on MPI communicators, with mpi4py over Open MPI or MPICH."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from meshwright.engine import (
    Chooser,
    Over,
    Part,
    Seat,
    call_checks,
    introduce,
    judge_start,
    plan_groups,
    rank_list,
    share,
    sizes,
)
from meshwright.errors import EngineError
from meshwright.plan import Plan
from meshwright.program import REDUCING, Collective, Goal
from meshwright.schedule import IN_PLACE, INPUT, OUTPUT, SCRATCH, Call, Copy
from meshwright.watchdog import Watchdog

try:
    from mpi4py import MPI
except ImportError as error:
    raise ImportError(
        f"meshwright.mpi needs mpi4py and an MPI library ({error}): pip install 'meshwright[mpi]'"
    ) from error

__all__ = ["Reducer"]

Array = NDArray[Any]

_REDUCED = frozenset("bBhHiIlLqQfdgFDG")
"""NumPy's codes of the integers, floating point and complex numbers that every MPI has."""

_OPERATIONS = {"sum": MPI.SUM, "avg": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}


class Reducer:
    """Runs the programs of a plan; every process of the communicator makes one.

    Making it checks that all processes have the same plan and sit where it says, and creates the communicators that the
    programs need. A call is collective over its reduction group, and every rank makes its calls in the same order.

    timeout: seconds after which a process that still waits for others in a call says so and ends; as no MPI call can be
    broken off, that is the only way out, and mpirun then ends the others.
    check: whether ranks compare size, dtype and operation: before the "first" call of each kind, "always" or "never".
    """

    def __init__(
        self, plan: Plan, comm: "MPI.Intracomm | None" = None, *, timeout: float = 300.0, check: str = "first"
    ) -> None:
        """Check that processes and plan fit, and create the communicators."""
        if not timeout > 0:
            raise EngineError(f"timeout={timeout!r}: expected a number of seconds above 0")
        comm = MPI.COMM_WORLD if comm is None else comm
        self.plan, self.rank = plan, comm.rank
        self._watchdog = Watchdog(timeout, comm.rank)
        self._closed = False
        with self._watchdog("comparing plans with all other ranks"):
            self._comm = comm.Dup()  # so that no message of the caller's is taken for one of ours
            self._parts = self._compare_plans()
            self._groups = self._communicators()
        self._checks = call_checks(self._parts, check, lambda number, ranks: partial(self._agree, ranks, number))
        self._choose = Chooser(plan)
        self._scratch: dict[tuple[int, str], Array] = {}

    def all_reduce(self, buffer: Any, op: str = "sum", *, over: Over = None) -> Array:
        """Reduce over all ranks of the reduction group, in place; op is sum, avg, max or min.

        buffer: a NumPy array, or anything else with the buffer protocol that can be written to.
        over: which of the plan's reductions; it may be left out where the plan has one all-reduce.
        """
        return self._call(Goal.ALL_REDUCE, buffer, None, op, over)

    def reduce(self, buffer: Any, op: str = "sum", *, over: Over = None) -> Array:
        """Reduce to the first rank of the reduction group, in place; the others' buffers are of no use afterwards."""
        return self._call(Goal.REDUCE, buffer, None, op, over)

    def broadcast(self, buffer: Any, *, over: Over = None) -> Array:
        """Send the buffer of the first rank of the reduction group to all others, in place."""
        return self._call(Goal.BROADCAST, buffer, None, "sum", over)

    def reduce_scatter(self, buffer: Any, op: str = "sum", *, over: Over = None) -> Array:
        """Reduce, and return this rank's part of the flat result; the buffer stays as it is.

        Parts are equal; where the size does not divide, the last ones are shorter or empty.
        """
        return self._call(Goal.REDUCE_SCATTER, buffer, None, op, over)

    def all_gather(self, part: Any, *, out: Any = None, over: Over = None) -> Array:
        """Put the parts of all ranks of the reduction group one after another.

        out: where to put them; needed where the last parts are shorter, as its size tells the whole.
        """
        return self._call(Goal.ALL_GATHER, part, out, "sum", over)

    def close(self) -> None:
        """Compare the last calls, and give the communicators back; every process calls it."""
        if self._closed:
            return
        self._closed = True
        for check in dict.fromkeys(self._checks):
            check.finish()
        for group in self._groups.values():
            group.Free()
        self._groups.clear()
        self._comm.Free()
        self._watchdog.close()

    def __enter__(self) -> Self:
        """Use it for the time of a with statement."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Close it, unless something failed."""
        if kind is None:
            self.close()

    def _compare_plans(self) -> list[Part]:
        local = self._comm.Split_type(MPI.COMM_TYPE_SHARED, key=self.rank)
        said, parts = introduce(self.plan, self._comm.size, self.rank, Seat(local.rank, local.size))
        local.Free()
        everyone = dict(enumerate(self._comm.allgather(said)))
        if fault := judge_start(self.plan, everyone):
            raise EngineError(fault)
        return parts

    def _communicators(self) -> dict[tuple[int, ...], Any]:
        """One for each group that this rank is in; groups without a rank in common are made at once."""
        rounds: list[list[tuple[int, ...]]] = []
        taken: list[set[int]] = []
        for ranks in plan_groups(self.plan):
            for groups, busy in zip(rounds, taken, strict=True):
                if busy.isdisjoint(ranks):
                    groups.append(ranks)
                    busy.update(ranks)
                    break
            else:
                rounds.append([ranks])
                taken.append(set(ranks))
        made = {}
        for groups in rounds:
            mine = next(((color, ranks) for color, ranks in enumerate(groups) if self.rank in ranks), None)
            group = self._comm.Split(MPI.UNDEFINED if mine is None else mine[0], self.rank)
            if mine is not None:
                made[mine[1]] = group
        return made

    def _call(self, goal: Goal, buffer: Any, out: Any, op: str, over: Over) -> Array:
        if self._closed:
            raise EngineError("this Reducer is closed")
        array = _array(buffer, written=goal in IN_PLACE)
        result = array if out is None else _array(out, written=True)
        _refuse(goal, array, op)
        number = self._choose(goal, over, result.nbytes, goal is Goal.ALL_GATHER and out is None)
        part = self._parts[number]
        size = len(part.ranks)
        length = array.size * size if goal is Goal.ALL_GATHER and out is None else result.size
        mine = share(length, size, part.ranks.index(self.rank))
        kept: Array
        if goal is Goal.REDUCE_SCATTER:
            result = np.empty(share(length, size, 0), array.dtype)
            kept = result[:mine]
        elif goal is Goal.ALL_GATHER:
            if out is None:
                result = np.empty(length, array.dtype)
            if array.size != mine or result.dtype != array.dtype:
                raise EngineError(
                    f"rank {self.rank} gives {array.size} elements of {array.dtype}, but its part of {length} "
                    f"elements of {result.dtype} over {size} ranks has {mine}"
                )
            kept = result
        else:
            kept = result
        kind = op if goal in REDUCING else "any"
        self._checks[number](
            ("gives", str(length), "elements of", array.dtype.str, "to", goal, kind, "of", f"reduction {number}"),
            length * array.itemsize,
        )
        if length:
            self._execute(part, array, result, op)
        return kept

    def _agree(
        self,
        ranks: Sequence[int],
        tag: int,
        _key: str,
        _before: str | None,
        value: Any,
        judge: Callable[[dict[int, Any]], str],
    ) -> None:
        """Let a reduction group compare a value each, point to point: there may be no communicator of it."""
        first, *others = ranks
        with self._watchdog(f"comparing a call with {rank_list(ranks)}"):
            if self.rank == first:
                said = {first: value} | {rank: self._comm.recv(source=rank, tag=tag) for rank in others}
                fault = judge(said)
                for rank in others:
                    self._comm.send(fault, dest=rank, tag=tag)
            else:
                self._comm.send(value, dest=first, tag=tag)
                fault = self._comm.recv(source=first, tag=tag)
        if fault:
            raise EngineError(fault)

    def _execute(self, part: Part, array: Array, result: Array, op: str) -> None:
        schedule, goal = part.schedule, part.planned.reduction.goal
        length = result.size if goal is Goal.ALL_GATHER else array.size
        width, taken, given = sizes(schedule, length)
        ready = array.flags.c_contiguous and array.size == taken
        source = array.reshape(-1) if ready else self._padded(array, taken)
        if goal in IN_PLACE:
            target = source
        elif result.flags.c_contiguous and result.size == given:
            target = result.reshape(-1)
        else:
            target = self._room(OUTPUT, given, array.dtype)
        buffers = [source, target]
        buffers += [self._room(SCRATCH + k, n * width, array.dtype) for k, n in enumerate(schedule.scratch)]
        if goal not in REDUCING and array.dtype.char not in _REDUCED:  # whatever the dtype, these only move bytes
            buffers = [buffer.view(np.uint8) for buffer in buffers]
            width *= array.itemsize
        at: list[Call] = []  # the step under way
        try:
            with self._watchdog(lambda: part.words(at[-1])):
                for move, ranks in zip(schedule.moves, part.groups, strict=True):
                    if isinstance(move, Copy):
                        seen = buffers[move.source][: move.parts * width].reshape(*move.shape, width)
                        shuffled = seen.transpose(*move.axes, len(move.axes))
                        buffers[move.target][: move.parts * width].reshape(shuffled.shape)[...] = shuffled
                        continue
                    at.append(move)
                    source = buffers[move.source][: move.taken * width]
                    into = buffers[move.target][: move.given * width]
                    _collective(move.collective, self._groups[ranks], source, into, _OPERATIONS[op])
        except MPI.Exception as error:
            raise EngineError(f"rank {self.rank}: {part.words(at[-1])} failed: {error}") from error
        if op == "avg":
            target /= len(part.ranks)
        if not np.may_share_memory(target, result):
            result[...] = target[: result.size].reshape(result.shape)

    def _padded(self, array: Array, length: int) -> Array:
        room = self._room(INPUT, length, array.dtype)
        room[: array.size].reshape(array.shape)[...] = array
        room[array.size :] = 0
        return room

    def _room(self, slot: int, length: int, dtype: Any) -> Array:
        """Memory for a call, kept for the next one."""
        kept = self._scratch.get((slot, dtype.str))
        if kept is None or kept.size < length:
            kept = self._scratch[slot, dtype.str] = np.empty(length, dtype)
        return kept[:length]


def _collective(collective: Collective, group: Any, source: Array, target: Array, op: "MPI.Op") -> None:
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


def _array(buffer: Any, *, written: bool) -> Array:
    """A buffer as a NumPy array that shares its memory."""
    try:
        array = buffer if isinstance(buffer, np.ndarray) else np.asarray(memoryview(buffer))
    except TypeError:
        raise EngineError(f"expected a NumPy array or another buffer, not {type(buffer).__name__}") from None
    if written and not array.flags.writeable:
        raise EngineError(f"the result goes into the given {type(buffer).__name__}, but it is read-only")
    return array


def _refuse(goal: Goal, array: Array, op: str) -> None:
    if op not in _OPERATIONS:
        raise EngineError(f"op={op!r}: expected sum, avg, max or min")
    if array.dtype.hasobject:
        raise EngineError("arrays of Python objects cannot be sent")
    if goal in REDUCING:
        if not array.dtype.isnative or array.dtype.char not in _REDUCED:
            raise EngineError(
                f"MPI cannot reduce {array.dtype}; it can reduce native integers, float32, float64 and complex numbers"
            )
        if array.dtype.kind == "c" and op in ("max", "min"):
            raise EngineError(f"{array.dtype} has no {op}")
        if op == "avg" and array.dtype.kind not in "fc":
            raise EngineError(
                f"op='avg' needs floating point numbers, not {array.dtype}: reduce with 'sum', then divide"
            )
