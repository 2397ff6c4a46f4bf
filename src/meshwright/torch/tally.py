"""The tally: how often the collectives of this rank were carried out by a plan's programs, and how often natively."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from meshwright.text.units import format_amount, format_seconds, format_size

MOST_ROWS = 40
"""The most rows of the table: those with the most bytes. The rest is one more row."""

Kind = tuple[str, str, int, bool]  # the group, the collective, the bytes of a call, and whether by a program


@dataclass(slots=True)
class Sum:
    """Calls, their bytes, and their seconds: of those calls whose end was seen."""

    calls: int = 0
    bytes: int = 0
    timed: int = 0
    seconds: float = 0.0

    def add(self, calls: int, size: int, timed: int, seconds: float) -> None:
        """Add calls."""
        self.calls += calls
        self.bytes += size
        self.timed += timed
        self.seconds += seconds


Gain = Callable[[str, str, int], float | None]
"""How many times as fast as the library's own collective calls of a group, a collective and a size were measured to
be when they were tuned; None if they were not."""


class Tally:
    """Counts calls by kind."""

    def __init__(self) -> None:
        """Nothing is counted yet."""
        self.sums: dict[Kind, Sum] = {}
        self._lock = threading.Lock()  # calls end on several threads

    def add(self, group: str, collective: str, size: int, planned: bool, seconds: float | None) -> None:
        """Count a call; `seconds` is None where its end is not seen, as in native calls that are asynchronous."""
        kind = group, collective, size, planned
        with self._lock:
            found = self.sums.get(kind)
            if found is None:
                found = self.sums[kind] = Sum()
            found.calls += 1
            found.bytes += size
            if seconds is not None:
                found.timed += 1
                found.seconds += seconds

    def table(self, gain: Gain = lambda *_: None) -> str:
        """What was counted, most bytes first; empty where nothing was. What was tuned has its measured gain."""
        ordered = sorted(self.sums.items(), key=lambda item: -item[1].bytes)
        rows = [
            [
                *(group, collective, format_size(size), "plan" if planned else "library", *_cells(found)),
                _times(gain(group, collective, size)),
            ]
            for (group, collective, size, planned), found in ordered[:MOST_ROWS]
        ]
        if len(ordered) > MOST_ROWS:
            rest = Sum()
            for _, found in ordered[MOST_ROWS:]:
                rest.add(found.calls, found.bytes, found.timed, found.seconds)
            rows.append([f"{len(ordered) - MOST_ROWS} other kinds", "", "", "", *_cells(rest), ""])
        if not rows:
            return ""
        lines = [["group", "collective", "size", "by", "calls", "bytes", "time", "tuned gain"], *rows]
        if not any(row[-1] for row in rows):
            lines = [line[:-1] for line in lines]
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        return "".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n"
            for line in lines
        )


def _cells(found: Sum) -> list[str]:
    """Calls, bytes and time; where the end of some calls was not seen, the time of the others times their share."""
    seconds = format_seconds(found.seconds * found.calls / found.timed) if found.timed else "-"
    about = "about " if 0 < found.timed < found.calls else ""
    return [f"{found.calls:,}", format_amount(found.bytes, found.bytes), f"{about}{seconds}"]


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x"
