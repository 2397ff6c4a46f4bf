"""MSCCL++'s execution plan in JSON: a whole program on one node, as thread blocks that use the memory of other GPUs.

Every chunk has thread blocks of its own. In a step, the devices of a group first wait for each other. Then each of them
reads the cells that it adds up from the memory of all others at once, or writes the cells that it has to all others.
After that they wait for each other again, so that nobody overwrites what is still read.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.errors import SpecError
from meshwright.export.cells import Cells, Exchange, Place, runs
from meshwright.export.hosts import hosts_spanned
from meshwright.export.request import Exported, Request, bytes_range, the_reduction
from meshwright.language.goals import Goal
from meshwright.language.program import Collective
from meshwright.planning.plan import Planned
from meshwright.text.units import format_size

MOST_OPERATIONS, MOST_CHANNELS, AT_ONCE = 64, 16, 8
"""The most operations, channels and remote buffers of a thread block, and channels of an operation
(src/core/include/execution_common.hpp).
"""

MOST_BLOCKS = 108
"""All thread blocks must be on the GPU at the same time; this is how many processors an A100 has."""

THREADS, ALIGNMENT = 1024, 16

_NAMES = {
    Goal.ALL_REDUCE: "allreduce",
    Goal.REDUCE_SCATTER: "reducescatter",
    Goal.ALL_GATHER: "allgather",
    Goal.BROADCAST: "broadcast",
}


def mscclpp(request: Request) -> Exported:
    """One of the plan's reductions as an execution plan, where its groups stay inside one host."""
    planned = the_reduction(request)
    goal, hierarchy = planned.communication.goal, request.plan.hierarchy(planned)
    if goal not in _NAMES:
        raise SpecError(f"MSCCL++ has no {goal}, only {', '.join(_NAMES.values())}; msccl carries it")
    _check_one_node(request, planned)
    assert planned.pipelined is not None
    cells = Cells(planned.pipelined, hierarchy, goal)
    _check_room(cells.chunks * request.instances, MOST_BLOCKS, "thread blocks, one for each chunk and instance")
    gpus = [_Gpu(device, cells) for device in range(hierarchy.size)]
    for chunk in range(cells.chunks):
        for exchanges in cells.exchanges(cells.flows[chunk][1]):
            for exchange in exchanges:
                _exchange([gpus[device] for device in exchange.members], exchange, cells, chunk)
    for gpu in gpus:
        gpu.finish(cells)
    _check(gpus)
    least, most = bytes_range(request, planned)
    document = {
        "name": f"meshwright {goal} {hierarchy}",
        "collective": _NAMES[goal],
        "protocol": "Simple",
        "inplace": goal.in_place,
        "reuse_resources": False,
        "gpus": [gpu.document(*cells.sizes(), request.instances) for gpu in gpus],
        "num_threads_per_block": THREADS,
        "use_double_scratch_buffer": False,
        "buffer_alignment": ALIGNMENT,
        "min_message_size": least,
        "max_message_size": most,
    }
    where = "in place" if goal.in_place else "out of place"
    notes = [
        f"for calls {where}, of {format_size(least)} to {format_size(most)}, in a multiple of "
        f"{cells.total * ALIGNMENT} bytes",
        "in MSCCL++ devices read and write each other's memory directly, not around rings as the plan may count on",
    ]
    notes += ["rank 0 is the root"] if goal is Goal.BROADCAST else []
    return Exported(json.dumps(document, indent=1) + "\n", tuple(notes))


def _check_one_node(request: Request, planned: Planned) -> None:
    """Refuse groups that span hosts: their GPUs cannot read each other's memory."""
    hosts = hosts_spanned(request, planned)
    if hosts is None:
        raise SpecError("no level of the system is called node, so it is unknown what one host has: say --hosts")
    if hosts > 1:
        raise SpecError(
            f"an MSCCL++ plan is for the GPUs of one node, and a group over {'+'.join(planned.communication.axes)} "
            f"spans {hosts} hosts; msccl carries programs over several"
        )


@dataclass(slots=True)
class _Block:
    """What the thread blocks of one chunk do on one device: operations, and the peers and remote buffers they use."""

    operations: list[dict[str, Any]] = field(default_factory=list)
    peers: list[int] = field(default_factory=list)
    buffers: list[tuple[int, str]] = field(default_factory=list)
    met: tuple[int, ...] = ()  # the devices that have waited for each other last


class _Gpu:
    """One device: where its cells are, and what its thread blocks do, by chunk."""

    def __init__(self, device: int, cells: Cells) -> None:
        self.device, self.in_place = device, cells.goal.in_place
        self.at, written = cells.places(device)
        self.home = {number: self._own(place) for number, place in written.items()}
        self.blocks = [_Block() for _ in range(cells.chunks)]

    def _own(self, home: Place) -> Place:
        """In place, the output is the input."""
        return Place("i", home.offset) if self.in_place and home.buffer == "o" else home

    def meet(self, others: tuple[int, ...], chunk: int) -> None:
        """Wait for the devices of a group, which all do the same."""
        block = self.blocks[chunk]
        block.peers += [peer for peer in others if peer not in block.peers and peer != self.device]
        ids = [block.peers.index(peer) for peer in others if peer != self.device]
        block.operations.append({"name": "nop"})
        for name in ("signal", "wait"):
            for start in range(0, len(ids), AT_ONCE):
                some = {"channel_ids": ids[start : start + AT_ONCE], "channel_type": "memory"}
                block.operations.append({"name": name} | some)
        block.operations.append({"name": "nop"})
        block.met = others

    def use(self, name: str, chunk: int, sources: list[dict[str, Any]], targets: list[dict[str, Any]]) -> None:
        """Add an operation on buffers."""
        operation = {"name": name, "src_buff": sources, "dst_buff": targets, "channel_type": "memory"}
        self.blocks[chunk].operations.append(operation)

    def remote(self, other: "_Gpu", place: Place, count: int, chunk: int) -> dict[str, Any]:
        """A place on another device, as an operation names it."""
        buffers, key = self.blocks[chunk].buffers, (other.device, place.buffer)
        if key not in buffers:
            buffers.append(key)
        return {"buffer_id": buffers.index(key), "index": place.offset, "size": count}

    def finish(self, cells: Cells) -> None:
        """Copy what still is in the input and belongs in the output."""
        for chunk in range(cells.chunks):
            numbers = [cells.number(chunk, cell) for cell in range(cells.each)]
            missing = [n for n in numbers if (at := self.at[n]) and at.buffer == "i" and self.home[n].buffer == "o"]
            for run in runs(missing, [self.at, self.home], len(missing)):
                self.use("copy", chunk, [_local(self.at[run[0]], len(run))], [_local(self.home[run[0]], len(run))])

    def document(self, inputs: int, outputs: int, instances: int) -> dict[str, Any]:
        """The device as the file has it. The thread blocks of a chunk share the bytes of each operation."""
        ends = [place.offset + 1 for place in self.home.values() if place.buffer == "s"]
        buffers = list(dict.fromkeys(key for block in self.blocks for key in block.buffers))
        blocks: list[dict[str, Any]] = []
        channels: list[int] = []
        for block in self.blocks:
            for instance in range(instances):
                ids = list(range(len(channels), len(channels) + len(block.peers)))
                channels += block.peers
                refs = [buffers.index(key) for key in block.buffers]
                share = {"tbg_info": {"tb_id": instance, "tbg_size": instances}}
                blocks.append(
                    {
                        "id": len(blocks),
                        "ops": [op | share if instances > 1 and "src_buff" in op else op for op in block.operations],
                        "channels": [{"channel_type": "memory", "channel_ids": ids}],
                        "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": refs}],
                    }
                )
        return {
            "id": self.device,
            "input_chunks": inputs,
            "output_chunks": outputs,
            "scratch_chunks": max(ends, default=0),
            "threadblocks": blocks,
            "channels": [{"channel_type": "memory", "connected_to": channels}],
            "remote_buffers": [
                {"rank": rank, "type": buffer, "access_channel_types": ["memory"]} for rank, buffer in buffers
            ],
            "semaphores": [],
        }


def _local(place: Place | None, count: int) -> dict[str, Any]:
    assert place is not None
    return {"type": place.buffer, "index": place.offset, "size": count}


def _exchange(gpus: list[_Gpu], exchange: Exchange, cells: Cells, chunk: int) -> None:
    """What the devices of one group do in one step with one chunk."""
    pieces = [[cells.number(chunk, cell) for cell in piece] for piece in exchange.pieces]
    if any(gpu.blocks[chunk].met != exchange.members for gpu in gpus):
        _meet(gpus, chunk)
    if exchange.collective in (Collective.REDUCE_SCATTER, Collective.ALL_REDUCE, Collective.REDUCE):
        for gpu, piece in zip(gpus, pieces, strict=True):
            _add_up(gpu, [other for other in gpus if other is not gpu], piece, chunk)
        for gpu, piece in zip(gpus, pieces, strict=True):
            gpu.at |= {number: gpu.home[number] for number in piece}
        _meet(gpus, chunk)
    if exchange.collective in (Collective.ALL_GATHER, Collective.ALL_REDUCE, Collective.BROADCAST):
        for gpu, piece in zip(gpus, pieces, strict=True):
            _give(gpu, [other for other in gpus if other is not gpu], piece, chunk)
        for gpu, own in zip(gpus, pieces, strict=True):
            gpu.at |= {number: gpu.home[number] for piece in pieces if piece is not own for number in piece}
        _meet(gpus, chunk)


def _meet(gpus: Sequence[_Gpu], chunk: int) -> None:
    """Let the devices of a group wait for each other."""
    for gpu in gpus:
        gpu.meet(tuple(other.device for other in gpus), chunk)


def _add_up(gpu: _Gpu, others: list[_Gpu], piece: list[int], chunk: int) -> None:
    """Read cells from all other devices, and add them to one's own; from at most `AT_ONCE` devices at once."""
    for start in range(0, len(others), AT_ONCE):
        some = others[start : start + AT_ONCE]
        own = gpu.home if start else gpu.at
        for run in runs(piece, [own, gpu.home, *(other.at for other in some)], len(piece)):
            first, count = run[0], len(run)
            sources = [_local(own[first], count)]
            for other in some:
                place = other.at[first]
                assert place is not None, "the program is valid"
                sources.append(gpu.remote(other, place, count, chunk))
            gpu.use("rre", chunk, sources, [_local(gpu.home[first], count)])


def _give(gpu: _Gpu, others: list[_Gpu], piece: list[int], chunk: int) -> None:
    """Write cells to all other devices."""
    for start in range(0, len(others), AT_ONCE):
        some = others[start : start + AT_ONCE]
        for run in runs(piece, [gpu.at, *(other.home for other in some)], len(piece)):
            first, count = run[0], len(run)
            targets = [gpu.remote(other, other.home[first], count, chunk) for other in some]
            gpu.use("put", chunk, [_local(gpu.at[first], count)] * len(some), targets)


def _check(gpus: list[_Gpu]) -> None:
    """Refuse what MSCCL++ has no room for."""
    blocks = [block for gpu in gpus for block in gpu.blocks]
    limits = (
        (max(len(block.operations) for block in blocks), MOST_OPERATIONS, "operations in a thread block"),
        (max(len(block.peers) for block in blocks), MOST_CHANNELS, "channels of a thread block"),
        (max(len(block.buffers) for block in blocks), MOST_CHANNELS, "remote buffers of a thread block"),
    )
    for needed, most, what in limits:
        _check_room(needed, most, what)


def _check_room(needed: int, most: int, what: str) -> None:
    if needed > most:
        raise SpecError(
            f"mscclpp: the program needs {needed} {what}, and there is room for {most}: plan again with fewer chunks "
            "(--chunks) or shorter programs (--max-steps), or use msccl"
        )
