"""Schedules: a program as one device runs it, on flat contiguous buffers, as the libraries' collectives want them.

A buffer is an array of equal blocks with an array axis per level that the program ever scatters, without those levels
along which the device holds only its own digit. ReduceScatter cuts a buffer into consecutive pieces and AllGather puts
pieces one after another, so both need their levels to come first, in the order of the hierarchy. Which level comes
first at the start is free for an all-reduce, where blocks are just a way to cut the tensor: the order is chosen so
that pieces come out in the right places. Where they cannot, a copy reorders the buffer; there are no other copies.
"""

from dataclasses import dataclass, replace
from itertools import permutations
from math import prod

from meshwright.language.goals import Goal, Holding, as_goal
from meshwright.language.program import Collective, Program, check_fits
from meshwright.placement.hierarchy import Hierarchy, digits_of, number_of

INPUT, OUTPUT, SCRATCH = 0, 1, 2
"""Buffers: where the tensor is, where the result goes (the same place if the goal is in place), and two more."""

SEARCHED = 5  # up to this number of levels every order is tried; beyond, that of the hierarchy and of the scatters
Order = tuple[int, ...]  # the levels of a buffer's array axes, outermost first


@dataclass(frozen=True, slots=True)
class Copy:
    """Copies a buffer, seen as an array of blocks with the given shape, so that the result's array axes are `axes`."""

    source: int
    target: int
    shape: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def given(self) -> int:
        """The size of both buffers, in blocks."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Call:
    """A collective with the devices of one group, in rank order; the first one is the root of a rooted collective."""

    collective: Collective
    step: int
    group: tuple[int, ...]
    source: int  # a buffer, and so is the target; AllReduce, Reduce and Broadcast work in place
    target: int
    taken: int  # blocks of the source
    given: int  # blocks of the target


@dataclass(frozen=True, slots=True)
class Schedule:
    """What one device does."""

    goal: Goal
    blocks: int  # how many equal ones the tensor has, after padding
    moves: tuple[Copy | Call, ...]
    scratch: tuple[int, ...]  # the sizes of the buffers from `SCRATCH` on, in blocks


def schedule(program: Program, hierarchy: Hierarchy, device: int, goal: Goal | str = Goal.ALL_REDUCE) -> Schedule:
    """What a device of the group does to run a valid program.

    >>> from meshwright import parse_hierarchy, parse_program
    >>> h = parse_hierarchy("node=2,gpu=2")
    >>> program = parse_program("ReduceScatter inside node; AllReduce across node; AllGather inside node", h)
    >>> for move in schedule(program, h, 3).moves:
    ...     print(move.collective, move.group, move.source, move.target, move.taken, move.given)
    ReduceScatter (2, 3) 0 2 2 1
    AllReduce (1, 3) 2 2 1 1
    AllGather (2, 3) 2 0 1 2
    """
    goal = as_goal(goal)
    check_fits(program, len(hierarchy.radices))
    lowering = min(
        (_Lowering(program, hierarchy.radices, goal, start) for start in _starts(program, hierarchy, goal)),
        key=lambda lowering: lowering.copied,
    )
    return lowering.schedule(device)


def _starts(program: Program, hierarchy: Hierarchy, goal: Goal) -> list[Order]:
    """The orders in which a whole tensor may be cut into blocks."""
    if not goal.in_place:
        return [tuple(range(len(hierarchy.radices)))]
    scattered = [step.grouping for step in program.steps if step.collective is Collective.REDUCE_SCATTER]
    cut = sorted({level for grouping in scattered for level in range(grouping.first, grouping.last + 1)})
    if len(cut) <= SEARCHED:
        return list(permutations(cut))
    first = {
        level: number for number, g in reversed(list(enumerate(scattered))) for level in range(g.first, g.last + 1)
    }
    return [tuple(cut), tuple(sorted(cut, key=lambda level: (first[level], level)))]


class _Lowering:
    """A program with a given order at the start: for every step, who reorders what.

    Devices with zeros in the same places do the same, so they are told apart only by the set of levels, as bits,
    at which their digits are zero.
    """

    def __init__(self, program: Program, radices: tuple[int, ...], goal: Goal, start: Order) -> None:
        self.program, self.radices, self.goal, self.start = program, radices, goal, start
        self.kinds = range(1 << len(radices))
        self.reorders: list[dict[int, tuple[Order, Order]]] = []  # before each step and at the end: from, to
        self.orders: list[list[Order | None]] = [self.at_start()]
        for step in program.steps:
            self.advance(step.collective, range(step.grouping.first, step.grouping.last + 1), step.grouping.masters)
        self.finish()
        self.copied = sum(
            max((self.blocks(before) for before, _ in reorders.values()), default=0) for reorders in self.reorders
        )

    def blocks(self, order: Order) -> int:
        return prod(self.radices[level] for level in order)

    def at_start(self) -> list[Order | None]:
        if self.goal.start is Holding.PART:
            return [()] * len(self.kinds)
        if self.goal.start is Holding.ROOT:
            return [*[None] * (len(self.kinds) - 1), self.start]
        return [self.start] * len(self.kinds)

    def advance(self, collective: Collective, levels: range, masters: bool) -> None:
        orders = self.orders[-1]
        after, reorders = list(orders), {}
        over = sum(1 << level for level in levels)
        for kind in self.kinds:
            if masters and any(not kind >> level & 1 for level in range(levels.stop, len(self.radices))):
                continue
            first = orders[kind | over]
            assert first is not None, "the program is valid"
            rest = tuple(level for level in first if level not in levels)
            wanted = (*levels, *rest) if collective is Collective.REDUCE_SCATTER else first
            held = orders[kind]
            if held is not None and held != wanted and collective is not Collective.BROADCAST:
                reorders[kind] = held, wanted
            if collective is Collective.REDUCE_SCATTER:
                after[kind] = rest
            elif collective is Collective.ALL_GATHER:
                after[kind] = (*levels, *first)
            elif collective is Collective.REDUCE and kind & over != over:
                after[kind] = None
            else:
                after[kind] = wanted
        self.orders.append(after)
        self.reorders.append(reorders)

    def finish(self) -> None:
        """Put the tensor back in order on the devices that are to have the whole of it."""
        reorders = {}
        for kind, held in enumerate(self.orders[-1]):
            wanted = self.goal.end is Holding.WHOLE or (self.goal.end is Holding.ROOT and kind == self.kinds[-1])
            if wanted and held is not None and held != self.start:
                reorders[kind] = held, self.start
        self.reorders.append(reorders)

    def schedule(self, device: int) -> Schedule:
        """What a device does; buffers are chosen at the end."""
        digits = digits_of(device, self.radices)
        kind = sum(1 << level for level, digit in enumerate(digits) if digit == 0)
        moves: list[Copy | Call] = []
        for number, step in enumerate(self.program.steps):
            if kind in self.reorders[number]:
                moves.append(self.reorder(*self.reorders[number][kind]))
            levels = range(step.grouping.first, step.grouping.last + 1)
            if step.grouping.masters and any(digits[levels.stop :]):
                continue
            first = not any(digits[level] for level in levels)
            before, after = self.orders[number][kind], self.orders[number + 1][kind]
            receives = step.collective is Collective.BROADCAST and not first
            taken = 0 if receives or before is None else self.blocks(before)
            given = 0 if after is None else self.blocks(after)
            moves.append(Call(step.collective, number, self.group(digits, levels), INPUT, INPUT, taken, given))
        if kind in self.reorders[-1]:
            moves.append(self.reorder(*self.reorders[-1][kind]))
        ends_with_nothing = self.goal.end is Holding.ROOT and device > 0
        return _with_buffers(moves, self.goal, self.blocks(self.start), ends_with_nothing)

    def reorder(self, before: Order, after: Order) -> Copy:
        shape, axes = (self.radices[level] for level in before), (before.index(level) for level in after)
        return Copy(INPUT, INPUT, tuple(shape), tuple(axes))

    def group(self, digits: tuple[int, ...], levels: range) -> tuple[int, ...]:
        first = number_of([0 if level in levels else digit for level, digit in enumerate(digits)], self.radices)
        stride = prod(self.radices[levels.stop :])
        return tuple(range(first, first + stride * prod(self.radices[level] for level in levels), stride))


def _with_buffers(moves: list[Copy | Call], goal: Goal, blocks: int, ends_with_nothing: bool) -> Schedule:
    """Choose the buffers of all moves. No hop (a move from one buffer to another) writes to the buffer that it reads,
    and the last one writes to where the result belongs, `home`.

    For example, an all-reduce in place by ReduceScatter, AllReduce, AllGather has two hops, as AllReduce stays in its
    buffer: ReduceScatter writes to SCRATCH, AllGather to INPUT. By ReduceScatter, ReduceScatter, AllGather it has
    three: counted from the end they write to INPUT, SCRATCH and INPUT again; but the first one reads INPUT, so it
    writes to SCRATCH + 1 instead.
    """
    in_place = goal.in_place
    home = INPUT if in_place else OUTPUT
    hops = [k for k, move in enumerate(moves) if _hops(move)]
    reads_input = bool(hops) and not _receives(moves[hops[0]])
    if not ends_with_nothing and ((in_place and len(hops) == 1 and reads_input) or (not in_place and not hops)):
        hops.append(len(moves))
        moves.append(Copy(INPUT, OUTPUT, (blocks,), (0,)))
    # From the end: the last hop writes to home, the hops before it to the two buffers of `away` in turn.
    away = (SCRATCH, INPUT if in_place else SCRATCH + 1)
    targets = {k: away[(back - 1) % 2] if back else home for back, k in enumerate(reversed(hops))}
    if reads_input and targets[hops[0]] == INPUT:
        targets[hops[0]] = SCRATCH + 1
    scratch = [0, 0]
    at = INPUT
    placed: list[Copy | Call] = []
    for k, move in enumerate(moves):
        target = targets.get(k, at)
        if target >= SCRATCH:
            scratch[target - SCRATCH] = max(scratch[target - SCRATCH], move.given)
        placed.append(replace(move, source=target if _receives(move) else at, target=target))
        at = target
    while scratch and not scratch[-1]:
        scratch.pop()
    return Schedule(goal, blocks, tuple(placed), tuple(scratch))


def _hops(move: Copy | Call) -> bool:
    """Whether a move writes its result to another buffer than the one it reads."""
    scatters_or_gathers = (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
    return isinstance(move, Copy) or move.collective in scatters_or_gathers or move.taken == 0


def _receives(move: Copy | Call) -> bool:
    return isinstance(move, Call) and move.collective is Collective.BROADCAST and move.taken == 0
