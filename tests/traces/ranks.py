"""Ranks of gloo that fill PyTorch's Flight Recorder; the environment must say so before PyTorch is imported."""

import os
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which a mesh would import in every rank
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def dump(rank: int, world: int, folder: str) -> None:
    """Three steps on a mesh of data x tensor, and the dump in both forms."""
    c10d: Any = torch._C._distributed_c10d
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("data", "tensor"))
    data, tensor = mesh.get_group("data"), mesh.get_group("tensor")
    for _ in range(3):
        dist.all_reduce(torch.ones(1000), group=data)
        dist.all_reduce(torch.ones(1000), group=data)
        dist.all_gather_into_tensor(torch.empty(2000, dtype=torch.int64), torch.ones(1000, dtype=torch.int64), tensor)
        dist.broadcast(torch.ones(500), 0)
        dist.barrier()
    (Path(folder) / f"trace_rank_{rank}").write_bytes(c10d._dump_fr_trace())
    (Path(folder) / f"json_rank_{rank}.json").write_bytes(c10d._dump_fr_trace_json())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    number = next((rank for rank in range(1, 4) if os.fork() == 0), 0)
    dump(number, 4, os.environ["FOLDER"])
    if number == 0:
        raise SystemExit(any(os.wait()[1] for _ in range(3)))
