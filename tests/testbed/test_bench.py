"""Measuring for real, on a testbed: a miniature of the study. Results and bytes are asserted, never times."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks import regret
from benchmarks.study import MINIATURE, joined, miniature_cases

from meshwright import Reduction, load_library, parse_program, parse_system, plan, read_plan, write_plan
from meshwright.cost.model import CostModel
from meshwright.measure.records import read_measurements
from meshwright.placement.layout import layout_of
from meshwright.placement.placement import Placement
from meshwright.planning.plan import DEFAULT_PROGRAM
from meshwright.testbed import Testbed, missing_rights
from tests.cli.test_verbs import run, run_json

GLOO = load_library("gloo")


def test_the_study_in_miniature(tmp_path: Path) -> None:
    if reason := missing_rights():
        pytest.skip(reason)
    # In a process of its own, as ranks are forked from it.
    command = [sys.executable, "-m", "benchmarks.study", "--miniature", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    wanted = miniature_cases(GLOO)
    found = read_measurements(MINIATURE.file(tmp_path, "study"))
    assert len(found) == sum(len(case.numbers) for case in wanted) == 19
    assert [one.failed for one in found] == [None] * len(found)
    checked = 0
    for one in found:
        expected = expected_bytes(one.program, one.matrix, one.over, one.bytes)
        if one.links is None or expected is None:
            continue
        for level, size in expected.items():
            if size > 500_000:  # beside which the ranks' own messages are small
                assert one.links[level] == pytest.approx(size, rel=0.03), (one.program, level)
                checked += 1
    assert checked == 9
    data = json.loads((tmp_path / "study.json").read_text())
    assert data["failed"] == []
    assert data["systems"][MINIATURE.system]["pairs"] == len(wanted) == len(joined(MINIATURE, GLOO, tmp_path))
    assert "| best speedup |" in (tmp_path / "study.md").read_text()


def test_regret_in_miniature(tmp_path: Path) -> None:
    if reason := missing_rights():
        pytest.skip(reason)
    command = [sys.executable, "-m", "benchmarks.regret", "--miniature", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found = read_measurements(regret.file(regret.MINIATURE, tmp_path))
    texts = [one.program for one in found]
    assert len(set(texts)) == len(texts) >= 6
    assert [one.failed for one in found] == [None] * len(found)
    chosen = regret.planned(regret.MINIATURE, regret.LITTLE, regret.MOST)
    assert {DEFAULT_PROGRAM, chosen.program_text(chosen.reductions[0])} <= set(texts)
    for one in found:
        # A ring over all sends 1.5 payloads between nodes; steps that scatter first send one, beside small messages.
        assert one.links is not None
        sent = one.links["node"] / regret.LITTLE
        assert sent >= 1.5 if one.program == DEFAULT_PROGRAM else 1 <= sent < 1.4, one.program
    (row,) = regret.rows([regret.MINIATURE], tmp_path)
    assert row.chosen is not None
    assert row.best <= min(row.own, row.chosen)
    assert len(row.errors) == sum("chunks" in text for text in texts)


def expected_bytes(program: str, matrix: list[list[int]], over: list[str], size: int) -> dict[str, float] | None:
    """What the model says crosses the busiest link of each level, for programs whose phases all load the same one."""
    if program == DEFAULT_PROGRAM:
        return None
    placement = Placement(parse_system(MINIATURE.system), ("data", "shard"), matrix)  # type: ignore[arg-type]
    model = CostModel(layout_of(placement, over), GLOO, size)
    steps = model.steps(parse_program(program, model.layout.hierarchy))
    if any(word in program for word in ("Reduce all", "Reduce inside", "Reduce across", "masters", "Broadcast")):
        return None  # roots load some links more than others, and not the same ones each time
    found: dict[str, float] = {}
    for step in steps:
        for phase in step.phases:
            for load in phase.loads:
                found[load.level] = found.get(load.level, 0.0) + load.bytes
    return found


def bench(bed: Testbed, out: Path, *more: str) -> list[str]:
    system = "node=2@20Mbit/s,gpu=2@100Mbit/s"
    arguments = ["bench", "--system", system, "--axes", "data=4", "--reduce", "data=64KiB", "--out", str(out)]
    return [*arguments, "--testbed", bed.network.name, "--library", "gloo", "--every", "2", "--best", "0", *more]


def test_a_rank_that_dies_is_a_failed_measurement_and_the_rest_goes_on(bed: Testbed, tmp_path: Path) -> None:
    out = tmp_path / "m.jsonl"
    command = [
        sys.executable,
        "-m",
        "meshwright",
        *bench(bed, out, "--least", "30", "--most", "30", "--timeout", "10s"),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (out.exists() and out.read_text().count('"started"') >= 2):
            time.sleep(0.05)
        inside = subprocess.run(
            ["ip", "netns", "pids", bed.network.namespace(2)], capture_output=True, text=True, check=True
        )
        os.kill(int(inside.stdout.split()[0]), signal.SIGKILL)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    found = read_measurements(out)
    failed = [one for one in found if one.failed]
    assert len(failed) == 1
    assert failed[0].failed == "rank 2 was ended by signal 9"
    assert len(found) > 4
    assert all(len(one.seconds) == 30 for one in found if not one.failed)


def test_a_killed_run_goes_on_where_it_stopped(bed: Testbed, tmp_path: Path) -> None:
    out = tmp_path / "m.jsonl"
    command = [sys.executable, "-m", "meshwright", *bench(bed, out, "--least", "5", "--most", "5")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (out.exists() and out.read_text().count('"seconds"') >= 2):
            time.sleep(0.05)
        process.kill()
    before = out.read_text()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert out.read_text().startswith(before[: before.rfind("\n") + 1])
    programs = [one.program for one in read_measurements(out)]
    assert len(programs) == len(set(programs)) == 6
    figures = run_json("accuracy", str(out), "--library", "gloo")
    assert figures["programs"] == 5
    assert set(figures["top"]) == {"1", "3", "5", "10"}


def test_a_plan_is_tuned_unless_a_rank_dies(bed: Testbed, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    best = plan("node=2@20Mbit/s,gpu=2@100Mbit/s", {"data": 4}, [Reduction(("data",), 2**17)], library=GLOO)
    write_plan(best.candidates[0], path)
    before = path.read_text()
    command = [sys.executable, "-m", "meshwright", "tune", str(path), "--testbed", bed.network.name, "--best", "3"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        deadline, inside = time.monotonic() + 120, [""]
        while time.monotonic() < deadline and not inside[0]:
            time.sleep(0.05)
            pids = ["ip", "netns", "pids", bed.network.namespace(2)]
            inside = subprocess.run(pids, capture_output=True, text=True, check=True).stdout.split("\n")
        os.kill(int(inside[0]), signal.SIGKILL)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 3, said
    assert "Error: rank " in said
    assert path.read_text() == before
    quick = [*command, "--least", "2", "--most", "2", "--json"]
    done = subprocess.run(quick, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["tuned"]
    assert [one["failed"] for one in row["measured"]] == [None] * 4
    (planned,) = read_plan(path).reductions
    assert planned.tuned[0].chosen.pipelined == planned.pipelined
    assert len(planned.tuned[0].compared) == 3


def test_bad_input(bed: Testbed, tmp_path: Path) -> None:
    refused = run(*bench(bed, tmp_path / "no" / "m.jsonl"))
    assert refused.exit_code == 2
    assert "cannot write measurements to" in refused.stderr
    flat = ["bench", "--system", "node=4@1MB/s", "--axes", "a=4", "--reduce", "a=1kB", "--out", str(tmp_path / "m")]
    for more, code, message in (
        (["--testbed", bed.network.name], 2, "has the counts (2, 2), not (4,)"),
        (["--testbed", "none"], 3, "testbed 'none' is not up"),
        (["--testbed", bed.network.name, "--engine", "mpi"], 2, "has the counts"),
        (["--placement", "[[2]]"], 2, "--placement [[2]]"),
    ):
        done = run(*flat, *more)
        assert done.exit_code == code
        assert message in done.stderr
    assert "say what to calibrate from" in run("calibrate", "--system", "node=4@1MB/s").stderr
