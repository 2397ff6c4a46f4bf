"""Scripts that nobody changed: with a plan they compute what they compute without one, however it gets to them."""

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

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
    load_workload,
    parse_hierarchy,
    parse_program,
    parse_system,
    read_plan,
    write_plan,
)
from meshwright.cli import main
from meshwright.cli.launch import launch
from meshwright.language.goals import PROGRAM_GOALS, Goal
from meshwright.planning.plan import cost_model, predict
from meshwright.runtime.launch import torchrun_command
from tests.engines import hierarchical, tunable_plan
from tests.house import ROOT
from tests.ranks import free_port, results, run_ranks

SCRIPT = Path(__file__).with_name("script.py")
CASES = (
    "ddp",
    "accumulation",
    "fsdp",
    "mixed_precision",
    "hsdp",
    "tensor_parallel",
    "functional_collectives",
    "aot_eager",
    "state_dict",
    "collectives",
)


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the script computes without a plan."""
    folder = tmp_path_factory.mktemp("plain")
    results("tests.torch.dropin:run_script", 4, str(folder), None, *CASES)
    return folder


def assert_alike(plain: Path, planned: Path) -> None:
    """On every rank: floats within tolerance, integers exactly; and ranks 1 and 2 have changed places."""
    for rank, seat in enumerate(("0", "2", "1", "3")):
        _, wanted = json.loads((plain / f"{rank}.json").read_text())
        local, found = json.loads((planned / f"{rank}.json").read_text())
        assert local == seat
        for case in wanted:
            for one, other in zip(wanted[case], found[case], strict=True):
                if np.asarray(one).dtype.kind == "f":
                    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=case)
                else:
                    assert one == other, case
        for exact in ("tensor_parallel", "collectives"):  # one collective of the library's, or integers
            assert wanted[exact] == found[exact]


def assert_planned(table: str) -> None:
    by = {tuple(line.split()[:2]): line for line in table.splitlines()}
    for collective in ("all-reduce", "all-gather", "reduce-scatter", "broadcast"):
        assert " plan " in by["data+tensor", collective]
    assert " library " in by["tensor", "all-gather"]
    assert any(line.startswith("data ") and " plan " in line for line in table.splitlines())


def test_a_plan_from_the_environment(plan: str, plain: Path, tmp_path: Path) -> None:
    tables = results("tests.torch.dropin:run_script", 4, str(tmp_path), plan, *CASES)
    assert_alike(plain, tmp_path)
    assert_planned(tables[0])


def test_training_examples_have_the_same_losses_with_a_plan(plan: str) -> None:
    scripts = [f"train_{name}.py" for name in ("ddp", "fsdp", "hsdp", "tensor")]
    plain, planned = (
        results("tests.torch.dropin:run_examples", 4, each, [free_port() for _ in scripts], *scripts)[0]
        for each in (None, plan)
    )
    assert [len(set(losses)) for losses in plain] == [3] * len(scripts)
    np.testing.assert_allclose(plain, planned, rtol=1e-5)
    np.testing.assert_allclose([plain[0]] * 2, plain[1:3], rtol=1e-5)  # all of them read the same data


@pytest.mark.parametrize(
    ("case", "axes", "found", "sent"),
    [
        # The names come from the mesh. Parameters are 16 * 32 + 32 + 32 * 8 + 8 floats, in two shards of 404.
        (
            "hsdp",
            "",
            {"data": 2, "tensor": 2},
            {
                ("all-gather", ("tensor",), 3232): 1,
                ("reduce-scatter", ("tensor",), 3232): 1,
                ("all-reduce", ("data",), 1616): 1,
            },
        ),
        # Every layer is gathered twice, forward and backward; the world is a product of the given axes.
        (
            "fsdp",
            "replica=2,shard=2",
            {"replica": 2, "shard": 2},
            {
                ("all-gather", ("replica", "shard"), 2176): 2,
                ("reduce-scatter", ("replica", "shard"), 2176): 1,
                ("all-gather", ("replica", "shard"), 1056): 2,
                ("reduce-scatter", ("replica", "shard"), 1056): 1,
            },
        ),
    ],
)
def test_what_a_step_sends_is_recorded(
    case: str, axes: str, found: dict[str, int], sent: dict[tuple[str, tuple[str, ...], int], int], tmp_path: Path
) -> None:
    path = tmp_path / "step.yaml"
    results("tests.torch.dropin:record", 4, str(path), str(tmp_path), axes, case)
    workload = load_workload(str(path)).workload()
    assert workload.axes == found
    assert {(str(one.goal), one.axes, one.bytes): one.count for one in workload.communications} == sent


def test_a_script_tunes_its_plan(tmp_path: Path) -> None:
    path, out = tmp_path / "plan.json", tmp_path / "tuned.json"
    write_plan(tunable_plan(), path)
    tables = results("tests.torch.dropin:tuned", 4, str(path), str(out))
    assert " plan " in tables[0]
    assert " library " not in tables[0]
    assert [len(planned.tuned) for planned in read_plan(out).reductions] == [1, 0, 0, 0, 0]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
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
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def test_launch(plan: str, plain: Path, installed: dict[str, str], tmp_path: Path) -> None:
    command = [*torchrun_command(4), "-m", "meshwright", "launch", "--plan", plan, str(SCRIPT), str(tmp_path)]
    installed |= {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    ran = subprocess.run(command, env=installed, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, "\n".join(line for line in ran.stderr.splitlines() if "Warning" not in line)
    assert_alike(plain, tmp_path)
    for rank in range(4):
        _, wanted = json.loads((plain / f"{rank}.json").read_text())
        _, found = json.loads((tmp_path / f"{rank}.json").read_text())
        np.testing.assert_allclose(wanted["aot_eager"], found["inductor"], rtol=1e-5, atol=1e-6)
    assert ran.stderr.count("meshwright: the collectives of rank 0") == 1
    assert_planned(ran.stderr)


def test_launch_without_a_plan_is_a_plain_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import signal, sys, warnings\n"
        "print(__name__, __file__, sys.argv, sys.path[0], sys.flags.dev_mode, warnings.filters)\n"
        "print([signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)])\n"
        "class Kept: pass\n"
        "print(Kept.__module__, sys.modules['__main__'].Kept is Kept, 'meshwright' in sys.modules)\n"
        "warnings.warn('shown once')\n"
        "if len(sys.argv) > 2: sys.exit(7)\n"
        "raise KeyError('what is wrong')\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    for arguments, code in ((["--plan"], 1), (["-m", "--help"], 7)):
        said = []
        for words in ([], ["-m", "meshwright", "launch"]):
            command = [sys.executable, "-X", "dev", *words, str(script), *arguments]
            if code == 7:  # as in the background of a script, where signals are ignored
                command = ["sh", "-c", "trap '' INT HUP; exec \"$@\"", "sh", *command]
            ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            assert ran.returncode == code
            said.append((ran.stdout.replace("0x", ""), ran.stderr))
        assert said[0] == said[1]


@pytest.mark.parametrize(
    ("words", "environment", "code", "message"),
    [
        (["PLAN", "none.py"], {}, 2, "there is no script 'none.py'"),
        (["PLAN", "-m", "no_such_module.at_all"], {}, 2, "there is no module 'no_such_module.at_all'"),
        (["none.json", "SCRIPT"], {}, 2, "there is no plan file "),
        (
            ["PLAN", "SCRIPT"],
            {"WORLD_SIZE": "8"},
            3,
            "there are 8 processes, but the plan is for 4 devices (node=2,gpu=2): start 4, or make a plan for 8",
        ),
        (
            ["PLAN", "SCRIPT"],
            {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "3"},
            3,
            "rank 0 is on a host with 3 processes, but a host of the plan's system node=2,gpu=2 can have 4, 2 or 1",
        ),
        (["PLAN", "--record", "r.yaml", "--axes", "data=3", "SCRIPT"], {}, 2, "the axes data=3 do not multiply to 4"),
        (["PLAN", "--tune", "t.json", "SCRIPT"], {}, 2, "the plan has only one program for the all-reduce over"),
        (["PLAN", "SCRIPT"], {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, 3, "PyTorch is told not to load Meshwright"),
    ],
)
def test_rank_0_alone_says_why_a_script_is_not_started(
    plan: str,
    words: list[str],
    environment: dict[str, str],
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("meshwright.cli.launch.metadata.entry_points", lambda **_: ["meshwright"])
    given = {"PLAN": plan, "SCRIPT": str(SCRIPT)}
    command = ["launch", "--plan", *(given.get(word, word) for word in words)]
    for rank in range(2):
        variables = {"RANK": str(rank), "WORLD_SIZE": "4"} | environment
        ran = CliRunner(env=variables).invoke(main, command)
        assert ran.exit_code == code
        assert message in ran.stderr if rank == 0 else not ran.stderr


def test_a_process_without_a_rank_and_an_old_pytorch_are_refused(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.cli.launch.metadata.entry_points", lambda **_: ["meshwright"])
    command = ["launch", "--plan", plan, str(SCRIPT)]
    ran = CliRunner(env=dict.fromkeys(("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"))).invoke(main, command)
    assert ran.exit_code == 3
    assert "this process has no rank: no launcher has set one of RANK, OMPI" in ran.stderr
    monkeypatch.setattr("meshwright.runtime.dropin.metadata.version", lambda _: "2.9.1+cu126")
    ran = CliRunner(env={"RANK": "0", "WORLD_SIZE": "4"}).invoke(main, command)
    assert "a plan for a script needs PyTorch 2.11 or newer, but this is 2.9.1+cu126" in ran.stderr


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, {"RANK": "2", "LOCAL_RANK": "1"}),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4"}, {"SLURM_PROCID": "2"}),
        (
            {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "SLURM_PROCID": "0"},
            {"OMPI_COMM_WORLD_RANK": "1", "SLURM_PROCID": "0"},
        ),
    ],
)
def test_ranks_of_every_launcher_are_renumbered(
    plan: str, given: dict[str, str], wanted: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, str]] = []
    monkeypatch.setattr("os.execve", lambda _path, _words, environment: started.append(environment))
    monkeypatch.setattr("meshwright.cli.launch.metadata.entry_points", lambda **_: ["meshwright"])
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert launch.callback is not None
    for no_rerank in (False, True):
        launch.callback(Path(plan), no_rerank, None, None, None, None, False, str(SCRIPT), ())
    moved, kept = started
    assert {name: moved[name] for name in wanted} == wanted
    assert {name: kept[name] for name in given} == given
    assert moved["MESHWRIGHT_PLAN"] == plan


def test_what_ranks_find_out_together_is_refused_on_every_rank(plan: str) -> None:
    backend, seats = zip(*results("tests.torch.dropin:refused", 4, plan), strict=True)
    assert set(backend) == {"a plan can be carried out on gloo and nccl, but the script asks for mpi"}
    (seat,) = set(seats)
    assert seat.startswith("rank 1 is number 0 of 2 on its host")


def test_a_rank_that_dies_is_an_exception_to_the_others(plan: str) -> None:
    outcomes = run_ranks("tests.torch.dropin:dying", 4, plan)
    assert [outcome.status for outcome in outcomes] == [0, 0, 0, 7]
    for rank, outcome in enumerate(outcomes[:3]):
        assert not outcome.error, outcome.error
        first, again, seconds, *alone = outcome.result
        assert f"rank {rank}: step " in first
        assert "process group 0 can no longer be used" in again
        assert seconds < 30
        assert alone == ([] if rank == 1 else [[2.0] * 3])
