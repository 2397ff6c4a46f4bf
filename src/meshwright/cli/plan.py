"""`meshwright plan`: where to put the axes, and how to reduce."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import click

from meshwright.cli import options
from meshwright.cli.output import print_json, say
from meshwright.cli.progress import progress
from meshwright.cli.ranking import Answer, print_answer
from meshwright.cli.workload import needs
from meshwright.errors import SpecError
from meshwright.export.mesh import mesh_code
from meshwright.placement.notation import parse_placement
from meshwright.placement.placement import parse_axes
from meshwright.planning.constraints import Constraint, ConstraintRule, parse_constraint
from meshwright.planning.orders import habits
from meshwright.planning.planfile import write_plan
from meshwright.planning.planner import DEFAULT_CHUNKS, Planner
from meshwright.planning.planner import plan as make_plan
from meshwright.planning.ranking import Ranking, Sofar
from meshwright.planning.settings import ENGINES, MOST_CHUNKS, Settings
from meshwright.planning.sizes import Choices, check_memory, choose_sizes, fixed_sizes, with_devices
from meshwright.runtime.signals import Interrupted
from meshwright.show.report import write_report
from meshwright.show.view import view_of
from meshwright.system.model import System
from meshwright.system.read import load_system, system_document
from meshwright.text.spec import split_items
from meshwright.text.units import format_seconds
from meshwright.workload.communication import parse_reduction
from meshwright.workload.read import load_workload

LISTED = 4096
"""The ranks of larger systems are not listed one by one."""


def _constraints(rule: ConstraintRule, metavar: str, text: str) -> Callable[[options.Command], options.Command]:
    """An option for constraints of a rule, which may be given several times."""

    def parse(_ctx: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> list[Constraint]:
        return [parse_constraint(rule, text) for text in texts]

    return click.option(f"--{rule}", multiple=True, metavar=metavar, callback=parse, help=text)


HELP = """Rank the placements of the axes, with the best program for each reduction.

Examples:

\b
  meshwright plan --system gcp-a100:4 --axes data=4,shard=16 --reduce data=2GiB
  meshwright plan --system node=2@100Gbit/s,gpu=8@300GB/s --axes data=4,tensor=4 \\
    --reduce data=1GiB --reduce "tensor=64MiB*80" --inside tensor=node --out plan.json
  meshwright plan --system dgx-h100 --workload dense-70b --axes pipeline=4,data=4,tensor=8
  meshwright plan --system system.yaml --axes data=32 --reduce data=1GiB --compare --html plan.html

With --placement and one reduction, rank the programs of that placement. What takes more than two seconds shows its
progress on stderr, if that is a terminal. Ctrl-C ends the search with the best found so far and the gap that is
left; with --choose, with the best of the sizes that were tried.
"""


@click.command(help=HELP)
@options.system
@click.option(
    "--axes",
    "axes_spec",
    metavar="AXES",
    help="The parallelism axes and their sizes, like data=4,shard=16 [default: those of the workload].",
)
@click.option(
    "--reduce",
    "reductions",
    multiple=True,
    metavar="AXES=BYTES",
    help="A reduction, [GOAL:]AXIS[+AXIS…]=BYTES[*COUNT], like data=2GiB or data+shard=64MiB*80; BYTES is the size of "
    "the whole tensor: what each device holds before an all-reduce. May be given several times.",
)
@click.option(
    "--workload",
    "workload_spec",
    metavar="WORKLOAD",
    shell_complete=options.WORKLOADS,
    help="All that a step sends: one of `meshwright workload list`, or the path of a .yaml file. Instead of --reduce.",
)
@options.placement("matrix")
@_constraints(ConstraintRule.INSIDE, "AXIS=LEVEL", "Keep an axis inside one instance of a level, like tensor=node.")
@_constraints(ConstraintRule.NOT_ACROSS, "AXIS=LEVEL", "Forbid an axis to cross a level, like pipeline=gpu.")
@_constraints(ConstraintRule.ROW, "AXIS=FACTORS", "Fix an axis's row of the matrix, outermost first, like tensor=1,8.")
@click.option("--devices", type=click.IntRange(min=1), help="How many devices: sets the count of the outermost level.")
@click.option(
    "--choose",
    metavar="AXES",
    help="Choose the sizes of these axes too, like data,tensor,pipeline; for a workload that describes its model.",
)
@click.option(
    "--placement-only", is_flag=True, help="Rank by the library's own collectives, for who changes only the mesh."
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    help="What runs the plan [default: what fits the library]. JAX has no rooted collectives, and leaves the order of "
    "chunks to XLA: with it neither is planned.",
)
@click.option("--compare", is_flag=True, help="Beside the placements that PyTorch, JAX and Megatron give by default.")
@options.system_library
@options.no_rooted
@options.number("--top", 10, "How many candidates to show.")
@options.max_steps
@options.number(
    "--chunks",
    DEFAULT_CHUNKS,
    "Cut payloads into at most this many chunks that flow through the steps, where that is faster; 1 forbids it.",
    most=MOST_CHUNKS,
)
@options.out("Write the best plan to this file.")
@options.out("Write a page that shows the candidates to this file, as `meshwright show` does.", "--html")
@options.json
def plan(
    system_spec: str,
    axes_spec: str | None,
    reductions: tuple[str, ...],
    workload_spec: str | None,
    matrix: str | None,
    inside: list[Constraint],
    not_across: list[Constraint],
    row: list[Constraint],
    devices: int | None,
    choose: str | None,
    placement_only: bool,
    engine: str | None,
    compare: bool,
    library: str | None,
    no_rooted: bool,
    top: int,
    max_steps: int,
    chunks: int,
    out: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Rank the placements of the axes; `HELP` is what people are told."""
    if bool(reductions) == bool(workload_spec):
        raise SpecError("give either --reduce (one or more) or --workload")
    system = load_system(system_spec) if devices is None else with_devices(load_system(system_spec), devices)
    constraints = [*inside, *not_across, *row]
    axes = parse_axes(axes_spec) if axes_spec else {}
    settings = Settings(library, engine, chunks, max_steps, no_rooted, placement_only)
    search = settings.arguments() | {"constraints": constraints, "top": top}
    workload, choices = None, None
    if choose is not None:
        if workload_spec is None or matrix is not None:
            raise SpecError("--choose needs a --workload that describes its model, and no --placement")
        choices = _choose(system, workload_spec, choose, axes, search)
        workload = choices.best[0].workload
    elif workload_spec is not None:
        workload = load_workload(workload_spec).workload(axes or None)
        check_memory(workload)
    axes = axes if workload is None else dict(workload.axes)
    communications = tuple(map(parse_reduction, reductions)) if workload is None else workload.communications
    if not axes:
        raise SpecError("--axes is missing: give the axes and their sizes, like data=4,shard=16")
    if choices is not None:
        ranking = choices.best[0].ranking
    else:
        placement = None if matrix is None else parse_placement(matrix, system, tuple(axes))
        ranking = _best_so_far(partial(make_plan, system, axes, communications, placement=placement, **search))
    how = matrix is not None, placement_only, library is None
    answer = Answer(axes, ranking, constraints, top, workload, choices, [], *how)
    answer = _compared(answer, Planner(system, axes, communications, **settings.arguments())) if compare else answer
    view = partial(view_of, workload=workload_spec or "", settings=settings, choices=choices)
    _give(answer, out, html, view, as_json)


def _compared(answer: Answer, planner: Planner) -> Answer:
    """An answer beside what other tools would do, unless it is only the best so far."""
    if answer.interrupted:
        return answer
    with progress("planning the placements of other tools"):
        return replace(answer, habits=habits(planner))


def _give(
    answer: Answer, out: Path | None, html: Path | None, view: Callable[..., dict[str, Any]], as_json: bool
) -> None:
    """Write an answer, its best plan to a file, and a page; an answer that is only the best so far ends the command."""
    if out is not None:
        write_plan(answer.best, out)
        say(f"wrote the best plan to {out}")
    if html is not None:
        write_report(view(answer.best, answer.ranking, answer.constraints), html)
        say(f"wrote {html}")
    if as_json:
        print_json(_document(answer))
    else:
        print_answer(answer)
    if answer.interrupted:
        sys.exit(128 + signal.SIGINT)


def _best_so_far(search: Callable[..., Ranking]) -> Ranking:
    """The result of a search that shows its progress; where Ctrl-C ends it, what it has found so far."""
    last: list[Sofar] = []

    def watch(sofar: Sofar) -> None:
        last[:] = [sofar]
        found = sofar.found
        text = f"{found.complete:,} of {sofar.placements:,} placements timed"
        if not found.best:
            show(text)
            return
        text += f", best so far {format_seconds(found.best[0][0])}, gap {sofar.gap:.1%}"
        # Most placements are ruled out without timing them: how much is left is told by the gap alone. Where none is
        # left, the programs for other payloads still have to be found.
        show(text, min(0.99, 1 / (1 + max(0.0, sofar.gap))), 1)

    with progress() as show, _ended_by_ctrl_c(lambda: bool(last and last[0].found.best)):
        return search(watch=watch)
    return last[0].ranking()


@contextmanager
def _ended_by_ctrl_c(found: Callable[[], bool]) -> Iterator[None]:
    """Let Ctrl-C end a search that has found something; another one then ends all without an answer."""
    try:
        yield
    except Interrupted as ended:
        if ended.number != signal.SIGINT or not found():
            raise
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _choose(system: System, workload: str, choose: str, axes: dict[str, int], search: dict[str, Any]) -> Choices:
    """The best sizes of the axes to choose; the others have those that are given, or else those of the workload."""
    file = load_workload(workload)
    free = split_items(choose, "axes to choose", "data,tensor,pipeline")
    fixed = fixed_sizes(file, free, axes)
    last: list[Choices] = []

    def watch(sofar: Choices) -> None:
        last[:] = [sofar]
        text = f"{sofar.tried:,} of {sofar.ways:,} choices of sizes"
        best = f", best so far {format_seconds(sofar.best[0].seconds)}" if sofar.best else ""
        show(text + best, sofar.tried, sofar.ways)

    with progress() as show, _ended_by_ctrl_c(lambda: bool(last and last[0].best)):
        return choose_sizes(system, file, free, fixed, watch=watch, **search)
    return last[0]


def _document(answer: Answer) -> dict[str, Any]:
    ranking, best = answer.ranking, answer.best
    system = best.placement.system
    found: dict[str, Any] = {
        "system": system_document(system),
        "axes": answer.axes,
        "library": best.library.name,
        "placements": ranking.placements,
        "evaluated": ranking.evaluated,
        "pruned": ranking.pruned,
        "gap": ranking.gap if isfinite(ranking.gap) else None,
        "interrupted": answer.interrupted,
        "at_least_seconds": ranking.at_least,
        "least_seconds": ranking.least_seconds,
        "constraints": [str(constraint) for constraint in answer.constraints],
        "candidates": [candidate.document() for candidate in ranking.candidates],
        "mesh": mesh_code(best.placement),
        "mesh_alone": answer.alone.document(),
        "ranks": best.placement.mesh().tolist() if system.devices <= LISTED else None,
    }
    if answer.workload is not None:
        found["workload"] = {"name": answer.workload.name, **needs(answer.workload)}
    if answer.choices is not None:
        found["sizes"] = answer.choices.document(answer.top)
    if answer.habits:
        found["comparison"] = [habit.document(best) for habit in answer.habits]
    return found
