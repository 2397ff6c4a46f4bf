"""The small GPT with DistributedDataParallel: torchrun --nproc-per-node=4 examples/gpt/train_ddp.py"""

import torch.distributed as dist
from model import parser, start, train
from torch.nn.parallel import DistributedDataParallel

if __name__ == "__main__":
    options = parser().parse_args()
    start(options)
    train(DistributedDataParallel, options, dist.get_rank())
    dist.destroy_process_group()
