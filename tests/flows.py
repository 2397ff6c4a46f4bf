"""A flow-level simulation of pipelined programs: every edge of every group is a flow over the explicit links.

Chunks go through the steps of their program; a step takes one chunk at a time, in order. What is under way shares the
links by max-min fairness. It shares routing with the naive cost model, and nothing with `meshwright.cost.pipeline`.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from meshwright import Collective, Fabric, Goal, Program, Step
from meshwright.language.program import Pipelined, device_groups
from meshwright.language.semantics import apply_step, state_of
from tests.naive import Naive

Resource = tuple[object, ...]


@dataclass
class Flow:
    """Bytes that are left, and the links that they take up, with how much of them for each byte."""

    left: float
    over: dict[Resource, float]
    rate: float = field(default=0.0)


class Simulation(Naive):
    """The time of a pipelined program, link by link; latencies are left out."""

    def seconds(self, pipelined: Pipelined, goal: Goal, algorithm: Callable[[Step], str]) -> float:
        chunks = pipelined.chunks
        todo: list[list[list[list[Flow]]]] = []  # by chunk and step: phases of flows
        lanes: list[list[tuple[int, int]]] = []
        steps = {}
        for number, (program, _) in enumerate(pipelined.shares):
            for k in range(len(program.steps)):
                steps[number, k] = len(lanes)
                lanes.append([])
        for number, (program, count) in enumerate(pipelined.shares):
            for _ in range(count):
                for k in range(len(program.steps)):
                    lanes[steps[number, k]].append((len(todo), k))
                todo.append(self.phases_of(program, goal, chunks, algorithm))
        done = [0] * chunks
        active: dict[int, list[list[Flow]]] = {}
        now = 0.0
        while any(lanes):
            for number, lane in enumerate(lanes):
                if number not in active and lane and done[lane[0][0]] == lane[0][1]:
                    active[number] = [list(phase) for phase in todo[lane[0][0]][lane[0][1]]]
            flows = [flow for phases in active.values() for flow in (phases[0] if phases else [])]
            if flows:
                self.share(flows)
                step = min(flow.left / flow.rate for flow in flows)
                now += step
                for flow in flows:
                    flow.left -= step * flow.rate
            for number in list(active):
                phases = active[number]
                if phases:
                    phases[0] = [flow for flow in phases[0] if flow.left > 1e-9]
                while phases and not phases[0]:
                    phases.pop(0)
                if not phases:
                    del active[number]
                    done[lanes[number].pop(0)[0]] += 1
        return now

    def phases_of(
        self, program: Program, goal: Goal, chunks: int, algorithm: Callable[[Step], str]
    ) -> list[list[list[Flow]]]:
        state = state_of(goal.start, self.hierarchy.size)
        found = []
        for step in program.steps:
            held = [sum(1 for who in chunks_of if who) for chunks_of in state]
            found.append(self.step_flows(step, held, chunks, algorithm(step)))
            state = apply_step(state, step, self.hierarchy.radices)
        return found

    def step_flows(self, step: Step, held: list[int], chunks: int, algorithm: str) -> list[list[Flow]]:
        phases: list[dict[tuple[int, int], float]] = []
        switched: list[Flow] = []
        for reduction_group in self.reduction_groups:
            for group in device_groups(step.grouping, self.hierarchy.radices):
                amount = held[group[0]] * self.payload / (self.hierarchy.size * chunks)
                members = [reduction_group[d] for d in group]
                if algorithm in ("switch", "switch-tree"):
                    blocks = 1 if algorithm == "switch" else self.fans(members)[0]
                    each = len(members) // blocks
                    collective = step.collective if algorithm == "switch" else Collective.ALL_REDUCE
                    switched += [
                        Flow(amount, self.through_switches(collective, members[k * each : (k + 1) * each]))
                        for k in range(blocks)
                        if amount
                    ]
                if algorithm == "switch":
                    continue
                for k, (variants, _) in enumerate(self.phases(algorithm, step.collective, members)):
                    if len(phases) == k:
                        phases.append(defaultdict(float))
                    for edges in variants:
                        for a, b, share in edges:
                            phases[k][members[a], members[b]] += share * amount / len(variants)
        if algorithm == "switch":
            return [switched]
        # In a tree between instances whose switches add up there is one phase.
        return [
            [
                *switched,
                *(Flow(amount, dict.fromkeys(self.route(a, b), 1.0)) for (a, b), amount in phase.items() if amount),
            ]
            for phase in phases
        ]

    def through_switches(self, collective: Collective, members: list[int]) -> dict[Resource, float]:
        """What a group takes up of the links for each byte that a member holds, when switches add up what they get, and
        send to several at once.
        """
        over: dict[Resource, float] = defaultdict(float)
        meet = min(self.meet(members[0], other) for other in members[1:])
        for level in self.carrying(meet):
            children: dict[tuple[int, ...], list[int]] = defaultdict(list)
            for member in members:
                children[self.digits[member][: level + 1]].append(member)
            for child, inside in children.items():
                own = len(inside) / len(members)
                sends, receives = {
                    Collective.ALL_REDUCE: (1.0, 1.0),
                    Collective.REDUCE: (1.0, 0.0) if members[0] not in inside else (0.0, 1.0),
                    Collective.BROADCAST: (0.0, 1.0) if members[0] not in inside else (1.0, 0.0),
                    Collective.REDUCE_SCATTER: (1 - own, own),
                    Collective.ALL_GATHER: (len(inside), len(members) - len(inside)),
                }[collective]
                over["out", level, child] += sends
                over["in", level, child] += receives
                for member in inside:
                    over["sends", level, member] += sends / len(inside)
                    over["receives", level, member] += receives / len(inside)
        limited = {k for k, level in enumerate(self.system.levels) if level.link.per_device is not None}
        return {r: w for r, w in over.items() if w and (r[0] in ("out", "in") or r[1] in limited)}

    def route(self, a: int, b: int) -> list[Resource]:
        """The links that traffic from one device to another takes up."""
        meet = self.meet(a, b)
        over: list[Resource] = []
        for level in self.carrying(meet):
            link, count = self.system.levels[level].link, self.counts[level]
            if link.per_device is not None and link.fabric is not Fabric.RING:
                over += [("sends", level, a), ("receives", level, b)]
            if link.fabric is Fabric.SWITCH:
                over += [("out", level, self.digits[a][: level + 1]), ("in", level, self.digits[b][: level + 1])]
            elif link.fabric is Fabric.BUS:
                over.append(("bus", level, self.digits[a][:level]))
                if level > meet:
                    over.append(("bus", level, self.digits[b][:level]))
            else:
                at, to = self.digits[a][level], self.digits[b][level]
                way = 1 if (to - at) % count <= count - (to - at) % count else -1
                if link.per_device is not None:
                    over.append(("arrives", level, b, way))
                while at != to:
                    over.append(("wire", level, self.digits[a][:level], at, way))
                    if link.per_device is not None:
                        over.append(("own wire", level, self.digits[a][:level], at, self.digits[a][level + 1 :], way))
                    at = (at + way) % count
        return over

    def limit(self, resource: Resource) -> float:
        link = self.system.levels[int(str(resource[1]))].link
        own = resource[0] in ("sends", "receives", "arrives", "own wire")
        return (link.per_device if own else link.bandwidth) or 0.0

    def share(self, flows: list[Flow]) -> None:
        """Rates by max-min fairness: the link that gives each of its flows least is filled first."""
        left = {resource: self.limit(resource) for flow in flows for resource in flow.over}
        users: dict[Resource, list[Flow]] = defaultdict(list)
        for flow in flows:
            for resource in flow.over:
                users[resource].append(flow)
        waiting = {id(flow): flow for flow in flows}
        while waiting:
            need = {r: sum(flow.over[r] for flow in using if id(flow) in waiting) for r, using in users.items()}
            tight = min((r for r in left if need[r]), key=lambda r: left[r] / need[r])
            rate = left[tight] / need[tight]
            for flow in users[tight]:
                if id(flow) in waiting:
                    del waiting[id(flow)]
                    flow.rate = rate
                    for resource, weight in flow.over.items():
                        left[resource] = max(0.0, left[resource] - rate * weight)
