"""What ranks do in the tests of meshes and of the hook: FSDP2 and DDP with a plan."""

import os

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from meshwright import (
    Collective,
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
)
from meshwright.language.goals import flat_program
from meshwright.torch import Reducer, ddp_hook, device_mesh, factor_mesh, fsdp
from tests.engines import hierarchical, refused
from tests.torch.programs import gloo


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


def sharded(rank: int) -> None:
    """FSDP2 with the plan's programs, with replicas and without, against plain FSDP2."""
    with gloo():
        _sharded(rank)


def _sharded(rank: int) -> None:
    placement = Placement(parse_system("node=2,gpu=2"), ("data", "shard"), ((1, 2), (2, 1)))
    twice = Pipelined.of(parse_program("ReduceScatter all; AllGather all", parse_hierarchy("gpu=2")))
    both = [(goal, hierarchical(goal).reductions[0].pipelined) for goal in (Goal.ALL_GATHER, Goal.REDUCE_SCATTER)]
    flat = [(goal, Pipelined.of(flat_program(goal, 1))) for goal in (Goal.ALL_GATHER, Goal.REDUCE_SCATTER)]
    reductions = [
        *(Planned(Reduction(("data", "shard"), 2**20, goal=goal), program, 1, 1, 1) for goal, program in both),
        *(Planned(Reduction(("shard",), 2**20, goal=goal), program, 1, 1, 1) for goal, program in flat),
        Planned(Reduction(("data",), 2**20), twice, 1, 1, 1),
    ]
    plan = Plan(placement, load_library("ring"), tuple(reductions))
    reducer, mesh = Reducer(plan, timeout=30), device_mesh(placement, "cpu")
    everyone = init_device_mesh("cpu", (4,))
    for replicate, here, plain in ((None, everyone, everyone), ("data", mesh["shard"], mesh["data", "shard"])):
        grown = []
        for ours in (False, True):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Tanh(), torch.nn.Linear(10, 3))
            for layer in (model[0], model[2], model):
                fully_shard(layer, mesh=here if ours else plain)
            if ours:
                fsdp(model, reducer, replicate)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(2):
                given = torch.randn(2, 6, generator=torch.Generator().manual_seed(10 * step + rank))
                model(given).clone().square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            grown.append([each.full_tensor() for each in model.parameters() if isinstance(each, DTensor)])
        assert len(grown[0]) == 4
        for one, other in zip(*grown, strict=True):
            assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)
    assert reducer._calls.checks[0].calls > 0
    assert reducer._calls.checks[4].calls > 0
    assert "no module of the model is sharded" in refused(lambda: fsdp(torch.nn.Linear(2, 2), reducer))
    other = torch.nn.Linear(2, 2)
    fully_shard(other, mesh=mesh["data"])
    fsdp(other, reducer)
    assert "but the plan's all-gather here is over data+shard: ranks 0, 1, 2, 3; shard: " in refused(
        lambda: other(torch.ones(1, 2))
    )


def meshes_that_differ(rank: int) -> list[str]:
    """A placement of its own on one rank, and a seat that is not the plan's."""
    system = parse_system("node=2,gpu=2")
    mine, others = (Placement(system, ("data", "shard"), matrix) for matrix in (((1, 2), (2, 1)), ((2, 1), (1, 2))))
    with gloo():
        messages = [refused(lambda: device_mesh(mine if rank == 2 else others, "cpu"))]
        os.environ.update(LOCAL_RANK=str(rank // 2), LOCAL_WORLD_SIZE="2")
        messages.append(refused(lambda: factor_mesh(others, "cpu")))
        return messages


def training(rank: int, with_plan: bool) -> bytes:
    """The parameters after some steps of DDP, with a plan or without."""
    with gloo():
        return trained(rank, with_plan)  # in a function of its own: DDP must be gone before its process group is


def trained(rank: int, with_plan: bool) -> bytes:
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
