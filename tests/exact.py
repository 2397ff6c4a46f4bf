"""All valid programs by trying every step in the exact semantics: the reference for synthesis, for small groups."""

from functools import cache
from math import prod

from meshwright import Goal, Program, Step
from meshwright.language.program import all_steps
from meshwright.language.semantics import RuleBrokenError, State, apply_step, end_of, state_of


def exact_programs(radices: tuple[int, ...], max_steps: int, goal: Goal = Goal.ALL_REDUCE) -> set[Program]:
    size = prod(radices)
    end = end_of(goal, size)
    steps = all_steps(len(radices))

    @cache
    def completions(state: State, left: int) -> tuple[tuple[Step, ...], ...]:
        if state[: len(end)] == end:
            return ((),)
        if left == 0:
            return ()
        found = []
        for step in steps:
            try:
                after = apply_step(state, step, radices)
            except RuleBrokenError:
                continue
            found += [(step, *rest) for rest in completions(after, left - 1)]
        return tuple(found)

    return {Program(steps) for steps in completions(state_of(goal.start, size), max_steps)}
