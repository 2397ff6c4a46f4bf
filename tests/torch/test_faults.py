"""What goes wrong between real ranks ends in one clear error on each of them, in time."""

import pytest

from tests.ranks import results, run_ranks

OTHER_CALLS = (
    "rank 2 made other calls than rank 0 since the ranks compared theirs last, so results since then may be wrong"
)


def test_a_world_of_another_size_is_refused_on_every_rank() -> None:
    for message in results("tests.torch.refusals:world_of_another_size", 4):
        assert message == (
            "there are 4 processes, but the plan is for 8 devices (node=2,gpu=4): start 8, or make a plan for 4"
        )


@pytest.mark.parametrize(
    ("seats", "message"),
    [
        (
            [(0, 3), (1, 3), (2, 3), (0, 3)],
            "rank 0 is on a host with 3 processes, but a host of the plan's system node=2,gpu=2 can have 4, 2 or 1",
        ),
        (
            [(0, 2), (0, 2), (1, 2), (1, 2)],
            "rank 1 is number 0 of 2 on its host, but the plan numbers devices host by host, so it should be number 1: "
            "start a host's ranks one after another",
        ),
        (
            [(0, 2), (1, 2), (0, 1), (0, 1)],
            "hosts have different numbers of processes (rank 2: 1, rank 0: 2), but those of the plan's system "
            "node=2,gpu=2 are alike",
        ),
    ],
)
def test_another_layout_is_refused_on_every_rank(seats: list[tuple[int, int]], message: str) -> None:
    assert results("tests.torch.refusals:seats_that_do_not_fit", 4, seats) == [message] * 4


def test_another_plan_on_a_rank_is_refused_on_every_rank() -> None:
    message = "rank 2 has another plan than rank 0: give every process the same plan file"
    assert results("tests.torch.refusals:another_plan", 4) == [message] * 4


def test_a_rank_that_does_not_come_is_named() -> None:
    messages = results("tests.torch.failures:absent_rank", 4)
    assert messages == ["rank 3 did not join the others within 4 s"] * 3 + [""]


@pytest.mark.parametrize(
    ("program", "length"),
    [
        ("ReduceScatter inside node; AllReduce across node; AllGather inside node", 100),
        ("ReduceScatter all; AllGather all", 100),  # an exchange, and a ring of sends
        ("ReduceScatter all; AllGather all", 40_000),  # two rings of sends
    ],
)
def test_a_rank_that_dies_ends_in_an_error_on_the_others(program: str, length: int) -> None:
    outcomes = run_ranks("tests.torch.failures:dying_rank", 4, program, length)
    assert [outcome.status for outcome in outcomes] == [0, 0, 0, 7]
    for rank, outcome in enumerate(outcomes[:3]):
        first, again = outcome.result
        assert first.startswith(f"rank {rank}: step ")
        assert again == f"this Reducer can no longer be used: {first}"


def test_a_rank_that_hangs_ends_in_an_error_on_the_others_within_the_timeout() -> None:
    outcomes = results("tests.torch.failures:hanging_rank", 4)
    for rank in (0, 2, 3):
        assert f"rank {rank}: step " in outcomes[rank]


def test_different_calls_are_refused_on_every_rank() -> None:
    messages = results("tests.torch.refusals:different_calls", 4)
    assert all(each == messages[0] for each in messages)
    size, dtype, operation, always = messages[0]
    head = "the ranks call differently: rank 0 gives"
    what = "elements of float32 to all-reduce sum of reduction 0"
    assert size == f"{head} 4 {what}, rank 2 gives 5 {what}"
    assert "4 elements of float64 to all-reduce sum" in dtype
    assert "rank 2 gives 4 elements of float32 to all-reduce max" in operation
    assert "rank 0 gives 5" in always
    assert "rank 2 gives 4" in always


def test_calls_in_another_order_are_noticed() -> None:
    assert results("tests.torch.refusals:swapped_calls", 4) == [OTHER_CALLS] * 4


def test_unsuitable_tensors_are_refused_before_anything_is_sent() -> None:
    messages = results("tests.torch.refusals:unsuitable_tensors", 4)[0]
    known = "bfloat16, float16, float32, float64, int32, int64, int8, uint8"
    assert messages == [
        f"torch.int16 cannot be reduced, but {known} can",
        f"torch.complex64 cannot be reduced, but {known} can; reduce torch.view_as_real(tensor)",
        "op='avg' needs a floating point tensor, not torch.int32: reduce with 'sum', then divide",
        "op='prod': expected sum, avg, max or min",
        "expected a dense tensor, not torch.sparse_coo",
        "expected a dense tensor, not list",
        messages[6],
        "the plan has no all-reduce; it has: reduce-scatter over data",
        "rank 0 gives 3 elements, but its part of 13 over 4 ranks has 4",
        "out is torch.float64 on cpu, the part is torch.float32 on cpu",
        "the tensor requires a gradient, but none goes through a Reducer: call it under torch.no_grad(), or give "
        "tensor.detach(); torch.distributed.nn.functional has collectives that are differentiable",
    ]
    assert messages[6].startswith("the tensor is on meta, but the process group has gloo for cpu")


def test_plans_are_checked_before_groups_are_made() -> None:
    short, check, timeout = results("tests.torch.refusals:invalid_plans", 4)[0]
    assert "the program ends before the goal (all-reduce) is reached" in short
    assert check == "check='sometimes': expected 'first', 'always' or 'never'"
    assert timeout == "timeout=0: expected a number of seconds above 0 and below 1e9"


def test_a_second_thread_is_refused() -> None:
    assert results("tests.torch.refusals:two_threads", 4) == [4] * 4


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("dtype", "rank 2 cannot: torch.int16 cannot be reduced"),
        ("part", "rank 2 cannot: rank 2 gives 2 elements, but its part of 12 over 4 ranks has 3"),
        ("plan", "rank 2: there are 4 processes, but the plan is for 8 devices (node=2,gpu=4)"),
        ("path", "rank 2: expected a Plan, as read_plan gives one, not str"),
        ("sizes", "rank 2 gives 262144 elements of float32 to all-reduce sum of reduction 1"),
    ],
)
def test_what_one_rank_cannot_do_is_told_to_all_at_once(what: str, message: str) -> None:
    for rank, said in enumerate(results("tests.torch.refusals:one_refuses", 4, what, limit=25)):
        assert message.removeprefix("rank 2 cannot: ") in said
        assert rank == 2 or message in said


def test_a_known_size_out_of_place_is_refused_before_gloo_gets_it() -> None:
    """Otherwise gloo ends the processes that get more bytes than they expect."""
    outcomes = run_ranks("tests.torch.refusals:known_size_out_of_place", 4)
    for outcome in outcomes:
        assert not outcome.error, outcome.error
        assert "the ranks call differently: rank 0 gives 40 elements" in outcome.result
        assert "rank 2 gives 40000 elements" in outcome.result


def test_sizes_that_differ_late_are_noticed_when_the_reducer_is_closed() -> None:
    message = (
        "rank 2 made other calls than rank 0 since the ranks compared theirs last, so results since then may be wrong"
    )
    assert results("tests.torch.refusals:late_difference", 4) == [message] * 4


def test_the_rank_that_has_the_store_is_the_last_to_leave() -> None:
    assert results("tests.torch.failures:far_away", 4) == [True] * 4


def test_a_failing_hook_says_what_happened() -> None:
    outcomes = run_ranks("tests.torch.models:failing_hook", 4)
    for rank, outcome in enumerate(outcomes[:3]):
        assert not outcome.error, outcome.error
        assert f"rank {rank}: step " in outcome.result or "did not join" in outcome.result
        assert "Unable to cast" not in outcome.result


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("absent", "rank 3 did not join the others within 4 s"),
        ("plan", "rank 2 has another plan than rank 0: give every process the same plan file"),
    ],
)
def test_everyone_hears_the_reason_before_the_store_goes(what: str, message: str) -> None:
    messages = results("tests.torch.failures:late_listeners", 4, what)
    assert [said for said in messages if said] == [message] * (3 if what == "absent" else 4)


@pytest.mark.parametrize("when", ["start", "call", "comparison"])
def test_a_store_that_hangs_holds_up_nobody(when: str) -> None:
    outcomes = run_ranks("tests.torch.failures:stopped_store", 4, when)
    assert outcomes[0].status == -9  # it was stopped, and killed when the others had ended
    for outcome in outcomes[1:]:
        assert not outcome.error, outcome.error
        said, threads = outcome.result
        assert "the process that has it, usually that of rank 0, has died or hangs" in said
        assert when != "call" or "step " in said
        assert threads == ""


def test_no_thread_of_gloo_outlives_a_reducer_that_nobody_closed() -> None:
    assert results("tests.torch.failures:unclosed", 4) == [0] * 4


def test_ddp_over_other_ranks_than_the_plan_is_refused() -> None:
    for rank, (message, gradient) in enumerate(results("tests.torch.models:ddp_over_other_ranks", 4)):
        assert "the model averages gradients over ranks 0, 1, 2, 3, but the plan's all-reduce over data has" in message
        assert f"{rank % 2}, {rank % 2 + 2} here: Distr" in message
        assert 'which is device_mesh(plan)["data"].get_group()' in message
        assert gradient == [rank % 2 + 1.0]


def test_meshes_that_differ_are_refused_on_every_rank() -> None:
    other, seats = results("tests.torch.models:meshes_that_differ", 4)[3]
    assert other == "rank 2 has another plan than rank 0: give every process the same plan file"
    assert seats.startswith("rank 1 is number 0 of 2 on its host, but the plan numbers devices host by host")


@pytest.mark.parametrize("chunks", [False, True])
def test_a_size_that_is_new_to_one_rank_alone_is_named_on_every_rank(chunks: bool) -> None:
    what = "elements of float32 to all-reduce sum of reduction 0"
    for rank, said in enumerate(results("tests.torch.refusals:known_sizes_mixed_up", 4, chunks)):
        assert said.startswith(f"the ranks call differently: rank 0 gives 40000 {what}, rank 2 gives 50000 {what}")
        assert f"rank {rank}: step " in said or rank == 2
        assert "GLHF" not in said
        assert ".cc:" not in said


def test_a_plan_that_runs_otherwise_than_planned_says_so_once() -> None:
    said, *others = results("tests.torch.refusals:notices", 4)
    assert others == [[]] * 3
    library, chunks = said
    assert library.startswith("the plan was made for nccl, but runs on gloo")
    assert chunks.startswith("the all-reduce over data was planned for 256MiB in 4 chunks, but a call with ")
