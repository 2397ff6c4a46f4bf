"""Where today's tools put the axes: the device orders of PyTorch, JAX and Megatron, as placements.

All of them number the points of the axes in row-major order, and differ in the order of the axes. The fastest axis is
the one whose neighbours have consecutive ranks; it comes last.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, permutations
from math import gcd, prod
from typing import Any

from meshwright.errors import SpecError
from meshwright.placement.placement import Placement
from meshwright.planning.plan import Plan, default_seconds, ratio
from meshwright.planning.planner import Planner
from meshwright.system.model import System

MEGATRON = {
    "tp": ("tensor", "tp", "model"),
    "cp": ("context", "cp", "sequence"),
    "ep": ("expert", "ep"),
    "dp": ("shard", "fsdp", "data", "dp"),
    "pp": ("pipeline", "pp", "stage"),
}
"""The axes that each name in Megatron's order string stands for. Of two axes for `dp`, shard is the faster one."""

MOST_ORDERS = 7
"""With more axes than this, not all orders are tried. Axes of size 1 do not count."""


def row_major(system: System, axes: Mapping[str, int], order: Sequence[str]) -> Placement | None:
    """The placement whose row-major order over the axes, the last one fastest, is the order of the ranks.

    None if the sizes do not line up with the level counts: then no matrix of factors gives this order. For example,
    data=16 and tensor=2 on node=4,gpu=8: tensor takes 2 of the 8 GPUs; data takes the 4 that are left there, and then
    the 4 nodes. But with tensor=3 on gpu=8, neither divides the other, and there is no such placement.

    >>> from meshwright import parse_system
    >>> row_major(parse_system("node=4,gpu=8"), {"data": 16, "tensor": 2}, ["data", "tensor"]).matrix
    ((4, 4), (1, 2))
    """
    left = list(system.counts)
    level = len(left) - 1
    rows = {}
    for axis in reversed(order):
        size, row = axes[axis], [1] * len(left)
        while size > 1:
            while left[level] == 1:
                level -= 1
            factor = gcd(size, left[level])
            if factor not in (size, left[level]):
                return None
            row[level] *= factor
            size //= factor
            left[level] //= factor
        rows[axis] = tuple(row)
    return Placement(system, tuple(order), tuple(rows[axis] for axis in order))


def megatron_order(axes: Mapping[str, int], order: str = "tp-cp-ep-dp-pp") -> list[str] | None:
    """The axes in the order that Megatron's string gives them, slowest first; None if one has no name there."""
    fastest_first = [axis for name in order.split("-") for axis in MEGATRON[name] if axis in axes]
    return fastest_first[::-1] if len(fastest_first) == len(axes) else None


def megatron_string(order: Sequence[str]) -> str | None:
    """An order of axes, slowest first, as Megatron's order string; None if there is none for it.

    >>> megatron_string(["pipeline", "data", "tensor"])
    'tp-dp-pp'
    """
    names = [next((name for name, known in MEGATRON.items() if axis in known), None) for axis in reversed(order)]
    if None in names:
        return None
    for first, second in zip(order[::-1], order[::-1][1:], strict=False):
        if first in ("data", "dp") and second in ("shard", "fsdp"):
            return None  # in Megatron's dp, shard is the faster axis
    merged = [str(name) for k, name in enumerate(names) if k == 0 or name != names[k - 1]]
    if "ep" in merged:  # Megatron wants dp beside it
        if "dp" not in merged:
            merged.insert(merged.index("ep") + 1, "dp")
        if abs(merged.index("ep") - merged.index("dp")) > 1:
            return None
    return "-".join(merged) if len(set(merged)) == len(merged) else None


def torus(system: System, axes: Mapping[str, int], order: Sequence[str]) -> Placement | None:
    """JAX's assignment on a torus: beginning with the last axis, each takes as many whole dimensions as it can.

    None if an axis is not a product of whole dimensions; JAX refuses that too.
    """
    free = list(range(len(system.levels)))
    rows: dict[str, tuple[int, ...]] = {}
    for axis in reversed(order):
        options = [
            chosen
            for many in range(3, 0, -1)
            for chosen in combinations(free, many)
            if prod(system.counts[level] for level in chosen) == axes[axis]
        ]
        chosen = options[0] if options else ()
        if not options and axes[axis] > 1:
            return None
        free = [level for level in free if level not in chosen]
        rows[axis] = tuple(count if level in chosen else 1 for level, count in enumerate(system.counts))
    if any(system.counts[level] > 1 for level in free):
        return None
    return Placement(system, tuple(order), tuple(rows[axis] for axis in order))


@dataclass(frozen=True)
class Habit:
    """What one of today's tools does: its placement with the predicted times, or why it has none."""

    name: str
    plan: Plan | None
    missing: str = ""

    def document(self, best: Plan) -> dict[str, Any]:
        """As plain data, beside the best plan."""
        found: dict[str, Any] = {"name": self.name, "missing": self.missing}
        if self.plan is not None:
            found |= {
                "placement": self.plan.placement.document(),
                "default_seconds": self.plan.default_seconds,
                "seconds": self.plan.seconds,
                "gain": gain(self, best),
            }
        return found


def habits(planner: Planner) -> list[Habit]:
    """The placements that today's tools give a planner's axes; also those of the best and the worst order of axes."""
    system, axes = planner.system, planner.axes
    given = list(axes)
    unaligned = "the sizes do not line up with the levels"
    rings = all(level.link.fabric.neighbours_only for level in system.levels if level.count > 1)  # a torus: TPUs
    jax = torus(system, axes, given) if rings else row_major(system, axes, given)
    megatron = megatron_order(axes)
    rows = [
        ("PyTorch init_device_mesh, axes as given", row_major(system, axes, given), unaligned),
        ("JAX make_mesh, axes as given", jax, "an axis is no product of whole dimensions" if rings else unaligned),
        (
            "Megatron order tp-cp-ep-dp-pp",
            row_major(system, axes, megatron) if megatron else None,
            unaligned if megatron else "an axis has no name in it",
        ),
    ]
    found = [Habit(name, planner.plan(at) if at else None, "" if at else why) for name, at, why in rows]
    if sum(size > 1 for size in axes.values()) > MOST_ORDERS:
        return [*found, Habit("all orders", None, f"more than {MOST_ORDERS} axes")]
    orders = [(order, at) for order in _orders(axes) if (at := row_major(system, axes, order)) is not None]
    if not orders:
        return [*found, Habit("all orders", None, "no order lines up with the levels")]
    plans = [(planner.plan(at), order) for order, at in orders]
    for what, choose in (("best", min), ("worst", max)):
        plan, order = choose(plans, key=lambda entry: entry[0].default_seconds)
        found.append(Habit(f"{what} of {len(orders)} orders that line up: {', '.join(order)}", plan))
    return found


def _orders(axes: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
    """All orders of the axes in which those of size 1 stay where they are."""
    for order in permutations([axis for axis, size in axes.items() if size > 1]):
        moved = iter(order)
        yield tuple(next(moved) if size > 1 else axis for axis, size in axes.items())


def order_giving(placement: Placement) -> tuple[str, ...] | None:
    """The order of the axes, slowest first, whose row-major layout is the placement; None if there is none.

    Axes that share a level may change places inside it, unless it is a ring: that costs nothing on a switch or a bus.
    """
    axes = placement.sizes
    rows = dict(zip(placement.axes, placement.matrix, strict=True))
    if sum(size > 1 for size in axes.values()) > MOST_ORDERS:
        return None
    for order in [placement.axes] if placement.system.order_matters else _orders(axes):
        at = row_major(placement.system, axes, order)
        if at is not None and dict(zip(at.axes, at.matrix, strict=True)) == rows:
            return order
    return None


def gain(habit: Habit, best: Plan) -> float:
    """How much faster the best plan is than a habit with the library's own collectives."""
    if habit.plan is None:
        raise SpecError(f"{habit.name} has no placement: {habit.missing}")
    return ratio(habit.plan.default_seconds, best.seconds)


@dataclass(frozen=True)
class MeshAlone:
    """What the best plan's mesh brings to who runs the library's own collectives on it.

    seconds: their time. as_given: their time where the ranks are in the order of the axes as given; None where the
    sizes do not line up with the levels, or the library cannot do that. best: the number of the candidate, from 1, on
    which they are fastest.
    """

    seconds: float
    as_given: float | None
    best: int
    best_seconds: float

    def document(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "seconds": self.seconds,
            "as_given_seconds": self.as_given,
            "best_candidate": self.best,
            "best_seconds": self.best_seconds,
        }


def mesh_alone(plans: Sequence[Plan], axes: Mapping[str, int]) -> MeshAlone:
    """What the mesh of the first of some plans brings alone."""
    first = plans[0]
    at = row_major(first.placement.system, axes, list(axes))
    best = min(range(len(plans)), key=lambda number: plans[number].default_seconds)
    if plans[best].default_seconds > 0.995 * first.default_seconds:
        best = 0
    given = None
    with suppress(SpecError):  # the library may have no algorithm for the groups there
        given = None if at is None else default_seconds(first, at)
    return MeshAlone(first.default_seconds, given, best + 1, plans[best].default_seconds)
