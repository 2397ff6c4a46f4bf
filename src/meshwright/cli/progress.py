"""Progress: a line on stderr for what takes more than two seconds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

PATIENCE = 2.0
"""After how many seconds the line is shown."""


@contextmanager
def progress(console: Console | None = None) -> Iterator[Callable[[str], None]]:
    """A line that says how far something is, and since when it runs; the text is what was given last.

    It is shown after two seconds, if stderr is a terminal, and is gone at the end.
    """
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    console = console or Console(stderr=True)
    line = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = line.add_task("searching", total=None)
    timer = Timer(PATIENCE, line.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda text: line.update(task, description=text)
    finally:
        timer.cancel()
        timer.join()
        line.stop()
