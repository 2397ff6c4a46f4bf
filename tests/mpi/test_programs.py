"""Programs on real MPI communicators."""

import pytest

from tests.engines import EXHAUSTIVE
from tests.mpi.launch import mpirun


@pytest.mark.parametrize("spec", EXHAUSTIVE)
def test_every_program_reduces_exactly_and_alike_on_every_rank(spec: str) -> None:
    done = mpirun(4 if spec == "node=2,gpu=2" else 8, "every_program", spec)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["done", str(EXHAUSTIVE[spec][1])]


@pytest.mark.parametrize(("spec", "ranks"), [("node=2,gpu=2", 4), ("node=2,gpu=4", 8)])
def test_chunks_reduce_exactly_and_alike_on_every_rank(spec: str, ranks: int) -> None:
    done = mpirun(ranks, "pipelines", spec)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["done", "60"]


def test_every_goal_in_chunks() -> None:
    done = mpirun(4, "pipelined_goals")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["done", "1"]
