import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import Goal, InvalidProgramError, check_program, parse_hierarchy, parse_program
from meshwright.language.goals import PROGRAM_GOALS
from meshwright.language.program import Program, all_steps
from meshwright.language.semantics import EXACT_LIMIT
from tests.exact import exact_programs
from tests.strategies import named

TWO = parse_hierarchy("node=2,gpu=3")


@pytest.mark.parametrize(
    ("levels", "counts"),
    [(1, [1, 3, 3, 3]), (2, [1, 5, 29, 71, 93, 93]), (3, [1, 7, 66, 385, 1635]), (4, [1, 9, 114])],
)
def test_known_numbers_of_programs(levels: int, counts: list[int]) -> None:
    assert [len(exact_programs((2,) * levels, k)) for k in range(1, len(counts) + 1)] == counts


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("AllReduce all", "all-reduce"),
        ("ReduceScatter inside node; AllReduce across node; AllGather inside node", "all-reduce"),
        ("Reduce inside node; AllReduce masters of node; Broadcast inside node", "all-reduce"),
        ("AllReduce inside node; AllReduce masters of node; Broadcast inside node", "all-reduce"),
        ("ReduceScatter inside node; ReduceScatter across node", "reduce-scatter"),
        ("AllGather across node; AllGather inside node", "all-gather"),
        ("Reduce inside node; Reduce masters of node", "reduce"),
        ("AllReduce all", "reduce"),
        ("AllReduce inside node; AllReduce masters of node", "reduce"),
        ("ReduceScatter inside node; AllReduce across node; AllGather inside node", "reduce"),
        ("Broadcast masters of node; Broadcast inside node", "broadcast"),
    ],
)
def test_valid_programs(text: str, goal: str) -> None:
    check_program(parse_program(text, TWO), TWO, Goal(goal))


@pytest.mark.parametrize(
    ("text", "step", "group", "rule", "detail"),
    [
        (
            "AllReduce inside node; AllReduce inside node",
            2,
            "node=0,gpu=*",
            "disjoint contributions",
            "devices 0 and 1",
        ),
        ("Reduce inside node; AllReduce across node", 2, "node=*,gpu=1", "non-empty", "device 1 holds nothing"),
        ("ReduceScatter inside node; AllReduce all", 2, "node=*,gpu=*", "same parts", "devices 0 and 1"),
        ("AllGather all", 1, "node=*,gpu=*", "disjoint parts", "devices 0 and 1 both hold part 0"),
        ("Broadcast all", 1, "node=*,gpu=*", "contained in the first", "device 1 has the contribution of device 1"),
        ("AllReduce inside node; Broadcast inside node", 2, "node=0,gpu=*", "something to send", "device 0"),
        ("Reduce inside node; AllGather inside node", 2, "node=0,gpu=*", "non-empty", "device 1"),
        ("ReduceScatter masters of node; AllGather inside node", 2, "node=0,gpu=*", "equal sizes", "devices 0 and 1"),
        ("AllReduce all; AllReduce all", 2, None, "no needless steps", "already reached before step 2"),
        ("AllReduce inside node", None, None, "reaches the goal", "part 0 of device 0 lacks .* device 3"),
        ("ReduceScatter all", None, None, "reaches the goal", "device 0 does not hold part 1"),
    ],
)
def test_the_explanation_names_step_group_and_rule(
    text: str, step: int | None, group: str | None, rule: str, detail: str
) -> None:
    with pytest.raises(InvalidProgramError, match=detail) as caught:
        check_program(parse_program(text, TWO), TWO)
    assert (caught.value.step, caught.value.rule) == (step, rule)
    assert (caught.value.group is None) == (group is None)
    assert (caught.value.group or "").startswith(group or "")
    if step is not None:
        assert f"step {step}" in str(caught.value)


def test_what_should_be_gone_is_named() -> None:
    with pytest.raises(InvalidProgramError, match="device 0 still holds part 1"):
        check_program(parse_program("AllReduce all", TWO), TWO, Goal.REDUCE_SCATTER)


def test_of_a_reduce_only_what_the_root_holds_is_asked_for() -> None:
    with pytest.raises(InvalidProgramError, match="part 0 of device 0 lacks the contribution of device 3"):
        check_program(parse_program("AllReduce inside node", TWO), TWO, Goal.REDUCE)
    longer = parse_program("AllReduce inside node; AllReduce masters of node; Broadcast inside node", TWO)
    with pytest.raises(InvalidProgramError, match="already reached before step 3"):
        check_program(longer, TWO, Goal.REDUCE)


def test_large_groups_are_explained_with_their_real_device_numbers() -> None:
    large = parse_hierarchy("node=64,gpu=512")
    assert large.size > EXACT_LIMIT
    with pytest.raises(InvalidProgramError, match=r"device 512 holds nothing") as caught:
        check_program(parse_program("Reduce across node; AllReduce all", large), large)
    assert caught.value.group == "node=*,gpu=* (devices 0, 1, 2, 3, …)"


def test_a_level_of_a_trillion_devices_costs_nothing() -> None:
    huge = parse_hierarchy("node=2,gpu=1000000000000")
    with pytest.raises(InvalidProgramError) as caught:
        check_program(parse_program("AllGather across node", huge), huge)
    assert caught.value.group == "node=*,gpu=0 (devices 0, 1000000000000)"
    with pytest.raises(InvalidProgramError) as caught:
        check_program(parse_program("AllGather all", huge), huge)
    assert caught.value.group == "node=*,gpu=* (devices 0, 1, 2, 3, …)"


@given(st.integers(1, 3), st.data())
def test_the_verdict_does_not_depend_on_the_radices(levels: int, data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.sampled_from(all_steps(levels)), min_size=1, max_size=4))
    program, goal = Program(tuple(steps)), data.draw(st.sampled_from(PROGRAM_GOALS))

    def verdict(radices: tuple[int, ...]) -> tuple[int | None, str] | None:
        try:
            check_program(program, named(radices), goal)
        except InvalidProgramError as error:
            return error.step, error.rule
        return None

    radices = data.draw(st.tuples(*[st.integers(2, 5)] * levels))
    small, drawn, huge = verdict((2,) * levels), verdict(radices), verdict((1000,) * levels)
    # A forbidden step may break another rule first in a larger group, and legal dead ends may end elsewhere;
    # what must not change is whether the program is valid.
    assert (small is None) == (drawn is None) == (huge is None)
