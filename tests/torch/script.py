"""An ordinary training script, which knows nothing of Meshwright: all that PyTorch communicates with, on four ranks.

It writes what every case ends with to a file for each rank. `python script.py FOLDER [CASE …]` runs some or all cases.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel


class Net(torch.nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.one, self.two = torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.two(torch.tanh(self.one(inputs)))
        return outputs


def inputs(seed: int) -> torch.Tensor:
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(seed))


def train(model: torch.nn.Module, seeds: Iterable[int]) -> list[torch.Tensor]:
    """Some steps; the parameters after them, whole."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for seed in seeds:
        model(inputs(seed)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [getattr(each, "full_tensor", each.detach)().detach().float() for each in model.parameters()]


def shard(model: torch.nn.Module, **how: Any) -> None:
    """FSDP, imported only where it is used: that takes longer than to run most cases."""
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, **how)


def ddp() -> list[torch.Tensor]:
    return train(DistributedDataParallel(Net(), bucket_cap_mb=0.001), [dist.get_rank(), 10 + dist.get_rank()])


def accumulation() -> list[torch.Tensor]:
    model = DistributedDataParallel(Net())
    with model.no_sync():
        model(inputs(20 + dist.get_rank())).square().mean().backward()
    return train(model, [dist.get_rank()])


def fsdp() -> list[torch.Tensor]:
    model = Net()
    for layer in (model.one, model.two, model):
        shard(layer)
    return train(model, [dist.get_rank(), 10 + dist.get_rank()])


def mixed_precision() -> list[torch.Tensor]:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = Net()
    shard(model, mp_policy=policy)
    return train(model, [dist.get_rank()])


def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))


def hsdp() -> list[torch.Tensor]:
    model = Net()
    shard(model, mesh=mesh())
    return train(model, [dist.get_rank(), 10 + dist.get_rank()])


def tensor_parallel() -> list[torch.Tensor]:
    """DTensor along one dimension of the mesh, FSDP along the other."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    both = mesh()
    model = Net()
    parallelize_module(model, both["tensor"], {"one": ColwiseParallel(), "two": RowwiseParallel()})
    shard(model, mesh=both["data"])
    return train(model, [both["data"].get_local_rank(), 10 + both["data"].get_local_rank()])


def functional_collectives() -> list[torch.Tensor]:
    """One by one and coalesced, over the whole world and over a dimension of a mesh; integers too."""
    world, rank, both = dist.group.WORLD, dist.get_rank(), mesh()
    assert world is not None
    mine = torch.arange(24.0).reshape(8, 3) * (rank + 1)
    whole = torch.arange(40) + rank
    found: list[Any] = [
        functional.all_reduce(mine, "sum", world),
        functional.all_reduce(mine, "avg", (both, 0)),
        functional.all_reduce(whole, "max", world),
        functional.all_gather_tensor(whole, 0, world),
        functional.reduce_scatter_tensor(mine, "sum", 0, world),
        functional.reduce_scatter_tensor(whole, "sum", 0, (both, 1)),
        *functional.all_reduce_coalesced([mine, whole.float()], "sum", world),
        *functional.all_gather_into_tensor_coalesced([mine, whole], world),
        *functional.reduce_scatter_tensor_coalesced([mine, mine + 1], "sum", [0, 0], world),
    ]
    return [each.wait() if isinstance(each, functional.AsyncCollectiveTensor) else each for each in found]


def compiled(backend: str) -> list[torch.Tensor]:
    """Collectives inside code that two ranks have compiled, which takes them seconds, and the others have not."""
    world = dist.group.WORLD
    assert world is not None

    def work(tensor: torch.Tensor) -> Any:
        return functional.all_reduce(functional.all_gather_tensor(tensor, 0, world).cos(), "sum", world)

    called = torch.compile(work, backend=backend, fullgraph=True) if dist.get_rank() < 2 else work
    return [functional.wait_tensor(called(torch.arange(6.0) + dist.get_rank()))]


def state_dict() -> list[torch.Tensor]:
    """A full state dict from a sharded model, and back into another one."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

    model, other = Net(), Net()
    shard(model)
    shard(other)
    train(model, [dist.get_rank()])
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    assert bool(state) == (dist.get_rank() == 0)
    set_model_state_dict(other, state, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    return train(other, [])


def collectives() -> list[torch.Tensor]:
    """What scripts call by hand: new groups, futures, barriers, objects, roots, lists of tensors, other operations."""
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    everyone = dist.new_group([0, 1, 2, 3], timeout=timedelta(seconds=40))
    assert dist.get_backend() == dist.get_backend(everyone) == "gloo"
    assert dist.get_process_group_ranks(everyone) == [0, 1, 2, 3]
    tensors = [torch.arange(100) * (rank + k) for k in range(5)]
    works = [dist.all_reduce(tensor, async_op=True, group=everyone) for tensor in tensors]
    futures = [work.get_future().then(lambda done: done.value()[0] + 1) for work in works if work is not None]
    found = [future.wait() for future in futures]
    dist.barrier()
    dist.monitored_barrier()
    objects: list[Any] = [None] * 4
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": each} for each in range(4)]
    sent = [{"from": 2}] if rank == 2 else [None]
    dist.broadcast_object_list(sent, 2)
    assert sent == [{"from": 2}]
    for root in (0, 3):
        rooted = torch.full((5,), float(rank))
        dist.broadcast(rooted, root)
        summed = torch.full((700,), rank)
        dist.reduce(summed, root)
        found += [rooted, summed if rank == root else torch.zeros(700)]
    for op in (dist.ReduceOp.PRODUCT, dist.ReduceOp.BAND, dist.ReduceOp.MIN):
        mine = torch.arange(1, 9) + rank
        dist.all_reduce(mine, op, group=pairs[rank % 2])
        found.append(mine)
    lists = [torch.empty(3) for _ in range(4)]
    dist.all_gather(lists, torch.full((3,), float(rank)))
    swapped = torch.empty(4)
    dist.all_to_all_single(swapped, torch.arange(4.0) + 10 * rank)
    transposed = torch.full((6, 4), float(rank)).t().contiguous()
    dist.all_reduce(transposed, dist.ReduceOp.AVG)
    flags = torch.tensor([rank == 1, False])
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    return [*found, *lists, swapped, transposed, flags]


CASES: dict[str, Callable[[], list[torch.Tensor]]] = {
    "ddp": ddp,
    "accumulation": accumulation,
    "fsdp": fsdp,
    "mixed_precision": mixed_precision,
    "hsdp": hsdp,
    "tensor_parallel": tensor_parallel,
    "functional_collectives": functional_collectives,
    "aot_eager": lambda: compiled("aot_eager"),
    "inductor": lambda: compiled("inductor"),
    "state_dict": state_dict,
    "collectives": collectives,
}


def main() -> None:
    folder, *names = sys.argv[1:]
    torch.set_num_threads(1)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):  # as scripts do that mpirun starts
        os.environ.setdefault(name, os.environ.get(f"OMPI_COMM_WORLD_{name.removeprefix('WORLD_')}", ""))
    dist.init_process_group("gloo", timeout=timedelta(seconds=200))
    found = {name: [each.tolist() for each in CASES[name]()] for name in names or CASES}
    Path(folder, f"{dist.get_rank()}.json").write_text(json.dumps([os.environ["LOCAL_RANK"], found]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
