"""What the tests of all engines share: plans, programs, payloads."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from meshwright import (
    Collective,
    Goal,
    MeshwrightError,
    Pipelined,
    Plan,
    Planned,
    Program,
    Reduction,
    Timed,
    load_library,
    parse_hierarchy,
    parse_program,
    parse_system,
    placements,
    plan,
    program_graph,
)
from meshwright.language.goals import PROGRAM_GOALS, flat_program

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
    return Plan(placement, load_library("ring"), tuple(Planned(reduction, Pipelined.of(p), 1, 1, 1) for p in programs))


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
    try:
        work()
    except MeshwrightError as error:
        return str(error)
    raise AssertionError("it is not refused")


def pipelined_plan(goal: Goal, spec: str = "node=2,gpu=2", chunks: int = 4) -> Plan:
    """A plan whose payloads of any size are cut into chunks, which take two programs where the goal has two."""
    plan = hierarchical(goal, spec)
    (planned,) = plan.reductions
    other = [(program, 1) for program in programs_of(spec, goal, 3) if program != planned.program][:1]
    pipelined = Pipelined(((planned.program, chunks - len(other)), *other))
    small = replace(planned, communication=replace(planned.communication, bytes=1), pipelined=pipelined)
    return replace(plan, communications=(small,))


def ranged_plan(goal: Goal, spec: str = "node=2,gpu=2") -> Plan:
    """A plan with a program for each of four ranges of payloads: the library's own, two steps, in chunks, and a mix."""
    plan = pipelined_plan(goal, spec)
    (planned,) = plan.reductions
    own = Pipelined.of(flat_program(goal, spec.count(",") + 1))
    programs = {1: own, 80: Pipelined.of(planned.program), 320: Pipelined.of(planned.program, 3)}
    programs |= {2000: Pipelined(planned.shares)}
    ranges = tuple(Timed(size, pipelined, 1.0) for size, pipelined in programs.items())
    return replace(plan, communications=(replace(planned, pipelined=own, ranges=ranges),))


def random_pipelines(spec: str, count: int = 60) -> Plan:
    """A plan with random programs in random numbers of chunks, some with two or three programs that share them."""
    random = Random(spec)
    programs = programs_of(spec)
    reductions = []
    for _ in range(count):
        shares = [(program, random.randint(1, 4)) for program in random.sample(programs, random.choice([1, 1, 2, 3]))]
        base = plan_of(spec, [shares[0][0]], size=random.choice([1, 200, 1000])).reductions[0]
        reductions.append(replace(base, pipelined=Pipelined(tuple(shares))))
    return replace(plan_of(spec, programs[:1]), communications=tuple(reductions))


def tunable_plan() -> Plan:
    """A plan that holds alternatives for every goal."""
    what = [Reduction(("data",), 1 << 16, goal=goal) for goal in PROGRAM_GOALS]
    return plan("node=2@1GB/s+5us,gpu=2@8GB/s+1us", {"data": 4}, what, library="gloo").candidates[0]
