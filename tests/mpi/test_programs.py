"""Programs on real MPI communicators, whole and in chunks."""

import pytest

from tests.engines import EXHAUSTIVE
from tests.mpi.launch import mpirun


@pytest.mark.parametrize(
    ("ranks", "chunks"),
    [
        (4, ["pipelines:node=2,gpu=2", "pipelined_goals", "ranged_goals", "tuning"]),
        (8, ["pipelines:node=2,gpu=4"]),
    ],
)
def test_every_program_and_chunks_reduce_exactly_and_alike_on_every_rank(ranks: int, chunks: list[str]) -> None:
    specs = [spec for spec in EXHAUSTIVE if (spec == "node=2,gpu=2") == (ranks == 4)]
    done = mpirun(ranks, *(f"every_program:{spec}" for spec in specs), *chunks)
    assert done.returncode == 0, done.stderr
    counts = [*(str(EXHAUSTIVE[spec][1]) for spec in specs), "60", *["1"] * (len(chunks) - 1)]
    assert done.stdout.split() == [word for count in counts for word in ("done", count)]
