"""Trials on PyTorch: one rank in each process, started by torchrun."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from meshwright.errors import EngineError
from meshwright.language.goals import Holding
from meshwright.measure.trials.trial import Array, Payload, Runner, program_call
from meshwright.planning.plan import Plan
from meshwright.runtime.role import part_length
from meshwright.runtime.seats import TESTBED
from meshwright.runtime.slurm import with_slurm
from meshwright.runtime.words import first_line
from meshwright.testbed.gpu import sleep_while_waiting
from meshwright.torch import Reducer
from meshwright.torch.collectives import run_collective

HEADWAY = 0.02  # seconds until a common start, beyond what it took all ranks to agree on the last one


class TorchRunner(Runner):
    """Runs a plan on the process group that torchrun's environment describes."""

    def __init__(self, timeout: float, device: str | None = None, name: str = "torch") -> None:
        self.name = name
        with_slurm(os.environ)
        missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise EngineError(
                f"no launcher started this process ({', '.join(missing)} missing): use torchrun or srun, or add --local"
            )
        local = int(os.environ.get("LOCAL_RANK", "0"))
        here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._one_clock = TESTBED in os.environ
        found = 0 if self._one_clock and device != "cuda" else torch.cuda.device_count()
        if self._one_clock and found:  # all ranks are on this machine, and may share a GPU
            local %= found
        on_cuda = device == "cuda" or (device is None and found >= here)
        self._device = torch.device(f"cuda:{local}" if on_cuda else "cpu")
        if on_cuda:
            if local >= found:
                raise EngineError(f"--device cuda: local rank {local} has no CUDA device of its own; {found} are here")
            if self._one_clock:
                sleep_while_waiting(local)
            torch.cuda.set_device(self._device)
        backend = "cpu:gloo,cuda:nccl" if self._device.type == "cuda" else "gloo"
        self._timeout = timedelta(seconds=timeout)
        try:
            dist.init_process_group(backend, timeout=self._timeout)
        except (RuntimeError, ValueError) as error:
            raise EngineError(f"cannot join the process group: {first_line(error)}") from error
        self.ranks = (dist.get_rank(),)
        if self._one_clock:
            torch.set_num_threads(1)  # PyTorch may have been loaded before the environment said so
        self._agreeing = 0.0
        self._reducer: Reducer | None = None
        self._whole: dict[tuple[int, ...], Any] = {}

    def load(self, plan: Plan) -> None:
        """Make the plan's groups, and whole ones for the library's own collectives."""
        self._unload()
        self._reducer = Reducer(plan, timeout=self._timeout.total_seconds(), check="never")
        for planned in plan.reductions:
            for group in plan.placement.groups(planned.communication.axes):
                if group not in self._whole:
                    with _words("making process groups"):
                        self._whole[group] = dist.new_group(list(group), timeout=self._timeout)

    def _unload(self) -> None:
        for ranks, group in self._whole.items():
            if self.ranks[0] in ranks:
                dist.destroy_process_group(group)
        self._whole.clear()
        if self._reducer is not None:
            self._reducer.close()
            self._reducer = None

    def prepare(self, payload: Payload) -> None:
        """Make the data."""
        self._payload = payload
        self._given = torch.from_numpy(payload.given(self.ranks[0])).to(self._device)
        self._buffer = self._given.clone()
        self._answer = self._given[:1].clone()
        assert self._reducer is not None
        self._program = program_call(self._reducer, payload, self._buffer.new_empty(payload.length))
        self._left: torch.Tensor | None = None
        self._group = payload.group(self.ranks[0])

    def run(self, default: bool, alone: bool = False) -> float:
        """Run the reduction once on all ranks, or on the first group alone."""
        self._buffer.copy_(self._given)
        self._left = None
        with _words("the library's own collective" if default else "the program"):
            started = self._start()
            if not alone or 0 in self._group:
                self._left = self._default() if default else self._program(self._buffer)
                self._synchronize()
            return _largest(time.monotonic() - started)[0]

    def send(self, pairs: Sequence[tuple[int, int]]) -> float:
        """Send the buffer from some ranks to others, all at once."""
        with _words("sending"):
            started = self._start()
            for sender, receiver in pairs:
                if self.ranks[0] == sender:
                    dist.send(self._buffer, receiver)
                    dist.recv(self._answer, receiver)  # so that the sender knows when all has arrived
                elif self.ranks[0] == receiver:
                    dist.recv(self._buffer, sender)
                    dist.send(self._answer, sender)
            self._synchronize()
            return _largest(time.monotonic() - started)[0]

    def _start(self) -> float:
        """Wait for all ranks; where they share a clock, all start at the same moment."""
        self._synchronize()
        if not self._one_clock:
            dist.barrier()
            return time.monotonic()
        latest, agreeing = _largest(time.monotonic(), self._agreeing)
        self._agreeing = time.monotonic() - latest
        started = latest + agreeing + HEADWAY
        while (left := started - time.monotonic()) > 0:
            time.sleep(left)
        return started

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _default(self) -> torch.Tensor:
        """The library's own collective; where lengths do not divide, on padded tensors."""
        goal, source, target = self._payload.goal, self._buffer, self._buffer
        assert goal.flat is not None
        if not goal.in_place:
            part = part_length(self._payload.length, len(self._group), 0)
            whole = part * len(self._group)
            takes, gives = (part, whole) if goal.start is Holding.PART else (whole, part)
            target = source.new_empty(gives)
            if source.numel() < takes:
                source = torch.nn.functional.pad(source, (0, takes - source.numel()))
        # No backend is named, as for gloo another ReduceScatter and AllGather than its own would be taken.
        run_collective(goal.flat, source, target, "sum", self._whole[self._group], backend="")
        return target[: self._payload.end_length(self.ranks[0])]

    def results(self) -> list[Array | None]:
        """What this rank has."""
        return [None if self._left is None else self._left.cpu().numpy()]

    def everyone(self, faults: list[str]) -> list[str]:
        """The faults of all ranks."""
        gathered: list[list[str]] = [[] for _ in range(dist.get_world_size())]
        with _words("hearing from all ranks"):
            dist.all_gather_object(gathered, faults)
        return [fault for each in gathered for fault in each]

    def shared(self, value: Any) -> Any:
        """What the first rank has."""
        values = [value]
        with _words("hearing from rank 0"):
            dist.broadcast_object_list(values)
        return values[0]

    def close(self) -> None:
        """Leave the process group."""
        self._unload()
        dist.destroy_process_group()


@contextmanager
def _words(what: str) -> Iterator[None]:
    """Say what failed before what the library says."""
    try:
        yield
    except EngineError:
        raise
    except RuntimeError as error:
        raise EngineError(f"rank {dist.get_rank()}: {what} failed: {first_line(error)}") from error


def _largest(*values: float) -> list[float]:
    """The largest of all ranks' values, one by one; by few messages one after the other, as there may be latency."""
    largest = torch.tensor(values, dtype=torch.float64)
    first = dist.get_rank() == 0
    every = [torch.empty_like(largest) for _ in range(dist.get_world_size())] if first else None
    dist.gather(largest, every, dst=0)
    if every is not None:
        largest = torch.stack(every).amax(0)
    dist.broadcast(largest, src=0)
    return list(largest.tolist())
