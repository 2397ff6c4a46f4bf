"""MSCCL's XML: a whole program with its chunks, as thread blocks that send, receive and add up.

Every step of a program has a channel of its own. There a device has one thread block that sends to the next member of
its group, and one that receives from the previous member: ReduceScatter, AllGather and AllReduce go around rings,
Reduce and Broadcast along a chain. All thread blocks follow one list of all messages, so that they never wait in a
circle. Steps of different thread blocks that use the same cell wait for each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from meshwright.errors import SpecError
from meshwright.export.cells import Cells, Exchange, Place, runs
from meshwright.export.request import Exported, Request, bytes_range, the_reduction
from meshwright.language.goals import Goal, Holding
from meshwright.language.program import Collective
from meshwright.text.units import format_size

MOST_STEPS = 256
"""The most steps of a thread block (MSCCL_MAX_NUM_STEPS of microsoft/msccl)."""

FEWER_STEPS = 64
"""The most steps of a thread block in RCCL and in msccl-executor-nccl."""

MOST_CHANNELS = 32
"""MAXCHANNELS of NCCL 2.12, on which MSCCL is built."""

MOST_CELLS_SENT = 71
"""The most cells of one message: less than MSCCL_MAX_COUNT."""

_NAMES = {
    Goal.ALL_REDUCE: "allreduce",
    Goal.REDUCE_SCATTER: "reducescatter",
    Goal.ALL_GATHER: "allgather",
    Goal.REDUCE: "reduce",
    Goal.BROADCAST: "broadcast",
}


def msccl(request: Request) -> Exported:
    """One of the plan's reductions as an MSCCL algorithm for communicators of its group."""
    planned = the_reduction(request)
    hierarchy, goal = request.plan.hierarchy(planned), planned.communication.goal
    assert planned.pipelined is not None
    cells = Cells(planned.pipelined, hierarchy, goal, request.instances)
    _check_size(cells)
    gpus = _gpus(cells)
    least, most = bytes_range(request, planned)
    longest = max(block.length for gpu in gpus for block in gpu.blocks.values())
    _check_steps(longest, cells)
    lines = [
        f'<algo name="meshwright {goal} {hierarchy}" proto="Simple" nchannels="{_channels(cells)}" '
        f'nchunksperloop="{cells.total}" ngpus="{len(gpus)}" coll="{_NAMES[goal]}" inplace="1" outofplace="1" '
        f'minBytes="{least}" maxBytes="{most}">'
    ]
    for gpu in gpus:
        lines += gpu.lines(*cells.sizes())
    notes = [
        f"MSCCL takes it for every {_NAMES[goal]} of {len(gpus)} ranks, of {format_size(least)} to "
        f"{format_size(most)}, if {cells.total} divides the number of elements; the ranks of the communicator must be "
        "in the order of the plan's group"
    ]
    if Holding.ROOT in (goal.start, goal.end):
        notes.append("MSCCL does not look at the root: call it with rank 0 as root only")
    if longest > FEWER_STEPS:
        notes.append(f"a thread block has {longest} steps: RCCL and msccl-executor-nccl take at most {FEWER_STEPS}")
    return Exported("\n".join([*lines, "</algo>"]) + "\n", tuple(notes))


def _channels(cells: Cells) -> int:
    """A channel for each step of all programs, in each instance."""
    return cells.instances * (1 + max(first + len(program.steps) - 1 for first, program in cells.flows))


@dataclass(slots=True, eq=False)
class _Step:
    """A step of a thread block. after: the blocks that it waits for, each with the place of the step in its list."""

    kind: str
    source: Place
    target: Place
    count: int
    after: dict["_Block", int]
    awaited: bool = False


@dataclass(slots=True, eq=False)
class _Block:
    """A thread block. send, recv: the device that it sends to, or receives from; -1: none."""

    send: int
    recv: int
    channel: int
    steps: list[_Step] = field(default_factory=list)
    waited: dict["_Block", int] = field(default_factory=dict)

    def numbers(self) -> list[int]:
        """The numbers of the steps in the file. A step that waits for n others has n - 1 nops before it."""
        found, at = [], -1
        for step in self.steps:
            at += max(1, len(step.after))
            found.append(at)
        return found

    @property
    def length(self) -> int:
        """How many steps there are in the file."""
        return self.numbers()[-1] + 1


class _Gpu:
    """One device: its thread blocks, where its cells are now, and who has read and written each of them last."""

    def __init__(self, device: int, cells: Cells) -> None:
        self.device = device
        self.blocks: dict[tuple[int, int, int], _Block] = {}
        self.at, self.home = cells.places(device)
        self.writer: dict[int, tuple[_Block, int]] = {}
        self.readers: dict[int, list[tuple[_Block, int]]] = {}

    def add(
        self,
        key: tuple[int, int, int],
        kind: str,
        source: Place,
        target: Place,
        numbers: Sequence[int],
        writes: bool,
    ) -> None:
        """Add a step on some cells to the thread block with this send, recv and channel.

        It waits for steps of other blocks. For example, a block that passes on a sum waits for the step of the
        receiving block that has made the sum.
        """
        block = self.blocks.setdefault(key, _Block(*key))
        before = [step for number in numbers for step in self._users(number, writes)]
        after: dict[_Block, int] = {}
        for other, at in before:
            if other is not block and at > max(block.waited.get(other, -1), after.get(other, -1)):
                after[other] = at
        block.waited |= after
        for other, at in after.items():
            other.steps[at].awaited = True
        block.steps.append(_Step(kind, source, target, len(numbers), after))
        here = block, len(block.steps) - 1
        for number in numbers:
            if writes:
                self.writer[number], self.readers[number], self.at[number] = here, [], self.home[number]
            else:
                self.readers.setdefault(number, []).append(here)

    def _users(self, number: int, writes: bool) -> list[tuple[_Block, int]]:
        """The steps that a step on a cell has to wait for: the one that wrote the cell last. If it writes itself, it is
        those that have read the cell since, as they have waited for the one that wrote it.
        """
        readers = self.readers.get(number, [])
        if writes and readers:
            return readers
        return [self.writer[number]] if number in self.writer else []

    def lines(self, inputs: int, outputs: int) -> Iterator[str]:
        """The device in XML."""
        order = {block: number for number, block in enumerate(self.blocks.values())}
        ends = [s.target.offset + s.count for b in order for s in b.steps if s.target.buffer == "s" and s.kind != "s"]
        yield f'  <gpu id="{self.device}" i_chunks="{inputs}" o_chunks="{outputs}" s_chunks="{max(ends, default=0)}">'
        numbers = {block: block.numbers() for block in order}
        for block, number in order.items():
            yield f'    <tb id="{number}" send="{block.send}" recv="{block.recv}" chan="{block.channel}">'
            at = 0
            for step in block.steps:
                *first, last = [(order[other], numbers[other][k]) for other, k in step.after.items()] or [(-1, -1)]
                for depid, deps in first:
                    yield _line(at, "nop", Place("i", -1), Place("o", -1), 0, depid, deps, False)
                    at += 1
                yield _line(at, step.kind, step.source, step.target, step.count, *last, step.awaited)
                at += 1
            yield "    </tb>"
        yield "  </gpu>"


def _line(s: int, kind: str, source: Place, target: Place, count: int, depid: int, deps: int, awaited: bool) -> str:
    return (
        f'      <step s="{s}" type="{kind}" srcbuf="{source.buffer}" srcoff="{source.offset}" '
        f'dstbuf="{target.buffer}" dstoff="{target.offset}" cnt="{count}" depid="{depid}" deps="{deps}" '
        f'hasdep="{int(awaited)}"/>'
    )


def _gpus(cells: Cells) -> list[_Gpu]:
    """What all devices do, from one list of all messages, in which each chunk is a step behind the one before it."""
    gpus = [_Gpu(device, cells) for device in range(cells.hierarchy.size)]
    lanes = _channels(cells) // cells.instances
    found = {program: list(cells.exchanges(program)) for _, program in cells.flows}
    turns = sorted(
        (place + step, place, step)
        for place, (_, program) in enumerate(cells.flows)
        for step in range(len(program.steps))
    )
    for _, place, step in turns:
        first, program = cells.flows[place]
        for instance in range(cells.instances):
            chunk = instance * len(cells.flows) + place
            for exchange in found[program][step]:
                for source, target, piece, sums in _messages(exchange):
                    numbers = [cells.number(chunk, cell) for cell in piece]
                    _send(gpus[source], gpus[target], numbers, instance * lanes + first + step, sums)
    for gpu in gpus:
        _finish(gpu)
    return gpus


def _messages(exchange: Exchange) -> Iterator[tuple[int, int, tuple[int, ...], bool]]:
    """Who sends which cells to whom, one after another, and whether the receiver adds them to its own."""
    members, pieces, size = exchange.members, exchange.pieces, len(exchange.members)
    around = [(turn, k) for turn in range(size - 1) for k in range(size)]
    if exchange.collective in (Collective.REDUCE_SCATTER, Collective.ALL_REDUCE):
        yield from ((members[k], members[(k + 1) % size], pieces[(k - 1 - turn) % size], True) for turn, k in around)
    if exchange.collective in (Collective.ALL_GATHER, Collective.ALL_REDUCE):
        yield from ((members[k], members[(k + 1) % size], pieces[(k - turn) % size], False) for turn, k in around)
    if exchange.collective is Collective.REDUCE:
        yield from ((members[k], members[k - 1], pieces[0], True) for k in range(size - 1, 0, -1))
    if exchange.collective is Collective.BROADCAST:
        yield from ((members[k], members[k + 1], pieces[0], False) for k in range(size - 1))


def _send(source: _Gpu, target: _Gpu, numbers: list[int], channel: int, sums: bool) -> None:
    """Send cells from one device to another, in as few messages as places that follow each other allow."""
    for run in runs(numbers, [source.at, target.home, *([target.at] if sums else [])], MOST_CELLS_SENT):
        start, own, home = source.at[run[0]], target.at[run[0]], target.home[run[0]]
        assert start is not None, "the program is valid"
        source.add((target.device, -1, channel), "s", start, home, run, writes=False)
        added = own if sums and own is not None else start
        target.add((-1, source.device, channel), "rrc" if sums else "r", added, home, run, writes=True)


def _finish(gpu: _Gpu) -> None:
    """Copy to the output what no message has brought there: the device's own part, or the tensor of the root."""
    missing = [n for n, at in gpu.at.items() if at is not None and at.buffer == "i" and gpu.home[n].buffer == "o"]
    for run in runs(missing, [gpu.at, gpu.home], MOST_CELLS_SENT):
        at = gpu.at[run[0]]
        assert at is not None
        gpu.add((-1, -1, 0), "cpy", at, gpu.home[run[0]], run, writes=True)


def _check_size(cells: Cells) -> None:
    """Refuse what MSCCL surely has no room for, before it is worked out."""
    if _channels(cells) > MOST_CHANNELS:
        raise SpecError(
            f"msccl: the steps of all programs in {cells.instances} instances need {_channels(cells)} channels, and "
            f"NCCL has {MOST_CHANNELS}: use fewer --instances, or plan again with shorter programs (--max-steps)"
        )
    for program in {program for _, program in cells.flows}:
        chunks = sum(each == program for _, each in cells.flows)
        for step in program.steps:
            size = prod(cells.hierarchy.radices[step.grouping.first : step.grouping.last + 1])
            turns = {Collective.ALL_REDUCE: 2 * (size - 1), Collective.REDUCE: 1, Collective.BROADCAST: 1}
            _check_steps(chunks * turns.get(step.collective, size - 1), cells)


def _check_steps(steps: int, cells: Cells) -> None:
    """Refuse a thread block with more steps than MSCCL has room for."""
    if steps > MOST_STEPS:
        raise SpecError(
            f"msccl: a thread block would have {steps} steps or more, and MSCCL has room for {MOST_STEPS}: the payload "
            f"has {len(cells.flows)} chunks of {cells.each} pieces each; plan again with fewer chunks (--chunks), or "
            "run the plan with an engine: meshwright run"
        )
