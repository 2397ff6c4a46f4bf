"""Grids of ranks: which axes the groups of a program are products of, with ranks numbered in row-major order.

Let's use a concrete example, which the comments below refer to: 8 ranks with the axes data=4,tensor=2. Rank 5 is
data 2, tensor 1. Ranks that follow each other on tensor are 1 apart, on data 2: these are the strides. The tensor
groups are 0 1, 2 3, 4 5 and 6 7; the data groups are 0 2 4 6 and 1 3 5 7.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod

from meshwright.text.spec import MAX_NAMES

Span = tuple[int, int]
"""A stride and how often it is taken: (2, 4) is 0 2 4 6."""


@lru_cache(maxsize=4096)
def spans(ranks: tuple[int, ...]) -> tuple[Span, ...] | None:
    """The fewest spans that make up a group, smallest stride first; None if the group is no part of any grid.

    >>> spans((1, 3, 5, 7)), spans((0, 1, 4, 5)), spans((0, 1, 3))
    (((2, 4),), ((1, 2), (4, 2)), None)
    """
    first, *_ = ordered = sorted(ranks)
    offsets = [rank - first for rank in ordered]
    found: list[Span] = []
    done = 1
    # In 0 1 4 5: after 0, the stride 1 leads to 1; then 0 1 is the block that the stride 4 repeats as 4 5.
    while done < len(offsets):
        block, stride, times = offsets[:done], offsets[done], 1
        while offsets[done * times : done * (times + 1)] == [stride * times + offset for offset in block]:
            times += 1
        # Strides must nest, and the group must begin at the start of each span: 1 2 is not in the grid of pairs.
        inner = prod(found[-1]) if found else 1
        if times == 1 or stride % inner or first // stride % times:
            return None
        found.append((stride, times))
        done *= times
    return tuple(found) if done == len(offsets) else None


def axis_sizes(groups: Iterable[tuple[int, ...]], world: int) -> tuple[int, ...]:
    """The sizes of the fewest axes, outermost first, that make a product of every group that can be one.

    Groups that contradict those before them are passed over.

    >>> axis_sizes([(0, 1), (0, 2, 4, 6)], 8), axis_sizes([(0, 1, 2, 3)], 8), axis_sizes([(0, 1), (0, 1, 2)], 6)
    ((4, 2), (2, 4), (3, 2))
    """
    # An axis reaches from its stride to the stride of the next axis. In the example these limits are 1, 2 and 8.
    limits = {1, world}
    for group in groups:
        needed = limits | {limit for stride, times in spans(group) or () for limit in (stride, stride * times)}
        nested = all(larger % smaller == 0 for smaller, larger in pairwise(sorted(needed)))
        if nested and max(needed) == world and len(needed) <= MAX_NAMES + 1:
            limits = needed
    return tuple(reversed([larger // smaller for smaller, larger in pairwise(sorted(limits))]))


@dataclass(frozen=True)
class Grid:
    """Ranks as points: those in order are the points of the axes in row-major order.

    >>> grid = Grid({"data": 4, "tensor": 2})
    >>> grid.axes_of((1, 3, 5, 7)), grid.axes_of((0, 1, 2, 3)), grid.neighbours(6, 0)
    (('data',), None, ('data', 1))
    """

    axes: Mapping[str, int]

    def axes_of(self, ranks: tuple[int, ...]) -> tuple[str, ...] | None:
        """The axes that a group is the product of; None if it is none."""
        found = spans(ranks)
        if found is None or max(ranks) >= prod(self.axes.values()):
            return None
        chosen: list[str] = []
        for start, times in found:
            inside = [name for name, stride in self._strides().items() if start <= stride < start * times]
            if not inside or self._strides()[inside[-1]] != start:
                return None
            if prod(self.axes[name] for name in inside) != times:
                return None
            chosen += inside
        return tuple(name for name in self.axes if name in chosen)

    def neighbours(self, rank: int, to: int) -> tuple[str, int] | None:
        """The axis along which one rank follows the other, and in which direction: 1 or -1; also around the end."""
        strides = self._strides()
        points = [[at // strides[name] % self.axes[name] for name in strides] for at in (rank, to)]
        differ = [k for k, (one, other) in enumerate(zip(*points, strict=True)) if one != other]
        if len(differ) != 1 or max(rank, to) >= prod(self.axes.values()):
            return None
        (k,) = differ
        name = list(strides)[k]
        step = points[1][k] - points[0][k]
        if abs(step) == 1:
            return name, step
        return (name, -1 if step > 0 else 1) if abs(step) == self.axes[name] - 1 else None

    def _strides(self) -> dict[str, int]:
        """The stride of each axis that is longer than 1."""
        sizes = list(self.axes.values())
        return {name: prod(sizes[k + 1 :]) for k, name in enumerate(self.axes) if sizes[k] > 1}
