"""The small GPT with tensor parallelism through DTensor, and FSDP2 over the other ranks.

torchrun --nproc-per-node=4 examples/gpt/train_tensor.py --tensor 2

With --outer the tensor axis is the outer one of the mesh. On several nodes its ranks are then far from each other.
"""

import torch.distributed as dist
from model import GPT, parser, start, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

if __name__ == "__main__":
    arguments = parser()
    arguments.add_argument("--tensor", type=int, default=2, help="ranks that share a layer; they divide the heads")
    arguments.add_argument("--outer", action="store_true", help="make the tensor axis the outer one of the mesh")
    options = arguments.parse_args()
    start(options)
    sizes = {"data": dist.get_world_size() // options.tensor, "tensor": options.tensor}
    order = ("tensor", "data") if options.outer else ("data", "tensor")
    mesh = init_device_mesh(options.device, tuple(sizes[axis] for axis in order), mesh_dim_names=order)

    def split(model: GPT) -> GPT:
        first = [f"attention.{name}" for name in ("query", "key", "value")]
        ways: dict[str, ParallelStyle] = dict.fromkeys([*first, "feedforward.up"], ColwiseParallel())
        ways |= dict.fromkeys(["attention.out", "feedforward.down"], RowwiseParallel())
        for block in model.blocks:
            parallelize_module(block, mesh["tensor"], ways)
            fully_shard(block, mesh=mesh["data"])
        fully_shard(model, mesh=mesh["data"])
        return model

    train(split, options, mesh["data"].get_local_rank())
    dist.destroy_process_group()
