"""Timelines: when each chunk of a communication is in which step, and what that puts on the links, as predicted.

The cost model says that the first chunk takes the time of all its steps, and that one more chunk is done after each
period. So each chunk begins a period after the one before, and goes through its steps without a pause. In a step that
takes long for its messages' latencies, some ranks may have the next chunk already while others are not yet done.

For example, 3 chunks through steps of 2, 3 and 2 ms with a period of 4 ms: they begin at 0, 4 and 8 ms, the second is
in its second step from 6 to 9 ms, and all is done after 15 ms.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from meshwright.cost.model import PhaseCost, StepCost
from meshwright.language.program import Pipelined, Program, step_text
from meshwright.planning.explain import costs_of
from meshwright.planning.plan import Plan, Planned


@dataclass(frozen=True)
class Flow:
    """The steps that some chunks take: their names, and the costs of each for one chunk.

    program: None for a transfer, which is one step without a program.
    """

    program: Program | None
    names: tuple[str, ...]
    costs: tuple[StepCost, ...]

    @cached_property
    def seconds(self) -> float:
        """How long a chunk takes."""
        return sum(cost.seconds for cost in self.costs)


@dataclass(frozen=True, slots=True)
class Span:
    """One phase of one step, for one chunk: from `start` to `end`, in seconds from the start of the communication."""

    chunk: int
    flow: int
    step: int
    phase: PhaseCost
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """A communication in time. order: for each chunk, the number of the flow that it takes."""

    flows: tuple[Flow, ...]
    order: tuple[int, ...]
    period: float
    seconds: float

    def spans(self) -> Iterator[Span]:
        """All phases of all steps of all chunks."""
        for chunk, number in enumerate(self.order):
            at = chunk * self.period
            for step, cost in enumerate(self.flows[number].costs):
                at += cost.call
                for phase in cost.phases:
                    yield Span(chunk, number, step, phase, at, at + phase.seconds)
                    at += phase.seconds


def timeline(plan: Plan, planned: Planned) -> Timeline:
    """One of a plan's communications in time."""
    if planned.pipelined is None:
        costs = tuple(costs_of(plan, planned))
        flow = Flow(None, tuple(str(planned.communication.goal) for _ in costs), costs)
        return Timeline((flow,), (0,), 0.0, planned.seconds)
    names, shares = plan.hierarchy(planned).names, planned.pipelined.shares
    flows = []
    for k, (program, _) in enumerate(shares):
        # The costs are those of the first program, beside the others.
        first = Pipelined((shares[k], *shares[:k], *shares[k + 1 :]))
        costs = tuple(costs_of(plan, replace(planned, pipelined=first, ranges=(), tuned=())))
        flows.append(Flow(program, tuple(step_text(step, names) for step in program.steps), costs))
    order = _order([count for _, count in shares], [flow.seconds for flow in flows])
    longest = max(flow.seconds for flow in flows)
    period = max(0.0, planned.seconds - longest) / (len(order) - 1) if len(order) > 1 else 0.0
    return Timeline(tuple(flows), order, period, planned.seconds)


def _order(counts: Sequence[int], seconds: Sequence[float]) -> tuple[int, ...]:
    """Which flow each chunk takes: spread evenly, and one of the longest flow last, which sets the predicted end.

    >>> _order([2, 1], [1.0, 2.0])
    (0, 0, 1)
    """
    spread = sorted(((k + 0.5) / count, flow) for flow, count in enumerate(counts) for k in range(count))
    order = [flow for _, flow in spread]
    longest = max(range(len(counts)), key=seconds.__getitem__)
    last = len(order) - 1 - order[::-1].index(longest)
    return (*order[:last], *order[last + 1 :], longest)
