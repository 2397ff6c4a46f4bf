from itertools import islice, product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import (
    Level,
    Placement,
    PlacementError,
    SpecError,
    System,
    TooLargeError,
    count_placements,
    parse_system,
    placements,
)
from meshwright.placement.placement import parse_axes
from tests.strategies import systems_with_axes


def brute_force(sizes: tuple[int, ...], counts: tuple[int, ...]) -> set[tuple[tuple[int, ...], ...]]:
    """Every matrix of divisors, kept if rows and columns multiply to the right numbers."""
    rows = []
    for size in sizes:
        divisors = [[d for d in range(1, size + 1) if size % d == 0 and count % d == 0] for count in counts]
        rows.append([row for row in product(*divisors) if prod(row) == size])
    return {
        matrix for matrix in product(*rows) if tuple(prod(column) for column in zip(*matrix, strict=True)) == counts
    }


@given(systems_with_axes(max_devices=96))
def test_the_enumeration_is_complete_without_duplicates_and_counted(drawn: tuple[System, dict[str, int]]) -> None:
    system, axes = drawn
    listed = [placement.matrix for placement in placements(system, axes)]
    assert len(set(listed)) == len(listed)
    assert set(listed) == brute_force(tuple(axes.values()), system.counts)
    assert count_placements(system, axes) == len(listed)


@pytest.mark.parametrize(
    ("system", "axes", "count"),
    [("node=4,gpu=16", "data=4,shard=16", 3), ("rack=4,node=8,gpu=32", "a=8,b=8,c=16", 49), ("node=6", "a=2,b=3", 1)],
)
def test_known_counts(system: str, axes: str, count: int) -> None:
    assert count_placements(parse_system(system), parse_axes(axes)) == count


def test_the_order_is_fixed() -> None:
    system = parse_system("node=2,gpu=6")
    assert [p.matrix for p in placements(system, {"a": 2, "b": 6})] == [((2, 1), (1, 6)), ((1, 2), (2, 3))]
    assert [p.matrix for p in placements(system, {"a": 6, "b": 2})] == [((2, 3), (1, 2)), ((1, 6), (2, 1))]


def test_the_enumeration_is_lazy() -> None:
    system = parse_system("a=16,b=16,c=16,d=16,e=16")
    axes = {"v": 16, "w": 16, "x": 16, "y": 16, "z": 16}
    assert count_placements(system, axes) == 2_224_955
    assert len(list(islice(placements(system, axes), 10))) == 10


@given(systems_with_axes(), st.data())
def test_coordinates_and_ranks_are_inverse(drawn: tuple[System, dict[str, int]], data: st.DataObject) -> None:
    system, axes = drawn
    placement = data.draw(st.sampled_from(list(placements(system, axes))))
    coordinates = [placement.coordinates(rank) for rank in range(system.devices)]
    assert [placement.rank(c) for c in coordinates] == list(range(system.devices))
    assert {tuple(c.values()) for c in coordinates} == set(product(*(range(size) for size in axes.values())))


@given(systems_with_axes(), st.data())
@settings(max_examples=50)
def test_groups_agree_on_the_other_axes(drawn: tuple[System, dict[str, int]], data: st.DataObject) -> None:
    system, axes = drawn
    placement = data.draw(st.sampled_from(list(placements(system, axes))))
    chosen = data.draw(st.lists(st.sampled_from(list(axes)), unique=True))
    groups = placement.groups(chosen)
    assert sorted(rank for group in groups for rank in group) == list(range(system.devices))
    for group in groups:
        assert list(group) == sorted(group)
        assert len(group) == prod(axes[axis] for axis in chosen)
        fixed = {tuple(v for k, v in placement.coordinates(rank).items() if k not in chosen) for rank in group}
        assert len(fixed) == 1


def test_groups_by_hand() -> None:
    placement = Placement(parse_system("node=4,gpu=16"), ("data", "shard"), ((2, 2), (2, 8)))
    assert placement.groups(["data"])[0] == (0, 8, 32, 40)
    assert placement.groups(["shard"])[0] == (*range(8), *range(16, 24))
    assert placement.coordinates(41) == {"data": 3, "shard": 1}


def test_a_person_sees_what_sits_where() -> None:
    placement = Placement(parse_system("node=4,gpu=16"), ("data", "shard", "one"), ((4, 2), (1, 8), (1, 1)))
    assert str(placement) == (
        "axis   size  node 4  gpu 16  a group of this axis\n"
        "data      8       4       2  4 nodes x 2 gpus: 0 8 16 24 …\n"
        "shard     8       1       8  8 gpus inside one node: 0 1 2 3 …\n"
        "one       1       1       1  a single device: 0"
    )


def test_sizes_that_do_not_fit_name_both_numbers_and_what_would() -> None:
    with pytest.raises(PlacementError, match="multiply to 60, but the system node=4 x gpu=16 has 64 devices; shard=16"):
        list(placements(parse_system("node=4,gpu=16"), {"data": 4, "shard": 15}))
    with pytest.raises(PlacementError, match="shard=64 with all other axes 1 would fit"):
        count_placements(parse_system("node=4,gpu=16"), {"data": 3, "shard": 15})


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (((4, 1),), "1 rows, one is needed for each of the 2 axes"),
        (((4,), (1,)), "has 1 factors, one is needed for each of the 2 levels"),
        (((2, 1), (1, 16)), r"multiply to 2, but the level has 4"),
        (((4, 1), (1, -16)), "positive whole numbers"),
        (((4, 1), (1, 16.0)), "positive whole numbers"),
    ],
)
def test_matrices_that_do_not_fit_are_refused(matrix: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        Placement(parse_system("node=4,gpu=16"), ("data", "shard"), matrix)


def test_unknown_axes_ranks_and_coordinates_are_refused() -> None:
    placement = Placement(parse_system("node=4,gpu=16"), ("data", "shard"), ((4, 1), (1, 16)))
    with pytest.raises(PlacementError, match="unknown axis 'dat'; did you mean 'data'"):
        placement.groups(["dat"])
    with pytest.raises(PlacementError, match="no device 64"):
        placement.coordinates(64)
    with pytest.raises(PlacementError, match="must name each of the axes"):
        placement.rank({"data": 0})
    with pytest.raises(PlacementError, match="coordinates 0 to 3"):
        placement.rank({"data": 4, "shard": 0})


@pytest.mark.parametrize("text", ["", "data", "data=", "data=0", "data=-1", "data=1.5", "data=2,data=2", "=4", "a b=2"])
def test_malformed_axes_are_refused(text: str) -> None:
    with pytest.raises(SpecError):
        parse_axes(text)


def test_no_axes_are_refused() -> None:
    with pytest.raises(SpecError, match="at least one axis"):
        count_placements(parse_system("node=4"), {})


def test_lists_and_numpy_integers_are_as_good_as_tuples_of_integers() -> None:
    system = parse_system("node=4,gpu=16")
    matrix = np.array([[4, 1], [1, 16]])
    assert Placement(system, ["data", "shard"], matrix) == Placement(  # type: ignore[arg-type]
        system, ("data", "shard"), ((4, 1), (1, 16))
    )


def test_axes_are_named_once_and_as_a_list() -> None:
    placement = Placement(parse_system("node=4,gpu=16"), ("d", "e"), ((4, 1), (1, 16)))
    with pytest.raises(PlacementError, match="named 2 times"):
        placement.groups(["d", "d"])
    with pytest.raises(PlacementError, match="expected a list of axes"):
        placement.groups("de")


def test_a_misfit_is_refused_before_the_first_placement() -> None:
    with pytest.raises(PlacementError):
        placements(parse_system("node=4"), {"data": 3})


def test_many_axes_and_levels() -> None:
    """More factors than a NumPy array may have axes."""
    system = System("deep", tuple(Level(f"l{k}", 2) for k in range(12)))
    axes = {f"a{k}": 2 for k in range(12)}
    placement = next(placements(system, axes))
    assert placement.groups(["a0"])[0] == (0, 2048)
    assert placement.groups(["a11"])[0] == (0, 1)


def test_hopeless_counts_are_refused_but_the_first_placements_come_at_once() -> None:
    system = System("huge", tuple(Level(f"l{k}", 4096) for k in range(8)))
    axes = {f"a{k}": 4096 for k in range(8)}
    with pytest.raises(TooLargeError, match="too many placements to count"):
        count_placements(system, axes)
    assert next(placements(system, axes)).matrix[0] == (4096, 1, 1, 1, 1, 1, 1, 1)
    wide = System("wide", tuple(Level(f"l{k}", 963761198400) for k in range(5)))
    assert next(placements(wide, {f"a{k}": 963761198400 for k in range(5)})).matrix[4][4] == 963761198400


def test_factors_with_the_same_name_are_refused() -> None:
    placement = Placement(parse_system("c=2,b_c=2"), ("a_b", "a"), ((2, 1), (1, 2)))
    with pytest.raises(
        PlacementError, match="axis 'a_b' on level 'c' and axis 'a' on level 'b_c' would both be called 'a_b_c'"
    ):
        placement.factors()


def test_a_mesh_has_every_device_at_its_coordinates() -> None:
    placement = Placement(parse_system("rack=2,node=3,gpu=4"), ("data", "shard"), ((2, 1, 2), (1, 3, 2)))
    mesh = placement.mesh()
    assert mesh.shape == (4, 6)
    for rank in range(24):
        at = placement.coordinates(rank)
        assert mesh[at["data"], at["shard"]] == rank
    assert placement.factor_mesh().shape == tuple(placement.factors().values()) == (2, 2, 3, 2)
    assert placement.factor_mesh().reshape(mesh.shape).tolist() == mesh.tolist()
