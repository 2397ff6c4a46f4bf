import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from meshwright import parse_reduction, parse_system, plan
from meshwright.cli import main

HYBRID = "ReduceScatter inside node; AllReduce across node; AllGather inside node"


def run(*arguments: str, columns: int = 1000) -> Result:
    """What a command gives; so wide that no sentence is broken, which tests/cli/test_width.py looks at."""
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(main, list(arguments))


def run_json(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_placements() -> None:
    document = run_json("placements", "--system", "gcp-a100:4", "--axes", "data=4,shard=16")
    assert document["count"] == 3
    matrices = [placement["matrix"] for placement in document["placements"]]
    assert matrices == [[[4, 1], [1, 16]], [[2, 2], [2, 8]], [[1, 4], [4, 4]]]
    text = run("placements", "--system", "gcp-a100:4", "--axes", "data=4,shard=16").stdout
    assert "3 placements" in text
    assert "4 gpus inside one node: 0 4 8 12" in text


def test_placements_counted_without_enumerating() -> None:
    arguments = ["placements", "--system", "a=16,b=16,c=16,d=16,e=16", "--axes", "v=16,w=16,x=16,y=16,z=16"]
    assert run_json(*arguments, "--count") == {"count": 2_224_955}
    assert run(*arguments, "--count").stdout == "2224955\n"
    refused = run(*arguments)
    assert refused.exit_code == 2
    assert "2,224,955 placements" in refused.stderr
    assert "--count" in refused.stderr
    first = run(*arguments, "--first", "2", "--json")
    assert len(json.loads(first.stdout)["placements"]) == 2
    assert "the first 2 of 2224955" in first.stderr


def test_programs() -> None:
    document = run_json("programs", "--hierarchy", "node=4,gpu=16")
    assert document["count"] == len(document["programs"]) == len(set(document["programs"])) == 93
    assert HYBRID in document["programs"]
    assert run_json("programs", "--hierarchy", "node=64,gpu=512", "--max-steps", "3")["count"] == 29
    assert run_json("programs", "--hierarchy", "node=4,gpu=16", "--goal", "broadcast", "--count") == {"count": 3}
    text = run("programs", "--hierarchy", "node=4,gpu=16", "--max-steps", "1").stdout
    assert text == "1 valid all-reduce program of at most 1 step on node=4,gpu=16\n\n1 step\n  AllReduce all\n"
    assert run("programs", "--hierarchy", "node=4,gpu=16", "--count").stdout == "93\n"


def test_every_listed_program_passes_the_check() -> None:
    for goal in ("all-reduce", "reduce-scatter", "all-gather", "reduce", "broadcast"):
        listed = run_json("programs", "--hierarchy", "node=2,gpu=3", "--goal", goal, "--max-steps", "4")["programs"]
        assert listed
        for program in listed:
            assert run("check", program, "--hierarchy", "node=2,gpu=3", "--goal", goal).exit_code == 0


def test_hopelessly_many_programs_are_refused() -> None:
    result = run("programs", "--hierarchy", "a=2,b=2,c=2,d=2,e=2", "--max-steps", "8")
    assert result.exit_code == 2
    assert "9,655,857 valid programs" in result.stderr
    assert "--count" in result.stderr
    assert "k best" in result.stderr


def test_check_shows_what_devices_hold() -> None:
    document = run_json(
        "check", "Reduce inside node; AllReduce masters of node; Broadcast inside node", "--hierarchy", "node=4,gpu=16"
    )
    assert document["valid"] is True
    assert [state["after"] for state in document["states"]] == [
        "start",
        "1 Reduce inside node",
        "2 AllReduce masters of node",
        "3 Broadcast inside node",
    ]
    assert document["states"][1]["devices"] == [
        {"which": "gpu=0", "holds": "everything", "scattered": [], "reduced": ["gpu"]},
        {"which": "gpu>0", "holds": "nothing", "scattered": [], "reduced": []},
    ]
    scattered = run_json("check", HYBRID, "--hierarchy", "node=4,gpu=16")["states"][1]["devices"]
    assert scattered == [{"which": "all", "holds": "1/16", "scattered": ["gpu"], "reduced": ["gpu"]}]
    assert "1/16" in run("check", HYBRID, "--hierarchy", "node=4,gpu=16").stdout


def test_check_takes_what_plan_prints() -> None:
    system = parse_system("node=2@1GB/s+5us,gpu=4@8GB/s+1us")
    texts = set()
    for library in ("ring", "gloo", "openmpi"):
        found = plan(system, {"data": 8}, [parse_reduction("data=16MiB")], library=library, max_chunks=16)
        for candidate in found.candidates:
            planned = candidate.reductions[0]
            hierarchy = candidate.hierarchy(planned)
            text = candidate.program_text(planned)
            document = run_json("check", text, "--hierarchy", str(hierarchy))
            assert (document["valid"], document["program"]) == (True, text)
            texts.add(text)
    assert any(", in " in text for text in texts)


def test_check_of_programs_that_share_the_chunks() -> None:
    text = "AllReduce all, in 3 chunks | Reduce all; Broadcast all, in 1 chunk"
    shares = run_json("check", text, "--hierarchy", "node=2,gpu=2")["shares"]
    assert [(share["program"], share["chunks"]) for share in shares] == [
        ("AllReduce all", 3),
        ("Reduce all; Broadcast all", 1),
    ]
    wrong = run("check", text.replace("Broadcast all", "Broadcast inside node"), "--hierarchy", "node=2,gpu=2")
    assert wrong.exit_code == 1
    assert wrong.stderr.startswith("invalid: in 'Reduce all; Broadcast inside node': step 2 (Broadcast inside node)")


def test_check_explains_an_invalid_program() -> None:
    result = run("check", "AllReduce inside node; AllReduce all", "--hierarchy", "node=2,gpu=2")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == (
        "invalid: step 2 (AllReduce all) is not allowed in the group node=*,gpu=* (devices 0, 1, 2, 3): "
        "devices 0 and 1 both already contain the contribution of device 0, which would be added twice "
        "(the rule of AllReduce that is broken: disjoint contributions)\n"
    )
    result = run("check", "AllReduce inside node; AllReduce all", "--hierarchy", "node=2,gpu=2", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert (document["valid"], document["step"], document["rule"]) == (False, 2, "disjoint contributions")


def test_a_dropped_level_is_mentioned() -> None:
    result = run("programs", "--hierarchy", "rack=1,node=4", "--count")
    assert result.stdout == "3\n"
    assert "rack has radix 1" in result.stderr


def test_systems() -> None:
    names = [system["name"] for system in run_json("systems")["systems"]]
    assert "gcp-a100" in names
    text = run("systems").stdout
    assert "node=4@8GB/s; gpu=8@135GB/s (ring)" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["placements", "--system", "gcp-a100:4", "--axes", "data=4,shard=15"], "multiply to 60"),
        (["placements", "--system", "gcp-a1000", "--axes", "data=4"], "did you mean 'gcp-a100'"),
        (["placements", "--system", "node=0", "--axes", "data=4"], "whole number"),
        (["placements", "--system", "node=4@8GBs", "--axes", "data=4"], "unknown unit"),
        (["placements", "--system", "absent.yaml", "--axes", "data=4"], "there is no system file"),
        (["placements", "--system", "node=4", "--axes", "data=2,data=2"], "appears 2 times"),
        (["placements", "--system", "node=4"], "Missing option '--axes'"),
        (["programs", "--hierarchy", "node=4,gpu"], "not NAME=COUNT"),
        (["programs", "--hierarchy", "node=4", "--max-steps", "0"], "not in the range"),
        (["programs", "--hierarchy", "node=4", "--goal", "all-to-all"], "is not one of"),
        (["check", "AllReduce insid node", "--hierarchy", "node=2,gpu=2"], "did you mean 'inside'"),
        (["check", "AllReduce inside rack", "--hierarchy", "node=2,gpu=2"], "expected a level (node, gpu)"),
        (["chek"], "No such command 'chek'"),
    ],
)
def test_bad_input_gets_a_message_and_exit_code_2(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


def options(group: click.Group) -> Iterator[tuple[str, click.Option]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        verb = group.get_command(context, name)
        assert verb is not None
        if isinstance(verb, click.Group):
            yield from options(verb)
        for parameter in verb.params:
            if isinstance(parameter, click.Option):
                yield parameter.opts[0], parameter


def test_options_mean_the_same_in_every_verb() -> None:
    # of a testbed, a workload and a system; of trials and of a model; of rank files and of topologies; beside others,
    # and of what a plan holds
    about_other_things = {"--name", "--dtype", "--format", "--steps", "--best"}
    own_text = {"--out", "--hosts", "--axes", "--system", "--reduce", "--placement", "--engine", "--local", "--timeout"}
    own_text |= {"--library", "--html", "--measurements", "--hostfile"}
    found: dict[str, set[tuple[object, ...]]] = {}
    defaults: dict[str, set[object]] = {}
    for name, option in options(main):
        text = "its own" if name in own_text else (option.help, option.metavar)
        found.setdefault(name, set()).add((option.type.to_info_dict()["param_type"], text))
        if not option.required and not option.multiple:
            defaults.setdefault(name, set()).add(option.default)
    assert {name for name, meanings in found.items() if len(meanings) > 1} == about_other_things
    assert {name for name, values in defaults.items() if len(values) > 1} <= about_other_things | {
        "--engine",
        "--library",
    }


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--timeout", "60"], 0),
        (["--timeout", "1.5"], 0),
        (["--timeout", "60000ms"], 0),
        (["--timeout", "0"], 2),
        (["--timeout", "soon"], 2),
        (["--timeout", ""], 2),
    ],
)
def test_times_have_units_or_are_in_seconds(tmp_path: Path, arguments: list[str], code: int) -> None:
    path = str(tmp_path / "plan.json")
    run("plan", "--system", "gpu=2@1GB/s", "--axes", "data=2", "--reduce", "data=1KiB", "--out", path)
    assert run("run", path, "--engine", "numpy", "--repeat", "1", *arguments).exit_code == code


def test_malformed_yaml_is_located(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("levels:\n  - name: node\n    count: 4\n   bandwidth: 3\n")
    result = run("placements", "--system", str(path), "--axes", "data=4")
    assert result.exit_code == 2
    assert "mine.yaml line 4: malformed YAML" in result.stderr


def test_python_dash_m_and_lean_imports() -> None:
    """The command works as a module, and does not load any engine."""
    code = (
        "import sys, runpy; sys.argv = ['meshwright', 'systems', '--json']\n"
        "try: runpy.run_module('meshwright', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code\n"
        "assert not {'torch', 'jax', 'mpi4py', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["systems"]


def test_help_and_a_bare_import_are_quick() -> None:
    """NumPy takes half of the time of an import, so it is loaded when something needs it."""
    code = (
        "import sys, runpy, meshwright; sys.argv = ['meshwright', '--help']\n"
        "try: runpy.run_module('meshwright', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code\n"
        "assert 'numpy' not in sys.modules\n"
        "assert meshwright.parse_axes('a=2') == {'a': 2} and 'numpy' in sys.modules\n"
        "import inspect; assert inspect.getmembers(meshwright)  # as tools do that complete names\n"
        "assert not {'torch', 'jax', 'mpi4py'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Commands:" in done.stdout


def test_kinds_of_devices_are_merged() -> None:
    document = run_json("check", "Reduce all; Broadcast all", "--hierarchy", "a=2,b=2,c=2")
    kinds = document["states"][1]["devices"]
    assert [kind["which"] for kind in kinds] == ["a=0, b=0, c=0", "others"]
    assert [kind["holds"] for kind in kinds] == ["everything", "nothing"]


def test_a_terminal_that_cannot_show_everything() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-m", "meshwright", "placements", "--system", "node=64", "--axes", "a=64"]
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"0 1 2 3 \\u2026" in done.stdout


def test_a_full_disk_and_a_closed_output() -> None:
    for redirection, message in ((">/dev/full", "cannot write the result"), (">&-", "must be open")):
        command = f"{sys.executable} -m meshwright systems {redirection}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_counting_can_be_too_much_work() -> None:
    system = ",".join(f"l{k}=4096" for k in range(8))
    arguments = ["placements", "--system", system, "--axes", system]
    assert "too many placements to count" in run(*arguments, "--count").stderr
    first = run(*arguments, "--first", "1", "--json")
    assert json.loads(first.stdout)["count"] is None
    assert "the first 1 of too many to count" in first.stderr
    both = run(*arguments, "--first", "1", "--count")
    assert both.exit_code == 2
    assert "exclude each other" in both.stderr
