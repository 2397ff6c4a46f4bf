"""The tally: how often the collectives of this rank were carried out by a plan's programs, and how often natively."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshwright.text.units import format_amount, format_seconds, format_size

MOST_ROWS = 40
"""The most rows of the table: those with the most bytes. The rest is one more row."""

Kind = tuple[str, str, int, bool]  # the group, the collective, the bytes of a call, and whether by a program


@dataclass(slots=True)
class Sum:
    """Calls of a size: how many; of how many the time was taken; for how many these stand, and the seconds of so many.

    `calls += 1` needs no lock: the interpreter changes threads only where a function is called, or jumps back.
    """

    size: int
    calls: int = 0
    timed: int = 0
    standing: int = 0
    seconds: float = 0.0


Gain = Callable[[str, str, int], float | None]
"""How many times as fast as the library's own collective calls of a group, a collective and a size were measured to
be when they were tuned; None if they were not."""


class Tally:
    """Counts calls by kind."""

    def __init__(self) -> None:
        """Nothing is counted yet."""
        self.sums: dict[Kind, Sum] = {}
        self._lock = threading.Lock()  # calls end on several threads

    def sum_of(self, group: str, collective: str, size: int, planned: bool) -> Sum:
        """Where calls of a kind are counted."""
        with self._lock:
            return self.sums.setdefault((group, collective, size, planned), Sum(size))

    def ended(self, found: Sum, seconds: float, standing: int = 1) -> None:
        """Add the time of a call, which stands for so many."""
        with self._lock:
            found.timed += 1
            found.standing += standing
            found.seconds += seconds * standing

    def table(self, gain: Gain = lambda *_: None) -> str:
        """What was counted, most bytes first; empty where nothing was. What was tuned has its measured gain."""
        ordered = sorted(self.sums.items(), key=lambda item: -item[1].calls * item[1].size)
        rows = [
            [
                *(group, collective, format_size(size), "plan" if planned else "library", *_cells([found])),
                _times(gain(group, collective, size)),
            ]
            for (group, collective, size, planned), found in ordered[:MOST_ROWS]
        ]
        if rest := [found for _, found in ordered[MOST_ROWS:]]:
            rows.append([f"{len(rest)} other kinds", "", "", "", *_cells(rest), ""])
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


def _cells(sums: Sequence[Sum]) -> list[str]:
    """Calls, bytes and time; where the time of some calls was not taken, that of the others times their share."""
    calls, sent = sum(each.calls for each in sums), sum(each.calls * each.size for each in sums)
    timed, standing = sum(each.timed for each in sums), sum(each.standing for each in sums)
    seconds = format_seconds(sum(each.seconds for each in sums) * calls / standing) if timed else "-"
    about = "about " if 0 < timed < calls else ""
    return [f"{calls:,}", format_amount(sent, sent), f"{about}{seconds}"]


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x"
