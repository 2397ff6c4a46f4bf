"""Choosing the sizes of the axes too: every way to multiply to the devices that the model and the constraints allow."""

from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import attrgetter
from typing import Any

from meshwright.cost.library import Library
from meshwright.errors import PlacementError, SpecError, TooLargeError
from meshwright.language.program import Collective
from meshwright.language.synthesis import MAX_STEPS
from meshwright.placement.layout import check_links
from meshwright.placement.placement import AXES_EXAMPLE
from meshwright.planning.constraints import Constraint, ConstraintRule, check_constraint
from meshwright.planning.planner import DEFAULT_CHUNKS, Planner, library_for
from meshwright.planning.ranking import Ranking
from meshwright.system.model import System
from meshwright.text.spec import check_names
from meshwright.text.units import format_amount
from meshwright.workload.llm import check_axes
from meshwright.workload.read import WorkloadFile
from meshwright.workload.workload import Workload

MAX_SIZES = 20_000
"""More ways to choose the sizes than this are not tried."""


@dataclass(frozen=True)
class Choice:
    """Axis sizes, what the workload is with them, and the best plans for it."""

    workload: Workload
    ranking: Ranking

    @property
    def seconds(self) -> float:
        """What is compared: communication that is not hidden, and computing where it is known."""
        return self.ranking.candidates[0].seconds + (self.workload.compute or 0.0)


@dataclass(frozen=True)
class Choices:
    """The choices, the fastest first; how many were tried of how many, and why some of these were refused."""

    best: tuple[Choice, ...]
    tried: int
    ways: int
    refused: Mapping[str, int]

    @property
    def interrupted(self) -> bool:
        """Whether some were not tried, so that one of these may be the best."""
        return self.tried < self.ways

    def document(self, top: int) -> dict[str, Any]:
        """The `top` best as plain data."""
        return {
            "tried": self.tried,
            "ways": self.ways,
            "refused": dict(self.refused),
            "best": [
                {"axes": dict(c.workload.axes), "seconds": c.seconds, "memory_bytes": c.workload.memory}
                for c in self.best[:top]
            ],
        }


def with_devices(system: System, devices: int) -> System:
    """The same system with another number of devices: its outermost level gets the count that makes it so."""
    inner = system.devices // system.levels[0].count
    if devices < 1 or devices % inner:
        raise SpecError(
            f"the system {system.name!r} has {inner} devices in each {system.levels[0].name}, so it cannot have "
            f"{devices}: expected a multiple of {inner}"
        )
    count = devices // inner
    first = system.levels[0]
    name = f"{system.name.partition(':')[0]}:{count}"
    if "=" in system.name:
        name = system.name.replace(f"{first.name}={first.count}", f"{first.name}={count}", 1)
    return replace(system.with_outermost(count), name=name)


def check_memory(workload: Workload) -> None:
    """Refuse a workload that needs more memory than a device has."""
    if workload.memory is not None and workload.device_memory is not None and workload.memory > workload.device_memory:
        limit = workload.device_memory
        needed, there = (format_amount(size, limit) for size in (workload.memory, limit))
        raise PlacementError(
            f"{workload.name} needs {needed} on each device, which has {there}: no placement changes that, but larger "
            "shard, tensor or pipeline axes do"
        )


def fixed_sizes(file: WorkloadFile, free: Sequence[str], axes: Mapping[str, int]) -> dict[str, int]:
    """The sizes of the axes that are not to be chosen: those that are given, or else those of the workload."""
    return dict(axes) or {axis: size for axis, size in file.axes.items() if axis not in free}


def choose_sizes(
    system: System,
    file: WorkloadFile,
    free: Sequence[str],
    fixed: Mapping[str, int],
    *,
    library: Library | str | None = None,
    constraints: Sequence[Constraint] = (),
    top: int = 10,
    max_steps: int = MAX_STEPS,
    collectives: Collection[Collective | str] = tuple(Collective),
    max_chunks: int = DEFAULT_CHUNKS,
    placement_only: bool = False,
    watch: Callable[[Choices], object] = lambda _: None,
) -> Choices:
    """The best sizes of the `free` axes; the others are `fixed`.

    `watch` is called now and then with what was tried so far; it may raise an exception to end the search.
    """
    _check_choice(system, file, free, fixed, constraints)
    settings = library_for(system, library), max_steps, collectives, max_chunks, placement_only
    ways = list(_ways(system.devices // prod(fixed.values()), len(free)))
    refused: Counter[str] = Counter()
    found: list[Choice] = []  # the fastest first
    for number, sizes in enumerate(ways):
        watch(Choices(tuple(found[:top]), number, len(ways), Counter(refused)))
        axes = {**fixed, **dict(zip(free, sizes, strict=True))}
        try:
            workload = file.workload(axes)
            check_memory(workload)
            planner = Planner(system, axes, workload.communications, *settings)
            insort(found, Choice(workload, planner.best(top, constraints)), key=attrgetter("seconds"))
        except TooLargeError:
            raise
        except (SpecError, PlacementError) as error:
            refused[_reason(str(error))] += 1
    if not found:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in refused.most_common())
        raise PlacementError(f"none of {len(ways)} ways to choose {', '.join(free)} can be had: {reasons}")
    first = found[0]
    planner = Planner(system, first.workload.axes, first.workload.communications, *settings)
    if not placement_only:
        found[0] = replace(first, ranking=planner.with_ranges(first.ranking))
    return Choices(tuple(found), len(ways), len(ways), refused)


def _check_choice(
    system: System,
    file: WorkloadFile,
    free: Sequence[str],
    fixed: Mapping[str, int],
    constraints: Sequence[Constraint],
) -> None:
    """Refuse a choice that has no meaning, or for which there are no sizes at all."""
    if file.model is None:
        raise SpecError(
            f"the workload {file.name!r} lists its communications, for one choice of sizes: to choose them it must "
            "describe its model"
        )
    for axis in free:
        if axis in fixed:
            raise SpecError(f"{axis} is given ({fixed[axis]}) and to be chosen: one or the other")
    check_names([*fixed, *free], "axes", AXES_EXAMPLE)
    check_axes((*fixed, *free))
    check_links(system)
    for constraint in constraints:
        check_constraint(constraint, system, (*fixed, *free))
        if constraint.rule is ConstraintRule.ROW and constraint.axis in free:
            raise SpecError(f"{constraint} fixes the size of {constraint.axis}, which is to be chosen")
    if not free or system.devices % prod(fixed.values()):
        raise PlacementError(
            f"{system.devices} devices cannot be split over {', '.join(free) or 'no axes'} when the others multiply to "
            f"{prod(fixed.values())}"
        )


def _reason(message: str) -> str:
    """The kind of a refusal: what differs from one choice of sizes to the next is left out."""
    for sign, reason in (
        ("on each device, which has", "more memory than a device has"),
        ("global batch", "the global batch cannot be split evenly"),
        ("evenly", "layers, heads, tokens or experts cannot be cut evenly"),
    ):
        if sign in message:
            return reason
    if message.startswith("--"):
        return message.partition(" leaves no")[0].partition(" contradict")[0]
    return message


def _ways(product: int, count: int) -> Iterator[tuple[int, ...]]:
    """All tuples of `count` positive numbers with the given product."""
    divisors = [d for d in range(1, int(product**0.5) + 1) if product % d == 0]
    divisors = sorted({*divisors, *(product // d for d in divisors)})

    def choose(left: int, many: int) -> Iterator[tuple[int, ...]]:
        if many == 1:
            yield (left,)
            return
        for d in divisors:
            if left % d == 0:
                for rest in choose(left // d, many - 1):
                    yield (d, *rest)

    for number, way in enumerate(choose(product, count)):
        if number >= MAX_SIZES:
            raise TooLargeError(
                f"there are more than {MAX_SIZES:,} ways to choose {count} sizes that multiply to {product:,}; fix some"
            )
        yield way
