"""A small GPT, made-up text to train it on, and the training loop that all scripts in this folder share."""

import argparse
import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

VOCABULARY = 256


class Attention(nn.Module):
    """Causal self-attention; a rank may have only some of the heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head = width // heads
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        query, key, value = (
            each(x).view(batch, tokens, -1, self.head).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, -1))
        return out


class Feedforward(nn.Module):
    """Two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(gelu(self.up(x)))
        return out


class Block(nn.Module):
    """A layer of the model."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.feedforward = nn.LayerNorm(width), Feedforward(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.feedforward(self.norm2(x))
        return out


class GPT(nn.Module):
    """The model: from tokens to the logits of the next ones."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        torch.manual_seed(0)  # the same parameters on every rank
        width = options.width
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(options.context, width)
        self.blocks = nn.ModuleList(Block(width, options.heads) for _ in range(options.layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def parser() -> argparse.ArgumentParser:
    """The arguments that all scripts have. The model has 4 MiB of parameters if nothing else is said."""
    found = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    found.add_argument("--width", type=int, default=192, help="the size of a token's vector")
    found.add_argument("--layers", type=int, default=2)
    found.add_argument("--heads", type=int, default=8)
    found.add_argument("--context", type=int, default=32, help="tokens of a sequence")
    found.add_argument("--batch", type=int, default=2, help="sequences of a data-parallel rank in a step")
    found.add_argument("--steps", type=int, default=10)
    found.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", help="cpu communicates by gloo, cuda by NCCL"
    )
    return found


def start(options: argparse.Namespace) -> None:
    """Join the other ranks of the job."""
    torch.set_num_threads(1)
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")


def batch(options: argparse.Namespace, step: int, reader: int) -> tuple[Tensor, Tensor]:
    """Made-up text: each token is the one before it plus 1, 2 or 3. Returns tokens, and those that come next."""
    generator = torch.Generator().manual_seed(1000 * step + reader)
    first = torch.randint(VOCABULARY, (options.batch, 1), generator=generator)
    strides = torch.randint(1, 4, (options.batch, options.context), generator=generator)
    text = torch.cat([first, first + strides.cumsum(1)], 1) % VOCABULARY
    return text[:, :-1], text[:, 1:]


def train(wrap: Callable[[GPT], nn.Module], options: argparse.Namespace, reader: int) -> None:
    """Train the model that `wrap` makes parallel. Rank 0 prints each step: the mean loss, and the slowest rank's times.

    reader: which part of the data this rank reads: ranks with different ones are data-parallel.
    """
    model = wrap(GPT(options).to(options.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = torch.zeros(options.steps, device=options.device)
    times = torch.zeros(options.steps, 2, device=options.device)
    for step in range(options.steps):
        started, busy = time.perf_counter(), time.thread_time()
        tokens, following = (each.to(options.device) for each in batch(options, step, reader))
        loss = cross_entropy(model(tokens).flatten(0, 1), following.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses[step] = loss.detach()
        if options.device == "cuda":
            torch.cuda.synchronize()
        times[step] = torch.tensor([time.perf_counter() - started, time.thread_time() - busy])
    dist.all_reduce(losses)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        for step, (seconds, computing) in enumerate(times.tolist()):
            mean = losses[step].item() / dist.get_world_size()
            print(f"step {step}: loss {mean:.6f}, {seconds:.4f} s, of which processor {computing:.4f} s", flush=True)
