"""Snippets: what to copy to run a plan: the command that gives it again, and lines for PyTorch, JAX and MPI."""

import shlex
from contextlib import suppress
from dataclasses import dataclass, replace

from meshwright.cost.library import library_names, load_library
from meshwright.errors import MeshwrightError, SpecError
from meshwright.export.mesh import mesh_code
from meshwright.language.goals import Goal
from meshwright.planning.plan import Plan
from meshwright.planning.planner import DEFAULT_CHUNKS, DEFAULT_LIBRARY, Planner
from meshwright.planning.settings import MOST_CHUNKS, Settings
from meshwright.system.model import EXAMPLE, System
from meshwright.system.read import parse_system, preset, preset_names
from meshwright.text.spec import format_counts, unknown
from meshwright.text.units import format_bytes


@dataclass(frozen=True, slots=True)
class Snippet:
    """Something to copy, and a note on what it needs."""

    name: str
    text: str
    note: str = ""


def snippets(plan: Plan, workload: str = "", settings: Settings | None = None) -> list[Snippet]:
    """What to copy to have a plan's placement and programs. workload and settings: what it was made for and with, where
    that is known.
    """
    mesh = mesh_code(plan.placement)
    found = [
        command(plan, workload, settings),
        Snippet(
            "PyTorch",
            "torchrun … -m meshwright launch --plan plan.json train.py\n\n"
            "# or by hand: the mesh, and the plan's programs\n"
            "import torch\nfrom torch.distributed.device_mesh import DeviceMesh\n\n"
            f"import meshwright\n\nmesh = {mesh['torch']}\n{_reducer('torch')}",
            "plan.json is what `meshwright plan --out plan.json` writes.",
        ),
        Snippet(
            "JAX",
            f"import jax\nimport numpy as np\nfrom jax.sharding import Mesh\n\nmesh = {mesh['jax']}\n\n"
            f"# or with the plan's programs too\nimport meshwright\n\n{_reducer('jax')}\nmesh = reducer.mesh()",
            "JAX runs programs without chunks, Reduce and Broadcast: `meshwright plan --engine jax` plans such.",
        ),
        Snippet(
            "MPI",
            "meshwright export plan.json --to rankfile --hostfile hosts --out ranks\n"
            "mpirun --rankfile ranks python train.py\n\n"
            f"# in train.py\nimport meshwright\n\n{_reducer('mpi')}",
        ),
    ]
    if mesh["megatron"].startswith("order "):
        found.append(Snippet("Megatron", mesh["megatron"]))
    return found


def _reducer(engine: str) -> str:
    return f"reducer = meshwright.{engine}.Reducer(meshwright.read_plan('plan.json'))"


def command(plan: Plan, workload: str = "", settings: Settings | None = None) -> Snippet:
    """The command that gives a plan again; the note says which files it needs, where text is not enough, and where it
    gives other programs.
    """
    at, notes = plan.placement, []
    system = _system_text(at.system)
    if system is None:
        system = "system.yaml"
        notes.append("It needs system.yaml: the system, which has more than a description can say.")
    words = ["meshwright", "plan", "--system", system, "--axes", format_counts(at.sizes)]
    plain = all(not one.communication.hidden and one.pipelined is not None for one in plan.communications)
    if workload:
        words += ["--workload", workload]
    elif plain:
        for planned in plan.communications:
            one = planned.communication
            goal = "" if one.goal is Goal.ALL_REDUCE else f"{one.goal}:"
            times = f"*{one.count}" if one.count > 1 else ""
            words += ["--reduce", f"{goal}{'+'.join(one.axes)}={format_bytes(one.bytes)}{times}"]
    else:
        words += ["--workload", "workload.yaml"]
        notes.append("It needs workload.yaml: the workload that the plan was made for.")
    words += ["--placement", str([list(row) for row in at.matrix]).replace(" ", "")]
    made = settings or _settings(plan)
    if made is None:
        made = Settings()
        notes.append("It gives the placement, and other programs for it: these were measured, or written by hand.")
    library = _library_text(plan, made)
    if library == "library.yaml":
        notes.append("It needs library.yaml: the library's profile.")
    words += replace(made, library=library).words()
    return Snippet("Command line", " ".join(shlex.quote(word) for word in words), " ".join(notes))


def _settings(plan: Plan) -> Settings | None:
    """Settings that give a plan's programs again on its placement; None where none of those that are tried do."""
    timed = [each.pipelined.chunks for one in plan.communications for each in (*one.ranges, *one.alternatives)]
    chunks = min(max([*timed, *(one.chunks for one in plan.communications)]), MOST_CHUNKS)
    first = Settings(chunks=chunks if chunks > DEFAULT_CHUNKS or chunks == 1 else DEFAULT_CHUNKS)
    alone, name = Settings(placement_only=True), plan.library.name
    known = load_library(name) if name in library_names() else plan.library
    wanted = [one.pipelined for one in plan.communications]
    tries = (first, alone, replace(first, no_rooted=True))
    for tried in (alone,) if plan.library == known.alone != known else tries:
        with suppress(MeshwrightError):
            arguments = tried.arguments() | {"library": plan.library}
            what = [one.communication for one in plan.communications]
            again = Planner(plan.placement.system, plan.placement.sizes, what, **arguments).plan(plan.placement)
            if [one.pipelined for one in again.communications] == wanted:
                return tried
    return None


def _library_text(plan: Plan, settings: Settings) -> str | None:
    """What `--library` takes to give exactly the library of a plan; None where it is that of the system."""
    name, library = plan.library.name, plan.library
    if name not in library_names():
        return "library.yaml"
    known = load_library(name)
    if library not in (known, known.alone if settings.placement_only else known):
        return "library.yaml"
    return None if name == (plan.placement.system.library or DEFAULT_LIBRARY) else name


def _system_text(system: System) -> str | None:
    """What `--system` takes to give exactly this system: its name; None where only a file does."""
    with suppress(MeshwrightError):
        if named_system(system.name) == system:
            return system.name
    return None


def named_system(text: str) -> System:
    """A system from the name of a preset or a description, never from a file."""
    if text.partition(":")[0] in preset_names():
        return preset(text)
    if "=" in text:
        return parse_system(text)
    known = unknown("preset", text.partition(":")[0], preset_names())
    raise SpecError(f"{known}; a system is a preset, or a description like {EXAMPLE!r}")
