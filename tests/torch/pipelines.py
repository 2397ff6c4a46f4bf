"""What ranks do in the tests of pipelined programs on gloo."""

import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from meshwright import Goal, MeshwrightWarning
from meshwright.language.goals import PROGRAM_GOALS
from meshwright.runtime.tuning import CALLS
from meshwright.torch import Reducer
from tests.engines import pipelined_plan, random_pipelines, ranged_plan, refused, tunable_plan
from tests.torch.programs import gloo


def every_program(rank: int, spec: str) -> dict[str, bytes]:
    """Programs in chunks, alone and mixed, on integers and floats; the floats of each for bitwise comparison."""
    plan = random_pipelines(spec)
    warnings.simplefilter("ignore", MeshwrightWarning)  # that some payloads are too small for chunks
    bits: dict[str, bytes] = {}
    with gloo():
        reducer = Reducer(plan)
        world = dist.get_world_size()
        for number, planned in enumerate(plan.reductions):
            rng = np.random.default_rng(number)
            length = int(rng.integers(1, 400))
            whole = rng.integers(-1000, 1000, (world, length))
            integers = torch.from_numpy(whole[rank].copy())
            reducer.all_reduce(integers, over=number)
            assert integers.tolist() == whole.sum(0).tolist(), planned.pipelined
            reals = rng.standard_normal((world, length)).astype(np.float32)
            floats = torch.from_numpy(reals[rank].copy())
            reducer.all_reduce(floats, over=number)
            np.testing.assert_allclose(floats.numpy(), reals.sum(0, dtype=np.float64), rtol=1e-4, atol=1e-5)
            bits[f"{number} {plan.program_text(planned)}"] = floats.numpy().tobytes()
        reducer.close()
    return bits


def goals(rank: int, of: str = "chunks") -> None:
    """All goals in chunks, or with programs that depend on the size, over lengths that ranks do not divide."""
    made = pipelined_plan if of == "chunks" else ranged_plan
    with gloo():
        reducers = {goal: Reducer(made(goal)) for goal in PROGRAM_GOALS}
        for length in (1, 3, 11, 40, 41, 1000):
            whole = torch.arange(4 * length).reshape(4, length).remainder(97)
            total = whole.sum(0)
            width = -(-length // 4)
            mine = whole[rank].clone()
            reducers[Goal.ALL_REDUCE].all_reduce(mine)
            assert torch.equal(mine, total)
            means = whole[rank].double()
            reducers[Goal.ALL_REDUCE].all_reduce(means, "avg")
            assert torch.allclose(means, total.double() / 4)
            part = reducers[Goal.REDUCE_SCATTER].reduce_scatter(whole[rank])
            assert torch.equal(part, total[rank * width : (rank + 1) * width])
            out = torch.empty(length, dtype=torch.int64)
            reducers[Goal.ALL_GATHER].all_gather(part, out=out)
            assert torch.equal(out, total)
            strided = torch.zeros(2 * length, dtype=torch.int64)[::2]
            reducers[Goal.ALL_GATHER].all_gather(part, out=strided)
            assert torch.equal(strided, total)
            mine = whole[rank].clone()
            reducers[Goal.REDUCE].reduce(mine)
            assert rank > 0 or torch.equal(mine, total)
            for dtype in (torch.bool, torch.complex64, torch.int16):
                mine = whole[rank].to(dtype)
                reducers[Goal.BROADCAST].broadcast(mine)
                assert torch.equal(mine, whole[0].to(dtype))
        columns = torch.full((30, 40), float(rank)).t()
        reducers[Goal.ALL_REDUCE].all_reduce(columns)
        assert torch.equal(columns, torch.full((40, 30), 6.0))


def many_at_once(rank: int) -> None:
    """Asynchronous calls, and two Reducers one after the other."""
    with gloo():
        first, second = Reducer(pipelined_plan(Goal.ALL_REDUCE)), Reducer(pipelined_plan(Goal.ALL_REDUCE))
        tensors = [torch.full((100 * k + 1,), float(rank)) for k in range(8)]
        works = [first.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()
        for tensor in tensors:
            second.all_reduce(tensor)
            assert torch.equal(tensor, torch.full_like(tensor, 24.0))
        first.close()
        second.close()


def dying_rank(rank: int) -> tuple[str, str, bool]:
    """One rank dies in the middle of a call: what the others are told, and whether anything came back as reduced."""
    with gloo(20):
        reducer = Reducer(pipelined_plan(Goal.ALL_REDUCE), timeout=30)
        for _ in range(2):  # more in a row are not compared
            reducer.all_reduce(torch.ones(4000))
        if rank == 3:
            # Not the last step: those who have all they need from this rank may be done, and rightly so.
            _at_step(reducer, 1, lambda: os._exit(7))
        results: list[Any] = []
        first = refused(lambda: results.append(reducer.all_reduce(torch.ones(4000))))
        return first, refused(lambda: reducer.all_reduce(torch.ones(4000))), bool(results)


def failing_worker(rank: int) -> str:
    """A step fails on one rank, whose process goes on."""
    with gloo(20):
        reducer = Reducer(pipelined_plan(Goal.ALL_REDUCE), timeout=30)
        reducer.all_reduce(torch.ones(4000))
        if rank == 1:
            _at_step(reducer, 1, _break)
        return refused(lambda: reducer.all_reduce(torch.ones(4000)))


def _break() -> None:
    raise RuntimeError("it broke")


def _at_step(reducer: Reducer, lane: int, what: Callable[[], None]) -> None:
    """Do something when a rank is about to take a step."""

    class Groups(dict[Any, Any]):
        def __getitem__(self, key: Any) -> Any:
            if key[0] == lane:
                what()
            return super().__getitem__(key)

    reducer._driver.executor.groups = Groups(reducer._driver.groups)


def tuning(rank: int) -> tuple[dict[str, Any], int]:
    """Calls that take candidates in turn; the plan with what was settled, and how many calls a settled one takes."""
    plan = tunable_plan()
    with gloo():
        reducer = Reducer(plan, tune=True)
        for call in range(CALLS + 4):
            length = 16_384 + 640 * (call % 3)
            whole = torch.arange(4 * length).reshape(4, length).remainder(97).int()
            mine = whole[rank].clone()
            work = reducer.all_reduce(mine, async_op=True)
            part = reducer.reduce_scatter(whole[rank])
            assert torch.equal(work.wait(), whole.sum(0))
            assert torch.equal(part, whole.sum(0)[rank * length // 4 :][: length // 4])
        found = reducer.tuned()
        unsettled = [kind for kind in reducer._calls.kinds.values() if kind.race is not None]
        reducer.close()
    assert plan == reducer.plan != found
    return found.document(), len(unsettled)
