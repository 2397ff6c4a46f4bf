"""Plans on MPI communicators, with mpi4py over Open MPI or MPICH."""

import atexit
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, NamedTuple, Self
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import EngineError
from meshwright.language.goals import REDUCING, Goal
from meshwright.language.program import Collective
from meshwright.planning.plan import Plan
from meshwright.runtime.agreement import CallCheck, call_checks, introduce, judge_start
from meshwright.runtime.choose import Chooser, Over
from meshwright.runtime.notices import Notices
from meshwright.runtime.role import Flow, LaneGroup, Role, Stage, part_length, plan_groups, sizes
from meshwright.runtime.schedule import IN_PLACE, INPUT, OUTPUT, SCRATCH, Call, Copy
from meshwright.runtime.seats import Seat
from meshwright.runtime.waiting import TIMEOUT, Watchdog, check_timeout
from meshwright.runtime.words import first_line, rank_list

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

    Forgetting `close` does no harm. A rank that ends with an exception before it ends the job, as the others would wait
    for it.
    """

    def __init__(
        self, plan: Plan, comm: "MPI.Intracomm | None" = None, *, timeout: float = TIMEOUT, check: str = "first"
    ) -> None:
        """Check that processes and plan fit, and create the communicators."""
        comm = MPI.COMM_WORLD if comm is None else comm
        if not isinstance(comm, MPI.Intracomm):
            raise EngineError(f"comm is {comm!r}: expected a communicator of the ranks that run the plan, None for all")
        self.plan, self.rank = plan, comm.rank
        self._closed = False
        self._broken = ""  # what went wrong in the midst of a call, after which ranks may be out of step
        self._sent: list[Any] = []  # messages that nobody may ever take
        self._refused: set[str] = set()  # comparisons of calls that this rank could not make
        fault, patience = "", TIMEOUT
        try:
            patience = check_timeout(timeout)
        except EngineError as error:  # for all to hear
            fault = str(error)
        self._watchdog = Watchdog(patience, comm.rank)
        try:
            with self._waiting("comparing plans with all other ranks"):
                self._comm = comm.Dup()  # so that no message of the caller's is taken for one of ours
                self._comm.Set_errhandler(MPI.ERRORS_RETURN)
                self._roles, self._checks = self._compare_plans(check, fault)
                self._groups = self._communicators()
        except BaseException:
            self._watchdog.close()
            raise
        self._choose = Chooser(plan)
        self._notices = Notices(plan, self.rank)
        self._notices.library(_library())
        self._scratch: dict[tuple[int, str], Array] = {}
        _open.add(self)

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
        if not self._broken and not MPI.Is_finalized():
            for check in dict.fromkeys(self._checks):
                check.finish()
            with self._waiting("closing, which every rank does"):
                for group in self._groups.values():
                    group.Free()
                self._comm.Free()
        self._groups.clear()
        self._watchdog.close()

    def __enter__(self) -> Self:
        """Use it for the time of a with statement."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Close it, unless something failed."""
        if kind is None:
            self.close()

    @contextmanager
    def _waiting(self, what: str | Callable[[], str]) -> Iterator[None]:
        """Wait for others, but not longer than the timeout; what fails on the way leaves the ranks out of step."""
        try:
            with self._watchdog(what):
                yield
        except BaseException as error:
            said = f"rank {self.rank}: {what if isinstance(what, str) else what()} failed"
            self._broken = f"{said}: {first_line(error)}"
            if isinstance(error, MPI.Exception):
                raise EngineError(self._broken) from error
            raise

    def _compare_plans(self, check: str, fault: str) -> tuple[list[Role], list[CallCheck]]:
        local = self._comm.Split_type(MPI.COMM_TYPE_SHARED, key=self.rank)
        at = Seat(local.rank, local.size)
        local.Free()
        said, roles = introduce(self.plan, self._comm.size, self.rank, at, check)
        checks = []
        try:
            checks = call_checks(roles, check, lambda number, ranks: partial(self._agree, ranks, number))
        except EngineError as error:
            fault = fault or str(error)
        said["fault"] = said["fault"] or fault
        everyone = dict(enumerate(self._comm.allgather(said)))
        if fault := judge_start(None if said["fault"] else self.plan.placement.system, everyone):
            raise EngineError(fault)
        return roles, checks

    def _communicators(self) -> dict[LaneGroup, Any]:
        """One for each group that this rank is in; groups without a rank in common are made at once."""
        rounds: list[list[LaneGroup]] = []
        taken: list[set[int]] = []
        for lane, ranks in plan_groups(self.plan):
            for groups, busy in zip(rounds, taken, strict=True):
                if busy.isdisjoint(ranks):
                    groups.append((lane, ranks))
                    busy.update(ranks)
                    break
            else:
                rounds.append([(lane, ranks)])
                taken.append(set(ranks))
        made: dict[LaneGroup, Any] = {}
        for groups in rounds:
            mine = next(((color, group) for color, group in enumerate(groups) if self.rank in group[1]), None)
            group = self._comm.Split(MPI.UNDEFINED if mine is None else mine[0], self.rank)
            if mine is not None:
                made[mine[1]] = group
        return made

    def _call(self, goal: Goal, buffer: Any, out: Any, op: str, over: Over) -> Array:
        if self._closed:
            raise EngineError("this Reducer is closed")
        if self._broken:
            raise EngineError(f"a call before failed, so the ranks may be out of step: {self._broken}")
        try:
            number, call, array, result, kept = self._prepare(goal, buffer, out, op, over)
        except EngineError as error:
            self._tell(goal, over, error)
            raise
        length = result.size if goal is Goal.ALL_GATHER else array.size
        self._checks[number](call, length * array.itemsize)
        if length:
            self._execute(number, array, result, op)
        return kept

    def _prepare(
        self, goal: Goal, buffer: Any, out: Any, op: str, over: Over
    ) -> tuple[int, tuple[str, ...], Array, Array, Array]:
        """Which reduction is meant, the call in words, what is given, where the result goes, what the caller gets."""
        array = _array(buffer, written=goal in IN_PLACE)
        result = array if out is None else _array(out, written=True)
        _refuse(goal, array, op)
        number = self._choose(goal, over, result.nbytes, goal is Goal.ALL_GATHER and out is None)
        role = self._roles[number]
        size = len(role.ranks)
        length = array.size * size if goal is Goal.ALL_GATHER and out is None else result.size
        mine = part_length(length, size, role.ranks.index(self.rank))
        kept: Array
        if goal is Goal.REDUCE_SCATTER:
            result = np.empty(part_length(length, size, 0), array.dtype)
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
        call = ("gives", str(length), "elements of", array.dtype.str, "to", goal, kind, "of", f"reduction {number}")
        return number, call, array, result, kept

    def _tell(self, goal: Goal, over: Over, error: EngineError) -> None:
        """Let the others know, who may be about to compare this call."""
        try:
            number = self._choose(goal, over, 1)
        except EngineError:
            return
        check = self._checks[number]
        check.refuse(str(error), partial(self._announce, self._roles[number].ranks, self._checks.index(check)))

    def _announce(self, ranks: Sequence[int], tag: int, key: str, value: Any) -> None:
        """Say one's part of a comparison, and wait for nobody: whoever takes part in it hears it."""
        first, *others = ranks
        self._refused.add(key)
        if self.rank == first:
            said, to = f"the ranks call differently: rank {first} {value[0]}", others
        else:
            said, to = value, [first]
        self._sent = [sent for sent in self._sent if not sent.Test()]
        self._sent += [self._comm.isend((key, said), dest=rank, tag=tag) for rank in to]

    def _hear(self, rank: int, tag: int) -> Any:
        """What a rank says in a comparison; comparisons of calls that this rank could not make are over."""
        while True:
            key, said = self._comm.recv(source=rank, tag=tag)
            if key not in self._refused:
                return said

    def _agree(
        self,
        ranks: Sequence[int],
        tag: int,
        key: str,
        _before: str | None,
        value: Any,
        judge: Callable[[dict[int, Any]], str],
    ) -> None:
        """Let a reduction group compare a value each, point to point: there may be no communicator of it."""
        first, *others = ranks
        with self._waiting(f"comparing a call with {rank_list(ranks)}"):
            if self.rank == first:
                fault = judge({first: value} | {rank: self._hear(rank, tag) for rank in others})
                for rank in others:
                    self._comm.send((key, fault), dest=rank, tag=tag)
            else:
                self._comm.send((key, value), dest=first, tag=tag)
                fault = self._hear(first, tag)
        if fault:
            raise EngineError(fault)

    def _execute(self, number: int, array: Array, result: Array, op: str) -> None:
        role = self._roles[number]
        length = result.size if role.planned.communication.goal is Goal.ALL_GATHER else array.size
        at: list[tuple[Flow, Call]] = []  # the calls that were made, the last one under way
        cut = role.cut(length, array.itemsize)
        self._notices.chunks(number, len(cut), length * array.itemsize)

        with self._waiting(lambda: role.words(*at[-1]) if at else "starting a call"):
            payload = _Payload(role, cut, array, result, self._room)
            if len(payload.chunks) == 1:
                chunk = payload.chunks[0]
                for stage in chunk.flow.stages:
                    for move, ranks in zip(stage.moves, stage.groups, strict=True):
                        if isinstance(move, Copy):
                            chunk.copy(move)
                        else:
                            at.append((chunk.flow, move))
                            group = self._groups[stage.lane, ranks]
                            _collective(move.collective, group, *chunk.ends(move), _OPERATIONS[op])
            else:
                self._pipeline(payload.chunks, at, op)
        target = payload.target
        if op == "avg":
            target /= len(role.ranks)
        if not np.may_share_memory(target, result):
            result[...] = target[: result.size].reshape(result.shape)

    def _stage(self, chunk: "_Chunk", stage: Stage, at: list[tuple[Flow, Call]], op: "MPI.Op") -> Iterator[Any]:
        """Do a step of a chunk; hand out each request on the way, and go on when that is done."""
        if stage is chunk.flow.stages[0]:
            chunk.before()
        for move, ranks in zip(stage.moves, stage.groups, strict=True):
            if isinstance(move, Copy):
                chunk.copy(move)
                continue
            at.append((chunk.flow, move))
            room = partial(self._room, -1 - stage.lane)
            yield from _flowing(move.collective, self._groups[stage.lane, ranks], *chunk.ends(move), op, room)
        if stage is chunk.flow.stages[-1]:
            chunk.after()

    def _pipeline(self, chunks: "Sequence[_Chunk]", at: list[tuple[Flow, Call]], op: str) -> None:
        """Let chunks flow through the steps. Each step takes the chunks in their order, with a communicator of its own
        and one non-blocking call at a time.
        """
        lanes: dict[int, deque[tuple[int, int]]] = {}  # by lane: the chunks and their steps, in order
        for number, chunk in enumerate(chunks):
            for k, stage in enumerate(chunk.flow.stages):
                lanes.setdefault(stage.lane, deque()).append((number, k))
        done = [0] * len(chunks)  # steps
        waiting: dict[int, tuple[Any, Iterator[Any]]] = {}  # by lane: the request that is under way, what follows it

        def advance(lane: int, moves: Iterator[Any]) -> None:
            for request in moves:
                waiting[lane] = (request, moves)
                return
            number, _ = lanes[lane].popleft()
            done[number] += 1

        def start() -> bool:
            """Start what can be; whether something was. A step without a collective on this rank ends at once."""
            ready = [lane for lane, queue in lanes.items() if lane not in waiting and queue and _next(queue, done)]
            for lane in ready:
                number, k = lanes[lane][0]
                advance(lane, self._stage(chunks[number], chunks[number].flow.stages[k], at, _OPERATIONS[op]))
            return bool(ready)

        while start() or waiting:
            if waiting:
                order = list(waiting)
                finished = order[MPI.Request.Waitany([waiting[lane][0] for lane in order])]
                advance(finished, waiting.pop(finished)[1])

    def _room(self, slot: int, length: int, dtype: Any) -> Array:
        """Memory for a call, kept for the next one."""
        kept = self._scratch.get((slot, dtype.str))
        if kept is None or kept.size < length:
            kept = self._scratch[slot, dtype.str] = np.empty(length, dtype)
        return kept[:length]


_open: "WeakSet[Reducer]" = WeakSet()


@atexit.register
def _end_job() -> None:
    """End the job where this rank ends with an exception, and others may wait for it in a call: mpi4py would wait for
    them in turn, in MPI_Finalize.
    """
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)  # one that nobody caught
    if error is None or hasattr(sys, "ps1") or MPI.Is_finalized():
        return
    for reducer in _open:
        if not reducer._closed and reducer._comm.size > 1:
            print(
                f"meshwright: rank {reducer.rank} ends with {type(error).__name__} while others may wait for it, so it "
                "ends the job",
                file=sys.stderr,
                flush=True,
            )
            reducer._comm.Abort(1)


def _library() -> str:
    """The MPI library, as profiles call it."""
    name = MPI.get_vendor()[0]
    return "openmpi" if name == "Open MPI" else name


def _next(queue: "deque[tuple[int, int]]", done: Sequence[int]) -> bool:
    """Whether the chunk at the head of a lane's queue is through all steps before."""
    number, k = queue[0]
    return done[number] == k


class _Chunk(NamedTuple):
    """A chunk on its way through the steps."""

    flow: Flow
    buffers: list[Array]
    width: int
    before: Callable[[], object]
    after: Callable[[], object]

    def copy(self, move: Copy) -> None:
        """Reorder a buffer."""
        seen = self.buffers[move.source][: move.blocks * self.width].reshape(*move.shape, self.width)
        shuffled = seen.transpose(*move.axes, len(move.axes))
        self.buffers[move.target][: move.blocks * self.width].reshape(shuffled.shape)[...] = shuffled

    def ends(self, move: Call) -> tuple[Array, Array]:
        """What a collective takes, and where its result goes."""
        return (
            self.buffers[move.source][: move.taken * self.width],
            self.buffers[move.target][: move.given * self.width],
        )


class _Payload:
    """The buffers of a call, chunk by chunk: consecutive ones in place, else pieces of every rank's part."""

    def __init__(
        self,
        role: Role,
        cut: Sequence[tuple[Flow, int, int]],
        array: Array,
        result: Array,
        allocate: Callable[[int, int, Any], Array],
    ) -> None:
        goal, size, whole = role.planned.communication.goal, len(role.ranks), len(cut) == 1
        length = result.size if goal is Goal.ALL_GATHER else array.size
        _, taken, given = sizes(cut[0][0].schedule, length)
        if goal in IN_PLACE and not whole:
            taken = given = length  # only the last chunk is padded
        ready = array.flags.c_contiguous and array.size == taken
        source = array.reshape(-1) if ready else _padded(array, allocate(INPUT, taken, array.dtype))
        if goal in IN_PLACE:
            self.target = source
        elif result.flags.c_contiguous and result.size == given:
            self.target = result.reshape(-1)
        else:
            self.target = allocate(OUTPUT, given, array.dtype)
        self.chunks: list[_Chunk] = []
        slots = count(SCRATCH)
        for flow, start, stop in cut:
            elements = (stop - start) * (1 if goal in IN_PLACE else size)
            width, takes, gives = sizes(flow.schedule, elements)
            before: Callable[[], object] = _nothing
            after: Callable[[], object] = _nothing
            if whole:
                piece, into = source, self.target
            elif goal is Goal.REDUCE_SCATTER:
                piece, into = allocate(next(slots), takes, array.dtype), self.target[start:stop]
                before = partial(np.copyto, piece.reshape(size, -1), source.reshape(size, -1)[:, start:stop])
            elif goal is Goal.ALL_GATHER:
                piece, into = source[start:stop], allocate(next(slots), gives, array.dtype)
                after = partial(np.copyto, self.target.reshape(size, -1)[:, start:stop], into.reshape(size, -1))
            elif takes != elements:
                piece = into = allocate(next(slots), takes, array.dtype)
                before = partial(_padded, source[start:stop], piece)
                after = partial(np.copyto, source[start:stop], piece[:elements])
            else:
                piece = into = source[start:stop]
            buffers = [piece, into]
            buffers += [allocate(next(slots), blocks * width, array.dtype) for blocks in flow.schedule.scratch]
            if goal not in REDUCING and array.dtype.char not in _REDUCED:  # whatever the dtype, these only move bytes
                buffers = [buffer.view(np.uint8) for buffer in buffers]
                width *= array.itemsize
            self.chunks.append(_Chunk(flow, buffers, width, before, after))


def _nothing() -> None:
    """Nothing is to be moved."""


def _padded(array: Array, room: Array) -> Array:
    room[: array.size].reshape(array.shape)[...] = array
    room[array.size :] = 0
    return room


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


def _flowing(
    collective: Collective, group: Any, source: Array, target: Array, op: "MPI.Op", room: Callable[[int, Any], Array]
) -> Iterator[Any]:
    """The same with non-blocking calls: hands out each request, and goes on when that is done.

    Open MPI's non-blocking all-reduce in place goes up and down a tree with all of the payload, and so does its
    reduce-scatter. Both are made of sends to everyone here, which move the least that can be, with any library.
    """
    if collective in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER):
        whole = target if collective is Collective.ALL_REDUCE else source
        parts = [part_length(whole.size, group.size, k) for k in range(group.size)]
        own = parts[group.rank]
        arrived = room(group.size * own, whole.dtype)
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
