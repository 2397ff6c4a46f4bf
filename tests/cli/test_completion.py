"""Shells complete verbs, options, presets, libraries and workloads; docs/cli.md says how to switch it on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from meshwright.cli import VERBS, main
from meshwright.cost.library import library_names
from meshwright.system.read import preset_names
from meshwright.workload.read import workload_names


def completed(*words: str) -> list[tuple[str, str]]:
    """What is offered for the last of some words, with its type."""
    *before, last = words
    shell = BashComplete(main, {}, "meshwright", "_MESHWRIGHT_COMPLETE")
    return [(item.type, item.value) for item in shell.get_completions(list(before), last)]


def plain(*names: str) -> list[tuple[str, str]]:
    return [("plain", name) for name in names]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["pl"], plain("plan", "placements")),
        (["plan", "--system", ""], plain(*preset_names())),
        (["plan", "--system", "dgx-"], plain("dgx-a100", "dgx-h100")),
        (["plan", "--system", "./my"], [("file", "./my")]),
        (["calibrate", "--system", "gb"], plain("gb200-nvl72")),
        (["accuracy", "--system", "gb"], plain("gb200-nvl72")),
        (["plan", "--library", ""], plain(*library_names())),
        (["accuracy", "m.jsonl", "--library", "nc"], plain("nccl", "nccl-sockets")),
        (["plan", "--workload", ""], plain(*workload_names())),
        (["workload", "show", "m"], plain("moe-141b")),
        (["export", "plan.json", "--to", "ran"], plain("rankfile")),
        (["plan", "--engine", ""], plain("torch", "mpi", "jax")),
        (["plan", "--comp"], plain("--compare")),
        (["explain", "pl"], [("file", "pl")]),
    ],
)
def test_what_shells_offer(words: list[str], offered: list[tuple[str, str]]) -> None:
    assert completed(*words) == offered


def test_all_verbs_are_offered_in_the_order_of_help() -> None:
    assert completed("") == plain(*VERBS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_that_switches_it_on(shell: str) -> None:
    environment = {**os.environ, "_MESHWRIGHT_COMPLETE": f"{shell}_source"}
    command = [sys.executable, "-c", "from meshwright.cli import main; main(prog_name='meshwright')"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if shell == "bash" and "bash" in done.stderr.lower():
        pytest.skip(f"bash cannot be asked for its version: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert f"_MESHWRIGHT_COMPLETE={shell}_complete" in done.stdout
    assert f"{shell}_source" in (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
