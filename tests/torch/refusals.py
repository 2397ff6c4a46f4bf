"""What ranks do in the tests of refusals: worlds, plans, tensors and calls that do not fit."""

import os
import threading
import warnings
from dataclasses import replace

import torch
import torch.distributed as dist

from meshwright import (
    Goal,
    MeshwrightWarning,
    Plan,
    load_library,
    parse_hierarchy,
    parse_program,
)
from meshwright.torch import Reducer
from tests.engines import hierarchical, pipelined_plan, plan_of, programs_of, refused
from tests.torch.programs import gloo


def world_of_another_size(_rank: int) -> str:
    with gloo():
        return refused(lambda: Reducer(hierarchical(spec="node=2,gpu=4")))


def seats_that_do_not_fit(rank: int, seats: list[tuple[int, int]]) -> str:
    os.environ.update(LOCAL_RANK=str(seats[rank][0]), LOCAL_WORLD_SIZE=str(seats[rank][1]))
    with gloo():
        return refused(lambda: Reducer(hierarchical()))


def another_plan(rank: int) -> str:
    with gloo():
        plan = plan_of("node=2,gpu=2", programs_of("node=2,gpu=2")[:1]) if rank == 2 else hierarchical()
        return refused(lambda: Reducer(plan))


def different_calls(rank: int) -> list[str]:
    """Sizes, dtypes and operations that differ between ranks, each with a Reducer of its own."""
    odd = rank == 2
    with gloo():
        messages = []
        for tensor, op in (
            (torch.ones(5 if odd else 4), "sum"),
            (torch.ones(4, dtype=torch.float64 if odd else torch.float32), "sum"),
            (torch.ones(4), "max" if odd else "sum"),
        ):
            reducer = Reducer(hierarchical(), timeout=20)
            messages.append(refused(lambda r=reducer, t=tensor, o=op: r.all_reduce(t, o)))  # type: ignore[misc]
        always = Reducer(hierarchical(), timeout=20, check="always")
        always.all_reduce(torch.ones(4))
        always.all_reduce(torch.ones(5))
        messages.append(refused(lambda: always.all_reduce(torch.ones(4 if odd else 5))))  # both are known by now
        return messages


IN_EVERY_ORDER = (False, False, True, True, False)
"""Calls of two kinds, after which neither is new to any rank, whichever came before it."""


def swapped_calls(rank: int) -> str:
    """Two ranks make known calls of the same size in another order: noticed when all calls are compared."""
    with gloo():
        reducer = Reducer(hierarchical(), timeout=20)
        for other in IN_EVERY_ORDER:
            reducer.all_reduce(torch.ones(4), "max" if other else "sum")
        for op in ("max", "sum") if rank == 2 else ("sum", "max"):
            reducer.all_reduce(torch.ones(4), op)
        return refused(lambda: [reducer.all_reduce(torch.ones(4)) for _ in range(64)])


def known_sizes_mixed_up(rank: int, chunks: bool) -> str:
    """After a warm-up with one size, a rank gives another: it alone compares, the others are in the call already."""
    with gloo(20):
        reducer = Reducer(pipelined_plan(Goal.ALL_REDUCE) if chunks else hierarchical(), timeout=3)
        for _ in range(2):  # more in a row are not compared
            reducer.all_reduce(torch.ones(40_000))
        return refused(lambda: reducer.all_reduce(torch.ones(50_000 if rank == 2 else 40_000)))


def known_size_out_of_place(rank: int) -> str:
    """Every step has a small call and a large one. In the fourth, a rank makes the large one first, which all know."""
    with gloo(20):
        reducer = Reducer(hierarchical(), timeout=3)
        for _ in range(3):
            for length in (40, 40_000):
                reducer.all_reduce(torch.ones(length))
        return refused(lambda: reducer.all_reduce(torch.ones(40_000 if rank == 2 else 40)))


def late_difference(rank: int) -> str:
    """Sizes that all ranks know, but not at the same call: noticed at the latest when the Reducer is closed."""
    with gloo():
        reducer = Reducer(hierarchical(), timeout=10)
        for other in (*IN_EVERY_ORDER, rank == 2):
            reducer.all_reduce(torch.ones(6 if other else 5))
        return refused(reducer.close)


def unsuitable_tensors(_rank: int) -> list[str]:
    with gloo():
        reducer = Reducer(hierarchical())
        scatter, gather = Reducer(hierarchical(Goal.REDUCE_SCATTER)), Reducer(hierarchical(Goal.ALL_GATHER))
        messages = [
            refused(lambda: reducer.all_reduce(torch.ones(3, dtype=torch.int16))),
            refused(lambda: reducer.all_reduce(torch.ones(3, dtype=torch.complex64))),
            refused(lambda: reducer.all_reduce(torch.ones(3, dtype=torch.int32), "avg")),
            refused(lambda: reducer.all_reduce(torch.ones(3), "prod")),
            refused(lambda: reducer.all_reduce(torch.eye(3).to_sparse())),
            refused(lambda: reducer.all_reduce([1.0, 2.0])),  # type: ignore[call-overload]
            refused(lambda: reducer.all_reduce(torch.ones(3, device="meta"))),
            refused(lambda: scatter.all_reduce(torch.ones(3))),
            refused(lambda: gather.all_gather(torch.ones(3), out=torch.ones(13))),
            refused(lambda: gather.all_gather(torch.ones(3), out=torch.ones(12, dtype=torch.float64))),
            refused(lambda: reducer.all_reduce(torch.ones(3, requires_grad=True) * 2)),
        ]
        assert reducer.all_reduce(torch.ones(3)).tolist() == [4.0] * 3  # none of that has broken it
        return messages


def invalid_plans(_rank: int) -> list[str]:
    """A plan that was put together by hand is checked before any group is made."""
    hierarchy = parse_hierarchy("node=2,gpu=2")
    short = plan_of("node=2,gpu=2", [parse_program("ReduceScatter inside node; AllReduce across node", hierarchy)])
    with gloo():
        before = len(dist.distributed_c10d._world.pg_map)
        messages = [
            refused(lambda: Reducer(short)),
            refused(lambda: Reducer(hierarchical(), check="sometimes")),
            refused(lambda: Reducer(hierarchical(), timeout=0)),
        ]
        assert len(dist.distributed_c10d._world.pg_map) == before
        return messages


def one_refuses(rank: int, what: str) -> str:
    """One rank gives what cannot be: all are told at once."""
    odd = rank == 2
    with gloo():
        if what == "plan":
            other = hierarchical(spec="node=2,gpu=4")
            return refused(lambda: Reducer(other if odd else hierarchical(), timeout=30))
        if what == "path":
            return refused(lambda: Reducer("plan.json" if odd else hierarchical(), timeout=30))  # type: ignore[arg-type]
        if what == "part":
            gather = Reducer(hierarchical(Goal.ALL_GATHER), timeout=30)
            return refused(lambda: gather.all_gather(torch.ones(2 if odd else 3), out=torch.ones(12)))
        if what == "sizes":
            program = hierarchical().reductions[0].program
            small, large = (plan_of("node=2,gpu=2", [program], size=size).reductions[0] for size in (1 << 10, 1 << 20))
            plan = Plan(hierarchical().placement, load_library("ring"), (small, large))
            reducer = Reducer(plan, timeout=30)
            return refused(lambda: reducer.all_reduce(torch.ones(2**18 if odd else 2**8)))
        reducer = Reducer(hierarchical(), timeout=30)
        return refused(lambda: reducer.all_reduce(torch.ones(3, dtype=torch.int16 if odd else torch.int32)))


def two_threads(_rank: int) -> int:
    """A second thread in a call is refused, and the first one's result is right."""
    with gloo():
        reducer = Reducer(hierarchical())
        reducer.all_reduce(torch.ones(4))
        inside = threading.Event()
        free = threading.Event()

        def slow() -> torch.Tensor:
            inside.set()
            free.wait(10)
            return torch.ones(1)

        thread = threading.Thread(target=lambda: reducer._driver.queue.run(slow))
        thread.start()
        inside.wait(10)
        message = refused(lambda: reducer.all_reduce(torch.ones(4)))
        assert "another thread is in a call" in message
        free.set()
        thread.join()
        return int(reducer.all_reduce(torch.ones(1)).item())


def notices(_rank: int) -> list[str]:
    """What is said where a plan for another library, and for larger payloads, runs."""
    (planned,) = pipelined_plan(Goal.ALL_REDUCE).reductions
    planned = replace(planned, communication=replace(planned.communication, bytes=2**28))
    plan = Plan(hierarchical().placement, load_library("nccl"), (planned,))
    with gloo(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reducer = Reducer(plan)
        for _ in range(3):
            reducer.all_reduce(torch.ones(1000))
        return [str(each.message) for each in caught if issubclass(each.category, MeshwrightWarning)]
