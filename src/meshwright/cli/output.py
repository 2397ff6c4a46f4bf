"""What the verbs write: JSON and tables to stdout, all else to stderr."""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.table import Table


def print_json(document: Any) -> None:
    """Write the one JSON document of a command."""
    json.dump(document, sys.stdout, allow_nan=False)
    sys.stdout.write("\n")


def print_count(count: int | None, as_json: bool) -> None:
    """Write a number that was asked for."""
    if as_json:
        print_json({"count": count})
    else:
        click.echo(count)


def print_table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a table for people; nothing is cut off, so it may be wider than the terminal."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*map(str, row))
    # Open MPI gives ranks a terminal whether or not there is one at the other end, so they write plain text.
    rank_of_mpi = "OMPI_COMM_WORLD_RANK" in os.environ
    console = Console(width=10_000, markup=False, force_terminal=False if rank_of_mpi else None)
    console.print(table, width=max(console.measure(table).maximum, 1))


def say(message: str) -> None:
    """Tell the person something that is not the result."""
    click.echo(message, err=True)


@contextmanager
def stdout_kept() -> Iterator[None]:
    """Keep stdout for the result while libraries run that write to it from C: what they say goes to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
