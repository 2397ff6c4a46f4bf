"""All valid programs by trying every step in the exact semantics: the reference for synthesis, for small groups."""

from collections.abc import Callable
from functools import cache, lru_cache
from math import prod

from meshwright import Goal, Program, Step
from meshwright.language.program import all_steps
from meshwright.language.semantics import RuleBrokenError, State, apply_step, end_of, state_of


def exact_programs(radices: tuple[int, ...], max_steps: int, goal: Goal = Goal.ALL_REDUCE) -> set[Program]:
    size = prod(radices)
    end = end_of(goal, size)
    following = successors(radices)

    @cache
    def completions(state: State, left: int) -> tuple[tuple[Step, ...], ...]:
        if state[: len(end)] == end:
            return ((),)
        if left == 0:
            return ()
        return tuple((step, *rest) for step, after in following(state) for rest in completions(after, left - 1))

    return {Program(steps) for steps in completions(state_of(goal.start, size), max_steps)}


@lru_cache(maxsize=1)
def successors(radices: tuple[int, ...]) -> Callable[[State], list[tuple[Step, State]]]:
    """Where every allowed step leads from a state; of the last hierarchy it is kept, for the other goals there."""
    steps = all_steps(len(radices))

    @cache
    def following(state: State) -> list[tuple[Step, State]]:
        found = []
        for step in steps:
            try:
                found.append((step, apply_step(state, step, radices)))
            except RuleBrokenError:
                continue
        return found

    return following
