"""An interpreter of MSCCL++ execution plans: runs the thread blocks of all GPUs on arrays; no code of the exporter."""

import json
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.export.memory import Clock, Clocks, buffers
from tests.export.msccl import DeadlockError


@dataclass(eq=False)
class Block:
    thread: int
    gpu: int
    operations: list[dict[str, Any]]
    channels: list[int]  # numbers of the GPU's channels
    remote: list[tuple[int, str]]
    at: int = 0
    busy: bool = False  # has used memory since all its threads last met
    waits: list[int] = field(default_factory=list)


class Run:
    """One run: thread blocks take operations in a random order."""

    def __init__(self, text: str, seed: int = 0) -> None:
        self.random = random.Random(seed)
        document = json.loads(text)
        assert document["protocol"] == "Simple"
        self.in_place, self.gpus = document["inplace"], document["gpus"]
        sizes = [(gpu["input_chunks"], gpu["output_chunks"], gpu["scratch_chunks"]) for gpu in self.gpus]
        groups = {op["tbg_info"]["tbg_size"] for b in self.all_operations() for op in b if "tbg_info" in op} or {1}
        (self.share,) = groups
        coll = document["collective"]
        self.memory, self.inputs, self.results = buffers(coll, sizes, 2 * self.share, self.in_place, seed)
        self.blocks: list[Block] = []
        for rank, gpu in enumerate(self.gpus):
            self.read_gpu(rank, gpu)
        self.clocks = Clocks(len(self.blocks))
        self.signals: dict[tuple[int, int], deque[Clock]] = {}

    def all_operations(self) -> list[list[dict[str, Any]]]:
        return [block["ops"] for gpu in self.gpus for block in gpu["threadblocks"]]

    def read_gpu(self, rank: int, gpu: dict[str, Any]) -> None:
        assert gpu["id"] == rank
        remote = [(each["rank"], each["type"]) for each in gpu["remote_buffers"]]
        assert all(each["access_channel_types"] == ["memory"] for each in gpu["remote_buffers"])
        assert all(owner != rank for owner, _ in remote)
        used: list[int] = []
        for number, block in enumerate(gpu["threadblocks"]):
            assert block["id"] == number < 108
            (channels,), (refs,) = block["channels"], block["remote_buffer_refs"]
            assert len(block["ops"]) <= 64
            assert len(channels["channel_ids"]) <= 16
            assert len(refs["remote_buffer_ids"]) <= 16
            used += channels["channel_ids"]
            mine = [remote[k] for k in refs["remote_buffer_ids"]]
            self.blocks.append(Block(len(self.blocks), rank, block["ops"], channels["channel_ids"], mine))
        (listed,) = gpu["channels"]
        assert sorted(used) == list(range(len(listed["connected_to"]))), "a channel belongs to one thread block"

    def other_end(self, gpu: int, channel: int) -> tuple[int, int]:
        """The k-th channel from one GPU to another ends in the k-th channel back."""
        peers = self.gpus[gpu]["channels"][0]["connected_to"]
        peer, number = peers[channel], peers[:channel].count(peers[channel])
        back = [k for k, rank in enumerate(self.gpus[peer]["channels"][0]["connected_to"]) if rank == gpu]
        return peer, back[number]

    def rows(self, block: Block, buffer: dict[str, Any], operation: dict[str, Any]) -> Any:
        """The part of a buffer that this thread block works on."""
        owner, name = block.remote[buffer["buffer_id"]] if "buffer_id" in buffer else (block.gpu, buffer["type"])
        end = buffer["index"] + buffer["size"]
        assert 0 <= buffer["index"] < end <= len(self.memory[owner][name]), "inside the buffer"
        at = operation.get("tbg_info", {"tb_id": 0})["tb_id"]
        return self.memory[owner][name][buffer["index"] : end, 2 * at : 2 * at + 2]

    def take(self, block: Block) -> bool:
        """Take an operation, if that is possible now."""
        if block.at == len(block.operations):
            return False
        operation = block.operations[block.at]
        name, ids = operation["name"], operation.get("channel_ids", [])
        assert len(ids) <= 8
        ends = [(block.gpu, block.channels[k]) for k in ids]
        if name == "wait":
            if not all(self.signals.get(end) for end in ends):
                return False
            for end in ends:
                self.clocks.join(block.thread, self.signals[end].popleft())
            block.busy = True
        elif name == "signal":
            assert not block.busy, "only the first threads signal: all must have met before"
            clock = self.clocks.tick(block.thread)
            for end in ends:
                self.signals.setdefault(self.other_end(*end), deque()).append(clock)
        elif name == "nop":
            block.busy = False
        else:
            self.use(block, operation)
        self.clocks.tick(block.thread)
        block.at += 1
        return True

    def use(self, block: Block, operation: dict[str, Any]) -> None:
        before = [o["name"] for o in block.operations[: block.at]]
        assert not before or before[-1] not in ("signal", "wait"), "all threads meet before memory is used"
        block.busy = True
        sources = [self.rows(block, buffer, operation) for buffer in operation["src_buff"]]
        targets = [self.rows(block, buffer, operation) for buffer in operation["dst_buff"]]
        assert operation["channel_type"] == "memory"
        is_remote = [["buffer_id" in buffer for buffer in operation[key]] for key in ("src_buff", "dst_buff")]
        for source in sources:
            self.clocks.use(block.thread, source, writes=False)
        for target in targets:
            self.clocks.use(block.thread, target, writes=True)
        if operation["name"] == "rre":
            assert is_remote == [[False, *[True] * (len(sources) - 1)], [False]]
            assert len(sources) <= 9
            targets[0][:] = np.sum(sources, axis=0)
        elif operation["name"] == "put":
            assert is_remote == [[False] * len(targets), [True] * len(targets)]
            assert len({buffer["type"] for buffer in operation["src_buff"]}) == 1
            assert len(targets) <= 8
            for source, target in zip(sources, targets, strict=True):
                target[:] = source
        else:
            assert operation["name"] == "copy"
            assert is_remote == [[False], [False]]
            targets[0][:] = sources[0]

    def run(self) -> None:
        """Run to the end, and compare with the true result."""
        waiting = list(self.blocks)
        while waiting:
            self.random.shuffle(waiting)
            moved = [self.take(block) for block in waiting]
            waiting = [block for block in waiting if block.at < len(block.operations)]
            if waiting and not any(moved):
                raise DeadlockError(f"{len(waiting)} thread blocks wait")
        assert not any(self.signals.values()), "every signal is waited for"
        for device, (memory, result) in enumerate(zip(self.memory, self.results, strict=True)):
            assert np.array_equal(memory["o"], result), f"the result of GPU {device}"
            if not self.in_place:
                assert np.array_equal(memory["i"], self.inputs[device]), f"the input of GPU {device} is left alone"
