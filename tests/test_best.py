"""The planner against an enumeration of everything: a small form of `python -m tests.best`."""

import pytest

from meshwright import Goal, program_graph
from meshwright.language.goals import PROGRAM_GOALS
from tests.best.aims import AIMS, draw
from tests.best.listed import fault, matrices, programs

CASES = {"thresholds": 500, "axes of size 1": 300, "tori": 300, "six axes": 200, "chunks": 300, "roots": 300}
SLICE = 100


@pytest.mark.parametrize(
    ("aim", "first"), [(aim, first) for aim in AIMS for first in range(0, CASES.get(aim, 200), SLICE)]
)
def test_no_plan_is_beaten(aim: str, first: int) -> None:
    for number in range(first, first + SLICE):
        problem = draw(aim, 0, number)
        assert fault(problem) is None, problem


def test_two_thousand_problems_are_drawn() -> None:
    assert CASES.keys() <= AIMS.keys()
    assert sum(CASES.get(aim, 200) for aim in AIMS) >= 2000


def test_the_enumeration_lists_what_can_be_counted_by_hand() -> None:
    assert list(matrices([4, 2], [2, 4])) == [((1, 4), (2, 1)), ((2, 2), (1, 2))]
    assert len(programs(2, Goal.ALL_REDUCE, 3)) == 29


@pytest.mark.parametrize("goal", PROGRAM_GOALS)
@pytest.mark.parametrize("levels", [1, 2])
def test_the_enumeration_has_the_programs_of_the_graph(levels: int, goal: Goal) -> None:
    assert set(programs(levels, goal, 3)) == set(program_graph(levels, goal, 3).programs())
