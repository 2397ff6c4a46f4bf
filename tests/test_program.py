import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import (
    Collective,
    Grouping,
    Hierarchy,
    Program,
    ProgramSyntaxError,
    SpecError,
    Step,
    check_program,
    parse_hierarchy,
    parse_program,
    run_program,
)
from meshwright.language.program import all_steps, device_groups, groupings
from meshwright.placement.hierarchy import digits_of
from tests.strategies import hierarchies, named

TWO = Hierarchy(("node", "gpu"), (4, 16))
THREE = Hierarchy(("rack", "node", "gpu"), (2, 4, 8))


@given(st.integers(1, 5), st.data())
def test_programs_print_and_parse_back(levels: int, data: st.DataObject) -> None:
    hierarchy = named((2,) * levels)
    steps = data.draw(st.lists(st.sampled_from(all_steps(levels)), min_size=1, max_size=6))
    program = Program(tuple(steps))
    assert parse_program(program.text(hierarchy), hierarchy) == program


def test_groupings_have_one_text_each() -> None:
    texts = {Program((Step(Collective.REDUCE, g),)).text(THREE) for g in groupings(3)}
    assert texts == {
        "Reduce all",
        "Reduce inside rack",
        "Reduce inside node",
        "Reduce across rack",
        "Reduce across node",
        "Reduce across node within rack",
        "Reduce masters of rack",
        "Reduce masters of node",
        "Reduce masters of node within rack",
    }


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("allreduce all", "AllReduce all"),
        ("all-reduce ALL;reduce_scatter Inside node", "AllReduce all; ReduceScatter inside node"),
        ("AllReduce across gpu", "AllReduce all"),
        ("AllReduce across gpu within node", "AllReduce inside node"),
        ("AllReduce across node\n; AllGather inside rack", "AllReduce across node; AllGather inside rack"),
    ],
)
def test_other_ways_to_write_the_same(text: str, canonical: str) -> None:
    assert parse_program(text, THREE).text(THREE) == canonical


def test_the_empty_program() -> None:
    nothing = parse_hierarchy("node=1")
    assert parse_program("nothing", nothing) == Program(())
    assert Program(()).text(nothing) == "nothing"
    with pytest.raises(ProgramSyntaxError, match="the only program is 'nothing'"):
        parse_program("AllReduce all", nothing)


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("", 0, "expected a collective"),
        ("AllRedce all", 0, "did you mean 'AllReduce'"),
        ("AllReduce", 9, "expected a grouping"),
        ("AllReduce insde node", 10, "did you mean 'inside'"),
        ("AllReduce inside nod", 17, "did you mean 'node'"),
        ("AllReduce inside gpu", 17, "nothing is inside 'gpu'"),
        ("AllReduce all AllGather all", 14, "expected ';'"),
        ("AllReduce all;", 14, "expected a collective"),
        ("AllReduce masters node", 18, "expected 'of'"),
        ("AllReduce masters of gpu", 21, "has no masters"),
        ("AllReduce across node within node", 29, "expected a level outside 'node'"),
        ("AllReduce across node within rack", 29, "expected a level"),
        ("AllReduce across node, gpu", 21, "expected ';'"),
    ],
)
def test_typos_are_marked_where_they_are(text: str, position: int, expected: str) -> None:
    with pytest.raises(ProgramSyntaxError, match=expected) as caught:
        parse_program(text, TWO)
    assert caught.value.position == position
    line, marker = str(caught.value).splitlines()[1:3]
    assert line == f"  {text}"
    assert marker.index("^") == position + 2


def test_the_marker_points_into_the_right_line() -> None:
    with pytest.raises(ProgramSyntaxError) as caught:
        parse_program("AllReduce all;\n  AllGathr all", TWO)
    line, marker = str(caught.value).splitlines()[1:3]
    assert line == "    AllGathr all"
    assert marker.startswith("    ^ expected a collective")
    assert marker.endswith("did you mean 'AllGather'?")


@given(hierarchies(max_devices=200), st.data())
def test_groups_are_the_devices_that_agree_outside_the_interval(hierarchy: Hierarchy, data: st.DataObject) -> None:
    grouping = data.draw(st.sampled_from(groupings(len(hierarchy.radices))))
    expected: dict[tuple[int, ...], list[int]] = {}
    for device in range(hierarchy.size):
        digits = digits_of(device, hierarchy.radices)
        below = digits[grouping.last + 1 :]
        if not grouping.masters or not any(below):
            expected.setdefault((*digits[: grouping.first], *below), []).append(device)
    assert device_groups(grouping, hierarchy.radices) == [tuple(group) for group in expected.values()]


def test_the_number_of_groupings_is_the_square_of_the_levels() -> None:
    for levels in range(1, 7):
        assert len(set(groupings(levels))) == levels**2


@pytest.mark.parametrize(("first", "last"), [(1, 0), (-1, 1)])
def test_a_grouping_is_an_interval(first: int, last: int) -> None:
    with pytest.raises(SpecError, match="0 <= first <= last"):
        Grouping(first, last)


@pytest.mark.parametrize("grouping", [Grouping(0, 5), Grouping(0, 1, masters=True)])
def test_groupings_of_another_hierarchy_are_refused_everywhere(grouping: Grouping) -> None:
    program = Program((Step(Collective.ALL_REDUCE, grouping),))
    with pytest.raises(SpecError, match="which a hierarchy of 2 levels does not have"):
        program.text(TWO)
    with pytest.raises(SpecError, match="which a hierarchy of 2 levels does not have"):
        check_program(program, TWO)
    with pytest.raises(SpecError, match="which a hierarchy of 2 levels does not have"):
        run_program(program, TWO, [np.arange(3)] * 64)
