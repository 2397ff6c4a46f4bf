"""The small GPT with FSDP2: torchrun --nproc-per-node=4 examples/gpt/train_fsdp.py"""

import torch.distributed as dist
from model import GPT, parser, start, train
from torch.distributed.fsdp import fully_shard


def shard(model: GPT) -> GPT:
    """A part of every parameter on every rank."""
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


if __name__ == "__main__":
    options = parser().parse_args()
    start(options)
    train(shard, options, dist.get_rank())
    dist.destroy_process_group()
