"""What the verbs write: JSON and tables to stdout, all else to stderr."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import click
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

PIPED, LEAST = 100, 60
"""How many columns there are where neither a terminal nor COLUMNS says so, and the fewest that are written for."""

GAP = "  "
"""What is between two columns of a table."""


def columns(stream: TextIO | None = None) -> int:
    """How wide what people read may be: what COLUMNS says, or as wide as the terminal; stream: stdout unless given."""
    said, out = os.environ.get("COLUMNS", ""), stream or sys.stdout
    found = int(said) if said.isdecimal() else os.get_terminal_size(out.fileno()).columns if out.isatty() else 0
    return max(LEAST, found or PIPED)


def console() -> Console:
    """Where text with colours goes: stdout, without colours where that is no terminal, or where NO_COLOR is set."""
    # Open MPI gives ranks a terminal whether or not there is one at the other end, so they write plain text.
    rank_of_mpi = "OMPI_COMM_WORLD_RANK" in os.environ
    return Console(markup=False, highlight=False, emoji=False, force_terminal=False if rank_of_mpi else None)


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


def print_text(text: str) -> None:
    """Write a line for people, wrapped where it is too long; what follows is indented a little more than the line."""
    click.echo(_wrapped(text, columns()))


def print_parts(text: str) -> None:
    """Write a program, or another list of parts; where it is too long, it is broken between its parts."""
    click.echo("\n".join(wrap(text, columns())))


def print_table(titles: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a table for people; where it is too wide, its longest cells are wrapped."""
    head = list(titles)
    lines = [head, *([*map(str, row), *[""] * len(head)][: len(head)] for row in rows)]
    widths = _fitted(lines, columns())
    out = console()
    for number, line in enumerate(lines):
        cells = [wrap(cell, width) for cell, width in zip(line, widths, strict=True)]
        for k in range(max(map(len, cells))):
            parts = [cell[k] if k < len(cell) else "" for cell in cells]
            padded = [part + " " * (width - cell_len(part)) for part, width in zip(parts, widths, strict=True)]
            out.print(Text(GAP.join(padded).rstrip(), "bold" if number == 0 else ""), soft_wrap=True)


def _fitted(lines: Sequence[Sequence[str]], most: int) -> list[int]:
    """How wide each column is: as wide as its longest cell, and where that is too much together, the widest are less
    wide, but none narrower than its longest word.
    """
    cells = list(zip(*lines, strict=True))
    widths = [max(map(cell_len, column)) for column in cells]
    least = [max(cell_len(piece.rstrip()) for cell in column for piece in _pieces(cell)) for column in cells]
    while sum(widths) + len(GAP) * (len(widths) - 1) > most:
        shrinking = [k for k, width in enumerate(widths) if width > least[k]]
        if not shrinking:
            break
        widths[max(shrinking, key=widths.__getitem__)] -= 1
    return widths


def wrap(text: str, width: int) -> list[str]:
    """A cell as lines of at most this width, as far as its words allow; programs are broken between their steps.

    >>> wrap("ReduceScatter inside node; AllReduce across node; AllGather inside node", 50)
    ['ReduceScatter inside node; AllReduce across node;', 'AllGather inside node']
    >>> wrap("data=2x2,shard=2x8", 12)
    ['data=2x2,', 'shard=2x8']
    """
    lines = [""]
    indent = text[: len(text) - len(text.lstrip())]
    for step in _split(text, "; "):
        fits = cell_len((lines[-1] + step).rstrip()) <= width
        if not fits and lines[-1] and cell_len(step.rstrip()) <= width:
            lines.append(indent)
            fits = True
        for piece in [step] if fits else _pieces(step):
            if lines[-1].strip() and cell_len((lines[-1] + piece).rstrip()) > width:
                lines.append(indent)
            lines[-1] += piece
    return [line.rstrip() for line in lines]


def _pieces(text: str) -> list[str]:
    """What a text may be broken into: its words, and the parts of a list like data=2,shard=4."""
    return [piece for word in _split(text, " ") for piece in (_split(word, ",") if "=" in word else [word])]


def _split(text: str, end: str) -> list[str]:
    """The parts of a text, each with its end; spaces at the start belong to the first."""
    start = len(text) - len(text.lstrip())
    parts = [part + end for part in text[start:].split(end)]
    parts[-1] = parts[-1].removesuffix(end)
    return [text[:start] + parts[0], *(part for part in parts[1:] if part)]


def _wrapped(text: str, width: int) -> str:
    """A text as lines of words; all but the first are indented by two more columns."""
    start = text[: len(text) - len(text.lstrip())]
    lines = [start]
    for word in _split(text.strip(), " "):
        if lines[-1].strip() and cell_len((lines[-1] + word).rstrip()) > width:
            lines.append(f"{start}  ")
        lines[-1] += word
    return "\n".join(line.rstrip() for line in lines)


def say(message: str) -> None:
    """Tell the person something that is not the result; on a terminal it is wrapped between words."""
    click.echo(_wrapped(message, columns(sys.stderr)) if sys.stderr and sys.stderr.isatty() else message, err=True)


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
