"""A placement drawn for a terminal: every device as its coordinate on each axis, in the colour of that coordinate."""

from dataclasses import dataclass
from math import prod

from rich.text import Text

from meshwright.placement.hierarchy import digits_of
from meshwright.placement.placement import Placement

ROWS, CELLS = 8, 32
"""How many rows of devices are drawn, and how many devices in a row; of larger systems the first."""

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"

COLOURS = (75, 114, 216, 176, 222, 80, 210, 151, 183, 187, 117, 180)
"""Backgrounds, by their numbers among 256, on which black is easy to read."""


@dataclass(frozen=True)
class _Grid:
    """Which devices are drawn where: a row is an instance of the outer levels, with the devices of the inner ones.

    inner: how many levels a row has. rows: the first devices of rows. cells: how many devices of a row are drawn.
    """

    placement: Placement
    inner: int
    rows: list[int]
    cells: int

    @property
    def counts(self) -> tuple[int, ...]:
        return self.placement.system.counts

    @property
    def each(self) -> int:
        """How many devices a row has."""
        return prod(self.counts[-self.inner :])

    @property
    def labels(self) -> list[str]:
        """What each row is called, like `node 3`."""
        names = [level.name for level in self.placement.system.levels[: -self.inner]]
        outer = self.counts[: -self.inner]
        numbers = [digits_of(first // self.each, outer) if outer else () for first in self.rows]
        return [" ".join(f"{name} {k}" for name, k in zip(names, row, strict=True)) for row in numbers]


def drawn(placement: Placement, width: int) -> list[Text]:
    """The lines of a drawing that is at most `width` columns wide; of axes of size 1 there is nothing to see."""
    grid = _grid(placement)
    margin = max(map(len, grid.labels))
    blocks = [_block(grid, axis, width - margin - 2) for axis, size in placement.sizes.items() if size > 1]
    lines: list[Text] = []
    while blocks:
        taken = [blocks.pop(0)]
        while blocks and margin + sum(_width(block) + 2 for block in [*taken, blocks[0]]) <= width:
            taken.append(blocks.pop(0))
        for number, label in enumerate(["", *grid.labels]):
            line = Text(label.ljust(margin))
            for block in taken:
                line.append("  ")
                line.append_text(block[number])
                line.append(" " * (_width(block) - len(block[number])))
            line.rstrip()
            lines.append(line)
    return [*lines, *_left_out(grid)]


def _grid(placement: Placement) -> _Grid:
    """One level in a row, or more where there would be too many rows, as far as they have room."""
    counts = placement.system.counts
    inner = 1
    while prod(counts[:-inner]) > ROWS and prod(counts[-inner - 1 :]) <= CELLS:
        inner += 1
    each = prod(counts[-inner:])
    rows = [number * each for number in range(min(ROWS, placement.system.devices // each))]
    return _Grid(placement, inner, rows, min(CELLS, each))


def _block(grid: _Grid, axis: str, width: int) -> list[Text]:
    """One axis: its name, and for each row the coordinates of its devices."""
    size = grid.placement.sizes[axis]
    short = size <= len(DIGITS)
    cell = 1 if short else len(str(size - 1)) + 1
    shown = min(grid.cells, max(1, (width - 2) // cell)) if grid.cells * cell > width - 2 else grid.cells
    innermost = grid.counts[-1]
    lines = [Text(f"{axis}={size}", style="bold")]
    for first in grid.rows:
        line = Text()
        for k in range(shown):
            if k and k % innermost == 0:
                line.append(" ")
            coordinate = grid.placement.coordinates(first + k)[axis]
            text = DIGITS[coordinate] if short else str(coordinate).rjust(cell - 1)
            line.append(text, style=f"black on color({COLOURS[coordinate % len(COLOURS)]})")
            if not short:
                line.append(" ")
        if shown < grid.each:
            line.append("…")
        lines.append(line)
    return lines


def _width(block: list[Text]) -> int:
    return max(map(len, block))


def _left_out(grid: _Grid) -> list[Text]:
    """What is not drawn, in words."""
    devices = grid.placement.system.devices
    rows = devices // grid.each - len(grid.rows)
    return [Text(f"… and {rows:,} more rows like these, {devices:,} devices in all")] if rows else []
