import random
from functools import partial
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import (
    Collective,
    Goal,
    Hierarchy,
    MeshwrightError,
    Program,
    TooLargeError,
    check_program,
    program_graph,
)
from meshwright.language import synthesis
from meshwright.language.goals import PROGRAM_GOALS
from meshwright.language.program import ROOTED, Step
from meshwright.language.symbolic import State, run_symbolically
from tests.strategies import named


@pytest.mark.parametrize(
    ("levels", "counts"),
    [
        (0, [1, 1]),
        (1, [1, 3, 3]),
        (2, [1, 5, 29, 71, 93, 93]),
        (3, [1, 7, 66, 385, 1635, 4584]),
        (4, [1, 9, 114, 1054, 7636, 44286]),
        (5, [1, 11, 173, 2201, 22680]),
    ],
)
def test_pinned_numbers_of_programs(levels: int, counts: list[int]) -> None:
    assert [program_graph(levels, max_steps=k).count() for k in range(1, len(counts) + 1)] == counts


@pytest.mark.parametrize(
    ("goal", "counts"),
    [
        (Goal.REDUCE_SCATTER, [1, 3, 11, 49]),
        (Goal.ALL_GATHER, [1, 5, 65, 516]),
        (Goal.REDUCE, [3, 56, 1436, 9266]),
        (Goal.BROADCAST, [1, 3, 12, 60]),
    ],
)
def test_pinned_numbers_of_programs_for_other_goals(goal: Goal, counts: list[int]) -> None:
    assert [program_graph(levels, goal).count() for levels in range(1, 5)] == counts


@pytest.mark.parametrize("levels", [2, 3, 4])
@pytest.mark.parametrize("goal", PROGRAM_GOALS)
def test_the_list_is_as_long_as_the_count_and_shortest_first(levels: int, goal: Goal) -> None:
    graph = program_graph(levels, goal)
    programs = list(graph.programs())
    assert len(programs) == len(set(programs)) == graph.count()
    lengths = [len(program.steps) for program in programs]
    assert lengths == sorted(lengths)
    assert max(lengths) <= 5


def test_the_list_is_lazy() -> None:
    graph = program_graph(5, max_steps=9)
    assert graph.count() > 10**7
    assert len(list(islice(graph.programs(), 1000))) == 1000


@given(st.sampled_from(PROGRAM_GOALS), st.integers(1, 3), st.randoms(use_true_random=False))
def test_ranking_agrees_with_sorting_the_list(goal: Goal, levels: int, random: object) -> None:
    prices: dict[tuple[State, Step], float] = {}

    def cost(state: State, step: Step) -> float:
        return prices.setdefault((state, step), random.uniform(0, 10))  # type: ignore[attr-defined]

    def price(program: Program) -> float:
        states = run_symbolically(program, levels, goal)
        return sum(cost(state, step) for state, step in zip(states, program.steps, strict=False))

    graph = program_graph(levels, goal, max_steps=4)
    ranked = list(graph.ranked(cost))
    assert {program for _, program in ranked} == set(graph.programs())
    assert [c for c, _ in ranked] == pytest.approx(sorted(price(p) for p in graph.programs()))
    for c, program in ranked[:20]:
        assert c == pytest.approx(price(program))


def test_of_equal_cost_the_shorter_program_comes_first() -> None:
    costs = [(cost, len(program.steps)) for cost, program in program_graph(2).ranked(lambda _state, _step: 0.0)]
    assert costs[0] == (0.0, 1)
    assert [length for _, length in costs] == sorted(length for _, length in costs)


def test_only_the_allowed_collectives_are_used() -> None:
    without_rooted = [c for c in Collective if c not in ROOTED]
    programs = set(program_graph(2, collectives=without_rooted).programs())
    everything = set(program_graph(2).programs())
    assert programs == {p for p in everything if not any(step.collective in ROOTED for step in p.steps)}
    assert 0 < len(programs) < len(everything)


def test_no_program_may_exist() -> None:
    graph = program_graph(2, collectives=[Collective.BROADCAST])
    assert (graph.count(), list(graph.programs()), list(graph.ranked(lambda _s, _t: 1.0))) == (0, [], [])
    assert program_graph(2, max_steps=0).count() == 0


def test_a_group_of_one_device_needs_no_steps() -> None:
    assert list(program_graph(0).programs()) == [Program(())]
    check_program(Program(()), named(()))


def test_graphs_that_would_be_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthesis, "MAX_ENTRIES", 1000)
    with pytest.raises(TooLargeError, match="at most 2 steps"):
        program_graph(4, max_steps=7)


def test_a_negative_number_of_steps_is_refused() -> None:
    with pytest.raises(MeshwrightError, match="zero or more"):
        program_graph(2, max_steps=-1)


def test_goals_and_collectives_by_name_are_the_same_as_their_constants() -> None:
    assert program_graph(2, "all-gather") is program_graph(2, Goal.ALL_GATHER)
    assert program_graph(2, collectives=["AllReduce"]).count() == 3
    with pytest.raises(MeshwrightError, match="unknown goal 'allgather'; did you mean 'all-gather'"):
        program_graph(2, "allgather")
    with pytest.raises(MeshwrightError, match="expected a list of collectives"):
        program_graph(2, collectives="AllReduce")
    with pytest.raises(MeshwrightError, match="unknown collective 'AllReduc'"):
        program_graph(2, collectives=["AllReduc"])


def test_too_many_levels_are_refused_at_once() -> None:
    with pytest.raises(TooLargeError, match="at most 8 levels"):
        program_graph(30)
    with pytest.raises(TooLargeError, match="too large to check"):
        check_program(Program(()), Hierarchy(tuple(f"l{k}" for k in range(16)), (2,) * 16))


def test_costs_must_be_numbers_that_are_not_negative() -> None:
    for bad in (-1.0, float("nan")):
        with pytest.raises(MeshwrightError, match="negative or not a number"):
            next(program_graph(2).ranked(partial(lambda cost, _state, _step: cost, bad)))


def test_a_shared_graph_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        program_graph(2).edges[()] = ()  # type: ignore[index]


def test_more_steps_than_any_program_takes_change_nothing() -> None:
    def cost(state: State, step: Step) -> float:
        return 1.0 + sum(state) % 5 + step.grouping.first

    long, longer = program_graph(2, max_steps=9), program_graph(2, max_steps=12)
    assert long.count() == longer.count() == len(list(longer.programs()))
    assert list(longer.ranked(cost)) == list(long.ranked(cost))
    least = longer.least(lambda _levels, state, step: (state, step), lambda kinds: [cost(*kind) for kind in kinds])
    assert least == next(longer.ranked(cost))[0]


@given(st.integers(1, 3), st.sampled_from(PROGRAM_GOALS), st.integers(0, 10**6), st.sampled_from([1, 3, 10**6]))
def test_ranked_is_all_programs_by_cost_and_length(levels: int, goal: Goal, seed: int, grain: int) -> None:
    """With few different prices, so that many programs cost the same: the shorter ones come first."""
    graph = program_graph(levels, goal, 3)

    def cost(state: State, step: Step) -> float:
        return random.Random(f"{seed} {state} {step}").randint(0, grain) / 7

    def priced(program: Program) -> tuple[float, int]:
        states = run_symbolically(program, levels, goal)
        total = sum(cost(state, step) for state, step in zip(states, program.steps, strict=False))
        return round(total, 9), len(program.steps)

    found = [(round(total, 9), len(program.steps)) for total, program in graph.ranked(cost)]
    assert found == sorted(priced(program) for program in graph.programs())
