"""Symbolic states: the semantics without the radices.

Every instance of a level behaves alike, so what a device holds depends only on *which of its digits are zero*, and is
a product over the levels: per level, all parts or only those with the device's own digit (scattered), and the
contributions of its own digit or of all digits (reduced). A state is therefore a table with an entry for each set of
zero digits, whatever the radices. States that are not of that form are dead ends, and steps that lead to one are not
taken; the tests compare with the exact semantics to show that nothing is lost.

Sets of levels are bits: bit l stands for level l, counted from the outermost.

For example, the levels node and gpu, which are the bits 01 and 10. A state has four entries: for devices with no zero
digit, with a zero node digit, with a zero gpu digit, and with both (the first device). An all-reduce starts with
(0, 0, 0, 0): nothing is scattered, nothing reduced. `ReduceScatter inside node` scatters along gpu, 10, and reduces
over gpu, 10: every entry becomes 0b1010. `Reduce inside node` leaves something only where the gpu digit is zero, whole
and reduced over gpu: (NOTHING, NOTHING, 0b1000, 0b1000).
"""

from collections.abc import Collection, Iterator
from functools import cache, lru_cache
from itertools import product

from meshwright.errors import InvalidProgramError
from meshwright.language.goals import Goal, Holding
from meshwright.language.program import Collective, Grouping, Program, Step, all_steps, groupings

NOTHING = -1

State = tuple[int, ...]
"""At index z, what a device holds whose digits are zero exactly at the levels in z. Index -1 is the first device.

An entry is `NOTHING`, or the levels along which it is scattered plus 2^levels times those over which it is reduced.
"""


def scattered(entry: int, levels: int) -> int:
    """The levels along which a device holds only the parts with its own digit."""
    return entry & (1 << levels) - 1


def reduced(entry: int, levels: int) -> int:
    """The levels over which all contributions are contained."""
    return entry >> levels


@cache
def state_of(holding: Holding | None, levels: int) -> State:
    """The state of a group at the start of a goal, or at its end."""
    every = (1 << levels) - 1
    all_reduced = every << levels
    if holding is Holding.ROOT:
        return (*(NOTHING,) * every, all_reduced)
    entries = {Holding.CONTRIBUTION: 0, Holding.WHOLE: all_reduced, Holding.PART: every | all_reduced}
    assert holding is not None
    return (entries[holding],) * (every + 1)


def is_end(state: State, goal: Goal, levels: int) -> bool:
    """Whether a state reaches the goal: only the root's entry matters where the goal asks nothing of the others."""
    end = state_of(goal.end, levels)
    return state[-1] == end[-1] if goal.end is Holding.ROOT else state == end


def successors(
    state: State, levels: int, collectives: Collection[Collective] = tuple(Collective)
) -> Iterator[tuple[Step, State]]:
    """The steps that are allowed in a state, and the states that they lead to.

    >>> found = {(str(step.collective), step.grouping): after for step, after in successors((0, 0, 0, 0), levels=2)}
    >>> found["ReduceScatter", Grouping(1, 1)], found["Reduce", Grouping(1, 1)]
    ((10, 10, 10, 10), (-1, -1, 8, 8))
    """
    low = (1 << levels) - 1
    for grouping, over, groups in _tables(levels):
        # Every group must be in the same situation; which one decides which collectives are allowed.
        entries = [state[group[-1]] for group in groups]
        if NOTHING in entries:
            continue
        alike = all(state[z] == e for group, e in zip(groups, entries, strict=True) for z in group)
        if not alike:
            if Collective.BROADCAST in collectives and _can_broadcast(state, groups, entries, over, levels):
                yield _steps(levels)[Collective.BROADCAST, grouping], _after(state, groups, entries)
        elif all(not e & over and not e >> levels & over for e in entries):
            summed = [e | over << levels for e in entries]
            if Collective.ALL_REDUCE in collectives:
                yield _steps(levels)[Collective.ALL_REDUCE, grouping], _after(state, groups, summed)
            if Collective.REDUCE_SCATTER in collectives:
                parts = [e | over for e in summed]
                yield _steps(levels)[Collective.REDUCE_SCATTER, grouping], _after(state, groups, parts)
            if Collective.REDUCE in collectives:
                after = list(_after(state, groups, [NOTHING] * len(groups)))
                for group, e in zip(groups, summed, strict=True):
                    after[group[-1]] = e
                yield _steps(levels)[Collective.REDUCE, grouping], tuple(after)
        elif Collective.ALL_GATHER in collectives and all(
            e & over == over and e >> levels & over == over for e in entries
        ):
            whole = [e & ~(over & low) for e in entries]
            yield _steps(levels)[Collective.ALL_GATHER, grouping], _after(state, groups, whole)


def _after(state: State, groups: tuple[tuple[int, ...], ...], entries: list[int]) -> State:
    """The state in which all devices of each group have the group's new entry."""
    after = list(state)
    for group, e in zip(groups, entries, strict=True):
        for z in group:
            after[z] = e
    return tuple(after)


def _can_broadcast(
    state: State, groups: tuple[tuple[int, ...], ...], firsts: list[int], over: int, levels: int
) -> bool:
    """Whether in every group each device holds no more than the first, and one of them less."""
    low = (1 << levels) - 1
    for group, first in zip(groups, firsts, strict=True):
        # What the first device holds must mean the same for the others: whole, and complete over the group's levels.
        if first & over or first >> levels & over != over:
            return False
        others = [state[z] for z in group if state[z] != first]
        if not others or any(e != NOTHING and (first & ~e & low or (e & ~first) >> levels) for e in others):
            return False
    return True


def hopeless(state: State, levels: int) -> bool:
    """Whether two devices have come apart so that no step can bring them together again.

    Take two devices that differ in one digit, zero in the first. If both hold something, but not the same, then only a
    Broadcast can make them alike, and that needs the first to be reduced over this level and not scattered along it.
    If that does not hold now, it never will: every step that could change it needs the two to be alike. An exhaustive
    search over all reachable states confirms it for up to `HOPELESS_LEVELS` levels; beyond, it is not used.

    For example, an all-reduce that begins with `AllReduce masters of node`: the first GPU of a node then has the sum
    over the nodes, the other GPUs have only their own contributions. A Broadcast inside the node would lose these, and
    an AllReduce inside the node needs all of its GPUs to have come equally far.

    >>> hopeless((0, 0, 4, 4), levels=2)
    True
    """
    for z, first in enumerate(state):
        if first == NOTHING:
            continue
        for level in range(levels):
            bit = 1 << level
            if z & bit and (first & bit or not first >> levels & bit):
                other = state[z ^ bit]
                if other not in (first, NOTHING):
                    return True
    return False


HOPELESS_LEVELS = 6
"""Up to how many levels `hopeless` is confirmed by exhaustive search: in the tests, six in benchmarks/pruning.py."""


@cache
def _tables(levels: int) -> tuple[tuple[Grouping, int, tuple[tuple[int, ...], ...]], ...]:
    """Each grouping, its levels as bits, and its groups as indices of entries, the first device's last.

    For example, with the levels node and gpu, `across node` has the bits 01 and the groups (00, 01) and (10, 11):
    devices that differ in the node digit alone. `masters of node` has only the second, where the gpu digit is zero.
    """
    every = (1 << levels) - 1
    tables = []
    for grouping in groupings(levels):
        over = (1 << grouping.last + 1) - (1 << grouping.first)
        below = every & ~((1 << grouping.last + 1) - 1) if grouping.masters else 0
        members = [z for z in range(every + 1) if not z & ~over]
        groups = tuple(
            tuple(outside | z for z in members)
            for outside in range(every + 1)
            if not outside & over and outside & below == below
        )
        tables.append((grouping, over, groups))
    return tuple(tables)


@cache
def _steps(levels: int) -> dict[tuple[Collective, Grouping], Step]:
    """One object for each step, so that programs share them."""
    return {(step.collective, step.grouping): step for step in all_steps(levels)}


def run_symbolically(program: Program, levels: int, goal: Goal) -> list[State]:
    """The start of a valid program and the state after each of its steps."""
    states = [state_of(goal.start, levels)]
    for number, step in enumerate(program.steps, 1):
        after = _successor_map(states[-1], levels).get(step)
        if after is None:
            raise InvalidProgramError("allowed", f"step {number} is not allowed: check_program says why", number)
        states.append(after)
    return states


def is_valid(program: Program, levels: int, goal: Goal) -> bool:
    """Whether a program is valid for a goal, much faster than `check_program`, which says why it is not."""
    try:
        states = run_symbolically(program, levels, goal)
    except InvalidProgramError:
        return False
    return [is_end(state, goal, levels) for state in states] == [False] * len(program.steps) + [True]


@lru_cache(maxsize=4096)
def _successor_map(state: State, levels: int) -> dict[Step, State]:
    return dict(successors(state, levels))


def device_kinds(state: State, levels: int) -> list[tuple[dict[int, bool], int]]:
    """The devices by what they hold: for each kind, which digits must be zero or not, and the entry.

    Only levels that make a difference are named.

    >>> device_kinds((NOTHING, 2), levels=1)
    [({0: True}, 2), ({0: False}, -1)]
    """
    matter = [level for level in range(levels) if any(state[z] != state[z ^ 1 << level] for z in range(len(state)))]
    kinds = []
    for choice in product((True, False), repeat=len(matter)):
        zero = dict(zip(matter, choice, strict=True))
        kinds.append((zero, state[sum(1 << level for level, is_zero in zero.items() if is_zero)]))
    return kinds
