"""Programs on real gloo process groups."""

import pytest

from tests.engines import EXHAUSTIVE
from tests.ranks import results


@pytest.mark.parametrize("spec", EXHAUSTIVE)
def test_every_program_reduces_exactly_and_alike_on_every_rank(spec: str) -> None:
    bits = results("tests.torch.programs:every_program", 4 if spec == "node=2,gpu=2" else 8, spec, limit=300)
    assert len(bits[0]) == EXHAUSTIVE[spec][1]
    assert all(each == bits[0] for each in bits)


def test_what_trials_time_has_no_comparison_of_calls_in_it() -> None:
    assert results("tests.torch.programs:timed_trials", 4) == [0, 0, 0, 0]
