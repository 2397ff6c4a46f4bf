"""`meshwright launch`: run a script that nobody changed with a plan."""

import os
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import click

from meshwright.cli import options
from meshwright.errors import EngineError, MeshwrightError, SpecError
from meshwright.runtime.dropin import AXES, LAUNCHERS, PLAN, RECORD, RERANK, STEPS, TUNE, launched, prepare

ENTRY = "torch.backends"
"""The group of entry points that PyTorch calls when it is imported."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--plan", "plan_path", type=options.FILE, help="The plan file that carries out the script's collectives.")
@click.option(
    "--no-rerank",
    is_flag=True,
    help="Leave the ranks as the launcher numbers them, for scripts that build their mesh from the plan.",
)
@options.out("Find the fastest programs of the plan with the first calls; at the end, write it to this file.", "--tune")
@options.out("Record what a step of the script sends to this workload file, for `plan --workload`.", "--record")
@click.option(
    "--axes",
    "axes_spec",
    metavar="AXES",
    help="With --record: the axes of the script, outermost first, like data=4,tensor=2 [default: those of its meshes, "
    "or of its groups].",
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    help="With --record: how many steps the script makes [default: those of its optimizer, without the first].",
)
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def launch(
    plan_path: Path | None,
    no_rerank: bool,
    tune: Path | None,
    record: Path | None,
    axes_spec: str | None,
    steps: int | None,
    module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run SCRIPT in this process, as a rank that a launcher has started, with the programs of a plan.

    Ranks are numbered so that row-major order over the plan's axes is its placement, whatever mesh of these axes the
    script makes. Collectives over other groups, of other dtypes and operations run as they always do. At the end rank
    0 says on stderr what was carried out by the plan. Without --plan and --record, this is python SCRIPT.

    Examples:

    \b
      torchrun --nproc-per-node=8 -m meshwright launch --record step.yaml --axes data=4,tensor=2 train.py
      torchrun --nproc-per-node=8 -m meshwright launch --plan plan.json train.py --its --own --arguments
      srun python -m meshwright launch --plan plan.json train.py
      mpirun -n 8 python -m meshwright launch --plan plan.json train.py

    For programs that start processes of their own, MESHWRIGHT_PLAN=plan.json in the environment does the same;
    MESHWRIGHT_RERANK=0 is --no-rerank, and MESHWRIGHT_TUNE, MESHWRIGHT_RECORD, MESHWRIGHT_AXES and MESHWRIGHT_STEPS are
    the others.

    The exit code is the script's. 2: bad input. 3: the processes do not fit the plan, or PyTorch is too old. In both
    cases the script is not started, or ends in init_process_group if that is where it is found out, and rank 0 alone
    says why.
    """
    environment = dict(os.environ)
    found = launched(environment)
    try:
        _check_script(script, module)
        given = {
            PLAN: plan_path and str(plan_path.absolute()),
            RERANK: "0" if no_rerank else None,
            TUNE: tune and str(tune.absolute()),
            RECORD: record and str(record.absolute()),
            AXES: axes_spec,
            STEPS: steps and str(steps),
        }
        environment |= {name: value for name, value in given.items() if value}
        if plan_path or record or tune:
            if found is None:
                names = ", ".join(rank for rank, _ in LAUNCHERS)
                raise EngineError(f"this process has no rank: no launcher has set one of {names}")
            _check_autoload()
            prepare(environment)
    except MeshwrightError as error:
        if found is not None and found[0]:
            sys.exit(3 if isinstance(error, EngineError) else 2)
        raise
    sys.stdout.flush()
    words = [*interpreter_options(sys.orig_argv), *(["-m"] if module else []), script, *arguments]
    os.execve(sys.executable, [sys.executable, *words], environment)


def interpreter_options(words: list[str]) -> list[str]:
    """The options that the interpreter itself was started with.

    >>> interpreter_options(["python", "-u", "-X", "dev", "-m", "meshwright", "launch", "-u", "train.py"])
    ['-u', '-X', 'dev']
    """
    found: list[str] = []
    waiting = iter(words[1:])
    for word in waiting:
        if word in ("-m", "-c") or not word.startswith("-"):
            break
        found.append(word)
        if word in ("-X", "-W", "--check-hash-based-pycs"):
            found.append(next(waiting))
    return found


def _check_script(script: str, module: bool) -> None:
    if module and find_spec(script.partition(".")[0]) is None:
        raise SpecError(f"there is no module {script!r}")
    if not module and not Path(script).exists():
        raise SpecError(f"there is no script {script!r}")


def _check_autoload() -> None:
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        raise EngineError(
            "PyTorch is told not to load Meshwright by TORCH_DEVICE_BACKEND_AUTOLOAD: remove it from the environment"
        )
    if not metadata.entry_points(group=ENTRY, name="meshwright"):
        raise EngineError("this installation of Meshwright has no entry point for PyTorch: install it again")
