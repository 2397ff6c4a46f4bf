"""Scripts that nobody changed: with a plan they compute what they compute without one, however it gets to them."""

from pathlib import Path

import numpy as np
import pytest

import meshwright
from meshwright import Goal, Pipelined, Reduction, load_workload, parse_system, read_plan, write_plan
from meshwright.language.goals import flat_program
from tests.engines import tunable_plan
from tests.ranks import free_port, results, run_ranks
from tests.torch.planned import EVERY, assert_alike, assert_planned, say_what_was_left_out


def test_a_plan_from_the_environment(plan: str, plain: Path, inductor: Path, tmp_path: Path) -> None:
    tables = results("tests.torch.dropin:run_script", 4, str(tmp_path), plan, str(inductor), *EVERY)
    assert_alike(plain, tmp_path)
    assert_planned(tables[0])
    say_what_was_left_out()


def test_training_examples_have_the_same_losses_with_a_plan(plan: str) -> None:
    scripts = [f"train_{name}.py" for name in ("ddp", "fsdp", "hsdp", "tensor")]
    plain, planned = (
        results("tests.torch.dropin:run_examples", 4, each, [free_port() for _ in scripts], *scripts)[0]
        for each in (None, plan)
    )
    assert [len(set(losses)) for losses in plain] == [3] * len(scripts)
    np.testing.assert_allclose(plain, planned, rtol=1e-5)
    np.testing.assert_allclose([plain[0]] * 2, plain[1:3], rtol=1e-5)  # all of them read the same data


@pytest.mark.parametrize(
    ("case", "axes", "found", "sent"),
    [
        # The names come from the mesh. Parameters are 16 * 32 + 32 + 32 * 8 + 8 floats, in two shards of 404.
        (
            "hsdp",
            "",
            {"data": 2, "tensor": 2},
            {
                ("all-gather", ("tensor",), 3232): 1,
                ("reduce-scatter", ("tensor",), 3232): 1,
                ("all-reduce", ("data",), 1616): 1,
            },
        ),
        # Every layer is gathered twice, forward and backward; the world is a product of the given axes.
        (
            "fsdp",
            "replica=2,shard=2",
            {"replica": 2, "shard": 2},
            {
                ("all-gather", ("replica", "shard"), 2176): 2,
                ("reduce-scatter", ("replica", "shard"), 2176): 1,
                ("all-gather", ("replica", "shard"), 1056): 2,
                ("reduce-scatter", ("replica", "shard"), 1056): 1,
            },
        ),
    ],
)
def test_what_a_step_sends_is_recorded(
    case: str, axes: str, found: dict[str, int], sent: dict[tuple[str, tuple[str, ...], int], int], tmp_path: Path
) -> None:
    path = tmp_path / "step.yaml"
    results("tests.torch.dropin:record", 4, str(path), str(tmp_path), axes, case)
    workload = load_workload(str(path)).workload()
    assert workload.axes == found
    assert {(str(one.goal), one.axes, one.bytes): one.count for one in workload.communications} == sent


def test_what_is_left_to_the_library_is_counted_and_some_of_it_timed(tmp_path: Path) -> None:
    from meshwright.torch.backend import EACH

    path, system = tmp_path / "plan.json", parse_system("gpu=2@1GB/s")
    write_plan(meshwright.plan(system, {"data": 2}, [Reduction(("data",), 8)], max_steps=1).candidates[0], path)
    for counted in results("tests.torch.dropin:natively", 2, str(path)):
        assert counted == {
            ("all-reduce", 4): (3 * EACH - 1, EACH + 1),
            ("all-reduce", 8): (3 * EACH - 1, 0),
            ("all-reduce", 12): (2, 2),
            ("all-gather", 24): (2, 2),
        }


def test_times_stand_for_those_that_were_not_taken() -> None:
    from meshwright.torch.tally import Tally

    tally = Tally()
    often, never, once = (tally.sum_of("data", "all-reduce", size, planned=False) for size in (4, 2, 1))
    often.calls, never.calls, once.calls = 100, 10, 1
    tally.ended(often, 1.0)  # the first call, which connects
    for _ in range(2):
        tally.ended(often, 0.1, standing=10)
    tally.ended(once, 0.5)
    rows = [line.split(maxsplit=6) for line in tally.table().splitlines()[1:]]
    assert [row[4:] for row in rows] == [["100", "400B", "about 14.3s"], ["10", "20B", "-"], ["1", "1B", "500ms"]]


def test_a_script_tunes_its_plan(tmp_path: Path) -> None:
    path, out = tmp_path / "plan.json", tmp_path / "tuned.json"
    write_plan(tunable_plan(), path)
    tables = results("tests.torch.dropin:tuned", 4, str(path), str(out))
    assert " plan " in tables[0]
    assert " library " not in tables[0]
    head, row = tables[0].splitlines()
    assert head.endswith("tuned gain")
    flat = Pipelined.of(flat_program(Goal.ALL_REDUCE, 2))
    (settled,) = read_plan(out).reductions[0].tuned
    own = next(one.seconds for one in (settled.chosen, *settled.compared) if one.pipelined == flat)
    assert row.endswith(f" {own / settled.chosen.seconds:.2f}x")
    assert [len(planned.tuned) for planned in read_plan(out).reductions] == [1, 0, 0, 0, 0]


def test_what_ranks_find_out_together_ends_them_all_and_rank_0_says_why(plan: str) -> None:
    said, *others = results("tests.torch.dropin:refused", 4, plan, free_port())
    *backends, seat = said
    asks = "Error: a plan can be carried out on gloo and nccl, but the script asks for"
    assert backends == [f"{asks} {name}\n" for name in ("mpi", "ucc")]
    assert seat.startswith("Error: rank 1 is number 0 of 2 on its host")
    assert seat.count("\n") == 1
    assert others == [["", "", ""]] * 3


def test_a_rank_that_dies_is_an_exception_to_the_others(plan: str) -> None:
    outcomes = run_ranks("tests.torch.dropin:dying", 4, plan)
    assert [outcome.status for outcome in outcomes] == [0, 0, 0, 7]
    for rank, outcome in enumerate(outcomes[:3]):
        assert not outcome.error, outcome.error
        first, again, seconds, *alone = outcome.result
        assert f"rank {rank}: step " in first
        assert "process group 0 can no longer be used" in again
        assert seconds < 30
        assert alone == ([] if rank == 1 else [[2.0] * 3])
