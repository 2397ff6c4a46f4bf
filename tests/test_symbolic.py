from collections.abc import Iterable
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import Goal
from meshwright.language.goals import PROGRAM_GOALS
from meshwright.language.program import Step, all_steps
from meshwright.language.semantics import RuleBrokenError, apply_step
from meshwright.language.semantics import state_of as exact_state
from meshwright.language.symbolic import (
    HOPELESS_LEVELS,
    NOTHING,
    State,
    hopeless,
    is_end,
    reduced,
    scattered,
    state_of,
    successors,
)
from meshwright.language.synthesis import program_graph
from meshwright.placement.hierarchy import digits_of
from tests.exact import exact_programs
from tests.strategies import factorizations

SMALL = [radices for devices in range(2, 17) for radices in factorizations(devices)]


@pytest.mark.parametrize("radices", SMALL, ids=str)
def test_both_engines_find_the_same_programs(radices: tuple[int, ...]) -> None:
    """Sound and complete on every hierarchy with at most 16 devices, up to 4 steps; longer where that is cheap."""
    agree(radices, {1: 6, 2: 6, 3: 5, 4: 4}[len(radices)], PROGRAM_GOALS)


def agree(radices: tuple[int, ...], max_steps: int, goals: Iterable[Goal]) -> None:
    """The goals of one hierarchy one after the other: they pass through the same states."""
    for goal in goals:
        found = program_graph(len(radices), goal, max_steps).programs()
        assert set(found) == exact_programs(radices, max_steps, goal), goal


@pytest.mark.parametrize(
    ("radices", "max_steps"),
    [
        ((2, 2, 2), 6),
        ((4, 16), 6),
        ((8, 8), 5),
        ((2, 32), 5),
        ((64,), 3),
        ((4, 4, 4), 4),
        ((3, 4, 5), 4),
        ((2, 4, 8), 4),
        ((2, 2, 2, 3), 4),
        ((2, 2, 2, 2, 2), 3),
    ],
    ids=str,
)
def test_both_engines_find_the_same_programs_in_larger_groups(radices: tuple[int, ...], max_steps: int) -> None:
    agree(radices, max_steps, PROGRAM_GOALS if radices in ((4, 4, 4), (2, 4, 8), (8, 8)) else [Goal.ALL_REDUCE])


def meaning(state: State, radices: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The exact state that a symbolic one stands for."""
    levels, size = len(radices), 1
    for radix in radices:
        size *= radix
    digits = [digits_of(d, radices) for d in range(size)]

    @cache
    def held(device: int, chunk: int) -> int:
        entry = state[sum(1 << k for k in range(levels) if digits[device][k] == 0)]
        if entry == NOTHING:
            return 0
        own, every = scattered(entry, levels), reduced(entry, levels)
        if any(own >> k & 1 and digits[chunk][k] != digits[device][k] for k in range(levels)):
            return 0
        return sum(
            1 << d
            for d in range(size)
            if all(every >> k & 1 or digits[d][k] == digits[device][k] for k in range(levels))
        )

    return tuple(tuple(held(device, chunk) for chunk in range(size)) for device in range(size))


@given(st.lists(st.integers(2, 3), min_size=1, max_size=3).map(tuple), st.sampled_from(PROGRAM_GOALS), st.data())
def test_symbolic_steps_mean_what_exact_steps_do(radices: tuple[int, ...], goal: Goal, data: st.DataObject) -> None:
    """Along random walks, also those that lead nowhere: every symbolic step is allowed and has the exact effect."""
    levels = len(radices)
    state = state_of(goal.start, levels)
    exact = exact_state(goal.start, len(meaning(state, radices)))
    assert meaning(state, radices) == exact
    for _ in range(5):
        options: list[tuple[Step, State]] = list(successors(state, levels))
        if not options:
            break
        step, after = data.draw(st.sampled_from(options))
        exact = apply_step(exact, step, radices)
        assert exact != meaning(state, radices), "every allowed step changes the state"
        assert meaning(after, radices) == exact
        state = after


@given(st.lists(st.integers(2, 3), min_size=1, max_size=3).map(tuple), st.data())
def test_steps_that_the_symbolic_engine_leaves_out_are_dead_ends(radices: tuple[int, ...], data: st.DataObject) -> None:
    """From a product state, an exact step that the symbolic engine does not offer never leads to the goal."""
    levels = len(radices)
    state = state_of(Goal.ALL_REDUCE.start, levels)
    for _ in range(data.draw(st.integers(0, 2))):
        options = list(successors(state, levels))
        if options:
            state = data.draw(st.sampled_from(options))[1]
    offered = {step for step, _ in successors(state, levels)}
    exact = meaning(state, radices)
    goal = meaning(state_of(Goal.ALL_REDUCE.end, levels), radices)
    for step in all_steps(levels):
        if step in offered:
            continue
        try:
            after = apply_step(exact, step, radices)
        except RuleBrokenError:
            continue
        assert not leads_to(after, goal, radices, 2), step


def leads_to(state: tuple[tuple[int, ...], ...], goal: object, radices: tuple[int, ...], steps: int) -> bool:
    if state == goal:
        return True
    if steps == 0:
        return False
    for step in all_steps(len(radices)):
        try:
            after = apply_step(state, step, radices)
        except RuleBrokenError:
            continue
        if leads_to(after, goal, radices, steps - 1):
            return True
    return False


@pytest.mark.parametrize("levels", range(1, HOPELESS_LEVELS))
def test_no_hopeless_state_can_reach_a_goal(levels: int) -> None:
    """Exhaustive: all states that can be reached at all, with programs of any length.

    The same for the last number of levels takes minutes: benchmarks/pruning.py.
    """

    @cache
    def following(state: State) -> list[State]:
        """Goals that start alike pass through the same states."""
        return [after for _, after in successors(state, levels)]

    is_hopeless = cache(lambda state: hopeless(state, levels))
    for goal in PROGRAM_GOALS:
        before: dict[State, list[State]] = {}
        reached = {state_of(goal.start, levels)}
        todo = list(reached)
        while todo:
            state = todo.pop()
            if is_end(state, goal, levels):
                continue
            for after in following(state):
                before.setdefault(after, []).append(state)
                if after not in reached:
                    reached.add(after)
                    todo.append(after)
        ends = {state for state in reached if is_end(state, goal, levels)}
        alive, todo = set(ends), list(ends)
        while todo:
            for state in before.get(todo.pop(), ()):
                if state not in alive:
                    alive.add(state)
                    todo.append(state)
        assert state_of(goal.start, levels) in alive
        assert not any(map(is_hopeless, alive - ends))
        if goal is Goal.ALL_REDUCE and levels > 1:
            assert any(map(is_hopeless, reached)), "the rule must be good for something"
