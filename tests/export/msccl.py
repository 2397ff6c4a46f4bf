"""An interpreter of MSCCL's XML: runs the thread blocks of all GPUs on arrays. It shares no code with the exporter."""

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

import numpy as np

from tests.export.memory import Array, Clock, Clocks, buffers

SENDS, RECEIVES = ("s", "rcs", "rrs", "rrcs"), ("r", "rcs", "rrs", "rrc", "rrcs")


class DeadlockError(AssertionError):
    """Thread blocks wait for each other."""


@dataclass
class Step:
    type: str
    source: tuple[str, int]
    target: tuple[str, int]
    count: int
    depends: tuple[int, int]
    has_dependents: bool


@dataclass(eq=False)
class Block:
    thread: int
    gpu: int
    send: int
    recv: int
    channel: int
    steps: list[Step]
    at: int = 0
    clocks: list[Clock] = field(default_factory=list)  # after each of the steps


@dataclass
class Algorithm:
    attributes: dict[str, str]
    sizes: list[tuple[int, int, int]]
    blocks: list[list[Block]]  # by GPU


def number(element: ElementTree.Element, name: str) -> int:
    return int(element.attrib[name])


def parse(text: str) -> Algorithm:
    """An algorithm, checked as MSCCL's own parser checks it."""
    root = ElementTree.fromstring(text)
    assert root.tag == "algo"
    gpus, sizes, threads = [], [], 0
    for rank, gpu in enumerate(root):
        assert number(gpu, "id") == rank
        sizes.append((number(gpu, "i_chunks"), number(gpu, "o_chunks"), number(gpu, "s_chunks")))
        blocks: list[Block] = []
        for bid, tb in enumerate(gpu):
            assert number(tb, "id") == bid
            block = Block(threads, rank, number(tb, "send"), number(tb, "recv"), number(tb, "chan"), [])
            threads += 1
            assert rank not in (block.send, block.recv)
            assert 0 <= block.channel < number(root, "nchannels") <= 32
            for s, step in enumerate(tb):
                assert number(step, "s") == s < 256
                block.steps.append(step_of(step, block, sizes[-1]))
            for first, second in zip(block.steps, block.steps[1:], strict=False):
                assert first.type != "nop" or second.depends[0] >= 0, "a nop's dependency goes with the next step's"
            assert block.steps
            assert block.steps[-1].type != "nop"
            blocks.append(block)
        for peers in ([(b.send, b.channel) for b in blocks], [(b.recv, b.channel) for b in blocks]):
            used = [entry for entry in peers if entry[0] >= 0]
            assert len(used) == len(set(used)), "one thread block for each peer and channel"
        for block in blocks:
            for one in block.steps:
                if one.depends[0] >= 0:
                    assert blocks[one.depends[0]].steps[one.depends[1]].has_dependents, (
                        "nobody would say that it is done"
                    )
        gpus.append(blocks)
    assert len(gpus) == number(root, "ngpus")
    assert number(root, "nchunksperloop") == max(max(size[:2]) for size in sizes)
    return Algorithm(dict(root.attrib), sizes, gpus)


def step_of(step: ElementTree.Element, block: Block, sizes: tuple[int, int, int]) -> Step:
    kind = step.attrib["type"]
    assert kind in ("s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "nop")
    assert kind not in SENDS or block.send >= 0
    assert kind not in RECEIVES or block.recv >= 0
    found = Step(
        kind,
        (step.attrib["srcbuf"], number(step, "srcoff")),
        (step.attrib["dstbuf"], number(step, "dstoff")),
        number(step, "cnt"),
        (number(step, "depid"), number(step, "deps")),
        bool(number(step, "hasdep")),
    )
    assert kind == "nop" or 0 < found.count < 72
    local = [found.source] if kind in ("s", "rrs", "rrc", "rrcs", "cpy") else []
    local += [found.target] if kind in ("r", "rcs", "rrc", "rrcs", "cpy") else []
    for buffer, offset in local:
        assert 0 <= offset <= sizes["ios".index(buffer)] - found.count, "inside the buffer"
    return found


class Run:
    """One run: thread blocks take steps in a random order, a message waits until its receiver is there."""

    def __init__(self, algorithm: Algorithm, in_place: bool, seed: int = 0, width: int = 3, capacity: int = 0) -> None:
        self.algorithm, self.capacity, self.random = algorithm, capacity, random.Random(seed)
        coll = algorithm.attributes["coll"]
        assert algorithm.attributes["inplace" if in_place else "outofplace"] == "1"
        self.in_place = in_place
        self.memory, self.inputs, self.results = buffers(coll, algorithm.sizes, width, in_place, seed)
        self.blocks = [block for blocks in algorithm.blocks for block in blocks]
        for block in self.blocks:
            block.at, block.clocks = 0, []
        self.clocks = Clocks(len(self.blocks))
        self.queues: dict[tuple[int, int, int], deque[tuple[Array, Clock]]] = {}
        self.receivers = {(b.recv, b.gpu, b.channel): b for b in self.blocks if b.recv >= 0}

    def rows(self, block: Block, place: tuple[str, int], count: int) -> Any:
        return self.memory[block.gpu][place[0]][place[1] : place[1] + count]

    def ready(self, block: Block) -> bool:
        """Whether a thread block can take its next step, as far as the others of its GPU are concerned."""
        if block.at == len(block.steps):
            return False
        bid, step = block.steps[block.at].depends
        return bid < 0 or self.algorithm.blocks[block.gpu][bid].at > step

    def take(self, block: Block) -> bool:
        """Take a step, if that is possible now."""
        if not self.ready(block):
            return False
        step = block.steps[block.at]
        incoming = self.queues.setdefault((block.recv, block.gpu, block.channel), deque())
        if step.type in RECEIVES and not incoming:
            return False
        if step.type in SENDS and not self.has_room(block):
            return False
        if step.depends[0] >= 0:
            other = self.algorithm.blocks[block.gpu][step.depends[0]]
            self.clocks.join(block.thread, other.clocks[step.depends[1]])
        self.do(block, step, incoming)
        block.at += 1
        return True

    def has_room(self, block: Block) -> bool:
        """Whether a message can be sent: the receiver waits for it, or there is room in the queue."""
        key = (block.gpu, block.send, block.channel)
        waiting = self.queues.setdefault(key, deque())
        if self.capacity:
            return len(waiting) < self.capacity
        receiver = self.receivers[key]
        return not waiting and self.ready(receiver) and receiver.steps[receiver.at].type in RECEIVES

    def do(self, block: Block, step: Step, incoming: deque[tuple[Array, Clock]]) -> None:
        data = None
        if step.type in RECEIVES:
            data, clock = incoming.popleft()
            assert len(data) == step.count, "both sides agree on how much is sent"
            self.clocks.join(block.thread, clock)
        if step.type in ("s", "cpy", "rrs", "rrc", "rrcs"):
            source = self.rows(block, step.source, step.count)
            self.clocks.use(block.thread, source, writes=False)
            data = source.copy() if data is None else data + source
        if step.type in ("r", "rcs", "rrc", "rrcs", "cpy"):
            target = self.rows(block, step.target, step.count)
            self.clocks.use(block.thread, target, writes=True)
            target[:] = data
        clock = self.clocks.tick(block.thread)
        block.clocks.append(clock)
        if step.type in SENDS:
            assert data is not None
            self.queues[block.gpu, block.send, block.channel].append((data, clock))

    def run(self) -> None:
        """Run to the end, and compare with the true result."""
        waiting = list(self.blocks)
        while waiting:
            self.random.shuffle(waiting)
            moved = [self.take(block) for block in waiting]
            waiting = [block for block in waiting if block.at < len(block.steps)]
            if waiting and not any(moved):
                raise DeadlockError(f"{len(waiting)} thread blocks wait")
        assert not any(self.queues.values()), "every message is received"
        for device, (memory, result) in enumerate(zip(self.memory, self.results, strict=True)):
            if result is not None:
                assert np.array_equal(memory["o"], result), f"the result of GPU {device}"
            if not self.in_place:
                assert np.array_equal(memory["i"], self.inputs[device]), f"the input of GPU {device} is left alone"


def check(text: str, seed: int = 0) -> Algorithm:
    """Run an algorithm in place and out of place."""
    algorithm = parse(text)
    for in_place in (True, False):
        Run(algorithm, in_place, seed).run()
    return algorithm
