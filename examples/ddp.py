"""DistributedDataParallel with a plan: the three lines marked with >>> are all that is added.

meshwright plan --system node=2@1GB/s,gpu=2@8GB/s --axes data=4 --reduce data=1MiB --library gloo --out plan.json
torchrun --nproc-per-node=4 examples/ddp.py plan.json
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import meshwright  # >>>


def train() -> float:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    parallel = DistributedDataParallel(model)
    reducer = meshwright.torch.Reducer(meshwright.read_plan(Path(sys.argv[1])))  # >>>
    parallel.register_comm_hook(reducer, meshwright.torch.ddp_hook)  # >>>
    optimizer = torch.optim.Adam(parallel.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(dist.get_rank())
    loss = torch.tensor(0.0)
    for _ in range(50):
        inputs = torch.randn(32, 64, generator=data)
        loss = (parallel(inputs).squeeze() - inputs.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    final = train()
    if dist.get_rank() == 0:
        print(f"loss after 50 steps: {final:.3f}")
    dist.destroy_process_group()
