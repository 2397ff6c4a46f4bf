"""What a Reducer does with real MPI ranks; what each rank does is in programs.py."""

import time

import pytest

from tests.mpi.launch import mpirun


@pytest.mark.parametrize("name", ["operations", "goals"])
def test_on_four_ranks(name: str) -> None:
    done = mpirun(4, name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["done", "1"]


def test_what_cannot_be_is_refused_alike_on_every_rank() -> None:
    done = mpirun(4, "refusals")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "there are 4 processes, but the plan is for 8 devices (node=2,gpu=4): start 8, or make a plan for 4",
        "ranks 1, 2, 3 have another plan than rank 0: give every process the same plan file",
        "MPI cannot reduce float16; it can reduce native integers, float32, float64 and complex numbers",
        "MPI cannot reduce >f8; it can reduce native integers, float32, float64 and complex numbers",
        "MPI cannot reduce bool; it can reduce native integers, float32, float64 and complex numbers",
        "op='avg' needs floating point numbers, not int32: reduce with 'sum', then divide",
        "op='prod': expected sum, avg, max or min",
        "expected a NumPy array or another buffer, not list",
        "the result goes into the given bytes, but it is read-only",
        "arrays of Python objects cannot be sent",
        "the ranks call differently: rank 0 gives 4 elements of <f8 to all-reduce sum of reduction 0, "
        "rank 2 gives 5 elements of <f8 to all-reduce sum of reduction 0",
    ]


def test_calls_in_another_order_are_noticed() -> None:
    done = mpirun(4, "swapped")
    assert done.stdout.strip() == (
        "rank 2 made other calls than rank 0 since the ranks compared theirs last, so results since then may be wrong"
    )


def test_a_rank_that_hangs_ends_the_job_with_a_message_in_time() -> None:
    started = time.monotonic()
    done = mpirun(4, "hanging")
    assert time.monotonic() - started < 30
    assert done.returncode != 0
    assert "waited 2 s in step " in done.stderr
    assert "another rank has died, hangs or makes other calls" in done.stderr


def test_a_rank_that_dies_ends_the_job() -> None:
    started = time.monotonic()
    done = mpirun(4, "dying")
    assert time.monotonic() - started < 30
    assert done.returncode != 0
