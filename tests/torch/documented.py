"""The docs' code for PyTorch, run in ranks."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def run_blocks(_rank: int, blocks: list[tuple[str, str]]) -> list[list[float]]:
    """Run blocks in one of the ranks, each in a folder and with what a reader is taken to have; what tensors hold."""
    dist.init_process_group("gloo")
    found = []
    for block, folder in blocks:
        os.chdir(folder)
        names: dict[str, Any] = {
            "model": torch.nn.Linear(4, 4),
            "other": torch.nn.Linear(4, 4),
            "fully_shard": fully_shard,
            "tensor": torch.ones(16),
            "ddp": DistributedDataParallel(torch.nn.Linear(4, 4)),
        }
        if "model.register_comm_hook" in block:
            names["model"] = names["ddp"]
        exec(block, names)
        names["ddp"](torch.ones(4)).sum().backward()  # where a hook is there, it runs
        names["reducer"].close()
        found.append(sorted(set(names["tensor"].tolist())))
    dist.destroy_process_group()
    return found
