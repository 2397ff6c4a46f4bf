"""The small GPT with HSDP: parameters are sharded over some ranks, and these groups of ranks are replicas.

torchrun --nproc-per-node=4 examples/gpt/train_hsdp.py --replicas 2
"""

import torch.distributed as dist
from model import GPT, parser, start, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

if __name__ == "__main__":
    arguments = parser()
    arguments.add_argument("--replicas", type=int, default=2)
    options = arguments.parse_args()
    start(options)
    shards = dist.get_world_size() // options.replicas
    mesh = init_device_mesh(options.device, (options.replicas, shards), mesh_dim_names=("replica", "shard"))

    def shard(model: GPT) -> GPT:
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    train(shard, options, dist.get_rank())
    dist.destroy_process_group()
