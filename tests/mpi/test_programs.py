"""Programs on real MPI communicators."""

from tests.engines import EXHAUSTIVE
from tests.mpi.launch import mpirun


def test_every_program_reduces_exactly_and_alike_on_every_rank() -> None:
    for ranks in (4, 8):
        specs = [spec for spec in EXHAUSTIVE if (spec == "node=2,gpu=2") == (ranks == 4)]
        done = mpirun(ranks, *(f"every_program:{spec}" for spec in specs))
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [word for spec in specs for word in ("done", str(EXHAUSTIVE[spec][1]))]


def test_chunks_reduce_exactly_and_alike_on_every_rank() -> None:
    for ranks, functions in (
        (4, ["pipelines:node=2,gpu=2", "pipelined_goals", "ranged_goals", "tuning"]),
        (8, ["pipelines:node=2,gpu=4"]),
    ):
        done = mpirun(ranks, *functions)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["done", "60", *["done", "1"] * 3][: 2 * len(functions)]
