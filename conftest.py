"""Which files tests are collected from, and their order; what they need of their surroundings: tests/conftest.py."""

import gc
import os
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "src"

SLOW = (
    "tests/testbed/test_bench.py",
    "tests/testbed/test_roundtrip.py",
    "tests/torch/test_faults.py",
    "tests/torch/test_launchers.py",
    "tests/cli/test_run.py",
    "tests/torch/test_dropin.py",
    "tests/testbed/test_testbed.py",
    "tests/jax/test_reducer.py",
    "tests/torch/test_pipelines.py",
    "tests/test_examples.py",
    "tests/torch/test_programs.py",
    "tests/mpi/test_programs.py",
)
"""The files whose tests take longest, the slowest first."""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Modules without doctests: to look for some would import PyTorch and JAX, in every worker."""
    if collection_path.suffix != ".py" or not collection_path.is_relative_to(SOURCE):
        return None
    return None if ">>>" in collection_path.read_text() else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every worker begins with its share of the slow files, so that none of them is left for the end.

    Of what was collected, pytest-xdist gives each worker a stretch with as many tests as the others have.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    files = [[item for item in items if item.nodeid.startswith(f"{name}::")] for name in SLOW]
    others = [item for item in items if not item.nodeid.startswith(SLOW)]
    ordered: list[pytest.Item] = []
    for number in range(workers):
        end = len(items) * (number + 1) // workers
        ordered += [item for file in files[number::workers] for item in file]
        many = max(0, end - len(ordered)) if number < workers - 1 else len(others)
        ordered, others = ordered + others[:many], others[many:]
    assert len(ordered) == len(items)
    items[:] = ordered


def pytest_collection_finish() -> None:
    """The garbage collector need not look through what is loaded again and again, and seldom finds anything."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
