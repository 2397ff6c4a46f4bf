"""Trials: a plan's reductions on made-up data, checked against the truth and timed beside the library's default.

Runners differ in how they run a reduction; what is fed to them, what must come out and how it is timed is here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from statistics import median
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import SpecError, TooLargeError
from meshwright.language.goals import Goal, Holding
from meshwright.placement.placement import Placement
from meshwright.planning.plan import Plan
from meshwright.runtime.role import part_length
from meshwright.text.units import format_amount

Array = NDArray[Any]

DTYPES = ("float32", "float64", "int32", "int64")


@dataclass(frozen=True, slots=True)
class Payload:
    """The data of one reduction: every device has whole numbers of its own, drawn by its rank, so sums are exact."""

    plan: Plan
    number: int
    length: int
    dtype: str

    @property
    def bytes(self) -> int:
        """The size of the whole."""
        return self.length * np.dtype(self.dtype).itemsize

    @property
    def goal(self) -> Goal:
        """What the reduction is to achieve."""
        return self.plan.reductions[self.number].communication.goal

    def group(self, rank: int) -> tuple[int, ...]:
        """The reduction group of a rank."""
        return _groups(self.plan.placement, self.plan.reductions[self.number].communication.axes)[rank]

    def part_length(self, rank: int) -> int:
        """How many elements a rank's part of the whole has."""
        group = self.group(rank)
        return part_length(self.length, len(group), group.index(rank))

    def end_length(self, rank: int) -> int:
        """How many elements a rank has in the end."""
        return self.part_length(rank) if self.goal.end is Holding.PART else self.length

    def given(self, rank: int) -> Array:
        """What a rank gives."""
        length = self.part_length(rank) if self.goal.start is Holding.PART else self.length
        return _drawn(self.number, rank, length, self.dtype)

    def expected(self, rank: int) -> Array | None:
        """What a rank must have in the end; None where it is left with nothing."""
        group = self.group(rank)
        if self.goal.end is Holding.ROOT and rank != group[0]:
            return None
        if self.goal.reduces:
            whole = _total(self.number, group, self.length, self.dtype)
        elif self.goal.start is Holding.PART:
            whole = np.concatenate([self.given(member) for member in group])
        else:
            whole = self.given(group[0])
        if self.goal.end is Holding.PART:
            start = group.index(rank) * part_length(self.length, len(group), 0)
            return whole[start : start + self.part_length(rank)]
        return whole


def _drawn(number: int, rank: int, length: int, dtype: str) -> Array:
    return np.random.default_rng([number, rank]).integers(-100, 100, length).astype(dtype)


@lru_cache(maxsize=4)
def _groups(placement: Placement, axes: tuple[str, ...]) -> dict[int, tuple[int, ...]]:
    """The group of each rank."""
    return {rank: group for group in placement.groups(axes) for rank in group}


@lru_cache(maxsize=1)  # the ranks of a process are checked one after another, and many of them share a group
def _total(number: int, group: tuple[int, ...], length: int, dtype: str) -> Array:
    """What the members of a group give, added up."""
    total = _drawn(number, group[0], length, dtype)
    for member in group[1:]:
        total += _drawn(number, member, length, dtype)
    total.flags.writeable = False
    return total


IN_ONE_PROCESS, INTERPRETED = 4 * 2**30, 2**30
"""The most bytes that all devices may hold where they are in this process, and where the interpreter runs them."""

EACH = 1000  # bytes that a device takes at least


def check_memory(payload: Payload, interpreted: bool = False) -> None:
    """Refuse a payload that is too much where all devices are in this process."""
    planned = payload.plan.reductions[payload.number]
    devices, group = payload.plan.placement.system.devices, payload.plan.hierarchy(planned).size
    held, most = devices * (8 * payload.length + EACH), IN_ONE_PROCESS
    if interpreted:  # results too; and each device of the group that runs has a part for each of the others
        padded = -(-payload.length // group) * group
        held, most = held + devices * 8 * payload.length + 2 * group * padded * 9, INTERPRETED
    if held > most:
        advice = "give a smaller --bytes" if payload.length > group else "run it where the devices are"
        raise TooLargeError(
            f"{devices:,} devices in this process would hold up to {format_amount(held)}, more than the "
            f"{format_amount(most)} that they may: {advice}"
        )


def payloads(plan: Plan, dtype: str, size: int | None = None) -> list[Payload]:
    """The payload of each reduction: as many bytes as planned, or as many as given."""
    width = np.dtype(dtype).itemsize
    sizes = [size if size is not None else planned.communication.bytes for planned in plan.reductions]
    for each in sizes:
        if each < width:
            raise SpecError(f"{each} bytes do not hold one {dtype}, which has {width}")
    return [Payload(plan, number, each // width, dtype) for number, each in enumerate(sizes)]


class Runner(Protocol):
    """Runs reductions on an engine with data of its own, and times them; every process has one, for its own ranks."""

    name: str  # of the engine
    ranks: Sequence[int]  # of this process

    def load(self, plan: Plan) -> None:
        """Make ready to run a plan's reductions, instead of those of the plan before."""

    def prepare(self, payload: Payload) -> None:
        """Make ready to run a reduction with a payload."""

    def run(self, default: bool, alone: bool = False) -> float:
        """Run the program, or the library's own collective, in all groups or the first alone; the slowest's seconds."""

    def send(self, pairs: Sequence[tuple[int, int]]) -> float:
        """Send what is prepared from some ranks to others, all at once; the seconds of the slowest."""

    def results(self) -> list[Array | None]:
        """What the last run left each of this process's ranks with; None where it does not matter."""

    def everyone(self, faults: list[str]) -> list[str]:
        """The faults of all processes; those of this one, where there are no others."""
        return faults

    def shared(self, value: Any) -> Any:
        """What the first rank has, for everyone; the own value, where every process decides alike."""
        return value

    def close(self) -> None:
        """Give back everything."""


def program_call(reducer: Any, payload: Payload, whole: Any) -> Callable[[Any], Any]:
    """The method of a Reducer for a payload, as a function of what this rank gives; all-gathers write to `whole`."""
    method = getattr(reducer, payload.goal.replace("-", "_"))
    more = {"out": whole} if payload.goal.start is Holding.PART else {}
    return partial(method, over=payload.number, **more)


@dataclass(frozen=True, slots=True)
class Trial:
    """A reduction that was run: medians of the slowest rank's times, for the program and the default."""

    number: int
    length: int
    seconds: float
    default_seconds: float
    faults: tuple[str, ...]


def run_trials(runner: Runner, wanted: Sequence[Payload], repeat: int) -> Iterator[Trial]:
    """Run reductions one after another: each checked first, then timed in turn with the default."""
    for payload in wanted:
        runner.prepare(payload)
        faults: list[str] = []
        for default in (True, False):
            runner.run(default)
            what = "the library's own collective" if default else "the program"
            faults += [f"{what}: {fault}" for fault in check_results(runner, payload)]
        times: dict[bool, list[float]] = {False: [], True: []}
        faults = runner.everyone(faults)
        for _ in range(repeat):
            for default in (False, True):
                times[default].append(runner.run(default))
        yield Trial(payload.number, payload.length, median(times[False]), median(times[True]), tuple(faults))


def check_results(runner: Runner, payload: Payload) -> list[str]:
    """What is wrong with the results of this process's ranks after a run."""
    found = zip(runner.ranks, runner.results(), strict=True)
    return [fault for rank, result in found for fault in _faults(payload, rank, result)]


def _faults(payload: Payload, rank: int, result: Array | None) -> list[str]:
    expected = payload.expected(rank)
    if expected is None:
        return []
    if result is None or result.shape != expected.shape:
        return [f"rank {rank} has {None if result is None else result.shape}, not {expected.shape}"]
    wrong = np.flatnonzero(result != expected)
    if not wrong.size:
        return []
    at = int(wrong[0])
    count = f"{wrong.size} of {expected.size} are wrong"
    return [f"rank {rank} has {result[at]} at element {at}, but {expected[at]} is right ({count})"]
