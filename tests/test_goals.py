"""The table of goals, what is sent, and what was planned."""

import pickle
from dataclasses import replace

import pytest

from meshwright import (
    Collective,
    Communication,
    Goal,
    MeshwrightError,
    Pipelined,
    Plan,
    Planned,
    Program,
    Reduction,
    SpecError,
    Transfer,
    TransferKind,
    parse_system,
    plan,
)
from meshwright.language.goals import PROGRAM_GOALS, TRANSFER_GOALS, as_goal, flat_program
from meshwright.language.symbolic import is_valid
from meshwright.workload.read import parse_workload_yaml
from tests.engines import hierarchical


def test_what_the_lines_of_the_table_say() -> None:
    assert " ".join(PROGRAM_GOALS) == "all-reduce reduce-scatter all-gather reduce broadcast"
    assert " ".join(TRANSFER_GOALS) == "all-to-all point-to-point"
    assert [goal for goal in Goal if goal.reduces] == [Goal.ALL_REDUCE, Goal.REDUCE_SCATTER, Goal.REDUCE]
    assert [goal for goal in Goal if goal.in_place] == [Goal.ALL_REDUCE, Goal.REDUCE, Goal.BROADCAST]
    assert {goal.flat for goal in PROGRAM_GOALS} == set(Collective)
    assert all(Goal(str(goal)) is goal is pickle.loads(pickle.dumps(goal)) for goal in Goal)


@pytest.mark.parametrize("goal", PROGRAM_GOALS)
@pytest.mark.parametrize("levels", range(4))
def test_one_collective_reaches_its_goal_and_an_all_reduce_is_a_reduce_too(goal: Goal, levels: int) -> None:
    reached = [other for other in PROGRAM_GOALS if is_valid(flat_program(goal, levels), levels, other)]
    expected = [goal, Goal.REDUCE] if goal is Goal.ALL_REDUCE else [goal]
    assert reached == (expected if levels else list(PROGRAM_GOALS))


def test_goals_without_programs_are_refused_where_programs_are_meant() -> None:
    with pytest.raises(SpecError, match=r"unknown goal 'all-to-all' \(known: all-reduce, .*broadcast\)"):
        as_goal(Goal.ALL_TO_ALL)
    for given, known in (("all-reduc", "all-reduce"), ("all-gahter", "all-gather")):
        with pytest.raises(SpecError, match=f"unknown goal '{given}'; did you mean '{known}'"):
            as_goal(given)
        with pytest.raises(SpecError, match=f"unknown goal '{given}'; did you mean '{known}'"):
            Reduction(("data",), 8, goal=given)  # type: ignore[arg-type]
        with pytest.raises(SpecError, match=f"unknown kind '{given}'; did you mean '{known}'"):
            parse_workload_yaml(f"communications: [{{kind: {given}, axes: data, bytes: 8}}]", "w.yaml")


def test_reductions_and_transfers_are_one_type() -> None:
    sent = Transfer(("expert",), 8, TransferKind.ALL_TO_ALL, 3, "experts", 0.5)
    assert sent == Communication(("expert",), 8, 3, Goal.ALL_TO_ALL, "experts", 0.5)
    assert isinstance(sent, Reduction)
    with pytest.raises(SpecError, match="unknown kind of transfer 'all-reduce'"):
        Transfer(("expert",), 8, Goal.ALL_REDUCE)
    with pytest.raises(SpecError, match="a transfer needs at least one axis"):
        Communication((), 8, goal=Goal.ALL_TO_ALL)
    with pytest.raises(SpecError, match="a reduction needs at least one axis"):
        Communication((), 8)


def test_a_plan_has_what_engines_run_first() -> None:
    sent = [
        Transfer(("data",), 8, Goal.POINT_TO_POINT),
        Reduction(("data",), 8, 1, Goal.REDUCE),
        Reduction(("data",), 4),
    ]
    best = plan(parse_system("node=2@1GB/s,gpu=2@8GB/s"), {"data": 4}, sent, max_chunks=1).candidates[0]
    assert [one.communication for one in best.communications] == [sent[1], sent[2], sent[0]]
    assert [one.communication for one in best.reductions] == sent[1:]
    assert best.program_text(best.reductions[1]) == best.reductions[1].program.text(best.hierarchy(best.reductions[1]))
    (transfer,) = best.transfers
    assert (transfer.shares, transfer.chunks, best.program_text(transfer)) == ((), 1, "")
    assert transfer.default_seconds == transfer.seconds
    with pytest.raises(MeshwrightError, match="point-to-point has no programs"):
        _ = transfer.program
    assert replace(best, communications=best.communications[::-1]).reductions == best.reductions[::-1]


def test_programs_belong_to_goals_that_have_some() -> None:
    pipelined = Pipelined.of(Program(()), 3)
    assert (pipelined.shares, pipelined.chunks) == (((Program(()), 3),), 3)
    sent = Transfer(("data",), 8, Goal.ALL_TO_ALL)
    for given in ((sent, pipelined, 1.0, 1.0, 1.0), (sent, None, 1.0, 2.0, 1.0)):
        with pytest.raises(SpecError, match="all-to-all has no programs: expected None"):
            Planned(*given)
    with pytest.raises(SpecError, match=r"expected a Pipelined; Pipelined\.of makes one from a Program"):
        Planned(Reduction(("data",), 8), None, 1.0, 1.0, 1.0)
    with pytest.raises(SpecError, match="communications of a plan"):
        Plan(hierarchical().placement, hierarchical().library, (pipelined,))  # type: ignore[arg-type]
