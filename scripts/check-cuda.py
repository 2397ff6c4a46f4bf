"""Checks the PyTorch engine with CUDA tensors on a machine with at least one GPU.

    python scripts/check-cuda.py

With one GPU, NCCL runs alone (a group of one), and four ranks share the GPU over gloo, which is slow but exercises
everything but NCCL between ranks. With as many GPUs as ranks (four), NCCL runs the programs too.
"""

import os
import socket
import sys
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from meshwright import (
    Goal,
    Hierarchy,
    Pipelined,
    Placement,
    Plan,
    Planned,
    Program,
    Reduction,
    load_library,
    parse_program,
    parse_system,
)
from meshwright.runtime.role import role_of
from meshwright.torch import Reducer
from meshwright.torch.executor import Executor

TEXTS = {
    Goal.ALL_REDUCE: "ReduceScatter inside node; AllReduce across node; AllGather inside node",
    Goal.REDUCE_SCATTER: "ReduceScatter inside node; ReduceScatter across node",
    Goal.ALL_GATHER: "AllGather inside node; AllGather across node",
    Goal.REDUCE: "Reduce inside node; Reduce masters of node",
    Goal.BROADCAST: "Broadcast masters of node; Broadcast inside node",
}


def the_plan(ranks: int) -> Plan:
    if ranks == 1:
        placement = Placement(parse_system("gpu=1"), ("data",), ((1,),))
        programs = {goal: Program(()) for goal in TEXTS}
    else:
        placement = Placement(parse_system("node=2,gpu=2"), ("data",), ((2, 2),))
        programs = {goal: parse_program(text, Hierarchy(("node", "gpu"), (2, 2))) for goal, text in TEXTS.items()}
    chunks = 1 if ranks == 1 else 3
    return Plan(
        placement,
        load_library("ring"),
        tuple(
            Planned(Reduction(("data",), 1, goal=goal), Pipelined.of(program, chunks), 1, 1, 1)
            for goal, program in programs.items()
        ),
    )


def chunks_on_streams(device: torch.device, ranks: tuple[int, ...], rank: int) -> None:
    """Chunks through two steps, each on a stream of its own, over NCCL; alone, every group is this rank."""
    program = parse_program("AllReduce inside node; AllReduce across node", Hierarchy(("node", "gpu"), (2, 2)))
    placement = Placement(parse_system("node=2,gpu=2"), ("data",), ((2, 2),))
    planned = Planned(Reduction(("data",), 2**20), Pipelined.of(program, 4), 1, 1, 1)
    role = role_of(Plan(placement, load_library("ring"), (planned,)), 0, rank)
    if len(ranks) == 1:
        (flow,) = role.flows
        stages = tuple(replace(stage, groups=tuple(ranks for _ in stage.groups)) for stage in flow.stages)
        role = replace(role, flows=(replace(flow, stages=stages),))
    lanes = {(stage.lane, group) for flow in role.flows for stage in flow.stages for group in stage.groups}
    groups = {(lane, group): dist.new_group(list(group)) for lane, group in sorted(lanes)}
    executor = Executor(groups, lambda _slot, length, like: like.new_empty(length), lambda: None)
    mine = torch.zeros(2**20 + 3, device=device)
    torch.cuda._sleep(50_000_000)
    mine += rank + 1
    executor.run(role, role.cut(len(mine), 4), mine, mine, "sum", "nccl")
    doubled = mine * 2
    assert doubled.unique().tolist() == [2.0 * sum(rank + 1 for rank in ranks)]
    assert len(executor.streams) == 2


def check(rank: int, ranks: int, backend: str, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group(backend, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    reducer = Reducer(the_plan(ranks), timeout=60)
    whole = torch.arange(ranks * 1001, device=device, dtype=torch.float32).reshape(ranks, 1001) % 97
    total = whole.sum(0)
    for op, wanted in (("sum", total), ("avg", total / ranks), ("max", whole.amax(0)), ("min", whole.amin(0))):
        mine = whole[rank].clone()
        reducer.all_reduce(mine, op)
        assert torch.allclose(mine, wanted), op
    # Work is ordered by the streams: what is enqueued before a call is reduced, what comes after waits for it.
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = torch.zeros(2**20, device=device)
        torch.cuda._sleep(50_000_000)
        late += rank
        reducer.all_reduce(late)
        doubled = late * 2
    stream.synchronize()
    assert doubled.unique().tolist() == [float(ranks * (ranks - 1))]
    works = []
    tensors = [torch.full((1000 + k,), float(rank), device=device) for k in range(10)]
    for tensor in tensors:
        tensor += 1
        works.append(reducer.all_reduce(tensor, async_op=True))
    for work, tensor in zip(works, tensors, strict=True):
        work.wait()
        assert tensor.unique().tolist() == [ranks * (ranks + 1) / 2]
    part = reducer.reduce_scatter(whole[rank])
    gathered = reducer.all_gather(part, out=torch.empty(1001, device=device))
    assert torch.allclose(gathered, total)
    mine = whole[rank].clone()
    reducer.reduce(mine)
    assert rank > 0 or torch.allclose(mine, total)
    mine = whole[rank].clone()
    reducer.broadcast(mine)
    assert torch.equal(mine, whole[0])
    if ranks == 1 or backend == "nccl":
        model = torch.nn.Linear(8, 8).to(device)
        parallel = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device])
        from meshwright.torch import ddp_hook

        parallel.register_comm_hook(reducer, ddp_hook)
        parallel(torch.ones(4, 8, device=device)).sum().backward()
        torch.cuda.synchronize()
        assert model.weight.grad is not None
        del parallel
    reducer.close()
    if backend == "nccl" and ranks == 1:
        chunks_on_streams(device, (0,), rank)
    dist.destroy_process_group()


def run(ranks: int, backend: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    mp.spawn(check, (ranks, backend, port), nprocs=ranks)
    print(f"{backend}, {ranks} ranks: right", flush=True)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("there is no GPU here")
    print(torch.__version__, torch.cuda.get_device_name(), flush=True)
    run(1, "nccl")
    run(4, "gloo")
    run(4, "cpu:gloo,cuda:gloo")
    if torch.cuda.device_count() >= 4:
        run(4, "nccl")
