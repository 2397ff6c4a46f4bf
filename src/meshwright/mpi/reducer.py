"""The executor that users hold: runs a plan's programs over MPI communicators."""

import atexit
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
from mpi4py import MPI

from meshwright.errors import EngineError
from meshwright.language.goals import Goal
from meshwright.language.program import Collective
from meshwright.mpi.channel import MessageChannel
from meshwright.mpi.collectives import ARRAYS, Array, as_array, check_array, run_collective, start_collective
from meshwright.planning.plan import Plan
from meshwright.runtime.agreement import CallCheck, call_checks, introduce, judge_start
from meshwright.runtime.calls import Calls, Over, Prepared
from meshwright.runtime.payload import Divide, Payload, Room
from meshwright.runtime.role import Cut, Flow, LaneGroup, Role, plan_groups
from meshwright.runtime.schedule import Call
from meshwright.runtime.seats import Seat
from meshwright.runtime.waiting import TIMEOUT, Watchdog, check_timeout
from meshwright.runtime.walk import take_turns, walk_alone
from meshwright.runtime.words import first_line, rank_list


class Reducer(AbstractContextManager["Reducer"]):
    """Runs the programs of a plan; every process of the communicator makes one.

    Making it checks that all processes have the same plan and sit where it says, and creates the communicators that the
    programs need. A call is collective over its reduction group, and every rank makes its calls in the same order.

    timeout: seconds after which a process that still waits for others in a call says so and ends; as no MPI call can be
    broken off, that is the only way out, and mpirun then ends the others.
    check: whether ranks compare size, dtype and operation: "first" before a call that has not come right after the same
    call before, "always" or "never".
    tune: whether the first calls of each reduction and size find out which programs are fastest: at most 40 calls take
    the library's own collective and the best predicted programs in turn, and all others what was the fastest.

    Forgetting `close` does no harm. A rank that ends with an exception before it ends the job, as the others would wait
    for it.
    """

    def __init__(
        self,
        plan: Plan,
        comm: "MPI.Intracomm | None" = None,
        *,
        timeout: float = TIMEOUT,
        check: str = "first",
        tune: bool = False,
    ) -> None:
        """Check that processes and plan fit, and create the communicators."""
        comm = MPI.COMM_WORLD if comm is None else comm
        if not isinstance(comm, MPI.Intracomm):
            raise EngineError(f"comm is {comm!r}: expected a communicator of the ranks that run the plan, None for all")
        self.plan, self.rank = plan, comm.rank
        self._closed = False
        self._broken = ""  # what went wrong in the midst of a call, after which ranks may be out of step
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
                self._calls = Calls(plan, self.rank, *self._compare_plans(check, tune, fault), ARRAYS, tune)
                self._groups = self._communicators(tune)
        except BaseException:
            self._watchdog.close()
            raise
        self._calls.notices.tuned("mpi")
        vendor = MPI.get_vendor()[0]
        self._calls.notices.library("openmpi" if vendor == "Open MPI" else vendor)
        self._room = Room(ARRAYS)
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

    def tuned(self) -> Plan:
        """The plan with what is settled so far, for `write_plan`; the plan as it was, if nothing is.

        Groups that reduce at the same time settle each for itself, so ranks may have settled on different programs.
        """
        return self._calls.tuner.plan_with("mpi") if self._calls.tuner else self.plan

    def close(self) -> None:
        """Compare the last calls, and give the communicators back; every process calls it."""
        if self._closed:
            return
        self._closed = True
        if not self._broken and not MPI.Is_finalized():
            self._calls.finish()
            with self._waiting("closing, which every rank does"):
                for group in self._groups.values():
                    group.Free()
                self._comm.Free()
        self._groups.clear()
        self._watchdog.close()

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

    def _compare_plans(self, check: str, tune: bool, fault: str) -> tuple[list[Role], list[CallCheck]]:
        local = self._comm.Split_type(MPI.COMM_TYPE_SHARED, key=self.rank)
        at = Seat(local.rank, local.size)
        local.Free()
        said, roles = introduce(self.plan, self._comm.size, self.rank, at, check, tune)
        checks = []
        try:
            checks = call_checks(roles, check, lambda k, ranks: MessageChannel(self._comm, ranks, k, self._waiting))
        except EngineError as error:
            fault = fault or str(error)
        said["fault"] = said["fault"] or fault
        everyone = dict(enumerate(self._comm.allgather(said)))
        if fault := judge_start(None if said["fault"] else self.plan.placement.system, everyone):
            raise EngineError(fault)
        return roles, checks

    def _communicators(self, tune: bool) -> dict[LaneGroup, Any]:
        """One for each group that this rank is in; groups without a rank in common are made at once."""
        rounds: list[dict[int, LaneGroup]] = []  # in each, the group of every rank that has one
        for group in plan_groups(self.plan, tune):
            fitting = next((groups for groups in rounds if groups.keys().isdisjoint(group[1])), None)
            if fitting is None:
                rounds.append(fitting := {})
            fitting |= dict.fromkeys(group[1], group)
        made: dict[LaneGroup, Any] = {}
        for groups in rounds:
            mine = groups.get(self.rank)
            communicator = self._comm.Split(MPI.UNDEFINED if mine is None else mine[1][0], self.rank)
            if mine is not None:
                made[mine] = communicator
        return made

    def _call(self, goal: Goal, buffer: Any, out: Any, op: str, over: Over) -> Array:
        if self._closed:
            raise EngineError("this Reducer is closed")
        if self._broken:
            raise EngineError(f"a call before failed, so the ranks may be out of step: {self._broken}")
        try:
            array = as_array(buffer, written=goal.in_place)
            into = None if out is None else as_array(out, written=True)
            check_array(goal, array, op)
            call = self._calls.prepare(goal, array, into, op, over)
        except EngineError as error:
            self._calls.refuse(goal, over, error)
            raise
        call.kind.check(call.kind.words, call.kind.bytes)
        kind = call.kind
        if kind.length and kind.race is None:
            self._run(call, op, kind.cut)
        elif kind.length and kind.race is not None:
            run, largest = partial(self._run, call, op), partial(self._largest, kind.role)
            kind.race.call(kind.role, kind.length, kind.bytes // kind.length, run, largest)
        kept: Array = call.kept
        return kept

    def _largest(self, role: Role, values: Sequence[float]) -> list[float]:
        """The largest of the values of all ranks of a role, one by one; their group is that of the library's own."""
        found = np.array(values, np.float64)
        with self._waiting(f"comparing times with {rank_list(role.ranks)}"):
            run_collective(Collective.ALL_REDUCE, self._groups[0, role.ranks], found, found, "max")
        return list(found.tolist())

    def _run(self, call: Prepared, op: str, cut: Sequence[Cut]) -> None:
        at: list[tuple[Flow, Call]] = []  # the collectives so far, the last one under way
        role = call.kind.role
        alone = len(cut) == 1

        def run(flow: Flow, move: Call, where: LaneGroup, source: Array, target: Array) -> Iterable[Any]:
            at.append((flow, move))
            if alone:
                run_collective(move.collective, self._groups[where], source, target, op)
                return ()
            new = partial(self._room, -1 - where[0])
            return start_collective(move.collective, self._groups[where], source, target, op, new)

        with self._waiting(lambda: role.words(*at[-1]) if at else "starting a call"):
            # MPI has no halves, whose sums would overflow: an average is divided once, at the end.
            divide: Divide = "after" if op == "avg" else ""
            payload = Payload(role, cut, call.given, call.result, ARRAYS, self._room, divide)
            if alone:
                walk_alone(payload.chunks[0], run)
            else:
                take_turns(payload.chunks, run, MPI.Request.Waitany)
        payload.finish()


_open: "WeakSet[Reducer]" = WeakSet()


@atexit.register
def _end_job() -> None:
    """End the job if this rank ends with an exception: others may wait for it, and mpi4py for them in MPI_Finalize."""
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
