"""The round trip on a testbed: hosts are shuffled, and in the end the plan runs as planned. No time is asserted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright import load_system, read_plan
from meshwright.testbed import missing_rights


def test_a_shuffled_job_discovers_calibrates_plans_and_runs(tmp_path: Path) -> None:
    if reason := missing_rights():
        pytest.skip(reason)
    # In a process of its own, as ranks are forked from it.
    command = [sys.executable, "-m", "benchmarks.roundtrip", "--quick", "--payload", "256KiB", str(tmp_path)]
    done = subprocess.run(
        [*command, "--system", "node=2@8Mbit/s,gpu=2@32Mbit/s"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "roundtrip.json").read_text())
    assert summary["right"], summary
    assert (tmp_path / "hosts").read_text() != (tmp_path / "shuffled").read_text()
    found = load_system(str(tmp_path / "system.yaml"))
    assert [(level.name, level.count) for level in found.levels] == [("group", 2), ("node", 2)]
    outer, inner = (level.link.bandwidth or 0.0 for level in found.levels)
    assert outer < inner
    fitted = load_system(str(tmp_path / "calibrated.yaml"))
    assert read_plan(tmp_path / "plan.json").placement.system.levels == fitted.levels
    assert summary["correct"]
    assert json.loads((tmp_path / "calibrate.json").read_text())["observations"] > 10
    assert "confidence" in (tmp_path / "system.yaml").read_text()
