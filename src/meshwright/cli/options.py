"""The options and arguments that verbs share."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from meshwright.cli.output import say
from meshwright.cost.library import library_names
from meshwright.errors import SpecError
from meshwright.export.hosts import ORDERS
from meshwright.language.goals import PROGRAM_GOALS, Goal
from meshwright.language.synthesis import MAX_STEPS
from meshwright.placement.hierarchy import HIERARCHY_EXAMPLE, Hierarchy, parse_hierarchy
from meshwright.planning.planner import DEFAULT_LIBRARY
from meshwright.planning.settings import MOST_STEPS
from meshwright.system.read import preset_names
from meshwright.text.hostlist import parse_hostfile, parse_hosts
from meshwright.text.spec import parse_counts
from meshwright.text.units import parse_seconds
from meshwright.workload.read import workload_names

Command = TypeVar("Command", bound=Callable[..., Any])

FILE = click.Path(dir_okay=False, path_type=Path)

Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def offering(names: Callable[[], Iterable[str]]) -> Completion:
    """What a shell offers to complete a word with: some names, and files where none of them fits."""

    def offered(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        fitting = [CompletionItem(name) for name in names() if name.startswith(incomplete)]
        return fitting or [CompletionItem(incomplete, type="file")]

    return offered


SYSTEMS, LIBRARIES, WORKLOADS = offering(preset_names), offering(library_names), offering(workload_names)


def number(name: str, default: int, text: str, least: int = 1, most: int | None = None) -> Callable[[Command], Command]:
    """A whole number from `least` to `most`."""
    return click.option(name, type=click.IntRange(least, most), default=default, help=text)


def out(text: str, name: str = "--out", required: bool = False) -> Callable[[Command], Command]:
    """A file that a verb writes; the text says what."""
    return click.option(name, type=FILE, required=required, help=text)


def placement(name: str, multiple: bool = False) -> Callable[[Command], Command]:
    """Placements that a verb is to look at, instead of all."""
    text = "Only this placement: for each axis its factors, outermost first, like data=4x1,shard=1x16"
    text += "; may be repeated." if multiple else "."
    return click.option("--placement", name, multiple=multiple, metavar="FACTORS", help=text)


def time(name: str, default: str, text: str, zero: bool = False) -> Callable[[Command], Command]:
    """A time like 60s or 1.5ms, which the verb gets in seconds; a plain number is in seconds too."""

    def seconds(_ctx: click.Context, _parameter: click.Parameter, given: str) -> float:
        found = parse_seconds(f"{given}s" if given[-1:].isdigit() else given)
        if not found and not zero:
            raise SpecError(f"{name} {given}: expected more than no time")
        return found

    return click.option(name, default=default, metavar="TIME", callback=seconds, help=text)


json = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout instead of a table.")

plan = click.argument("plan_path", metavar="PLAN", type=FILE)

system = click.option(
    "--system",
    "system_spec",
    required=True,
    metavar="SYSTEM",
    shell_complete=SYSTEMS,
    help="A preset (see `meshwright systems`; PRESET:N sets the outermost count), the path of a .yaml file, or a "
    "description like node=4@8GB/s,gpu=16@270GB/s: NAME=COUNT[@BANDWIDTH[+LATENCY]], outermost first.",
)

_AXES = "The parallelism axes and their sizes, like data=4,shard=16."
axes = click.option("--axes", "axes_spec", required=True, metavar="AXES", help=_AXES)

_HIERARCHY = "The levels of the reduction group and their radices, outermost first, like node=4,gpu=16."
hierarchy = click.option("--hierarchy", "hierarchy_spec", required=True, metavar="HIERARCHY", help=_HIERARCHY)

_GOALS = click.Choice([str(goal) for goal in PROGRAM_GOALS])
goal = click.option("--goal", type=_GOALS, default=str(Goal.ALL_REDUCE), help="What the program is to achieve.")

count = click.option("--count", "count_only", is_flag=True, help="Only count them, without enumerating.")

_LIBRARY = f"Whose collectives run: {', '.join(library_names())}, or the path of a .yaml file."
library = click.option("--library", default=DEFAULT_LIBRARY, metavar="LIBRARY", shell_complete=LIBRARIES, help=_LIBRARY)

system_library = click.option(
    "--library",
    metavar="LIBRARY",
    shell_complete=LIBRARIES,
    help=f"{_LIBRARY} [default: that of the system, or {DEFAULT_LIBRARY}]",
)

no_rooted = click.option("--no-rooted", is_flag=True, help="Without Reduce and Broadcast, which some engines lack.")

max_steps = number("--max-steps", MAX_STEPS, "The longest programs to consider.", most=MOST_STEPS)

device = click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="For torch; the default is CUDA where all ranks have one. On a testbed, cuda means that all share one.",
)

hosts = click.option(
    "--hosts",
    "names",
    metavar="HOST,…",
    help="The hosts, in the order of the plan's system; also as Slurm and PBS write them, like n[001-004],m7 or "
    "n1/0*8+n2/0*8.",
)

hostfile = click.option(
    "--hostfile", type=FILE, help="The hosts from a file, one per line, as mpirun and PBS have them."
)

bind = click.option(
    "--bind", is_flag=True, help="In a rankfile: devices are cores, so bind each rank to the core of its number."
)

order = click.option(
    "--order",
    type=click.Choice(ORDERS),
    default="axes",
    help="How the program numbers its ranks: row by row over the axes, or like the devices, as `meshwright run` does.",
)

wrapper = out("Also write a shell script that starts a command with the GPU of its rank only.", "--wrapper")


def given_hierarchy(spec: str) -> Hierarchy:
    """A hierarchy from the command line; says so when levels of radix 1 are left out."""
    for name, radix in parse_counts(spec, "hierarchy", HIERARCHY_EXAMPLE):
        if radix == 1:
            say(f"note: {name} has radix 1, so there is nothing to reduce over it: it is left out")
    return parse_hierarchy(spec)


def given_hosts(names: str | None, hostfile: Path | None) -> tuple[str, ...]:
    """The hosts from the command line or from a file; none where neither is given."""
    if names is not None and hostfile is not None:
        raise SpecError("say where the plan is to run: either --hosts a,b,… or --hostfile FILE")
    if names is not None:
        return tuple(parse_hosts(names))
    if hostfile is None:
        return ()
    try:
        text = hostfile.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read the host file {str(hostfile)!r}: {error}") from None
    return tuple(parse_hostfile(text))
