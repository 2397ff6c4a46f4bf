"""What ranks do in the tests of programs on gloo: every operation, shape, goal and order of calls."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist

from meshwright import (
    Collective,
    EngineError,
    Goal,
    Grouping,
    Pipelined,
    Placement,
    Plan,
    Planned,
    Program,
    Reduction,
    Step,
    load_library,
    parse_hierarchy,
    parse_program,
    parse_system,
    reduction_hierarchy,
)
from meshwright.measure.trials.runners import make_runner
from meshwright.measure.trials.trial import payloads
from meshwright.runtime.agreement import CallCheck
from meshwright.torch import Reducer
from meshwright.torch.collectives import REDUCED
from tests.engines import EXHAUSTIVE, hierarchical, plan_of, programs_of, refused


@contextmanager
def gloo(timeout: float = 60) -> Iterator[None]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    try:
        yield
    finally:
        dist.destroy_process_group()


def every_program(rank: int, spec: str) -> dict[str, bytes]:
    """Runs programs on integers and floats; returns how many agreed, and the floats of each for bitwise comparison."""
    programs = programs_of(spec, every=EXHAUSTIVE[spec][0])
    plan = plan_of(spec, programs)
    bits: dict[str, bytes] = {}
    with gloo():
        reducer = Reducer(plan)
        world = dist.get_world_size()
        for number, program in enumerate(programs):
            rng = np.random.default_rng(number)
            length = int(rng.integers(1, 300))  # mostly one that does not divide
            whole = rng.integers(-1000, 1000, (world, length))
            integers = torch.from_numpy(whole[rank].copy())
            reducer.all_reduce(integers, over=number)
            assert integers.tolist() == whole.sum(0).tolist(), program
            reals = rng.standard_normal((world, length)).astype(np.float32)
            floats = torch.from_numpy(reals[rank].copy())
            reducer.all_reduce(floats, over=number)
            np.testing.assert_allclose(floats.numpy(), reals.sum(0, dtype=np.float64), rtol=1e-4, atol=1e-5)
            bits[program.text(plan.hierarchy(plan.reductions[number]))] = floats.numpy().tobytes()
        reducer.close()
    return bits


def operations(rank: int) -> None:
    """Every operation on every dtype that is reduced, on shapes that do not divide, against NumPy."""
    with gloo():
        reducer = Reducer(hierarchical())
        for dtype in sorted(REDUCED, key=str):
            for op in ("sum", "avg", "max", "min"):
                if op == "avg" and not dtype.is_floating_point:
                    continue
                whole = torch.arange(4 * 15).reshape(4, 3, 5).remainder(7).to(dtype)
                mine = whole[rank].clone()
                assert reducer.all_reduce(mine, op).data_ptr() == mine.data_ptr()
                exact = whole.to(torch.float64)
                wanted = {
                    "sum": exact.sum(0),
                    "avg": exact.mean(0),
                    "max": exact.amax(0),
                    "min": exact.amin(0),
                }[op]
                assert torch.equal(mine.to(torch.float64), wanted), (dtype, op)
        big = torch.full((5,), 30000.0, dtype=torch.float16)
        assert reducer.all_reduce(big, "avg").tolist() == [30000.0] * 5  # the sum would be infinite


def shapes(rank: int) -> None:
    """Non-contiguous, empty, scalar, large and gradient-tracking tensors."""
    with gloo():
        reducer = Reducer(hierarchical())
        columns = torch.full((6, 4), float(rank)).t()
        assert not columns.is_contiguous()
        reducer.all_reduce(columns)
        assert torch.equal(columns, torch.full((4, 6), 6.0))
        strided = torch.zeros(20)
        reducer.all_reduce(strided[::2].add_(1))
        assert strided.tolist() == [4.0, 0.0] * 10
        assert reducer.all_reduce(torch.empty(0, 3)).shape == (0, 3)
        assert reducer.all_reduce(torch.tensor(2.0)).item() == 8.0
        weight = torch.ones(3, requires_grad=True)
        with torch.no_grad():
            reducer.all_reduce(weight)
        assert weight.tolist() == [4.0] * 3
        assert weight.requires_grad
        large = torch.arange(2**20, dtype=torch.int32)  # pieces above the size at which a ring takes over
        reducer.all_reduce(large)
        assert torch.equal(large, 4 * torch.arange(2**20, dtype=torch.int32))
        largest = torch.arange(2**20, dtype=torch.int32) + rank
        reducer.all_reduce(largest, "max")
        assert torch.equal(largest, torch.arange(2**20, dtype=torch.int32) + 3)


def goals(rank: int) -> None:
    """The other four goals, over a length that four ranks do not divide."""
    whole = torch.arange(4 * 11).reshape(4, 11)
    total = whole.sum(0)
    starts = [0, 3, 6, 9]
    parts = [total[start : start + 3] for start in starts]
    with gloo():
        scatter, gather = Reducer(hierarchical(Goal.REDUCE_SCATTER)), Reducer(hierarchical(Goal.ALL_GATHER))
        mine = whole[rank].clone()
        part = scatter.reduce_scatter(mine)
        assert torch.equal(part, parts[rank])
        assert torch.equal(mine, whole[rank])
        for tensor in (whole[rank].half(), whole[rank].double()):
            means = scatter.reduce_scatter(tensor, "avg")
            assert torch.equal(means.double(), parts[rank].double() / 4)
            assert torch.equal(tensor.double(), whole[rank].double())
        out = torch.empty(11, dtype=torch.int64)
        gather.all_gather(part, out=out)
        assert torch.equal(out, total)
        assert gather.all_gather(torch.tensor([rank, rank])).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        assert gather.all_gather(torch.tensor([rank % 2 == 0])).tolist() == [True, False, True, False]
        programs = programs_of("node=2,gpu=2", Goal.REDUCE)  # most leave something with other ranks than the first too
        reducer = Reducer(plan_of("node=2,gpu=2", programs, Goal.REDUCE))
        for number, program in enumerate(programs):
            mine = whole[rank].clone()
            reducer.reduce(mine, over=number)
            assert rank > 0 or torch.equal(mine, total), program
        sender = Reducer(hierarchical(Goal.BROADCAST))
        for dtype in (torch.int64, torch.bool, torch.complex64, torch.int16):
            mine = whole[rank].to(dtype)
            sender.broadcast(mine)
            assert torch.equal(mine, whole[0].to(dtype))


def many_at_once(rank: int) -> None:
    """Asynchronous calls keep their order, also with synchronous ones between them."""
    with gloo():
        reducer = Reducer(hierarchical())
        tensors = [torch.full((k + 1,), float(rank)) for k in range(20)]
        works = [reducer.all_reduce(tensor, async_op=True) for tensor in tensors]
        now = reducer.all_reduce(torch.ones(3))
        assert now.tolist() == [4.0] * 3
        assert all(work.is_completed() for work in works)
        for work, tensor in zip(works, tensors, strict=True):
            assert work.wait().data_ptr() == tensor.data_ptr()
            assert tensor.tolist() == [6.0] * len(tensor)
        future = reducer.all_reduce(torch.ones(2), async_op=True).get_future()
        assert future.then(lambda done: done.value()[0].item() + 1).wait() == 5.0


def axes(rank: int) -> list[tuple[int, ...]]:
    """A plan with several reductions: which is meant, and that only its groups exist."""
    placement = Placement(parse_system("node=2,gpu=4"), ("data", "shard"), ((2, 2), (1, 2)))
    hierarchy = reduction_hierarchy(placement, ["data"])
    program = parse_program("ReduceScatter inside node; AllReduce across node; AllGather inside node", hierarchy)
    flat = [
        Program((Step(Collective.ALL_REDUCE, Grouping(0, 0)),)),
        Program((Step(Collective.ALL_GATHER, Grouping(0, 0)),)),
    ]
    plan = Plan(
        placement,
        load_library("ring"),
        (
            Planned(Reduction(("data",), 2**20), Pipelined.of(program), 1, 1, 1),
            Planned(Reduction(("shard",), 2**20), Pipelined.of(flat[0]), 1, 1, 1),
            Planned(Reduction(("shard",), 2**20, goal=Goal.ALL_GATHER), Pipelined.of(flat[1]), 1, 1, 1),
        ),
    )
    with gloo():
        reducer = Reducer(plan)
        for over in ("data", "shard"):
            group = next(group for group in placement.groups([over]) if rank in group)
            tensor = torch.tensor([2**rank])
            assert reducer.all_reduce(tensor, over=over).item() == sum(2**member for member in group)
        gathered = reducer.all_gather(torch.tensor([rank])).tolist()
        assert gathered == list(next(group for group in placement.groups(["shard"]) if rank in group))
        for wrong, message in (
            (None, "more than one all-reduce: say which with over=…: all-reduce over data; all-reduce over shard"),
            ("tensor", "the plan has no all-reduce over tensor; it has: all-reduce over data"),
            (2, "reduction 2 of the plan is all-gather over shard, not a all-reduce"),
            (7, "there is no reduction 7: the plan has 0 to 2"),
        ):
            with pytest.raises(EngineError, match=re.escape(message)):
                reducer.all_reduce(torch.ones(2), over=wrong)
        return sorted(ranks for _, ranks in reducer._driver.groups)


def overlapping(rank: int) -> None:
    """Several Reducers, other process groups and callbacks while calls are under way."""
    with gloo():
        one, two = Reducer(hierarchical(), timeout=20), Reducer(hierarchical(), timeout=20)
        for length in range(1, 20):  # each a call of a new kind, so that ranks compare it
            a, b = torch.full((length,), float(rank)), torch.full((length,), 1.0)
            works = [one.all_reduce(a, async_op=True), two.all_reduce(b, async_op=True)]
            assert [work.wait(timedelta(seconds=20))[0].item() for work in works] == [6.0, 4.0]
        work = one.all_reduce(torch.ones(100), async_op=True)
        group = dist.new_group([0, 1, 2, 3])
        dist.all_reduce(torch.ones(1), group=group)
        assert work.wait()[0].item() == 4.0
        second = torch.ones(101)
        chained = one.all_reduce(torch.ones(102), async_op=True).get_future().then(lambda _: one.all_reduce(second))
        assert chained.wait().tolist() == [4.0] * 101
        with Reducer(hierarchical()) as third:
            third.all_reduce(torch.ones(3), dist.ReduceOp.MAX)
        third.close()  # again
        assert refused(lambda: third.all_reduce(torch.ones(3))) == "this Reducer can no longer be used: it is closed"
        assert "it is closed" in refused(lambda: third.all_reduce(torch.ones(3), async_op=True))


def rings(rank: int, ranks: int) -> None:
    """The ring of sends in one group, with a length that does not divide."""
    spec = f"gpu={ranks}"
    plan = plan_of(spec, [parse_program("ReduceScatter all; AllGather all", parse_hierarchy(spec))])
    with gloo():
        reducer = Reducer(plan)
        for op, wanted in (("sum", ranks * (ranks - 1) // 2), ("max", ranks - 1), ("min", 0)):
            tensor = torch.arange(40_001) * 10 + rank
            reducer.all_reduce(tensor, op)
            ten = torch.arange(40_001) * 10
            assert torch.equal(tensor, (ten * ranks if op == "sum" else ten) + wanted), op
        program = parse_program("AllGather all", parse_hierarchy(spec))
        gather = Reducer(plan_of(spec, [program], Goal.ALL_GATHER))
        for at in (rank, (rank + 1) % ranks):  # the part is in its place, or where another part arrives
            out = torch.full((ranks, 10_000), -1)
            out[at] = rank
            gather.all_gather(out[at], out=out.view(-1))
            assert torch.equal(out, torch.arange(ranks)[:, None].expand(ranks, 10_000)), at


def timed_trials(_: int) -> int:
    """How many calls are compared while a trial is repeated."""
    compared: list[str] = []
    compare = CallCheck.compare

    def counted(check: CallCheck, call: str) -> None:
        compared.append(call)
        compare(check, call)

    runner, plan = make_runner("torch", 60.0), hierarchical()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CallCheck, "compare", counted)
        runner.load(plan)
        runner.prepare(payloads(plan, "float32")[0])
        for _ in range(3):
            runner.run(default=False)
        runner.close()
    return len(compared)
