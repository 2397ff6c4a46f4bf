"""Progress: a line on stderr for what takes more than two seconds."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

T = TypeVar("T")

PATIENCE = 2.0
"""After how many seconds the line is shown."""


SHOWN = 100
"""After how many things that are counted the text changes."""


@contextmanager
def progress(text: str = "searching", console: Console | None = None) -> Iterator[Callable[[str], None]]:
    """A line that says how far something is, and since when it runs; the text is what was given last.

    It is shown after two seconds, if stderr is a terminal, and is gone at the end. Of ranks that share a terminal, only
    the first shows one.
    """
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    console = console or Console(stderr=True)
    first = all(os.environ.get(name, "0") == "0" for name in ("RANK", "OMPI_COMM_WORLD_RANK"))
    line = Progress(*columns, console=console, transient=True, disable=not (console.is_terminal and first))
    task = line.add_task(text, total=None)
    timer = Timer(PATIENCE, line.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda text: line.update(task, description=text)
    finally:
        timer.cancel()
        timer.join()
        line.stop()


def counted(things: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Things one by one, with a line that says how many there were, like "1,200 of 4,584 programs"."""
    of = "" if total is None else f" of {total:,}"
    with progress(what) as show:
        for number, thing in enumerate(things):
            if number % SHOWN == 0:
                show(f"{number:,}{of} {what}")
            yield thing


def listed(things: Iterable[T], what: str, total: int) -> Iterable[T]:
    """The same for things that are written to stdout as they come; on a terminal they are progress enough."""
    return things if sys.stdout.isatty() else counted(things, what, total)
