"""What the verbs share: options, argument types and output."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

from meshwright.cost.library import library_names
from meshwright.errors import SpecError
from meshwright.language.goals import PROGRAM_GOALS, Goal
from meshwright.language.program import ROOTED, Collective
from meshwright.language.synthesis import MAX_STEPS
from meshwright.placement.hierarchy import HIERARCHY_EXAMPLE, Hierarchy, parse_hierarchy
from meshwright.planning.planner import DEFAULT_LIBRARY
from meshwright.text.spec import parse_counts
from meshwright.text.units import parse_seconds

Command = TypeVar("Command", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout instead of a table.")

system_option = click.option(
    "--system",
    "system_spec",
    required=True,
    metavar="SYSTEM",
    help="A preset (see `meshwright systems`; PRESET:N sets the outermost count), the path of a .yaml file, or a "
    "description like node=4@8GB/s,gpu=16@270GB/s: NAME=COUNT[@BANDWIDTH[+LATENCY]], outermost first.",
)

axes_option = click.option(
    "--axes",
    "axes_spec",
    required=True,
    metavar="AXES",
    help="The parallelism axes and their sizes, like data=4,shard=16.",
)

hierarchy_option = click.option(
    "--hierarchy",
    "hierarchy_spec",
    required=True,
    metavar="HIERARCHY",
    help="The levels of the reduction group and their radices, outermost first, like node=4,gpu=16.",
)

goal_option = click.option(
    "--goal",
    type=click.Choice([str(goal) for goal in PROGRAM_GOALS]),
    default=str(Goal.ALL_REDUCE),
    show_default=True,
    help="What the program is to achieve.",
)

count_option = click.option("--count", "count_only", is_flag=True, help="Only count them, without enumerating.")

library_option = click.option(
    "--library",
    default=DEFAULT_LIBRARY,
    show_default=True,
    metavar="LIBRARY",
    help=f"Whose collectives run: {', '.join(library_names())}, or the path of a .yaml file.",
)

no_rooted_option = click.option(
    "--no-rooted", is_flag=True, help="Without Reduce and Broadcast, which some engines lack."
)

max_steps_option = click.option(
    "--max-steps",
    type=click.IntRange(min=1, max=20),
    default=MAX_STEPS,
    show_default=True,
    help="The longest programs to consider.",
)


plan_argument = click.argument("plan_path", metavar="PLAN", type=click.Path(dir_okay=False, path_type=Path))


def out_option(text: str, name: str = "--out", required: bool = False) -> Callable[[Command], Command]:
    """A file that a verb writes; the text says what."""
    return click.option(name, type=click.Path(dir_okay=False, path_type=Path), required=required, help=text)


def placement_option(name: str, multiple: bool = False) -> Callable[[Command], Command]:
    """Placements that a verb is to look at, instead of all."""
    text = 'Only this placement, like "[[4,1],[1,16]]"' + ("; may be repeated." if multiple else ".")
    return click.option("--placement", name, multiple=multiple, metavar="MATRIX", help=text)


def time_option(name: str, default: str, text: str, zero: bool = False) -> Callable[[Command], Command]:
    """A time like 60s or 1.5ms, which the verb gets in seconds; a plain number is in seconds too."""

    def seconds(_ctx: click.Context, _parameter: click.Parameter, given: str) -> float:
        found = parse_seconds(f"{given}s" if given[-1:].isdigit() else given)
        if not found and not zero:
            raise SpecError(f"{name} {given}: expected more than no time")
        return found

    return click.option(name, default=default, show_default=True, metavar="TIME", callback=seconds, help=text)


def collectives(no_rooted: bool) -> list[Collective]:
    """What programs may be made of, as `no_rooted_option` says."""
    return [collective for collective in Collective if not (no_rooted and collective in ROOTED)]


def given_hierarchy(spec: str) -> Hierarchy:
    """A hierarchy from the command line; says so when levels of radix 1 are left out."""
    for name, radix in parse_counts(spec, "hierarchy", HIERARCHY_EXAMPLE):
        if radix == 1:
            say(f"note: {name} has radix 1, so there is nothing to reduce over it: it is left out")
    return parse_hierarchy(spec)


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


def say(message: str) -> None:
    """Tell the person something that is not the result."""
    click.echo(message, err=True)


def print_table(table: Table) -> None:
    """Write a table for people; nothing is cut off, so it may be wider than the terminal."""
    # Open MPI gives ranks a terminal whether or not there is one at the other end, so they write plain text.
    rank_of_mpi = "OMPI_COMM_WORLD_RANK" in os.environ
    console = Console(width=10_000, markup=False, force_terminal=False if rank_of_mpi else None)
    console.print(table, width=max(console.measure(table).maximum, 1))


def new_table(*columns: str, title: str | None = None) -> Table:
    """An empty table in the house style."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold", title_style="")
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table
