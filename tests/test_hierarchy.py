from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import (
    Hierarchy,
    Placement,
    SpecError,
    System,
    parse_hierarchy,
    parse_system,
    placements,
    reduction_hierarchy,
)
from meshwright.placement.hierarchy import digits_of
from tests.strategies import systems_with_axes


def test_levels_of_radix_one_are_left_out() -> None:
    placement = Placement(parse_system("rack=2,node=4,gpu=8"), ("a", "b"), ((2, 1, 4), (1, 4, 2)))
    assert reduction_hierarchy(placement, ["a"]) == Hierarchy(("rack", "gpu"), (2, 4))
    assert reduction_hierarchy(placement, ["b"]) == Hierarchy(("node", "gpu"), (4, 2))
    assert reduction_hierarchy(placement, ["a", "b"]) == Hierarchy(("rack", "node", "gpu"), (2, 4, 8))


@given(systems_with_axes(), st.data())
def test_a_groups_digits_are_those_of_its_hierarchy(drawn: tuple[System, dict[str, int]], data: st.DataObject) -> None:
    """The k-th device of a group has, at the levels of the hierarchy, positions in the order of k's digits."""
    system, axes = drawn
    placement = data.draw(st.sampled_from(list(placements(system, axes))))
    chosen = data.draw(st.lists(st.sampled_from(list(axes)), unique=True, min_size=1))
    hierarchy = reduction_hierarchy(placement, chosen)
    levels = [k for k, level in enumerate(system.levels) if level.name in hierarchy.names]
    assert hierarchy.size == prod(axes[axis] for axis in chosen)
    for group in placement.groups(chosen):
        positions = [digits_of(rank, system.counts) for rank in group]
        for j, level in enumerate(levels):
            distinct = sorted({p[level] for p in positions})
            for k, p in enumerate(positions):
                assert distinct.index(p[level]) == digits_of(k, hierarchy.radices)[j]


def test_text_and_back() -> None:
    assert str(parse_hierarchy("node=4,gpu=16")) == "node=4,gpu=16"
    assert parse_hierarchy("node=1").radices == ()


def test_bad_hierarchies_are_refused() -> None:
    with pytest.raises(SpecError, match="radix 1"):
        Hierarchy(("node",), (1,))
    with pytest.raises(SpecError, match="one of each per level"):
        Hierarchy(("node",), (2, 2))
    with pytest.raises(SpecError, match="at least one axis"):
        reduction_hierarchy(Placement(parse_system("node=2"), ("a",), ((2,),)), [])
