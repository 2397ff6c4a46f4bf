import fcntl
import os
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright import (
    Grouping,
    Pipelined,
    Placement,
    Plan,
    Planned,
    Program,
    Reduction,
    Step,
    load_library,
    parse_hierarchy,
    parse_program,
    parse_system,
    write_plan,
)
from meshwright.language.goals import PROGRAM_GOALS, Goal
from meshwright.planning.plan import cost_model, predict
from tests.engines import hierarchical
from tests.house import ROOT
from tests.ranks import results
from tests.torch.planned import CASES


@pytest.fixture(scope="session")
def plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two axes of which the second is the outer one, so that ranks change; programs of several steps over both axes."""
    placement = Placement(parse_system("node=2@1GB/s,gpu=2@10GB/s"), ("data", "tensor"), ((1, 2), (2, 1)))
    both = [replace(hierarchical(goal).reductions[0].communication, axes=("data", "tensor")) for goal in PROGRAM_GOALS]
    found = [Planned(reduction, hierarchical(reduction.goal).reductions[0].pipelined, 1, 1, 1) for reduction in both]
    twice = Pipelined.of(parse_program("ReduceScatter all; AllGather all", parse_hierarchy("gpu=2")))
    found.append(Planned(Reduction(("data",), 2**20), twice, 1, 1, 1))
    for goal in (Goal.ALL_GATHER, Goal.ALL_REDUCE):
        assert goal.flat is not None
        flat = Pipelined.of(Program((Step(goal.flat, Grouping(0, 0)),)))
        found.append(Planned(Reduction(("tensor",), 2**20, goal=goal), flat, 1, 1, 1))
    timeless = Plan(placement, load_library("gloo"), tuple(found))
    timed = (predict(cost_model(timeless, one), one.communication, one.pipelined) for one in found)
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    write_plan(replace(timeless, communications=tuple(timed)), path)
    return str(path)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the script computes without a plan: once for all workers, of which the first to come computes it."""
    folder = shared(tmp_path_factory, "plain")
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            results("tests.torch.dropin:run_script", 4, str(folder), None, "", *CASES)
            (folder / "done").touch()
    return folder


def shared(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder of that name, which all workers share."""
    own = tmp_path_factory.getbasetemp()
    found = (own if "PYTEST_XDIST_WORKER" not in os.environ else own.parent) / name
    found.mkdir(exist_ok=True)
    return found


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory, inductor: Path) -> dict[str, str]:
    """An environment in which Meshwright's entry points are installed as pyproject.toml has them."""
    folder = tmp_path_factory.mktemp("installed")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    about = folder / f"meshwright-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: meshwright\nVersion: {project['version']}\n")
    entries = project["entry-points"]["torch.backends"]
    lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
    (about / "entry_points.txt").write_text(f"[torch.backends]\n{lines}")
    path = os.pathsep.join([str(folder), str(ROOT / "src"), str(ROOT)])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(inductor)}


@pytest.fixture(scope="session")
def inductor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where PyTorch keeps what it has compiled, for all tests: compiling takes longer than all the rest."""
    return shared(tmp_path_factory, "inductor")
