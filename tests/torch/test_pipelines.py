"""Pipelined programs on real gloo process groups."""

import pytest

from tests.ranks import results, run_ranks


@pytest.mark.parametrize(("spec", "ranks"), [("node=2,gpu=2", 4), ("node=2,gpu=4", 8)])
def test_chunks_reduce_exactly_and_alike_on_every_rank(spec: str, ranks: int) -> None:
    bits = results("tests.torch.pipelines:every_program", ranks, spec, limit=300)
    assert len(bits[0]) == 60
    assert all(each == bits[0] for each in bits)


def test_every_goal_in_chunks() -> None:
    results("tests.torch.pipelines:goals", 4)


def test_every_goal_with_programs_by_size() -> None:
    results("tests.torch.pipelines:goals", 4, "sizes")


def test_calls_in_chunks_keep_their_order() -> None:
    results("tests.torch.pipelines:many_at_once", 4)


def test_a_rank_that_dies_in_a_step_ends_in_one_error_on_all_others() -> None:
    outcomes = run_ranks("tests.torch.pipelines:dying_rank", 4)
    assert outcomes[3].status == 7
    for outcome in outcomes[:3]:
        assert not outcome.error, outcome.error
        first, again, reduced = outcome.result
        assert "failed" in first
        assert "can no longer be used" in again
        assert not reduced


def test_a_failing_worker_surfaces_on_every_rank() -> None:
    outcomes = results("tests.torch.pipelines:failing_worker", 4)
    assert "rank 1: step 2 (AllReduce across node) with ranks 1, 3 failed: it broke" in outcomes[1]
    assert all("failed" in message for message in outcomes)


def test_calls_that_tune_are_right_and_settle_alike() -> None:
    (first, unsettled), *others = results("tests.torch.pipelines:tuning", 4)
    assert all(each == (first, 0) for each in others)
    assert unsettled == 0
    assert [len(each.get("tuned", ())) for each in first["reductions"]] == [1, 1, 0, 0, 0]
