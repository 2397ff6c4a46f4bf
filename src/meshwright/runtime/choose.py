"""Which of a plan's reductions a call means."""

import operator
from collections.abc import Iterable
from math import log
from typing import SupportsIndex

from meshwright.errors import EngineError
from meshwright.language.goals import Goal
from meshwright.planning.plan import Plan, Planned

Over = str | Iterable[str] | int | None
"""Which reduction is meant: its axes ("data", "data+shard", ["data"]), its number in the plan, or None for the only
one.
"""


KEPT = 1000
"""How many choices, and kinds of calls, are kept, so that sizes which always change do not fill the memory."""


class Chooser:
    """Finds the reduction that a call means; what was found once is kept."""

    def __init__(self, plan: Plan) -> None:
        """Nothing is found yet."""
        self.plan = plan
        self.found: dict[tuple[Goal, Over, int, bool], int] = {}

    def __call__(self, goal: Goal, over: Over, payload: int, is_part: bool = False) -> int:
        """The number of the reduction with a goal, for a payload of `payload` bytes, or for a rank's part of one."""
        if over is not None and not isinstance(over, str | int):
            over = operator.index(over) if isinstance(over, SupportsIndex) else tuple(over)
        number = self.found.get((goal, over, payload, is_part))
        if number is None:
            if len(self.found) >= KEPT:
                self.found.clear()
            number = self.found[goal, over, payload, is_part] = choose(self.plan, goal, over, payload, is_part)
        return number


def choose(plan: Plan, goal: Goal, over: Over, payload: int, is_part: bool = False) -> int:
    """The number of the reduction with a goal; of several over the same axes, the one planned for the nearest size."""
    if isinstance(over, int):
        if not 0 <= over < len(plan.reductions):
            raise EngineError(f"there is no reduction {over}: the plan has 0 to {len(plan.reductions) - 1}")
        if plan.reductions[over].communication.goal is not goal:
            raise EngineError(f"reduction {over} of the plan is {describe(plan.reductions[over])}, not a {goal}")
        return over
    fitting = [k for k, planned in enumerate(plan.reductions) if planned.communication.goal is goal]
    if over is not None:
        axes = set(over.split("+") if isinstance(over, str) else over)
        fitting = [k for k in fitting if set(plan.reductions[k].communication.axes) == axes]
        wanted = f"{goal} over {'+'.join(sorted(axes))}"
    else:
        wanted = str(goal)
    if not fitting:
        has = "; ".join(map(describe, plan.reductions))
        raise EngineError(f"the plan has no {wanted}; it has: {has}")
    if len({frozenset(plan.reductions[k].communication.axes) for k in fitting}) > 1:
        several = "; ".join(describe(plan.reductions[k]) for k in fitting)
        raise EngineError(f"the plan has more than one {goal}: say which with over=…: {several}")
    whole = payload * plan.hierarchy(plan.reductions[fitting[0]]).size if is_part else payload
    return min(fitting, key=lambda k: abs(log(plan.reductions[k].communication.bytes / max(whole, 1))))


def describe(planned: Planned) -> str:
    """A reduction in words."""
    return f"{planned.communication.goal} over {'+'.join(planned.communication.axes)}"
