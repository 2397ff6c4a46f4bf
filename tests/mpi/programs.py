"""What the ranks of the MPI tests do: `mpirun … python -m tests.mpi.programs FUNCTION:ARGUMENTS …`, one by one."""

import array
import os
import sys
import time
import warnings
from dataclasses import replace
from functools import partial
from math import inf, nan
from typing import Any

import numpy as np
from mpi4py import MPI

from meshwright import Goal, load_library
from meshwright.language.goals import PROGRAM_GOALS
from meshwright.mpi import Reducer
from meshwright.runtime.tuning import CALLS
from tests.engines import (
    EXHAUSTIVE,
    hierarchical,
    pipelined_plan,
    plan_of,
    programs_of,
    random_pipelines,
    ranged_plan,
    refused,
    tunable_plan,
)


def every_program(spec: str) -> None:
    every, count = EXHAUSTIVE[spec]
    programs = programs_of(spec, every=every)
    assert len(programs) == count
    plan = plan_of(spec, programs)
    comm = MPI.COMM_WORLD
    reducer = Reducer(plan)
    for number, program in enumerate(programs):
        rng = np.random.default_rng(number)
        length = int(rng.integers(1, 300))  # mostly one that does not divide
        whole = rng.integers(-1000, 1000, (comm.size, length))
        integers = whole[comm.rank].copy()
        reducer.all_reduce(integers, over=number)
        assert integers.tolist() == whole.sum(0).tolist(), program
        reals = rng.standard_normal((comm.size, length)).astype(np.float32)
        floats = reals[comm.rank].copy()
        reducer.all_reduce(floats, over=number)
        np.testing.assert_allclose(floats, reals.sum(0, dtype=np.float64), rtol=1e-4, atol=1e-5)
        assert len(set(comm.allgather(floats.tobytes()))) == 1, f"{program} differs between ranks"
    reducer.close()
    done(len(programs))


def pipelines(spec: str) -> None:
    """Programs in chunks, alone and mixed."""
    plan = random_pipelines(spec)
    comm = MPI.COMM_WORLD
    reducer = Reducer(plan)
    for number, planned in enumerate(plan.reductions):
        rng = np.random.default_rng(number)
        length = int(rng.integers(1, 400))
        whole = rng.integers(-1000, 1000, (comm.size, length))
        integers = whole[comm.rank].copy()
        reducer.all_reduce(integers, over=number)
        assert integers.tolist() == whole.sum(0).tolist(), planned.pipelined
        floats = rng.standard_normal((comm.size, length))[comm.rank]
        reducer.all_reduce(floats, over=number)
        assert len(set(comm.allgather(floats.tobytes()))) == 1, f"{planned.pipelined} differs between ranks"
    reducer.close()
    done(len(plan.reductions))


def pipelined_goals() -> None:
    """All goals in chunks, over lengths that ranks and chunks do not divide."""
    _goals({goal: Reducer(pipelined_plan(goal)) for goal in PROGRAM_GOALS})


def ranged_goals() -> None:
    """All goals with programs that depend on the size."""
    _goals({goal: Reducer(ranged_plan(goal)) for goal in PROGRAM_GOALS})


def tuning() -> None:
    """Calls that take candidates in turn are right, and settle alike."""
    comm, plan = MPI.COMM_WORLD, replace(tunable_plan(), library=load_library("openmpi"))
    reducer = Reducer(plan, tune=True)
    for call in range(CALLS + 2):
        length = 16_384 + 640 * (call % 3)
        whole = np.arange(4 * length, dtype=np.int32).reshape(4, length) % 97
        mine = whole[comm.rank].copy()
        reducer.all_reduce(mine)
        assert np.array_equal(mine, whole.sum(0))
    found = reducer.tuned()
    assert [len(planned.tuned) for planned in found.reductions] == [1, 0, 0, 0, 0]
    assert all(each == found for each in comm.allgather(found))
    reducer.close()
    done(1)


def _goals(reducers: dict[Goal, Reducer]) -> None:
    rank = MPI.COMM_WORLD.rank
    for length in (1, 3, 11, 40, 41, 1000):
        whole = np.arange(4 * length).reshape(4, length) % 97
        total = whole.sum(0)
        width = -(-length // 4)
        mine = whole[rank].copy()
        reducers[Goal.ALL_REDUCE].all_reduce(mine)
        assert np.array_equal(mine, total)
        part = reducers[Goal.REDUCE_SCATTER].reduce_scatter(whole[rank])
        assert np.array_equal(part, total[rank * width : (rank + 1) * width])
        out = np.empty(length, dtype=np.int64)
        reducers[Goal.ALL_GATHER].all_gather(part, out=out)
        assert np.array_equal(out, total)
        mine = whole[rank].copy()
        reducers[Goal.REDUCE].reduce(mine)
        assert rank > 0 or np.array_equal(mine, total)
        halves = whole[rank].astype(np.float16)  # a type that MPI does not know
        reducers[Goal.BROADCAST].broadcast(halves)
        assert np.array_equal(halves, whole[0].astype(np.float16))
    done(1)


def operations() -> None:
    """Every operation and goal, buffers of several kinds, over lengths that four ranks do not divide."""
    for plan in (hierarchical(), pipelined_plan(Goal.ALL_REDUCE)):
        with Reducer(plan) as reducer:
            _operations(reducer)
    done(1)


def _operations(reducer: Reducer) -> None:
    rank = MPI.COMM_WORLD.rank
    whole = np.arange(4 * 15).reshape(4, 3, 5) % 7
    for dtype in ("float32", "float64", "int8", "uint16", "int32", "int64", "complex128"):
        for op, reduce in (("sum", np.sum), ("avg", np.mean), ("max", np.max), ("min", np.min)):
            if (op == "avg" and "int" in dtype) or (op in ("max", "min") and dtype == "complex128"):
                continue
            mine = whole[rank].astype(dtype)
            reducer.all_reduce(mine, op)
            assert np.array_equal(mine, reduce(whole, axis=0).astype(dtype)), (dtype, op)
    columns = np.full((6, 4), float(rank)).T
    reducer.all_reduce(columns)
    assert np.array_equal(columns, np.full((4, 6), 6.0))
    numbers = array.array("d", [rank, 1.0, 2.0])
    reducer.all_reduce(numbers)
    assert numbers.tolist() == [6.0, 4.0, 8.0]
    text = bytearray([1, 2, 3])
    reducer.all_reduce(memoryview(text), "max")
    assert text == bytearray([1, 2, 3])
    assert reducer.all_reduce(np.empty((0, 3))).shape == (0, 3)


def goals() -> None:
    rank = MPI.COMM_WORLD.rank
    whole = np.arange(4 * 11).reshape(4, 11)
    total = whole.sum(0)
    part = Reducer(hierarchical(Goal.REDUCE_SCATTER)).reduce_scatter(whole[rank])
    assert part.tolist() == total[3 * rank : 3 * rank + 3].tolist()
    means = Reducer(hierarchical(Goal.REDUCE_SCATTER)).reduce_scatter(whole[rank].astype(float), "avg")
    assert means.tolist() == (total[3 * rank : 3 * rank + 3] / 4).tolist()
    gather = Reducer(hierarchical(Goal.ALL_GATHER))
    assert gather.all_gather(part, out=np.empty(11, np.int64)).tolist() == total.tolist()
    assert gather.all_gather(np.array([rank % 2 == 0])).tolist() == [True, False, True, False]
    programs = programs_of("node=2,gpu=2", Goal.REDUCE)  # most leave something with other ranks than the first too
    reducer = Reducer(plan_of("node=2,gpu=2", programs, Goal.REDUCE))
    for number, program in enumerate(programs):
        mine = whole[rank].copy()
        reducer.reduce(mine, over=number)
        assert rank > 0 or mine.tolist() == total.tolist(), program
    for dtype in ("float16", "int64", "S3", "datetime64[s]"):
        mine = whole[rank].astype(dtype)
        Reducer(hierarchical(Goal.BROADCAST)).broadcast(mine)
        assert np.array_equal(mine, whole[0].astype(dtype))
    done(1)


def refusals() -> None:
    rank = MPI.COMM_WORLD.rank
    reducer = Reducer(hierarchical())
    messages = [
        refused(lambda: Reducer(hierarchical(spec="node=2,gpu=4"))),
        refused(lambda: Reducer(hierarchical() if rank else hierarchical(Goal.REDUCE))),
        refused(lambda: reducer.all_reduce(np.ones(3, np.float16))),
        refused(lambda: reducer.all_reduce(np.ones(3, ">f8"))),
        refused(lambda: reducer.all_reduce(np.ones(3, bool))),
        refused(lambda: reducer.all_reduce(np.ones(3, np.int32), "avg")),
        refused(lambda: reducer.all_reduce(np.ones(3), "prod")),
        refused(lambda: reducer.all_reduce([1.0])),
        refused(lambda: reducer.all_reduce(b"abc")),
        refused(lambda: reducer.all_reduce(np.array([object()]))),
        refused(lambda: reducer.all_reduce(np.ones(5 if rank == 2 else 4))),
    ]
    everyone = MPI.COMM_WORLD.allgather(messages)
    assert all(each == everyone[0] for each in everyone), everyone
    if rank == 0:
        print("\n".join(messages))


def lone_refusals() -> None:
    """One rank cannot do what the others do; all are told why."""
    rank = MPI.COMM_WORLD.rank
    plan: Any = hierarchical()
    damaged = replace(
        plan, communications=(replace(plan.reductions[0], pipelined=hierarchical(Goal.REDUCE).reductions[0].pipelined),)
    )
    none: Any = None
    timeouts: Any = (60, "60", inf, -1)
    half: Any = MPI.COMM_WORLD.Split(rank % 2, rank)
    starts = [
        refused(lambda: Reducer(damaged if rank == 1 else plan)),
        refused(lambda: Reducer(none if rank == 1 else plan)),
        refused(lambda: Reducer(plan, timeout=nan if rank == 3 else 60)),
        refused(lambda: Reducer(plan, timeout=timeouts[rank])),
        refused(lambda: Reducer(plan, check="often" if rank == 3 else "first")),
        refused(lambda: Reducer(plan, check="never" if rank == 2 else "first")),
        refused(lambda: Reducer(plan, half)),
    ]
    everyone = MPI.COMM_WORLD.allgather(starts)
    assert all(each == everyone[0] for each in everyone), everyone
    reducer = Reducer(plan)
    messages = []
    for alone in (2, 0):  # one that gathers what the others say, and one that does not
        for wrong, op in ((np.ones(3, np.float16), "sum"), ([1.0], "sum"), (np.ones(3), "prod")):
            call = partial(reducer.all_reduce, *((wrong, op) if rank == alone else (np.ones(3), "sum")))
            messages.append(MPI.COMM_WORLD.allgather(refused(call)))
        right = np.ones(3)
        reducer.all_reduce(right, "max")  # all are in step
        assert right.tolist() == [1.0] * 3
    refused(lambda: reducer.all_reduce(np.ones(3), "prod"))  # all alike
    right = np.ones(3)
    reducer.all_reduce(right)
    assert right.tolist() == [4.0] * 3
    reducer.close()
    if rank == 0:
        for text in starts:
            print(text)
        for told in messages:
            print(*dict.fromkeys(told), sep=" | ")


def forgotten() -> None:
    """Nobody closes a Reducer, one of which nothing but itself holds."""
    for plan in (hierarchical(), pipelined_plan(Goal.ALL_REDUCE)):
        reducer: Any = Reducer(plan)
        reducer.all_reduce(np.ones(1000))
        reducer.itself = reducer
    done(1)


def raising() -> None:
    """One rank ends with an exception while the others are in a call, for longer than the test lasts."""
    reducer = Reducer(hierarchical(), timeout=3600)
    for _ in range(2):  # more in a row are not compared
        reducer.all_reduce(np.ones(4))
    if MPI.COMM_WORLD.rank == 1:
        raise KeyError("a mistake")
    reducer.all_reduce(np.ones(4))


def failing() -> None:
    """A step fails on rank 1; its Reducer takes no more calls, and can be closed."""
    reducer = Reducer(hierarchical())
    for _ in range(2):  # more in a row are not compared
        reducer.all_reduce(np.ones(4))
    if MPI.COMM_WORLD.rank == 1:
        for group in reducer._groups.values():
            group.Free()
        print(refused(lambda: reducer.all_reduce(np.ones(4))))
        print(refused(lambda: reducer.all_reduce(np.ones(4))), flush=True)
        reducer.close()
    MPI.COMM_WORLD.Barrier()


def noticed() -> None:
    """A plan for another library, and chunks that vanish, are said once, on rank 0."""
    (planned,) = pipelined_plan(Goal.ALL_REDUCE).reductions
    planned = replace(planned, communication=replace(planned.communication, bytes=1 << 28))
    plan = replace(hierarchical(), library=load_library("nccl"), communications=(planned,))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        reducer = Reducer(plan)
        for _ in range(3):
            reducer.all_reduce(np.ones(4))
        Reducer(hierarchical())
    everyone = MPI.COMM_WORLD.allgather([str(each.message) for each in said])
    if MPI.COMM_WORLD.rank == 0:
        print(everyone)


def swapped() -> None:
    """One rank makes known calls of the same size in another order."""
    rank = MPI.COMM_WORLD.rank
    reducer = Reducer(hierarchical())
    for op in ("sum", "sum", "max", "max", "sum"):  # either has come after either
        reducer.all_reduce(np.ones(4), op)
    for op in ("max", "sum") if rank == 2 else ("sum", "max"):
        reducer.all_reduce(np.ones(4), op)
    message = refused(lambda: [reducer.all_reduce(np.ones(4)) for _ in range(64)])
    if rank == 0:
        print(message)


def hanging() -> None:
    """One rank hangs; the others end this job."""
    reducer = Reducer(hierarchical())
    for _ in range(2):  # more in a row are not compared
        reducer.all_reduce(np.ones(4))
    reducer._watchdog.timeout = 2  # only now, as starting may take longer
    if MPI.COMM_WORLD.rank == 1:
        time.sleep(600)
    reducer.all_reduce(np.ones(4))


def dying() -> None:
    """One rank dies; mpirun ends the others."""
    reducer = Reducer(hierarchical(), timeout=3600)
    for _ in range(2):  # more in a row are not compared
        reducer.all_reduce(np.ones(4))
    if MPI.COMM_WORLD.rank == 1:
        os._exit(7)
    reducer.all_reduce(np.ones(4))


def done(count: int) -> None:
    """Say what was done, once all ranks have."""
    MPI.COMM_WORLD.Barrier()
    if MPI.COMM_WORLD.rank == 0:
        print("done", count)


if __name__ == "__main__":
    for each in sys.argv[1:]:
        name, *arguments = each.split(":")
        globals()[name](*arguments)
