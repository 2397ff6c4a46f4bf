"""Cells: the payload of a reduction in equal pieces, where each of them lies in a device's buffers, and who has which.

Formats that describe a whole program, copy by copy, count in such cells. A chunk has a cell for every combination of
digits of the levels that the programs scatter or add up over. A cell keeps its number from the first step to the last,
so that no step has to reorder anything.

For example, `ReduceScatter inside node; AllReduce across node; AllGather inside node` on node=2,gpu=4 cuts a chunk into
8 cells, by GPU first: cells 0 and 1 are those of GPU 0. In the first step the devices of a node add up two cells each;
in the second step, cell 0 is added up by GPU 0 of node 0, and cell 1 by GPU 0 of node 1.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from meshwright.errors import SpecError
from meshwright.language.goals import Goal, Holding
from meshwright.language.program import Collective, Pipelined, Program, device_groups
from meshwright.placement.hierarchy import Hierarchy, digits_of

MOST_DEVICES = 512
"""The most devices of a group: a file grows with their square."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a cell lies on a device: in the input `i`, the output `o` or the scratch buffer `s`, counted in cells."""

    buffer: str
    offset: int

    def follows(self, other: "Place", by: int) -> bool:
        """Whether this place comes `by` cells behind the other one."""
        return self.buffer == other.buffer and self.offset == other.offset + by


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one group does in one step.

    pieces: for each of the members some cells of a chunk. ReduceScatter, AllReduce: those that the member adds up;
    AllGather: those that it brings; Reduce, Broadcast: the first member has all that is sent, the others none.
    """

    collective: Collective
    members: tuple[int, ...]
    pieces: tuple[tuple[int, ...], ...]


class Cells:
    """The cells of a reduction, and what its programs do with them."""

    def __init__(self, pipelined: Pipelined, hierarchy: Hierarchy, goal: Goal, instances: int = 1) -> None:
        """instances: how many copies of the programs run side by side, each with its share of the payload."""
        if hierarchy.size == 1:
            raise SpecError("the program does nothing, as its group is a single device")
        if hierarchy.size > MOST_DEVICES:
            raise SpecError(
                f"the file lists what every device of a group does, and a group has {hierarchy.size} devices; at most "
                f"{MOST_DEVICES} are written"
            )
        self.hierarchy, self.goal, self.instances = hierarchy, goal, instances
        self.flows = tuple(_interleaved(pipelined))
        self.chunks = len(self.flows) * instances
        self.levels = _cut(pipelined, hierarchy, goal)
        self.each = prod(hierarchy.radices[level] for level in self.levels)  # cells of a chunk

    @property
    def total(self) -> int:
        """The cells of the whole payload."""
        return self.chunks * self.each

    def number(self, chunk: int, cell: int) -> int:
        """The number of a cell in the whole payload. Where devices have parts, a part's cells are consecutive."""
        return chunk * self.each + cell if self.goal.in_place else cell * self.chunks + chunk

    def given(self, device: int, chunk: int, cell: int) -> Place | None:
        """Where a cell lies before the program; None if the device does not have it."""
        if self.goal.start is Holding.PART:
            return Place("i", chunk) if cell == device else None
        if self.goal.start is Holding.ROOT and device > 0:
            return None
        return Place("i", self.number(chunk, cell))

    def home(self, device: int, chunk: int, cell: int) -> Place:
        """Where a cell is written to: in the output, if it belongs there in the end."""
        if self.goal.end is Holding.PART and cell == device:
            return Place("o", chunk)
        kept = self.goal.end is Holding.WHOLE or (self.goal.end is Holding.ROOT and device == 0)
        return Place("o" if kept else "s", self.number(chunk, cell))

    def places(self, device: int) -> tuple[dict[int, Place | None], dict[int, Place]]:
        """For all cells, by their numbers: where a device has them before the program, and where it writes them."""
        every = [(chunk, cell) for chunk in range(self.chunks) for cell in range(self.each)]
        given = {self.number(*one): self.given(device, *one) for one in every}
        return given, {self.number(*one): self.home(device, *one) for one in every}

    def sizes(self) -> tuple[int, int]:
        """The cells of the input and of the output."""
        parts = Holding.PART
        return (
            self.chunks if self.goal.start is parts else self.total,
            self.chunks if self.goal.end is parts else self.total,
        )

    def exchanges(self, program: Program) -> Iterator[tuple[Exchange, ...]]:
        """What the groups of each step do."""
        radices, everything = self.hierarchy.radices, tuple(range(self.each))
        held = [everything if self.goal.start is not Holding.ROOT or not d else () for d in range(self.hierarchy.size)]
        if self.goal.start is Holding.PART:
            held = [(device,) for device in range(self.hierarchy.size)]
        for step in program.steps:
            levels = range(step.grouping.first, step.grouping.last + 1)
            found = [
                self._exchange(step.collective, group, levels, [held[device] for device in group])
                for group in device_groups(step.grouping, radices)
            ]
            for exchange in found:
                for device, piece in zip(exchange.members, exchange.pieces, strict=True):
                    held[device] = _after(exchange, held[device], piece)
            yield tuple(found)

    def _exchange(
        self, collective: Collective, group: tuple[int, ...], levels: range, held: Sequence[tuple[int, ...]]
    ) -> Exchange:
        if collective is Collective.ALL_GATHER:
            return Exchange(collective, group, tuple(held))
        if collective in (Collective.REDUCE, Collective.BROADCAST):
            return Exchange(collective, group, (held[0], *[()] * (len(group) - 1)))
        own = [digits_of(device, self.hierarchy.radices) for device in group]
        along = [(k, level) for k, level in enumerate(self.levels) if level in levels]
        digits = {cell: digits_of(cell, [self.hierarchy.radices[level] for level in self.levels]) for cell in held[0]}
        pieces = [
            tuple(cell for cell in held[0] if all(digits[cell][k] == at[level] for k, level in along)) for at in own
        ]
        return Exchange(collective, group, tuple(pieces))


Places = Mapping[int, Place | None] | Mapping[int, Place]
"""The places of cells, by their numbers; None: the device does not have the cell."""


def runs(numbers: Sequence[int], tables: Sequence[Places], most: int) -> Iterator[list[int]]:
    """Cells in runs of at most `most` whose places follow each other in all of these tables."""
    run: list[int] = []
    for number in numbers:
        if run and (len(run) == most or not all(_follow(table, run, number) for table in tables)):
            yield run
            run = []
        run.append(number)
    if run:
        yield run


def _follow(table: Places, run: list[int], number: int) -> bool:
    first, place = table[run[0]], table[number]
    return first is not None and place is not None and place.follows(first, len(run))


def _after(exchange: Exchange, held: tuple[int, ...], piece: tuple[int, ...]) -> tuple[int, ...]:
    """The cells that a member holds after an exchange, of which it has had a piece."""
    if exchange.collective is Collective.REDUCE_SCATTER:
        return piece
    if exchange.collective is Collective.ALL_REDUCE:
        return held
    if exchange.collective is Collective.ALL_GATHER:
        return tuple(sorted(cell for each in exchange.pieces for cell in each))
    return exchange.pieces[0] if exchange.collective is Collective.BROADCAST else piece


def _interleaved(pipelined: Pipelined) -> Iterator[tuple[int, Program]]:
    """The program of every chunk, with the number of its first step among the steps of all programs.

    Where chunks take several programs, these take turns: a chunk takes the program that is most behind its share.
    """
    firsts = [sum(len(p.steps) for p, _ in pipelined.shares[:k]) for k in range(len(pipelined.shares))]
    due = [0] * len(firsts)
    for _ in range(pipelined.chunks):
        due = [late + count for late, (_, count) in zip(due, pipelined.shares, strict=True)]
        most = max(range(len(due)), key=lambda k: due[k])
        due[most] -= pipelined.chunks
        yield firsts[most], pipelined.shares[most][0]


def _cut(pipelined: Pipelined, hierarchy: Hierarchy, goal: Goal) -> tuple[int, ...]:
    """The levels by whose digits a chunk is cut, outermost first.

    Where the order is free, a level that is scattered earlier comes first, so that what a device keeps is consecutive.
    """
    if not goal.in_place:
        return tuple(range(len(hierarchy.radices)))
    summing = (Collective.REDUCE_SCATTER, Collective.ALL_REDUCE)
    groupings = [
        step.grouping for program, _ in pipelined.shares for step in program.steps if step.collective in summing
    ]
    return tuple(dict.fromkeys(level for each in groupings for level in range(each.first, each.last + 1)))
