"""What a Reducer does with real MPI ranks; what each rank does is in programs.py."""

import ast
import re

from tests.mpi.launch import mpirun


def test_every_operation_and_goal_on_reducers_that_nobody_closes() -> None:
    done = mpirun(4, "operations", "goals", "forgotten")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["done", "1"] * 3


REFUSED = [
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
GIVES = "the ranks call differently: rank 0 gives 3 elements of <f8 to all-reduce sum of reduction 0, rank 2 cannot: "
REASONS = (REFUSED[2], REFUSED[7], REFUSED[6])
REFUSED_TO_ONE = [
    "rank 1: the program ends before the goal (all-reduce) is reached: device 1 does not hold part 0",
    "rank 1: expected a Plan, as read_plan gives one, not NoneType",
    "rank 3: timeout=nan: expected a number of seconds above 0 and below 1e9",
    "ranks 1, 2, 3: timeout='60': expected a number of seconds above 0 and below 1e9",
    "rank 3: check='often': expected 'first', 'always' or 'never'",
    "rank 2 has check='never', but rank 0 'first': give every process the same",
    "there are 2 processes, but the plan is for 4 devices (node=2,gpu=2): start 4, or make a plan for 2",
    *(f"{GIVES}{reason} | {reason}" for reason in REASONS),
    *(f"{reason} | the ranks call differently: rank 0 cannot: {reason}" for reason in REASONS),
]
OTHER_ORDER = (
    "rank 2 made other calls than rank 0 since the ranks compared theirs last, so results since then may be wrong"
)


def test_what_all_or_one_cannot_do_and_what_is_noticed_is_said_alike_on_every_rank() -> None:
    """Refusals of all and of one, calls in another order, and plans for other libraries and sizes."""
    done = mpirun(4, "refusals", "lone_refusals", "swapped", "noticed")
    assert done.returncode == 0, done.stderr
    *refused, notices = done.stdout.splitlines()
    assert refused == [*REFUSED, *REFUSED_TO_ONE, OTHER_ORDER]
    said, *others = ast.literal_eval(notices)
    assert [text.partition(":")[0] for text in said] == [
        "the plan was made for nccl, but runs on openmpi",
        "the all-reduce over data was planned for 256MiB in 4 chunks, but a call with 32B is a single chunk, whose "
        "steps do not overlap",
    ]
    assert others == [[], [], []]


def test_a_rank_that_hangs_ends_the_job_with_a_message() -> None:
    done = mpirun(4, "hanging")
    assert done.returncode != 0
    said = r"meshwright: rank \d waited 2 s in step \d \(.* node\) with ranks \d, \d: another rank has died, hangs"
    assert re.search(said, done.stderr), done.stderr


def test_a_step_that_fails_is_named_and_no_call_follows() -> None:
    done = mpirun(4, "failing")
    assert done.returncode == 0, done.stderr
    failed = "rank 1: step 1 (ReduceScatter inside node) with ranks 0, 1 failed: MPI_ERR_COMM: "
    first, second = done.stdout.splitlines()
    assert first.startswith(failed)
    assert second.startswith(f"a call before failed, so the ranks may be out of step: {failed}")


def test_a_rank_that_ends_with_an_exception_ends_the_job_at_once() -> None:
    done = mpirun(4, "raising")
    assert done.returncode != 0
    assert "KeyError: 'a mistake'" in done.stderr
    assert "meshwright: rank 1 ends with KeyError while others may wait for it, so it ends the job" in done.stderr


def test_a_rank_that_dies_ends_the_job() -> None:
    assert mpirun(4, "dying").returncode != 0
