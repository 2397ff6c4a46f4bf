"""What the tests of all engines share: plans, programs, payloads."""

from collections.abc import Callable

import pytest

from meshwright import (
    Collective,
    Goal,
    MeshwrightError,
    Plan,
    PlannedReduction,
    Program,
    Reduction,
    load_library,
    parse_hierarchy,
    parse_program,
    parse_system,
    placements,
    program_graph,
)

EXHAUSTIVE = {
    "node=2,gpu=2": (1, 93),
    "node=2,gpu=4": (1, 93),
    "node=4,gpu=2": (1, 93),
    "rack=2,node=2,gpu=2": (25, 66),
}
"""Systems whose programs of at most 5 steps are run: every how many-th of them, and how many these are."""


def plan_of(spec: str, programs: list[Program], goal: Goal = Goal.ALL_REDUCE, size: int = 1 << 20) -> Plan:
    """A plan that reduces over all devices with each of the programs in turn."""
    system = parse_system(spec)
    placement = next(iter(placements(system, {"data": system.devices})))
    reduction = Reduction(("data",), size, goal=goal)
    return Plan(placement, load_library("ring"), tuple(PlannedReduction(reduction, p, 1, 1, 1) for p in programs))


def programs_of(
    spec: str,
    goal: Goal = Goal.ALL_REDUCE,
    max_steps: int = 5,
    every: int = 1,
    collectives: tuple[Collective, ...] = tuple(Collective),
) -> list[Program]:
    return list(program_graph(spec.count(",") + 1, goal, max_steps, collectives).programs())[::every]


def hierarchical(goal: Goal = Goal.ALL_REDUCE, spec: str = "node=2,gpu=2") -> Plan:
    """A plan with one program of several steps for a goal."""
    text = {
        Goal.ALL_REDUCE: "ReduceScatter inside node; AllReduce across node; AllGather inside node",
        Goal.REDUCE_SCATTER: "ReduceScatter inside node; ReduceScatter across node",
        Goal.ALL_GATHER: "AllGather inside node; AllGather across node",
        Goal.REDUCE: "Reduce inside node; Reduce masters of node",
        Goal.BROADCAST: "Broadcast masters of node; Broadcast inside node",
    }[goal]
    return plan_of(spec, [parse_program(text, parse_hierarchy(spec))], goal)


def refused(work: Callable[[], object]) -> str:
    """The message that some work is refused with."""
    with pytest.raises(MeshwrightError) as caught:
        work()
    return str(caught.value)
