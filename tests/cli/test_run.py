"""`meshwright run`: through real launchers, and what bad input gets."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from meshwright import MeshwrightWarning, Plan, parse_reduction, parse_system, plan, write_plan
from meshwright.measure.trials.numpy import NumpyRunner
from meshwright.measure.trials.trial import Runner
from meshwright.runtime.launch import mpirun_command, safe_environment, torchrun_command, wait_for_ranks
from tests.cli.test_verbs import run, run_json
from tests.ranks import results
from tests.traps import Traps

MPI = pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed (Debian: openmpi-bin)")
REDUCTIONS = ["data=40KiB", "shard=4001B", "reduce-scatter:data+shard=400KiB", "all-gather:data=12B"]
ROOTED = ["reduce:data=1KiB", "broadcast:data+shard=1KiB"]


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    return made(tmp_path, [*REDUCTIONS, *ROOTED])


@pytest.fixture
def long_plan(tmp_path: Path) -> Path:
    """For two ranks: a small reduction, then others that take minutes if each is repeated a hundred times."""
    return made(tmp_path, ["data=4B", *["data=64MiB"] * 5], "node=2@1GB/s", {"data": 2})


def made(
    folder: Path, reductions: list[str], spec: str = "node=2@1GB/s,gpu=2@8GB/s", axes: dict[str, int] | None = None
) -> Path:
    best = planned(tuple(reductions), spec, tuple((axes or {"data": 2, "shard": 2}).items()))
    write_plan(best, folder / "plan.json")
    return folder / "plan.json"


@cache
def planned(reductions: tuple[str, ...], spec: str, axes: tuple[tuple[str, int], ...]) -> Plan:
    """Planned once, for all tests that run the same."""
    return plan(parse_system(spec), dict(axes), [parse_reduction(text) for text in reductions]).candidates[0]


def launched(
    launcher: list[str], *arguments: str, limit: float = 120, traps: Traps | None = None
) -> "subprocess.CompletedProcess[str]":
    command = [*launcher, "-m", "meshwright", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"} | ({"PATH": traps.path} if traps else {})
    folder = traps.folder if traps else None
    return subprocess.run(
        command, capture_output=True, text=True, timeout=limit, env=environment, cwd=folder, check=False
    )


def test_search_paths_without_the_current_folder() -> None:
    given = {"PATH": ".::/bin:bin:/usr/bin", "PYTHONPATH": ":src::/a", "LD_LIBRARY_PATH": ":", "HOME": "."}
    assert safe_environment(given) == {"PATH": "/bin:/usr/bin", "PYTHONPATH": "src:/a", "HOME": "."}
    assert safe_environment({"PATH": "."}) == {}


def is_right(document: dict[str, Any], engine: str, reductions: int) -> None:
    assert (document["engine"], document["devices"], len(document["reductions"])) == (engine, 4, reductions)
    for row in document["reductions"]:
        assert row["correct"]
        assert not row["faults"]
        assert row["seconds"] > 0
        assert row["speedup"] == pytest.approx(row["default_seconds"] / row["seconds"])


def test_numpy(plan_file: Path) -> None:
    is_right(run_json("run", str(plan_file), "--engine", "numpy", "--dtype", "int32"), "numpy", 6)


def test_torch_through_torchrun(plan_file: Path) -> None:
    done = launched(torchrun_command(4), "run", str(plan_file), "--engine", "torch", "--json", "--repeat", "2")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    is_right(document, "torch", 6)
    assert [row["bytes"] for row in document["reductions"]] == [40960, 4000, 409600, 12, 1024, 1024]


def test_torch_locally_as_a_table_from_a_folder_with_traps(tmp_path: Path) -> None:
    path = made(tmp_path, ["data=40KiB", "reduce:data=1KiB"], "gpu=2@1GB/s", {"data": 2})
    arguments = ["run", str(path), "--engine", "torch", "--local", "--bytes", "1kB"]
    traps = Traps(tmp_path)
    done = launched([sys.executable, "-P"], *arguments, traps=traps)
    assert done.returncode == 0, done.stderr
    assert not traps.sprung
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["reduction", "bytes", "time", "predicted", "default", "speedup", "result", "program"]
    assert "all ranks are on this machine, whose links are not the plan's" in done.stderr
    assert sum("1kB" in row and " right " in row for row in rows) == 2


@MPI
def test_mpi_through_mpirun_and_locally_from_a_folder_with_traps(plan_file: Path, tmp_path: Path) -> None:
    arguments = ["run", str(plan_file), "--engine", "mpi", "--repeat", "2"]
    done = launched([*mpirun_command(4), sys.executable], *arguments, "--json")
    assert done.returncode == 0, done.stderr
    is_right(json.loads(done.stdout), "mpi", 6)
    traps = Traps(tmp_path)
    done = launched([sys.executable, "-P"], *arguments, "--local", traps=traps)
    assert done.returncode == 0, done.stderr
    assert not traps.sprung
    assert [" right " in row for row in done.stdout.splitlines()] == [False, *[True] * 6]
    assert "\x1b" not in done.stdout, "mpirun gives ranks a terminal, but this is a pipe"


@pytest.mark.parametrize(
    ("engine", "module", "library"),
    [("torch", "torch", "PyTorch"), ("mpi", "mpi4py", "mpi4py and an MPI library"), ("jax", "jax", "JAX")],
)
def test_without_its_library_an_engine_says_how_to_install_it(
    plan_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: str, module: str, library: str
) -> None:
    for name in list(sys.modules):
        if name == module or name.startswith(
            (f"{module}.", f"meshwright.{engine}", f"meshwright.measure.trials.{engine}")
        ):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))  # what `--local` makes of them for JAX is undone
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    measuring = ["--system", "node=2@1GB/s", "--axes", "data=2", "--reduce", "data=1KiB", "--out", str(tmp_path / "m")]
    for verb in (["run", str(plan_file)], ["bench", *measuring]):
        for local in ([], ["--local"]):
            done = run(*verb, "--engine", engine, *local)
            assert done.exit_code == 3
            assert f"Error: meshwright.{engine} needs {library} (" in done.stderr
            assert done.stderr.endswith(f"): pip install 'meshwright[{engine}]'\n")


def test_jax_locally(tmp_path: Path) -> None:
    path = made(tmp_path, REDUCTIONS)
    done = launched([sys.executable], "run", str(path), "--engine", "jax", "--local", "--json", "--dtype", "int32")
    assert done.returncode == 0, done.stderr
    is_right(json.loads(done.stdout), "jax", 4)


def test_jax_refuses_rooted_goals(plan_file: Path) -> None:
    done = launched([sys.executable], "run", str(plan_file), "--engine", "jax", "--local")
    assert done.returncode == 3
    assert "JAX has no rooted collectives, so the reduce over data cannot run" in done.stderr


def test_without_a_launcher(plan_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    done = run("run", str(plan_file), "--engine", "torch")
    assert done.exit_code == 3
    assert "no launcher started this process (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT missing)" in done.stderr
    assert "or add --local" in done.stderr


def test_without_a_cuda_device(plan_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched_as = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "1", "LOCAL_RANK": "99"}
    for name, value in launched_as.items():
        monkeypatch.setenv(name, value)
    done = run("run", str(plan_file), "--engine", "torch", "--device", "cuda")
    assert done.exit_code == 3
    assert "--device cuda: local rank 99 has no CUDA device of its own; " in done.stderr


def rank_of_a_run(_: int, plan_path: str) -> tuple[int, str]:
    done = run("run", plan_path, "--engine", "torch")
    return done.exit_code, done.stderr


def test_another_number_of_processes(plan_file: Path) -> None:
    message = "there are 2 processes, but the plan is for 4 devices (node=2,gpu=2): start 4, or make a plan for 2"
    ended = results("tests.cli.test_run:rank_of_a_run", 2, str(plan_file))
    assert [(code, said.count(message)) for code, said in ended] == [(3, 1)] * 2


def test_a_plan_that_was_edited_never_runs(plan_file: Path) -> None:
    text = plan_file.read_text()
    plan_file.write_text(
        text.replace("AllReduce all", "ReduceScatter all", 1).replace("AllReduce across", "Reduce across")
    )
    assert plan_file.read_text() != text
    done = run("run", str(plan_file), "--engine", "numpy")
    assert done.exit_code == 2
    assert "the program is not valid" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine", "numpy", "--bytes", "2B"], "2 bytes do not hold one float32, which has 4"),
        (["--engine", "numpy", "--bytes", "1TiB"], "give a smaller --bytes"),
        (["--engine", "numpy", "--timeout", "0s"], "--timeout 0s: expected more than no time"),
        (["--engine", "nccl"], "'nccl' is not one of"),
        ([], "Missing option '--engine'"),
    ],
)
def test_bad_input(plan_file: Path, arguments: list[str], message: str) -> None:
    done = run("run", str(plan_file), *arguments)
    assert done.exit_code == 2
    assert message in done.stderr


@pytest.mark.parametrize("engine", ["torch", pytest.param("mpi", marks=MPI)])
def test_a_rank_that_is_killed_ends_the_run_and_leaves_no_process(long_plan: Path, engine: str) -> None:
    with at_work(long_plan, engine) as process:
        ranks = ranks_of(str(long_plan))
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        output, _ = process.communicate(timeout=120)
    assert process.returncode != 0, output
    deadline = time.monotonic() + 60
    while ranks_of(str(long_plan)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not ranks_of(str(long_plan))


def test_ending_the_command_ends_the_ranks(long_plan: Path) -> None:
    with at_work(long_plan, "torch") as process:
        assert len(ranks_of(str(long_plan))) == 2
        process.terminate()
        process.communicate(timeout=120)
    assert process.returncode != 0
    assert not ranks_of(str(long_plan))


def at_work(plan_file: Path, engine: str) -> "subprocess.Popen[str]":
    """A run whose ranks have run the first of six reductions."""
    arguments = ["run", str(plan_file), "--engine", engine, "--local", "--repeat", "100"]
    process = subprocess.Popen(
        [sys.executable, "-m", "meshwright", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if line.startswith("1 of 6: "):
            return process
    with process:  # it has ended, as nothing comes any more
        raise AssertionError(f"the ranks did not start: {said}")


def ranks_of(plan_path: str) -> list[int]:
    """The processes that run a plan, but for those that started them."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        started_them = b"--local" in words or b"torch.distributed.run" in words or words[0].endswith(b"mpirun")
        if plan_path.encode() in words and not started_them:
            found.append(int(entry.name))
    return sorted(found)


def test_a_warning_is_one_line_without_the_code_that_it_comes_from(
    plan_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warning(*_: object) -> Runner:
        warnings.warn("not as planned", MeshwrightWarning, stacklevel=1)
        return NumpyRunner()

    monkeypatch.setattr(import_module("meshwright.cli.run"), "make_runner", warning)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        done = run("run", str(plan_file), "--engine", "numpy", "--json")
    assert done.exit_code == 0
    assert done.stderr.splitlines()[0] == "Warning: not as planned"


def test_the_rank_that_was_killed_is_named_and_not_those_that_failed_for_it() -> None:
    def ranks(*codes: list[int | None]) -> dict[int, Callable[[], int | None]]:
        """What each rank's end looks like, look by look."""
        return {rank: iter([*each, *[None] * 9]).__next__ for rank, each in enumerate(codes)}

    killed = (-9, "rank 2 was ended by signal 9")
    assert wait_for_ranks(ranks([3], [0], [-9], [None])) == killed
    assert wait_for_ranks(ranks([None], [None], [None, -9], [3])) == killed
    assert wait_for_ranks(ranks([None], [None, 3], [None, None, -9], [0])) == killed
    ended = ranks([0], [7], [5])
    assert wait_for_ranks(ended) == (7, "rank 1 ended with exit code 7")
    assert not ended
    assert wait_for_ranks(ranks([0], [None, 0])) == (0, "")
