import pytest

from meshwright.planning.reproduce import axis_sizes, cases, search_costs, summary


def test_the_papers_axes() -> None:
    assert list(axis_sizes(16)) == [(16,), (2, 8), (2, 2, 4), (4, 4)]


def test_the_papers_figures() -> None:
    found = summary(list(cases("gcp-a100:2")))
    assert found.spread == pytest.approx(540)
    assert found.best == pytest.approx(1.8355, abs=1e-4)
    assert found.wins > 0.5
    assert summary(list(cases("gcp-v100:2"))).best < found.best


def test_each_technique_makes_the_search_smaller() -> None:
    states = [cost.states for cost in search_costs(3)]
    assert states == sorted(states, reverse=True)
    assert len(states) == 3
