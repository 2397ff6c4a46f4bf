"""What a Reducer does with real process groups; what each rank does is in programs.py and models.py."""

import numpy as np
import pytest

from tests.ranks import results


@pytest.mark.parametrize("name", ["operations", "shapes", "goals", "many_at_once", "overlapping"])
def test_on_four_ranks(name: str) -> None:
    results(f"tests.torch.programs:{name}", 4)


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_rings_of_sends(ranks: int) -> None:
    """With six ranks, buffers are used again."""
    results("tests.torch.programs:rings", ranks, ranks)


def test_meshes() -> None:
    results("tests.torch.models:meshes", 4)


def test_sharded_models_take_the_plans_programs() -> None:
    results("tests.torch.models:sharded", 4)


def test_several_reductions_share_a_reducer_and_make_only_the_groups_they_need() -> None:
    groups = results("tests.torch.programs:axes", 8)
    assert groups[0] == [(0, 1), (0, 2), (0, 4)]
    assert all(len(each) == 3 for each in groups)


def test_training_with_a_plan_is_training() -> None:
    plain = results("tests.torch.models:training", 4, False)
    planned = results("tests.torch.models:training", 4, True)
    assert all(bits == planned[0] for bits in planned), "parameters are bitwise the same on every rank"
    np.testing.assert_allclose(
        np.frombuffer(planned[0], np.float32), np.frombuffer(plain[0], np.float32), rtol=1e-4, atol=1e-6
    )
