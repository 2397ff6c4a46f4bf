"""What the ranks of the PyTorch tests do."""

import atexit
import os
import re
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from meshwright import (
    Collective,
    EngineError,
    Goal,
    Grouping,
    MeshwrightWarning,
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
from meshwright.torch import Reducer, ddp_hook, device_mesh, factor_mesh, store
from meshwright.torch.collectives import REDUCED
from tests.engines import EXHAUSTIVE, hierarchical, pipelined_plan, plan_of, programs_of, refused


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
        return sorted(ranks for _, ranks in reducer._groups)


def meshes(rank: int) -> None:
    """A placement as DeviceMesh, used by FSDP2 and sliced by factors."""
    placement = Placement(parse_system("node=2,gpu=2"), ("data", "shard"), ((1, 2), (2, 1)))
    with gloo():
        mesh = device_mesh(placement, "cpu")
        assert mesh.mesh_dim_names == ("data", "shard")
        assert mesh.mesh.tolist() == [[0, 2], [1, 3]]
        at = placement.coordinates(rank)
        assert list(mesh.get_coordinate() or []) == [at["data"], at["shard"]]
        assert dist.get_process_group_ranks(mesh["shard"].get_group()) == list(placement.groups(["shard"])[at["data"]])
        split = Placement(parse_system("node=2,gpu=2"), ("data",), ((2, 2),))
        factors = factor_mesh(split, "cpu")
        assert factors.mesh_dim_names == ("data_node", "data_gpu")
        assert dist.get_process_group_ranks(factors["data_gpu"].get_group()) == [rank // 2 * 2, rank // 2 * 2 + 1]
        torch.manual_seed(0)
        model, reference = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        reference.load_state_dict(model.state_dict())
        fully_shard(model, mesh=mesh["data", "shard"])  # HSDP
        inputs = torch.arange(4 * 8.0).reshape(4, 8)
        model(inputs[rank : rank + 1]).square().sum().backward()
        reference(inputs).square().sum().div(4).backward()
        ours, theirs = model.weight.grad, reference.weight.grad
        assert isinstance(ours, DTensor)
        assert theirs is not None
        assert torch.allclose(ours.full_tensor(), theirs, rtol=1e-4)


def training(rank: int, with_plan: bool) -> bytes:
    """The parameters after some steps of DDP, with a plan or without."""
    with gloo():
        return _trained(rank, with_plan)  # in a function of its own: DDP must be gone before its process group is


def _trained(rank: int, with_plan: bool) -> bytes:
    torch.manual_seed(1)
    layers = [torch.nn.Linear(20, 50), torch.nn.Tanh(), torch.nn.Linear(50, 7)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.002)
    if with_plan:
        model.register_comm_hook(Reducer(hierarchical()), ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 20, generator=generator)).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).numpy().tobytes()


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


def absent_rank(rank: int) -> str:
    with gloo(20):
        here = dist.distributed_c10d._get_default_store()
        here.set(f"here/{rank}", "!")
        if rank == 3:
            here.wait([f"here/{other}" for other in range(3)])  # whoever is still connecting would fail in PyTorch
            return ""
        return refused(lambda: Reducer(hierarchical(), timeout=5))


def dying_rank(rank: int) -> tuple[str, str]:
    """One rank dies between two calls: what the others are told, now and when they try again."""
    with gloo(20):
        reducer = Reducer(hierarchical(), timeout=30)
        reducer.all_reduce(torch.ones(100))
        if rank == 3:
            os._exit(7)
        first = refused(lambda: [reducer.all_reduce(torch.ones(100)) for _ in range(3)])
        return first, refused(lambda: reducer.all_reduce(torch.ones(100)))


def hanging_rank(rank: int) -> str:
    """One rank does not come to a call, until the others have given up."""
    with gloo(20):
        reducer = Reducer(hierarchical(), timeout=5)
        reducer.all_reduce(torch.ones(100))
        told = dist.distributed_c10d._get_default_store()
        if rank == 1:
            with suppress(RuntimeError):  # the store ends with rank 0
                told.wait([f"over/{other}" for other in (0, 2, 3)], timedelta(seconds=60))
            return ""
        said = refused(reducer.all_reduce(torch.ones(100), async_op=True).wait)
        told.set(f"over/{rank}", "")
        return said


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


def swapped_calls(rank: int) -> str:
    """Two ranks make known calls of the same size in another order: noticed when all calls are compared."""
    with gloo():
        reducer = Reducer(hierarchical(), timeout=20)
        for op in ("sum", "max"):
            reducer.all_reduce(torch.ones(4), op)
        for op in ("max", "sum") if rank == 2 else ("sum", "max"):
            reducer.all_reduce(torch.ones(4), op)
        return refused(lambda: [reducer.all_reduce(torch.ones(4)) for _ in range(64)])


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

        thread = threading.Thread(target=lambda: reducer._queue.run(slow))
        thread.start()
        inside.wait(10)
        message = refused(lambda: reducer.all_reduce(torch.ones(4)))
        assert "another thread is in a call" in message
        free.set()
        thread.join()
        return int(reducer.all_reduce(torch.ones(1)).item())


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


def rings(rank: int) -> None:
    """The ring of sends in a group of four, with a length that does not divide."""
    plan = plan_of("gpu=4", [parse_program("ReduceScatter all; AllGather all", parse_hierarchy("gpu=4"))])
    with gloo():
        reducer = Reducer(plan)
        for op, wanted in (("sum", 6), ("max", 3), ("min", 0)):
            tensor = torch.arange(40_001) * 10 + rank
            reducer.all_reduce(tensor, op)
            ten = torch.arange(40_001) * 10
            assert torch.equal(tensor, (ten * 4 if op == "sum" else ten) + wanted), op


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


def late_difference(rank: int) -> str:
    """Sizes that all ranks know, but not at the same call: noticed at the latest when the Reducer is closed."""
    with gloo():
        reducer = Reducer(hierarchical(), timeout=10)
        for length in (5, 6, 5 if rank == 2 else 6):
            reducer.all_reduce(torch.ones(length))
        return refused(reducer.close)


def far_away(rank: int) -> bool:
    """Ranks that hear late, while rank 0, whose process has the store, ends as soon as it may."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    reducer = Reducer(hierarchical(), timeout=10)
    for _ in range(2):  # the second call is not compared before the end
        reducer.all_reduce(torch.ones(5))
    if rank:
        _hear_late()
    reducer.close()
    return True


def _hear_late() -> None:
    """Take half a second longer to notice what others say."""
    arrive = store.Line.arrive

    def late(*given: Any) -> bool:
        heard = arrive(*given)
        time.sleep(0.5)
        return heard

    setattr(store.Line, "arrive", late)  # noqa: B010


def failing_hook(rank: int) -> str:
    """A rank dies while others are in backward: DDP's error says what happened."""
    with gloo(20):
        model = DistributedDataParallel(torch.nn.Linear(4, 4))
        model.register_comm_hook(Reducer(hierarchical(), timeout=30), ddp_hook)
        for _ in range(3):  # DDP itself communicates in the first ones
            model(torch.ones(2, 4)).sum().backward()
        if rank == 3:
            os._exit(7)
        loss = model(torch.ones(2, 4)).sum()
        with pytest.raises(RuntimeError) as caught:
            loss.backward()
        del model, loss
        return str(caught.value)


def unclosed(rank: int) -> int:
    """Calls with chunks and without, and DDP; nobody closes anything. How many threads of gloo's live on at the end."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    reducer, chunks = Reducer(hierarchical()), Reducer(pipelined_plan(Goal.ALL_REDUCE))
    for each in (reducer, chunks):
        assert each.all_reduce(torch.ones(4000), async_op=True).wait()[0].item() == 4
    _trained(rank, with_plan=True)
    dist.destroy_process_group()
    atexit._run_exitfuncs()  # as the interpreter does when it ends
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return names.count("pt_gloo_runloop")


def late_listeners(rank: int, what: str) -> str:
    """Ranks that hear of a fault late, while rank 0, whose process has the store, ends at once."""
    if rank:
        _hear_late()
    if what == "absent":
        return absent_rank(rank)
    return another_plan(rank)


def stopped_store(rank: int, when: str) -> tuple[str, str]:
    """Rank 0, whose process has the store, stops: what the others are told, and that the process group can go."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    if when == "start":
        dist.barrier()
        if rank == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        said = refused(lambda: Reducer(hierarchical(), timeout=2))
    else:
        reducer = Reducer(hierarchical(), timeout=2)
        reducer.all_reduce(torch.ones(100))
        if rank == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        length = 100 if when == "call" else 101  # one of a new kind is compared first
        said = refused(lambda: reducer.all_reduce(torch.ones(length)))
        reducer.close()
    dist.destroy_process_group()
    return said, ", ".join(thread.name for thread in threading.enumerate() if "store" in thread.name)


def ddp_over_other_ranks(rank: int) -> tuple[str, list[float]]:
    """DDP over all ranks where the plan averages over half of them; and over the plan's."""
    placement = Placement(parse_system("node=2,gpu=2"), ("data", "tensor"), ((2, 1), (1, 2)))
    flat = Pipelined.of(Program((Step(Collective.ALL_REDUCE, Grouping(0, 0)),)))
    reductions = tuple(Planned(Reduction((axis,), 2**20), flat, 1, 1, 1) for axis in ("data", "tensor"))
    plan = Plan(placement, load_library("ring"), reductions)
    with gloo():
        return _hooked(rank, plan)


def _hooked(rank: int, plan: Plan) -> tuple[str, list[float]]:
    reducer, mesh = Reducer(plan, timeout=10), device_mesh(plan, "cpu")
    model = torch.nn.Linear(1, 1, bias=False)
    wrong = DistributedDataParallel(model)
    wrong.register_comm_hook((reducer, "data"), ddp_hook)
    with pytest.raises(RuntimeError) as caught:
        wrong(torch.full((1, 1), float(rank))).sum().backward()
    model = torch.nn.Linear(1, 1, bias=False)
    right = DistributedDataParallel(model, process_group=mesh["data"].get_group())
    right.register_comm_hook((reducer, "data"), ddp_hook)
    right(torch.full((1, 1), float(rank))).sum().backward()
    assert model.weight.grad is not None
    return str(caught.value), model.weight.grad.flatten().tolist()


def meshes_that_differ(rank: int) -> list[str]:
    """A placement of its own on one rank, and a seat that is not the plan's."""
    system = parse_system("node=2,gpu=2")
    mine, others = (Placement(system, ("data", "shard"), matrix) for matrix in (((1, 2), (2, 1)), ((2, 1), (1, 2))))
    with gloo():
        messages = [refused(lambda: device_mesh(mine if rank == 2 else others, "cpu"))]
        os.environ.update(LOCAL_RANK=str(rank // 2), LOCAL_WORLD_SIZE="2")
        messages.append(refused(lambda: factor_mesh(others, "cpu")))
        return messages


def known_sizes_mixed_up(rank: int, chunks: bool) -> str:
    """After a warm-up with one size, a rank gives another: it alone compares, the others are in the call already."""
    with gloo(20):
        reducer = Reducer(pipelined_plan(Goal.ALL_REDUCE) if chunks else hierarchical(), timeout=3)
        reducer.all_reduce(torch.ones(40_000))
        return refused(lambda: reducer.all_reduce(torch.ones(50_000 if rank == 2 else 40_000)))


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
