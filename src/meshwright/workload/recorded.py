"""Recorded calls: what the ranks of a program sent, made a workload, with all that a workload cannot express."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from meshwright.errors import PlacementError, SpecError
from meshwright.language.goals import Goal
from meshwright.text.spec import MAX_COUNT, check_count, check_type, format_counts, is_name, is_number, shown
from meshwright.text.units import format_amount
from meshwright.workload.communication import Communication, Line
from meshwright.workload.grid import Grid, axis_sizes
from meshwright.workload.numbering import grid_order
from meshwright.workload.workload import Workload

MOST_SIZES = 16
"""The most sizes of one kind of call that are listed one by one; of more, those of similar size become one line."""

RANKS_SHOWN = 8
"""The most ranks of a group that a message lists."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Equal calls of one rank in one group.

    bytes: as a communication has them, so the whole tensor of an all-gather; count: in all recorded steps; hidden: the
    share of their time that overlapped with computation; to: the receiver, for point-to-point; label: what the program
    calls the group, which becomes the name of an axis.
    """

    rank: int
    kind: str
    ranks: tuple[int, ...]
    bytes: int
    count: int = 1
    hidden: float = 0.0
    to: int | None = None
    label: str = ""

    def __post_init__(self) -> None:
        numbers = (self.rank, self.bytes, self.count, *self.ranks, *(() if self.to is None else (self.to,)))
        if not all(type(number) is int and 0 <= number <= MAX_COUNT * 1000 for number in numbers) or not self.count:
            raise SpecError(f"the recorded call {shown(self)} has numbers that no call can have")
        if len(set(self.ranks)) < len(self.ranks) or self.rank not in self.ranks:
            raise SpecError(f"rank {self.rank} recorded a call in the group {shown(self.ranks)}; expected itself once")
        if not is_number(self.hidden) or not 0 <= self.hidden <= 1:
            raise SpecError(f"a recorded call has hidden={shown(self.hidden)}; expected a share from 0 to 1")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Calls that a workload cannot express: the largest of them, how many groups and bytes there are, and why."""

    call: Recorded
    groups: int
    bytes: int
    reason: str

    def __str__(self) -> str:
        ranks = self.call.ranks
        listed = " ".join(map(str, ranks[:RANKS_SHOWN])) + (" …" if len(ranks) > RANKS_SHOWN else "")
        where = f"in the group {listed}" if self.call.to is None else f"from rank {self.call.rank} to {self.call.to}"
        others = f" and {self.groups - 1} like it" if self.groups > 1 else ""
        return f"{self.call.kind} {where}{others}, {format_amount(self.bytes, self.bytes)} in all: {self.reason}"

    def document(self) -> dict[str, Any]:
        """As plain data."""
        ranks = [self.call.rank, self.call.to] if self.call.to is not None else list(self.call.ranks)
        return {"kind": self.call.kind, "ranks": ranks, "groups": self.groups, "bytes": self.bytes, "why": self.reason}


@dataclass(frozen=True)
class Translation:
    """What became of recorded calls: the workload of a step, what is not in it, and what else a reader should know."""

    workload: Workload
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]


Way = tuple[Goal, tuple[str, ...], int]
"""A kind of communication: its goal and axes; for point-to-point also the direction."""


def to_workload(
    calls: Sequence[Recorded],
    world: int,
    steps: int = 1,
    axes: Mapping[str, int] | None = None,
    order: Sequence[int] | None = None,
    name: str = "recorded",
) -> Translation:
    """The workload of one step, from calls that one or several ranks recorded in `steps` steps.

    axes: those of the program, in row-major order of its ranks; if not given, the fewest that make every group a
    product. order: the program's ranks in row-major order over its axes, if that is not 0, 1, 2, …; if neither is
    given and the groups are no products in that order, another one is looked for, and noted.

    >>> calls = [Recorded(0, "all-reduce", (0, 2, 4, 6), 2**20, 4), Recorded(0, "all-gather", (0, 1), 2**10, 2)]
    >>> found = to_workload(calls, 8, 2)
    >>> found.workload.axes, [(str(one.goal), one.axes, one.count) for one in found.workload.communications]
    ({'axis1': 4, 'axis2': 2}, [('all-reduce', ('axis1',), 2), ('all-gather', ('axis2',), 1)])
    """
    check_count(world, "the recording", "8 ranks")
    check_count(steps, "the number of steps", "10")
    if axes and prod(axes.values()) != world:
        raise PlacementError(
            f"the axes {format_counts(axes)} multiply to {shown(prod(axes.values()))}, but the program has {world} "
            f"ranks: expected axes that multiply to {world}"
        )
    calls = [call for call in calls if len(call.ranks) > 1 and call.bytes]
    _check(calls, world, order)
    notes: list[str] = []
    if axes is None and order is None and (order := _found_order(calls, world)) is not None:
        first = " ".join(map(str, order[:RANKS_SHOWN])) + (" …" if world > RANKS_SHOWN else "")
        notes.append(f"the ranks are not numbered in row-major order over the axes; in that order they are {first}")
    ranks = range(world) if order is None else order
    calls = _renumbered(calls, np.argsort(ranks).tolist())
    grid = Grid(axes) if axes else _found_grid(calls, world)
    ways: dict[Way, list[Recorded]] = defaultdict(list)
    refused: list[tuple[Recorded, str]] = []
    for call in calls:
        way = _way(call, grid)
        if isinstance(way, str):
            refused.append((call, way))
        else:
            ways[way].append(call)
    lines: list[Line] = []
    for way, among in ways.items():
        own, note = _busiest(way, among, ranks)
        alike, seldom = _alike(own, steps)
        refused += [(call, f"seldom: less than one call in each of {steps} steps") for call in seldom]
        lines += [_line(way, calls, steps) for calls in alike]
        notes += [note] if note else []
    left_out = _left_out([(_renumbered([call], ranks)[0], why) for call, why in refused])
    if not lines:
        why = f": {left_out[0]}" if left_out else ""
        raise SpecError(f"nothing was recorded that a workload can express{why}")
    lines.sort(key=lambda line: -line.communication.bytes * line.communication.count)
    return Translation(Workload(name, tuple(lines), dict(grid.axes)), left_out, tuple(notes))


def _check(calls: Sequence[Recorded], world: int, order: Sequence[int] | None) -> None:
    check_type(order, Sequence | None, "ranks in row-major order over the axes")
    if order is not None and sorted(order) != list(range(world)):
        raise SpecError(f"the order {shown(list(order))} of ranks does not have each of 0 to {world - 1} once")
    for call in calls:
        if max(*call.ranks, call.to or 0) >= world:
            raise SpecError(f"a recorded call is in the group {shown(call.ranks)}, but the program has {world} ranks")


def _renumbered(calls: Iterable[Recorded], new: Sequence[int]) -> list[Recorded]:
    """The calls with other numbers for the ranks."""
    return [
        replace(
            call,
            rank=new[call.rank],
            ranks=tuple(sorted(new[rank] for rank in call.ranks)),
            to=None if call.to is None else new[call.to],
        )
        for call in calls
    ]


def _found_order(calls: Sequence[Recorded], world: int) -> tuple[int, ...] | None:
    """The ranks in row-major order over axes of which all groups are products, if their own order is not like that."""
    collectives = [call for call in calls if call.to is None]
    if _is_grid(collectives, world):
        return None
    # Ranks that run the same program come to their groups in the same order: the first group of each is one family.
    own: dict[int, dict[tuple[int, ...], str]] = defaultdict(dict)
    for call in collectives:
        own[call.rank].setdefault(tuple(sorted(call.ranks)), call.label)
    families: dict[tuple[str, int], set[tuple[int, ...]]] = defaultdict(set)
    for groups in own.values():
        for ranks, label in groups.items():
            alike = [other for other in groups if groups[other] == label]
            families[label, alike.index(ranks)].add(ranks)
    order = grid_order([sorted(groups) for groups in families.values()], world)
    if order is None or not _is_grid(_renumbered(collectives, np.argsort(order).tolist()), world):
        return None
    return order


def _is_grid(calls: Sequence[Recorded], world: int) -> bool:
    """Whether all groups are products of axes, and those over the same axes are there for all ranks that recorded."""
    grid = _found_grid(calls, world)
    members: dict[tuple[str, ...] | None, set[int]] = defaultdict(set)
    for ranks in {call.ranks for call in calls}:
        members[grid.axes_of(ranks)].update(ranks)
    recorded = {call.rank for call in calls}
    return None not in members and all(recorded <= ranks for ranks in members.values())


def _found_grid(calls: Sequence[Recorded], world: int) -> Grid:
    """The grid with the fewest axes; they are named like the groups that go along one of them."""
    weights: Counter[tuple[int, ...]] = Counter()
    messages = []
    for call in calls:
        # The group of a message tells something only if it is more than the two ranks, and less than all.
        if call.to is not None and len(call.ranks) in (2, world):
            messages.append(call)
        else:
            weights[tuple(sorted(call.ranks))] += call.bytes * call.count
    weights.update(_chains(messages))
    # Of groups that contradict each other, those with the most bytes count.
    sizes = axis_sizes(sorted(weights, key=lambda ranks: (-weights[ranks], ranks)), world)
    plain = Grid({f"axis{k}": size for k, size in enumerate(sizes, 1)})
    names: dict[str, str] = {}
    for call in calls:
        along = plain.axes_of(call.ranks) or ()
        free = is_name(call.label) and call.label not in (*names.values(), *plain.axes)
        if len(along) == 1 and along[0] not in names and free:
            names[along[0]] = call.label
    return Grid({names.get(axis, axis): size for axis, size in plain.axes.items()})


def _chains(calls: Iterable[Recorded]) -> set[tuple[int, ...]]:
    """The ranks that are joined by messages, as the stages of a pipeline are."""
    chains: dict[int, set[int]] = {}
    for call in calls:
        assert call.to is not None
        joined = chains.get(call.rank, {call.rank}) | chains.get(call.to, {call.to})
        chains.update(dict.fromkeys(joined, joined))
    return {tuple(sorted(chain)) for chain in chains.values()}


def _way(call: Recorded, grid: Grid) -> Way | str:
    """The kind of communication that a call is, or why it is none."""
    if call.kind not in list(Goal):
        return f"no goal of a communication; those are {', '.join(Goal)}"
    goal = Goal(call.kind)
    if goal is not Goal.POINT_TO_POINT:
        axes = grid.axes_of(call.ranks)
        return (goal, axes, 0) if axes else f"the group is no product of the axes {format_counts(grid.axes)}"
    along = grid.neighbours(call.rank, call.to) if call.to is not None else None
    if along is None:
        return f"the ranks are no neighbours along one of the axes {format_counts(grid.axes)}"
    return goal, (along[0],), along[1]


def _total(calls: Iterable[Recorded]) -> int:
    return sum(call.bytes * call.count for call in calls)


def _calls(calls: Iterable[Recorded]) -> int:
    return sum(call.count for call in calls)


def _busiest(way: Way, calls: Sequence[Recorded], ranks: Sequence[int]) -> tuple[list[Recorded], str]:
    """The calls of the rank that sends the most in this way, as a step waits for it; and a note where ranks differ."""
    own: dict[int, list[Recorded]] = defaultdict(list)
    for call in calls:
        own[call.rank].append(call)
    totals = {rank: _total(recorded) for rank, recorded in own.items()}
    most, least = max(totals, key=totals.__getitem__), min(totals, key=totals.__getitem__)
    if totals[most] == totals[least] or way[0] is Goal.POINT_TO_POINT:  # the last stage of a pipeline sends nothing on
        return own[most], ""
    amounts = (
        f"rank {ranks[most]} sends {format_amount(totals[most])}, rank {ranks[least]} {format_amount(totals[least])}"
    )
    return own[
        most
    ], f"{_title(way)} over {'+'.join(way[1])} differs between ranks: {amounts} in all; the first is taken"


def _title(way: Way) -> str:
    goal, _, direction = way
    return str(goal) + {0: "", 1: " forward", -1: " backward"}[direction]


def _alike(calls: Sequence[Recorded], steps: int) -> tuple[list[list[Recorded]], list[Recorded]]:
    """The calls of one way by size, those with at least one call in a step; and what is left.

    If there are many sizes, or sizes that do not come in every step, as when sequences vary in length, similar sizes
    are put together.
    """
    counts: Counter[int] = Counter()
    for call in calls:
        counts[call.bytes] += call.count
    regular = {size for size, count in counts.items() if count >= steps}
    exact: dict[int, list[Recorded]] = defaultdict(list)
    similar: dict[int, list[Recorded]] = defaultdict(list)
    for call in calls:
        if call.bytes in regular and len(regular) <= MOST_SIZES:
            exact[call.bytes].append(call)
        else:
            similar[call.bytes.bit_length()].append(call)
    joined: list[list[Recorded]] = [[]]
    for size in sorted(similar):
        if _calls(joined[-1]) < steps:
            joined[-1] += similar[size]
        else:
            joined.append(similar[size])
    seldom = joined.pop() if _calls(joined[-1]) < steps else []
    if joined:
        joined[-1] += seldom
        seldom = []
    return [*exact.values(), *joined], seldom


def _line(way: Way, calls: Sequence[Recorded], steps: int) -> Line:
    goal, axes, _ = way
    total, count = _total(calls), round(_calls(calls) / steps)
    hidden = sum(call.hidden * call.bytes * call.count for call in calls) / total
    # A count is whole, so it is the size that is adapted: what is sent in a step stays the same.
    size = max(1, round(total / steps / count))
    sizes = {call.bytes for call in calls}
    mean = (
        f"on average; {format_amount(min(sizes), size)} to {format_amount(max(sizes), size)}" if len(sizes) > 1 else ""
    )
    title = f"{_title(way)} of {format_amount(size, size)}"
    return Line(Communication(axes, size, count, goal, title, round(hidden, 3)), formula=mean)


def _left_out(refused: Sequence[tuple[Recorded, str]]) -> tuple[LeftOut, ...]:
    """What was refused, for each kind and size of group once, most bytes first."""
    alike: dict[tuple[str, int, str], list[Recorded]] = defaultdict(list)
    for call, reason in refused:
        alike[call.kind, len(call.ranks), reason].append(call)
    found = [
        LeftOut(
            max(calls, key=lambda call: call.bytes), len({(call.ranks, call.to) for call in calls}), _total(calls), why
        )
        for (_, _, why), calls in alike.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.bytes))
