"""Progress: a bar on stderr for what takes more than two seconds: what is done, and what is left."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

T = TypeVar("T")

PATIENCE = 2.0
"""After how many seconds the bar is shown."""


SHOWN = 100
"""After how many things that are counted the bar changes."""


class Show(Protocol):
    """Says how far something is."""

    def __call__(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """In words, and as a number of a total; a total of 1 is a share, whose end no clock can tell."""


class _Left(ProgressColumn):
    """How long the rest will take, where things are counted."""

    def render(self, task: Task) -> Text:
        left = task.time_remaining if task.total is not None and task.total > 1 else None
        return Text("" if left is None else f"about {_clock(left)} left", "progress.remaining")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def bar(console: Console, shown: bool = True) -> Progress:
    """A bar that is gone at the end. Of ranks that share a terminal, only the first shows one."""
    text = TextColumn("{task.description}", markup=False)
    first = all(os.environ.get(name, "0") == "0" for name in ("RANK", "OMPI_COMM_WORLD_RANK"))
    columns = SpinnerColumn(), text, BarColumn(20), TimeElapsedColumn(), _Left()
    return Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal and first))


@contextmanager
def progress(text: str = "searching", console: Console | None = None) -> Iterator[Show]:
    """A bar that says how far something is, and since when it runs; the text is what was given last.

    It is shown after two seconds, if stderr is a terminal, and is gone at the end.
    """
    line = bar(console or Console(stderr=True))
    task = line.add_task(text, total=None)
    timer = Timer(PATIENCE, line.start)
    timer.daemon = True
    timer.start()

    def show(text: str, done: float | None = None, total: float | None = None) -> None:
        line.update(task, description=text, completed=done, total=total)

    try:
        yield show
    finally:
        timer.cancel()
        timer.join()
        line.stop()


def counted(things: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Things one by one, with a bar that says how many there were, like "1,200 of 4,584 programs"."""
    of = "" if total is None else f" of {total:,}"
    with progress(what) as show:
        for number, thing in enumerate(things):
            if number % SHOWN == 0:
                show(f"{number:,}{of} {what}", number, total)
            yield thing


def listed(things: Iterable[T], what: str, total: int) -> Iterable[T]:
    """The same for things that are written to stdout as they come; on a terminal they are progress enough."""
    return things if sys.stdout.isatty() else counted(things, what, total)
