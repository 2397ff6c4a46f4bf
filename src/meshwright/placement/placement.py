"""Placements: how the parallelism axes are split over the levels of a system, as a matrix of factors.

Let's use a concrete example, which the comments below refer to: 2 nodes of 4 GPUs, the axes data=2 and shard=4, and

             node  gpu
    data        1    2        a data group is 2 GPUs of one node
    shard       2    2        a shard group is 2 nodes with 2 GPUs in each

Where is device 6? It is GPU 2 of node 1. The column of a level splits the position there into digits, one per axis:
node 1 is (data 0, shard 1), as the column is (1, 2); GPU 2 is (data 1, shard 0), as the column is (2, 2). The row of an
axis joins its digits: data has (0, 1), which is 1; shard has (1, 0), which is 2. So device 6 is data 1, shard 2.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import PlacementError, SpecError, TooLargeError
from meshwright.placement.hierarchy import digits_of, number_of
from meshwright.placement.matrices import Matrix, count_matrices, matrices
from meshwright.system.model import System
from meshwright.system.read import as_system
from meshwright.text.spec import (
    as_tuple,
    check_count,
    check_names,
    check_type,
    parse_counts,
    shown,
    unknown,
)

AXES_EXAMPLE = "data=4,shard=16"

MAX_DEVICES = 2**26
"""The groups of systems with more devices are not listed."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A parallelism matrix: a row per axis, a column per level, in each cell a factor.

    The factors of a row multiply to the axis's size, those of a column to the level's count. A column splits a device's
    position in that level into a digit per axis, the first axis most significant. An axis's digits over all levels, the
    outermost most significant, are the device's coordinate on that axis. So every device has its own coordinates.

    >>> from meshwright import parse_system
    >>> placement = Placement(parse_system("node=2,gpu=4"), ("data", "shard"), ((2, 1), (1, 4)))
    >>> placement.coordinates(6)
    {'data': 1, 'shard': 2}
    >>> placement.rank({"data": 1, "shard": 2})
    6
    >>> placement.groups(["data"])
    ((0, 4), (1, 5), (2, 6), (3, 7))
    """

    system: System
    axes: tuple[str, ...]
    matrix: Matrix

    def __post_init__(self) -> None:
        check_type(self.system, System, "a System; load_system makes one from text")
        object.__setattr__(self, "axes", as_tuple(self.axes, object, "axes"))
        rows = [as_tuple(row, object, "factors") for row in as_tuple(self.matrix, object, "rows of factors")]
        object.__setattr__(self, "matrix", tuple(tuple(map(_whole, row)) for row in rows))
        check_names(self.axes, "axes", AXES_EXAMPLE)
        counts = self.system.counts
        if not self.axes:
            raise PlacementError(f"a placement needs at least one axis, as in {AXES_EXAMPLE!r}")
        if len(self.matrix) != len(self.axes):
            raise PlacementError(
                f"the matrix has {len(self.matrix)} rows, one is needed for each of the {len(self.axes)} axes "
                f"{', '.join(self.axes)}"
            )
        for axis, row in zip(self.axes, self.matrix, strict=True):
            if len(row) != len(counts):
                raise PlacementError(
                    f"row {shown(list(row))} of axis {axis!r} has {len(row)} factors, one is needed for each of the "
                    f"{len(counts)} levels {', '.join(level.name for level in self.system.levels)}"
                )
            if any(type(factor) is not int or factor < 1 for factor in row):
                raise PlacementError(f"row {shown(list(row))} of axis {axis!r} must hold positive whole numbers")
        for level, column in zip(self.system.levels, zip(*self.matrix, strict=True), strict=True):
            if prod(column) != level.count:
                raise PlacementError(
                    f"the factors {shown(list(column))} of level {level.name!r} multiply to {shown(prod(column))}, "
                    f"but the level has {level.count}"
                )

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis."""
        return {axis: prod(row) for axis, row in zip(self.axes, self.matrix, strict=True)}

    def coordinates(self, rank: int) -> dict[str, int]:
        """The coordinate of a device on each axis."""
        rank = _whole(rank)
        if type(rank) is not int or not 0 <= rank < self.system.devices:
            raise PlacementError(
                f"there is no device {shown(rank)}: the system has devices 0 to {self.system.devices - 1}"
            )
        positions = digits_of(rank, self.system.counts)
        columns = zip(*self.matrix, strict=True)
        digits = [digits_of(p, column) for p, column in zip(positions, columns, strict=True)]
        return {
            axis: number_of([at_level[i] for at_level in digits], self.matrix[i]) for i, axis in enumerate(self.axes)
        }

    def rank(self, coordinates: Mapping[str, int]) -> int:
        """The device at the given coordinates, one for each axis."""
        if not isinstance(coordinates, Mapping) or set(coordinates) != set(self.axes):
            raise PlacementError(
                f"coordinates {shown(coordinates)} must name each of the axes {', '.join(self.axes)} once"
            )
        coordinates = {axis: _whole(coordinate) for axis, coordinate in coordinates.items()}
        for axis, size in self.sizes.items():
            if type(coordinates[axis]) is not int or not 0 <= coordinates[axis] < size:
                raise PlacementError(f"axis {axis!r} has coordinates 0 to {size - 1}, not {shown(coordinates[axis])}")
        digits = [digits_of(coordinates[axis], row) for axis, row in zip(self.axes, self.matrix, strict=True)]
        columns = zip(*self.matrix, strict=True)
        positions = [number_of([d[j] for d in digits], column) for j, column in enumerate(columns)]
        return number_of(positions, self.system.counts)

    def groups(self, axes: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """The groups of devices that differ on the given axes only, each in rank order."""
        chosen = self.rows(axes)
        size = prod(prod(self.matrix[row]) for row in chosen)
        # In the example, the mesh is 0 1 4 5 over 2 3 6 7, so the groups of data are its columns: 0 2, 1 3, 4 6, 5 7.
        ranks = np.sort(np.moveaxis(self.mesh(), chosen, range(-len(chosen), 0)).reshape(-1, size), axis=1)
        return tuple(map(tuple, ranks[ranks[:, 0].argsort()].tolist()))

    def mesh(self) -> NDArray[np.int64]:
        """The devices as an array with an array axis per parallelism axis: what a mesh of PyTorch or JAX is made of.

        >>> from meshwright import parse_system
        >>> Placement(parse_system("node=2,gpu=4"), ("data", "shard"), ((1, 2), (2, 2))).mesh().tolist()
        [[0, 1, 4, 5], [2, 3, 6, 7]]
        """
        return self.factor_mesh().reshape([prod(row) for row in self.matrix])

    def factors(self, axes: Iterable[str] | None = None) -> dict[str, int]:
        """The factors that are not 1, named `AXIS_LEVEL`: of the given axes, or of all; for each axis outermost first.

        >>> from meshwright import parse_system
        >>> Placement(parse_system("node=2,gpu=4"), ("data", "shard"), ((1, 2), (2, 2))).factors()
        {'data_gpu': 2, 'shard_node': 2, 'shard_gpu': 2}
        """
        chosen = range(len(self.axes)) if axes is None else self.rows(axes)
        named: dict[str, tuple[str, str]] = {}
        factors: list[dict[str, int]] = [{} for _ in self.axes]
        for row, axis in enumerate(self.axes):
            for level, factor in zip(self.system.levels, self.matrix[row], strict=True):
                name = f"{axis}_{level.name}"
                if factor > 1 and name in named:  # axis a on level b_c, and axis a_b on level c
                    raise PlacementError(
                        f"axis {named[name][0]!r} on level {named[name][1]!r} and axis {axis!r} on level "
                        f"{level.name!r} would both be called {name!r}: rename one of them"
                    )
                if factor > 1:
                    named[name] = axis, level.name
                    factors[row][name] = factor
        return {name: factor for row in chosen for name, factor in factors[row].items()}

    def factor_mesh(self) -> NDArray[np.int64]:
        """The devices as an array with an array axis per factor of `factors()`.

        In the example: the ranks in order have the array axes shard on node, data on gpu, shard on gpu; the result has
        data on gpu, shard on node, shard on gpu.
        """
        if self.system.devices > MAX_DEVICES:
            raise TooLargeError(f"{self.system.devices:,} devices are too many to list; {MAX_DEVICES:,} are not")
        columns = enumerate(zip(*self.matrix, strict=True))
        cells = [(row, level) for level, column in columns for row, factor in enumerate(column) if factor > 1]
        by_level = np.arange(self.system.devices).reshape([self.matrix[row][level] for row, level in cells])
        return by_level.transpose(sorted(range(len(cells)), key=cells.__getitem__)).copy()

    def rows(self, axes: Iterable[str]) -> list[int]:
        """The rows of some axes, each named once."""
        if isinstance(axes, str):
            raise PlacementError(f"expected a list of axes, as in [{shown(axes)}], not the text {shown(axes)}")
        names = as_tuple(axes, str, "axes")
        for axis in names:
            if axis not in self.axes:
                raise PlacementError(unknown("axis", axis, self.axes))
            if names.count(axis) > 1:
                raise PlacementError(
                    f"axis {axis!r} is named {names.count(axis)} times among {shown(', '.join(names))}"
                )
        return [self.axes.index(axis) for axis in names]

    def document(self) -> dict[str, Any]:
        """As plain data: the axes with their sizes, and the matrix, with a row for each of them.

        >>> from meshwright import parse_system
        >>> Placement(parse_system("node=2,gpu=4"), ("data", "shard"), ((1, 2), (2, 2))).document()
        {'axes': {'data': 2, 'shard': 4}, 'matrix': [[1, 2], [2, 2]]}
        """
        return {"axes": self.sizes, "matrix": [list(row) for row in self.matrix]}

    def __str__(self) -> str:
        """The matrix with the names of axes and levels, and for each axis where its groups are, in words."""
        levels = self.system.levels
        head = ["axis", "size", *(f"{level.name} {level.count}" for level in levels), "a group of this axis"]
        rows = [
            [axis, str(prod(row)), *map(str, row), f"{self._where(row)}: {self._first_group(axis)}"]
            for axis, row in zip(self.axes, self.matrix, strict=True)
        ]
        widths = [max(len(line[k]) for line in [head, *rows]) for k in range(len(head))]
        lines = []
        for line in [head, *rows]:
            numbers = [text.rjust(width) for text, width in zip(line[1:-1], widths[1:-1], strict=True)]
            lines.append("  ".join([line[0].ljust(widths[0]), *numbers, line[-1]]))
        return "\n".join(lines)

    def _where(self, row: Sequence[int]) -> str:
        names = [level.name for level in self.system.levels]
        spanned = [j for j, factor in enumerate(row) if factor > 1]
        if not spanned:
            return "a single device"
        where = " x ".join(f"{row[j]} {names[j]}s" for j in spanned)
        return f"{where} inside one {names[spanned[0] - 1]}" if spanned[0] > 0 else where

    def _first_group(self, axis: str) -> str:
        origin = dict.fromkeys(self.axes, 0)
        size = self.sizes[axis]
        ranks = [str(self.rank(origin | {axis: k})) for k in range(min(size, 4))]
        return f"{' '.join(ranks)}{' …' if size > 4 else ''}"


def _whole(number: Any) -> Any:
    """A NumPy integer as an int. Everything else stays as it is, to be checked later."""
    return int(number) if isinstance(number, np.integer) else number


def parse_axes(text: str) -> dict[str, int]:
    """Axes and their sizes from `NAME=SIZE,…`.

    >>> parse_axes("data=4,shard=16")
    {'data': 4, 'shard': 16}
    """
    return dict(parse_counts(text, "axes", AXES_EXAMPLE))


def placements(system: System | str | PathLike[str], axes: Mapping[str, int]) -> Iterator[Placement]:
    """Every placement of the axes on the system: lazily, without duplicates, in a fixed order.

    Matrices are ordered row by row, and those with larger outer factors come first. So the first placement has the
    first axis on the outermost levels.

    >>> from meshwright import parse_system
    >>> [p.matrix for p in placements(parse_system("node=4,gpu=16"), {"data": 4, "shard": 16})]
    [((4, 1), (1, 16)), ((2, 2), (2, 8)), ((1, 4), (4, 4))]
    """
    system = as_system(system)
    check_fit(system, axes)
    return _placements(system, axes)


def _placements(system: System, axes: Mapping[str, int]) -> Iterator[Placement]:
    names = tuple(axes)
    # The matrices are right by construction, and checking one takes longer than making it: skip Placement.__init__.
    new, put = object.__new__, object.__setattr__
    for matrix in matrices(tuple(axes.values()), system.counts):
        placement = new(Placement)
        put(placement, "system", system)
        put(placement, "axes", names)
        put(placement, "matrix", matrix)
        yield placement


def check_fit(system: System, axes: Mapping[str, int]) -> None:
    """Refuse axes whose sizes do not multiply to the number of devices."""
    check_type(axes, Mapping, "axes with their sizes, like {'data': 4, 'shard': 16}; parse_axes makes them from text")
    if not axes:
        raise SpecError(f"at least one axis is needed, as in {AXES_EXAMPLE!r}")
    check_names(list(axes), "axes", AXES_EXAMPLE)
    for axis, size in axes.items():
        check_count(size, f"axis {axis!r}", AXES_EXAMPLE)
    if prod(axes.values()) != system.devices:
        sizes = " x ".join(f"{axis}={size}" for axis, size in axes.items())
        counts = " x ".join(f"{level.name}={level.count}" for level in system.levels)
        *others, last = axes
        size, left = divmod(system.devices, prod(axes[axis] for axis in others))
        raise PlacementError(
            f"the axes {sizes} multiply to {shown(prod(axes.values()))}, but the system {counts} has {system.devices} "
            f"devices; {last}={f'{system.devices} with all other axes 1' if left else size} would fit"
        )


def count_placements(system: System | str | PathLike[str], axes: Mapping[str, int]) -> int:
    """How many placements there are, without enumerating them.

    >>> from meshwright import parse_system
    >>> count_placements(parse_system("rack=4,node=8,gpu=32"), {"data": 8, "shard": 8, "tensor": 16})
    49
    """
    system = as_system(system)
    check_fit(system, axes)
    return count_matrices(tuple(axes.values()), system.counts)
