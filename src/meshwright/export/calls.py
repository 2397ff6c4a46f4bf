"""The calls that a plan's programs make: which collective, in which group, with how many bytes, by which algorithm."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from meshwright.export.hosts import hosts_spanned
from meshwright.export.request import Request, the_reduction
from meshwright.language.program import Collective, Pipelined
from meshwright.planning.explain import costs_of
from meshwright.planning.plan import Planned


@dataclass(frozen=True, slots=True)
class Call:
    """One step as a library sees it. bytes: the larger of what a rank gives and gets; hosts: None if it is unknown.

    algorithm: the one whose time the plan counts on, by the name that the plan's library has for it.
    """

    collective: Collective
    ranks: int
    hosts: int | None
    bytes: int
    algorithm: str
    chunked: bool


def calls_of(request: Request) -> list[Call]:
    """The calls of all reductions, or of the one that is meant; each once."""
    plan = request.plan
    chosen = plan.reductions if request.reduction is None else (the_reduction(request),)
    return list(dict.fromkeys(call for planned in chosen for call in _calls(request, planned)))


def _calls(request: Request, planned: Planned) -> Iterable[Call]:
    plan = request.plan
    radices = plan.hierarchy(planned).radices
    for number, (program, _) in enumerate(planned.shares):
        first = planned.shares[number], *planned.shares[:number], *planned.shares[number + 1 :]
        costs = costs_of(plan, Planned(planned.communication, Pipelined(first), 0, 0, 0))
        for step, cost in zip(program.steps, costs, strict=True):
            ranks = prod(radices[step.grouping.first : step.grouping.last + 1])
            size = cost.held * (ranks if step.collective is Collective.ALL_GATHER else 1)
            hosts = hosts_spanned(request, planned, step.grouping)
            yield Call(step.collective, ranks, hosts, round(size), cost.algorithm, planned.chunks > 1)


def by_size(calls: Iterable[Call]) -> list[tuple[int, int, str]]:
    """Calls of one kind as ranges of bytes, each with its algorithm.

    The first begins at half of the smallest size, the last ends at twice the largest; between two sizes with different
    algorithms the border is in the middle. Of two calls of one size, the first counts.
    """
    sizes = {call.bytes: call.algorithm for call in reversed(list(calls))}
    ordered = sorted(sizes.items())
    found: list[tuple[int, int, str]] = []
    least = ordered[0][0] // 2
    for (size, algorithm), (following, other) in zip(ordered, [*ordered[1:], (0, "")], strict=True):
        if other != algorithm:
            most = (size + following) // 2 if other else 2 * size
            found.append((least, most, algorithm))
            least = most + 1
    return found
