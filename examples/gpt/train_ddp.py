"""The small GPT with DistributedDataParallel: torchrun --nproc-per-node=4 examples/gpt/train_ddp.py"""

import torch
import torch.distributed as dist
from model import parser, train
from torch.nn.parallel import DistributedDataParallel

if __name__ == "__main__":
    options = parser().parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(DistributedDataParallel, options, dist.get_rank())
    dist.destroy_process_group()
