"""`meshwright launch` and MESHWRIGHT_PLAN behind real launchers, and why a script is not started."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import meshwright
from meshwright import Pipelined, Reduction, parse_hierarchy, parse_program, parse_system, write_plan
from meshwright.cli import main
from meshwright.cli.launch import launch
from meshwright.planning.plan import cost_model, predict
from meshwright.runtime.dropin import prepare
from meshwright.runtime.launch import find_program, mpirun_command, torchrun_command
from tests.house import ROOT
from tests.ranks import free_port
from tests.torch.planned import EVERY, ON_TWO_HOSTS, SCRIPT, assert_alike, assert_planned, say_what_was_left_out


def test_launch(plan: str, plain: Path, installed: dict[str, str], tmp_path: Path) -> None:
    command = [*torchrun_command(4), "-m", "meshwright", "launch", "--plan", plan, str(SCRIPT), str(tmp_path)]
    command += EVERY
    ran = subprocess.run(command, env=installed, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, _said(ran.stderr)
    assert_alike(plain, tmp_path)
    assert ran.stderr.count("meshwright: the collectives of rank 0") == 1
    assert_planned(ran.stderr)
    say_what_was_left_out()


def _said(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if "Warning" not in line)


def _run_all(commands: list[tuple[list[str], dict[str, str]]]) -> tuple[list[int], list[tuple[str, str]]]:
    """Run commands in their environments, all at once; their exit codes, and what they wrote. None is left."""
    pipe = subprocess.PIPE
    started = [subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True) for command, env in commands]
    try:
        said = [each.communicate(timeout=300) for each in started]
        return [each.returncode for each in started], said
    finally:
        for each in started:
            each.kill()


def test_two_hosts_with_torchruns_static_rendezvous_and_a_plan_from_the_environment(
    plan: str, plain: Path, installed: dict[str, str], tmp_path: Path
) -> None:
    """PyTorch itself loads Meshwright here, in torchrun's own processes too."""
    where = ["--nnodes=2", "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    torchrun = [sys.executable, "-P", "-m", "torch.distributed.run", *where]
    script = [str(SCRIPT), str(tmp_path), "collectives"]
    commands = [[*torchrun, f"--node-rank={number}", *script] for number in range(2)]
    codes, said = _run_all([(command, installed | {"MESHWRIGHT_PLAN": plan}) for command in commands])
    assert codes == [0, 0], _said("".join(err for _, err in said))
    assert_alike(plain, tmp_path, ON_TWO_HOSTS)
    assert ["meshwright: the collectives of rank 0" in err for _, err in said] == [True, False]
    assert "data+tensor  all-reduce" in said[0][1]


@pytest.mark.skipif(find_program("mpirun") is None, reason="there is no mpirun here")
def test_mpirun(plan: str, plain: Path, installed: dict[str, str], tmp_path: Path) -> None:
    command = [*mpirun_command(4), sys.executable, "-m", "meshwright", "launch", "--plan", plan, str(SCRIPT)]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ran = subprocess.run(
        [*command, str(tmp_path), "collectives"],
        env=installed | meeting,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, _said(ran.stderr)
    assert_alike(plain, tmp_path)
    assert ran.stderr.count("meshwright: the collectives of rank 0") == 1


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
            ["SIX", "SCRIPT"],
            {"WORLD_SIZE": "6", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
            3,
            "rank 0 is on a host with 2 processes, but a host of the plan's system node=2,gpu=3 can have 6, 3 or 1",
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
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("meshwright.cli.launch.metadata.entry_points", lambda **_: ["meshwright"])
    made = meshwright.plan(parse_system("node=2@1GB/s,gpu=3@8GB/s"), {"data": 6}, [Reduction(("data",), 2**20)])
    write_plan(made.candidates[0], tmp_path / "six.json")
    given = {"PLAN": plan, "SCRIPT": str(SCRIPT), "SIX": str(tmp_path / "six.json")}
    command = ["launch", "--plan", *(given.get(word, word) for word in words)]
    for rank in range(2):
        variables = {"RANK": str(rank), "WORLD_SIZE": "4"} | environment
        ran = CliRunner(env=variables).invoke(main, command)
        assert ran.exit_code == code
        assert message in ran.stderr if rank == 0 else not ran.stderr


@pytest.mark.parametrize("hosts", [{}, {"GROUP_WORLD_SIZE": "2"}])
def test_hosts_that_differ_are_left_to_the_ranks_together(plan: str, hosts: dict[str, str]) -> None:
    """A rank whose host does not fit cannot know whether rank 0 sees that too, and else nobody says why it ends."""
    environment = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "3"} | hosts
    prepare(environment | {"MESHWRIGHT_PLAN": plan})


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


SURROUNDINGS = """
import json, os, signal, sys, threading, warnings
import torch, torch.distributed as dist
dist.init_process_group("gloo")
tensor = torch.ones(3000)
dist.all_reduce(tensor)
print(json.dumps({
    "signals": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
    "filters": [str(each) for each in warnings.filters],
    "hooks": [sys.excepthook is sys.__excepthook__, threading.excepthook is threading.__excepthook__],
    "started": [__name__, __file__, sys.argv, sys.path, sys.flags.dev_mode, os.getcwd(), os.umask(0o22)],
    "environment": {name: os.environ[name] for name in os.environ if not name.startswith("MESHWRIGHT_")},
    "torch": [torch.get_num_threads(), str(torch.get_default_dtype()), dist.get_backend(), tensor.sum().item()],
}))
warnings.warn("shown as always")
code = 5 + dist.get_rank()
dist.destroy_process_group()
sys.exit(code)
"""


def test_a_script_with_a_plan_finds_all_as_without(installed: dict[str, str], tmp_path: Path) -> None:
    """Its arguments, environment, signal handlers, warnings and exit code; only the table at the end is more."""
    (tmp_path / "train.py").write_text(SURROUNDINGS)
    made = meshwright.plan(parse_system("gpu=2@1GB/s"), {"data": 2}, [Reduction(("data",), 12000)], library="ring")
    twice = Pipelined.of(parse_program("ReduceScatter all; AllGather all", parse_hierarchy("gpu=2")))
    best = made.candidates[0]
    model = cost_model(best, best.reductions[0])
    planned = predict(model, best.reductions[0].communication, twice)
    write_plan(replace(best, communications=(planned,)), tmp_path / "plan.json")
    outcomes = []
    for words in ([], ["-m", "meshwright", "launch", "--plan", str(tmp_path / "plan.json")]):
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
        command = [sys.executable, "-W", "default::UserWarning", *words, str(tmp_path / "train.py"), "--plan", "mine"]
        environments = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"} for rank in range(2)]
        codes, said = _run_all([(command, installed | meeting | each) for each in environments])
        assert codes == [5, 6], said
        found = [json.loads(out) for out, _ in said]
        for one in found:
            del one["environment"]["MASTER_PORT"]
        outcomes.append((found, [re.findall(".*Warning.*", err) for _, err in said]))
    (plain, warned), (with_plan, also) = outcomes
    assert with_plan == plain
    assert also == warned
    assert all("shown as always" in lines[-1] for lines in warned)
    assert "data   all-reduce  12kB  plan" in said[0][1]
