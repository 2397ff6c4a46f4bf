"""`--json` has one shape for axes, systems and placements in every verb; docs/cli.md says which."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshwright.placement.placement import Placement
from meshwright.system.read import system_document, system_of
from tests.cli.test_verbs import run

SYSTEM = "node=2@100Mbit/s+1ms,gpu=4@8GB/s"
PLAN = ["plan", "--system", SYSTEM, "--axes", "data=4,tensor=2", "--reduce", "data=64MiB"]
GOLDEN = Path(__file__).parents[1] / "golden" / "files"

COMMANDS = [
    [*PLAN, "--compare"],
    ["explain", "plan.json"],
    ["placements", "--system", SYSTEM, "--axes", "data=4,tensor=2"],
    ["systems"],
    ["run", "plan.json", "--engine", "numpy", "--bytes", "1KiB", "--repeat", "1"],
    ["bench", *PLAN[1:5], "--reduce", "data=1KiB", "--engine", "numpy", "--every", "1", "--best", "1", "--out", "m"],
    ["workload", "list"],
    ["workload", "show", "dense-70b"],
    ["discover", "--hosts", "n[1-4]", "--node-type", "dgx-h100"],
    ["calibrate", "--system", "node=2@1GB/s,gpu=8@2GB/s", "--measurements", "calibration.jsonl", "--fit-only"],
    ["plan", "--system", "dgx-h100", "--workload", "dense-70b", "--choose", "data", "--axes", "tensor=8,shard=16"],
]


def found(document: Any, key: str) -> Iterator[Any]:
    """All values of a key, wherever it is in a document."""
    if isinstance(document, dict):
        for name, value in document.items():
            if name == key:
                yield value
            yield from found(value, key)
    elif isinstance(document, list):
        for value in document:
            yield from found(value, key)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert run(*PLAN, "--out", "plan.json").exit_code == 0
    (tmp_path / "calibration.jsonl").write_bytes((GOLDEN / "calibration.jsonl").read_bytes())
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.usefixtures("folder")
def test_axes_systems_and_placements_have_one_shape(command: list[str]) -> None:
    done = run(*command, "--json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    systems = [*found(document, "system"), *(one for each in found(document, "systems") for one in each)]
    for system in systems:
        assert system_document(system_of(system, "the document")) == system  # as in a system file
    placements = [*found(document, "placement")]
    placements += [one for each in found(document, "placements") if isinstance(each, list) for one in each]
    for one in placements:
        assert list(one) == ["axes", "matrix"]
        at = Placement(system_of(systems[0], "the document"), tuple(one["axes"]), one["matrix"])
        assert at.sizes == one["axes"]
    kinds = ("reductions", "transfers", "results", "communications")
    over = [one["axes"] for kind in kinds for each in found(document, kind) for one in each if "axes" in one]
    for axes in found(document, "axes"):
        assert axes in over or (isinstance(axes, dict) and all(type(size) is int for size in axes.values()))
    assert systems or placements or list(found(document, "axes"))


def test_a_system_of_the_json_is_a_system_file(tmp_path: Path) -> None:
    document = json.loads(run(*PLAN, "--json").stdout)
    assert document["system"]["levels"][0] == {"name": "node", "count": 2, "bandwidth": "100Mbit/s", "latency": "1ms"}
    (tmp_path / "again.yaml").write_text(json.dumps(document["system"]))
    again = json.loads(run("plan", "--system", str(tmp_path / "again.yaml"), *PLAN[3:], "--json").stdout)
    assert again == document


@pytest.mark.usefixtures("folder")
def test_bench_ends_with_its_result_and_the_next_step() -> None:
    command = ["bench", *PLAN[1:5], "--reduce", "data=1KiB", "--engine", "numpy", "--every", "1", "--best", "2"]
    done = run(*command, "--library", "gloo", "--out", "m.jsonl", columns=100)
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["reduction", "placement", "fastest", "default", "speedup", "program"]
    assert max(map(len, lines)) <= 100
    for placement in ("data=2x2,tensor=1x2", "data=1x4,tensor=2x1"):
        assert placement in "".join(done.stdout.split())
    assert done.stderr.endswith("next: meshwright accuracy m.jsonl --library gloo\n")
    again = json.loads(run(*command, "--library", "gloo", "--out", "m.jsonl", "--json").stdout)
    assert len(again["results"]) == 2
    for row in again["results"]:
        assert row["speedup"] == pytest.approx(row["default_seconds"] / row["seconds"])
        assert row["failed"] == 0
        assert row["programs"] >= 1
    assert run("accuracy", "m.jsonl", "--library", "gloo").exit_code == 0
