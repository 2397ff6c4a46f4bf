"""`meshwright bench`: measure programs on real process groups."""

from itertools import islice
from pathlib import Path
from typing import Any

import click

from meshwright.cli import options
from meshwright.cli.measuring import measure_cases, measuring_options
from meshwright.cli.progress import counted
from meshwright.errors import MeshwrightError, SpecError
from meshwright.measure.bench import MOST_MEASUREMENTS, case_of, cases, check_measurements
from meshwright.placement.placement import Placement, parse_axes, parse_placement, placements
from meshwright.planning.planner import library_for
from meshwright.planning.settings import collectives
from meshwright.system.model import System
from meshwright.system.read import load_system
from meshwright.workload.communication import parse_reduction


@click.command()
@options.system
@options.axes
@click.option(
    "--reduce",
    "reduce_specs",
    multiple=True,
    required=True,
    metavar="[GOAL:]AXIS[+AXIS…]=BYTES",
    help="What to reduce; may be repeated.",
)
@options.out("The file that measurements are added to, one JSON object per line.", required=True)
@options.placement("matrices", multiple=True)
@options.number("--every", 3, "Every program of at most this many steps,", 0, 20)
@options.number("--best", 10, "and this many of the best predicted,", 0, 1000)
@options.number("--sample", 0, "and this many of all others, drawn at random (always the same).", 0, 1000)
@options.max_steps
@click.option("--program", "texts", multiple=True, metavar="PROGRAM", help="Only this one; may be repeated.")
@options.no_rooted
@options.system_library
@measuring_options
def bench(
    system_spec: str,
    axes_spec: str,
    reduce_specs: tuple[str, ...],
    out: Path,
    matrices: tuple[str, ...],
    every: int,
    best: int,
    sample: int,
    max_steps: int,
    texts: tuple[str, ...],
    no_rooted: bool,
    library: str | None,
    **measuring: Any,
) -> None:
    """Measure programs for placements of AXES on SYSTEM, and the library's own collective on the same groups.

    Each result is added to the file as it happens; what is in it already is not measured again, so a run that was
    killed goes on where it stopped. Start it with torchrun or mpirun on a cluster, with --local, or with --testbed.
    """
    system = load_system(system_spec)
    axes = parse_axes(axes_spec)
    reductions = [parse_reduction(spec) for spec in reduce_specs]
    profile = library_for(system, library)
    chosen = [_placement(system, axes, text) for text in matrices]
    chosen = chosen or list(islice(placements(system, axes), MOST_MEASUREMENTS + 1))
    check_measurements(len(chosen) * len(reductions) * max(1, len(texts)))
    looked_at = counted(chosen, "placements, looking for programs to measure", len(chosen))
    if texts:
        wanted = [case_of(placement, reduction, profile, texts) for placement in looked_at for reduction in reductions]
    else:
        wanted = cases(looked_at, reductions, profile, every, best, max_steps, collectives(no_rooted), sample)
    measure_cases(system, wanted, out, measuring)


def _placement(system: System, axes: dict[str, int], text: str) -> Placement:
    try:
        placement = parse_placement(text, system, axes)
    except MeshwrightError as error:
        raise SpecError(f"--placement {text}: {error}") from None
    if placement.sizes != axes:
        raise SpecError(f"--placement {text}: its rows multiply to {placement.sizes}, not to the axes {axes}")
    return placement
