"""A deliberately naive cost model: every edge of every group is routed over the explicit tree, loads are added up.

It knows systems, placements and device groups, and shares no code with `meshwright.cost`.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from itertools import pairwise, product
from math import prod

from meshwright import Collective, Fabric, Placement, Step, reduction_hierarchy
from meshwright.language.program import device_groups
from meshwright.placement.hierarchy import digits_of

Edge = tuple[int, int, float]  # from the member, to the member, bytes in units of what a member holds


class Naive:
    """The time of a program's steps with one algorithm for each collective."""

    def __init__(
        self,
        placement: Placement,
        axes: list[str],
        payload: int,
        rotates: bool,
        handshake: bool = False,
        posted: bool = False,
        headers: int = 0,
    ) -> None:
        self.headers = headers  # bytes that each message has besides
        self.posted = posted  # where messages wait for handshakes, whether in rings only the first one does
        self.placement, self.system, self.rotates, self.handshake = placement, placement.system, rotates, handshake
        self.hierarchy = reduction_hierarchy(placement, axes)
        self.reduction_groups = placement.groups(axes)
        self.payload = payload
        self.counts = self.system.counts
        self.digits = [digits_of(rank, self.counts) for rank in range(self.system.devices)]
        self.meet, self.carrying, self.sent = cache(self._meet), cache(self._carrying), cache(self._sent)
        self.routed = cache(self._routed)
        self.groups = cache(lambda grouping: device_groups(grouping, self.hierarchy.radices))

    def step(self, step: Step, chunks: list[int], algorithm: str) -> float:
        held = [chunks[group[0]] for group in self.groups(step.grouping)]
        held_bytes = max(held) * self.payload / self.hierarchy.size
        shares = tuple(each / max(held) for each in held)
        phases, turns = self.routed(step, shares, algorithm, self.headers / held_bytes)
        phases = [(seconds * held_bytes, latency) for seconds, latency in phases]
        start = 0.0
        if self.handshake and turns:
            (ring, latency), *phases = phases
            if self.posted:  # whole messages: others are on their way in the meantime only if there are other groups
                slowest, alone = self.one_ring(step, shares, algorithm, self.headers / held_bytes)
                start = max(ring + 2 * slowest, alone * held_bytes + latency + slowest)
            else:  # two halves of a message: one on its way while the other waits, but for the first handshake
                start = max(ring + latency / turns, ring / 2 + latency)
        return start + sum(seconds + latency for seconds, latency in phases)

    def _routed(
        self, step: Step, shares: tuple[float, ...], algorithm: str, headers: float
    ) -> tuple[list[tuple[float, float]], int]:
        """Seconds on links and for messages of each phase, if a device holds at most 1 byte; and the turns of a ring.

        Twice the bytes are twice as long on the links. headers: of a message, over what a device holds.
        """
        phases: list[dict[tuple[int, int], float]] = []
        latencies: list[float] = []
        switched: list[tuple[list[int], float]] = []
        latency = 0.0
        for reduction_group in self.reduction_groups:
            for group, held in zip(self.groups(step.grouping), shares, strict=True):
                members = [reduction_group[d] for d in group]
                if algorithm in ("switch", "switch-tree"):
                    blocks = 1 if algorithm == "switch" else self.fans(members)[0]
                    each = len(members) // blocks
                    switched += [(members[k * each : (k + 1) * each], held) for k in range(blocks)]
                    latency = self.in_switch(switched[-1][0])
                if algorithm == "switch":
                    continue
                for k, (edges, messages) in enumerate(self.sent(algorithm, step.collective, tuple(members))):
                    if len(phases) == k:
                        phases.append(defaultdict(float))
                        latencies.append(0.0)
                    ring = k == 0 and self.posted and self.turns(algorithm, step.collective, members)
                    latencies[k] = max(latencies[k], (messages + latency) * (2 if self.handshake and not ring else 1))
                    for edge, (amount, many) in edges.items():
                        phases[k][edge] += (amount + headers * many) * held
        if algorithm == "switch":
            return [(self.time({}, switched), latency * (2 if self.handshake else 1))], 0
        seconds = [self.time(edges, switched) for edges in phases]
        return list(zip(seconds, latencies, strict=True)), self.turns(algorithm, step.collective, members)

    def one_ring(self, step: Step, shares: tuple[float, ...], algorithm: str, headers: float) -> tuple[float, float]:
        """The latency of the slowest edge of a ring, and the seconds of a slice that passes every edge but one, if its
        group is alone: in each turn, the most loaded of the links that carry what it sends."""
        slowest = alone = 0.0
        for reduction_group in self.reduction_groups:
            for group, held in zip(self.groups(step.grouping), shares, strict=True):
                members = tuple(reduction_group[d] for d in group)
                slowest = max(slowest, *(self.latency(a, b) for a, b in pairwise(members)))
                edges, _ = self.sent(algorithm, step.collective, members)[0]
                passed = [*pairwise(members[1:]), (members[-1], members[0])]
                loads = {edge: (amount + headers * many) * held for edge, (amount, many) in edges.items()}
                each = [self.time(loads, on=self.carrying(self.meet(a, b))) for a, b in passed]
                alone = max(alone, sum(each) / len(each))
        return slowest, alone

    def _sent(
        self, algorithm: str, collective: Collective, members: tuple[int, ...]
    ) -> list[tuple[dict[tuple[int, int], tuple[float, float]], float]]:
        """What each device sends to each other in every phase, in how many messages, and the seconds spent on starting
        messages."""
        phases = []
        for k, (variants, messages) in enumerate(self.phases(algorithm, collective, list(members))):
            turns = self.turns(algorithm, collective, list(members)) if k == 0 else 0
            many = 2 * turns if self.handshake and not self.posted else turns  # in halves, if each waits for the other
            each = (many or 1) * (2 if algorithm == "two-way-ring" else 1)
            edges: dict[tuple[int, int], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
            for variant in variants:
                for a, b, amount in variant:
                    carried, count = edges[members[a], members[b]]
                    here = (
                        2 * amount if algorithm == "tree" else each
                    )  # a message of either tree has half of the payload
                    edges[members[a], members[b]] = carried + amount / len(variants), count + here / len(variants)
            phases.append((edges, messages))
        return phases

    def turns(self, algorithm: str, collective: Collective, members: list[int]) -> int:
        """How often everyone sends in a ring that is closed, if there is one; it comes first."""
        size, collective = len(members), done_as(algorithm, collective, self.rotates)
        if algorithm == "ring-gather":
            return size - 1
        if algorithm == "halving" and any(fan & (fan - 1) for fan in self.fans(members)):
            algorithm = "ring"
        if algorithm not in ("ring", "two-way-ring") or collective in (Collective.REDUCE, Collective.BROADCAST):
            return 0
        return (size - 1) * (2 if collective is Collective.ALL_REDUCE else 1)

    def transfer(self, to_everyone: bool) -> float:
        """Everyone sends a part to everyone of its group, or all it holds to the next."""
        edges: dict[tuple[int, int], float] = defaultdict(float)
        latency = 0.0
        for members in self.reduction_groups:
            for k, a in enumerate(members):
                others = [b for b in members if b != a] if to_everyone else list(members[k + 1 : k + 2])
                for b in others:
                    edges[a, b] += self.payload / (len(members) if to_everyone else 1)
                if to_everyone:
                    latency = max(latency, sum(self.latency(a, b) for b in others))
            if not to_everyone:
                latency = max(latency, self.outermost_latency(list(members)))
        return self.time(edges) + latency

    def _meet(self, a: int, b: int) -> int:
        """The level at which two devices part."""
        return next(k for k in range(len(self.counts)) if self.digits[a][k] != self.digits[b][k])

    def latency(self, a: int, b: int) -> float:
        return self.system.levels[self.meet(a, b)].link.latency

    # -- what algorithms send: variants that share the payload evenly, and the seconds spent on starting messages --

    def phases(
        self, algorithm: str, collective: Collective, members: list[int]
    ) -> list[tuple[list[list[Edge]], float]]:
        size, collective = len(members), done_as(algorithm, collective, self.rotates)
        one = 1.0
        path = sum(self.latency(a, b) for a, b in pairwise(members))
        # Round a ring, the slowest chunk takes every edge but one of the cheapest kind, that between neighbours.
        cycle = path + self.latency(members[-1], members[0]) - self.latency(members[0], members[1])
        farthest = self.outermost_latency(members)
        if algorithm in ("ring", "two-way-ring"):
            amount, rounds = {
                Collective.ALL_REDUCE: (2 * (size - 1) / size, 2),
                Collective.REDUCE_SCATTER: ((size - 1) / size, 1),
                Collective.ALL_GATHER: (float(size - 1), 1),
                Collective.REDUCE: (one, 1),
                Collective.BROADCAST: (one, 1),
            }[collective]
            orders = self.turned(members) if self.rotates else [list(range(size))]
            if algorithm == "two-way-ring":
                orders += [order[::-1] for order in orders]
            if collective in (Collective.BROADCAST, Collective.REDUCE):
                # Every ring is followed from the root on, until it would come back to it.
                chains = [pairwise(order[order.index(0) :] + order[: order.index(0)]) for order in orders]
                downwards = collective is Collective.BROADCAST
                variants = [[(a, b, one) if downwards else (b, a, one) for a, b in chain] for chain in chains]
                return [(variants, cycle if self.rotates else path)]
            if self.handshake and not self.posted:  # nobody's next message is ahead of anybody's last
                around = zip(members, [*members[1:], members[0]], strict=True)
                cycle = (size - 1) * max(self.latency(a, b) for a, b in around)
            return [([[(o[k], o[(k + 1) % size], amount) for k in range(size)] for o in orders], rounds * cycle)]
        if algorithm == "direct":
            amount = one if collective is Collective.ALL_GATHER else 1 / size
            everyone = [(a, b, amount) for a in range(size) for b in range(size) if a != b]
            return [([everyone], farthest)] * (2 if collective is Collective.ALL_REDUCE else 1)
        if algorithm == "reduce-and-scatter":
            there = [(k, 0, one) for k in range(1, size)]
            back = [(0, k, 1 / size) for k in range(1, size)]
            return [([there], farthest), ([back], farthest)]
        if algorithm == "halving":
            if any(fan & (fan - 1) for fan in self.fans(members)):
                return self.phases("ring", collective, members)
            return self.halving(collective, members)
        if algorithm in ("recursive", "doubling"):
            rounds_list = []
            distance, amount = 1, one if algorithm == "doubling" else 0.5
            if collective is Collective.ALL_GATHER:
                amount *= size
            while distance < size:
                edges = [(k, k ^ distance, amount) for k in range(size)]
                seconds = max(self.latency(members[a], members[b]) for a, b, _ in edges)
                rounds_list.append(([edges], seconds))
                distance, amount = distance * 2, amount if algorithm == "doubling" else amount / 2
            if algorithm == "recursive" and collective is Collective.ALL_REDUCE:
                return rounds_list + rounds_list[::-1]
            return rounds_list
        if algorithm in ("binomial", "ring-gather"):
            return self.rooted(algorithm, collective, members)
        if algorithm == "switch-tree":
            return [self.switch_tree(members)]
        assert algorithm == "tree"
        return [self.tree(members)]

    def halving(self, collective: Collective, members: list[int]) -> list[tuple[list[list[Edge]], float]]:
        """A butterfly that swaps half of what is left with the farthest first."""
        found = []
        distance, amount = len(members) // 2, 0.5
        while distance:
            edges = [(k, k ^ distance, amount) for k in range(len(members))]
            found.append(([edges], max(self.latency(members[a], members[b]) for a, b, _ in edges)))
            distance, amount = distance // 2, amount / 2
        if collective is Collective.REDUCE_SCATTER:
            return found
        size = len(members)
        return [([[(a, b, size * held) for a, b, held in edges]], late) for (edges,), late in reversed(found)]

    def outermost_latency(self, members: list[int]) -> float:
        """The latency at the outermost level that the group spans."""
        outermost = min(self.meet(members[0], other) for other in members[1:])
        return self.system.levels[outermost].link.latency

    def turned(self, members: list[int]) -> list[list[int]]:
        """Every way to turn the order of the children at the levels below the first that the group spans."""
        fans = self.fans(members)
        orders = []
        for turns in product(*(range(fan) for fan in fans[1:])):
            order = []
            for digits in product(*(range(fan) for fan in fans)):
                inner = [(d + t) % fan for d, t, fan in zip(digits[1:], turns, fans[1:], strict=True)]
                index = 0
                for digit, fan in zip((digits[0], *inner), fans, strict=True):
                    index = index * fan + digit
                order.append(index)
            orders.append(order)
        return orders

    def fans(self, members: list[int]) -> list[int]:
        fans = [len({self.digits[m][level] for m in members}) for level in range(len(self.counts))]
        return [fan for fan in fans if fan > 1]

    def rooted(
        self, algorithm: str, collective: Collective, members: list[int]
    ) -> list[tuple[list[list[Edge]], float]]:
        size, one = len(members), 1.0
        if algorithm == "ring-gather":
            (ring,) = self.phases("ring", Collective.REDUCE_SCATTER, members)
            gather = [(k, 0, 1 / size) for k in range(1, size)]
            return [ring, ([gather], self.outermost_latency(members))]
        depth = {0: 0}
        edges: list[tuple[int, int]] = []
        distance = 1
        while distance < size:
            for k in range(min(distance, size - distance)):
                edges.append((k, k + distance))
                depth[k + distance] = depth[k] + 1
            distance *= 2
        stages = []
        for d in range(max(depth.values())):
            stage = [(a, b, one) for a, b in edges if depth[a] == d]
            if collective is Collective.REDUCE:
                stage = [(b, a, one) for a, b, _ in stage]
            outermost = min(self.meet(members[a], members[b]) for a, b, _ in stage)
            stages.append(([stage], self.system.levels[outermost].link.latency))
        return stages[::-1] if collective is Collective.REDUCE else stages

    def tree(self, members: list[int]) -> tuple[list[list[Edge]], float]:
        """Two binary trees between the outermost instances, chains inside, every rotation of both."""
        fans = self.fans(members)
        blocks, inner = fans[0], len(members) // fans[0]
        variants = []
        for turn, leader in product(range(blocks), range(inner)):
            edges: list[Edge] = []
            for shift in (0, 1):
                for parent, child in search_tree(blocks):
                    a, b = ((x + shift + turn) % blocks * inner + leader for x in (parent, child))
                    edges += [(a, b, 0.5), (b, a, 0.5)]
            for block in range(blocks):
                chain = [block * inner + (leader + k) % inner for k in range(inner)]
                for a, b in pairwise(chain):
                    edges += [(a, b, 1.0), (b, a, 1.0)]
            variants.append(edges)
        chain_seconds = sum(self.latency(a, b) for a, b in pairwise(members[:inner]))
        return variants, 2 * (depth_of(blocks) * self.outermost_latency(members) + chain_seconds)

    def switch_tree(self, members: list[int]) -> tuple[list[list[Edge]], float]:
        """Two binary trees between members in the same place of the outermost instances, each for its part."""
        blocks = self.fans(members)[0]
        inner = len(members) // blocks
        variants = []
        for turn in range(blocks):
            edges: list[Edge] = []
            for shift, (parent, child), place in product((0, 1), search_tree(blocks), range(inner)):
                a, b = ((x + shift + turn) % blocks * inner + place for x in (parent, child))
                edges += [(a, b, 0.5 / inner), (b, a, 0.5 / inner)]
            variants.append(edges)
        return variants, 2 * depth_of(blocks) * self.outermost_latency(members)

    def in_switch(self, members: list[int]) -> float:
        """Latency where every member sends its bytes up to the switch where the group meets, and gets as many back."""
        spanned = [k for k in range(len(self.counts)) if len({self.digits[m][k] for m in members}) > 1]
        return 2 * sum(self.system.levels[k].link.latency for k in spanned)

    def _carrying(self, meet: int) -> list[int]:
        """The levels whose links carry traffic between devices that part at a level."""
        inner = range(meet + 1, len(self.counts))
        links = [self.system.levels[k].link for k in range(len(self.counts))]
        through = (k for k in inner if not links[k].bypass and links[k].fabric is not Fabric.RING)
        return [meet, *(k for k in through if self.counts[k] > 1)]  # a single child needs no fabric

    # -- routing --

    def time(
        self,
        edges: dict[tuple[int, int], float],
        switched: Sequence[tuple[list[int], float]] = (),
        on: Sequence[int] | None = None,
    ) -> float:
        """The most loaded link of a phase; or only of some levels.

        `switched` are groups whose switches add up, and the bytes of a member.
        """
        out: dict[tuple[int, tuple[int, ...]], float] = defaultdict(float)
        into: dict[tuple[int, tuple[int, ...]], float] = defaultdict(float)
        bus: dict[tuple[int, tuple[int, ...]], float] = defaultdict(float)
        wires: dict[tuple[int, tuple[int, ...], int, int], float] = defaultdict(float)
        single: dict[tuple[object, ...], float] = defaultdict(float)  # of one device: what it sends or gets, by level
        for (a, b), amount in edges.items():
            meet = self.meet(a, b)
            for level in (one for one in self.carrying(meet) if on is None or one in on):
                fabric, count = self.system.levels[level].link.fabric, self.counts[level]
                if fabric is not Fabric.RING:
                    single[level, "sends", a] += amount
                    single[level, "receives", b] += amount
                if fabric is Fabric.SWITCH:
                    out[level, self.digits[a][: level + 1]] += amount
                    into[level, self.digits[b][: level + 1]] += amount
                elif fabric is Fabric.BUS:
                    bus[level, self.digits[a][:level]] += amount
                    if level > meet:
                        bus[level, self.digits[b][:level]] += amount
                else:
                    at, to = self.digits[a][level], self.digits[b][level]
                    way = 1 if (to - at) % count <= count - (to - at) % count else -1
                    single[level, "arrives", b, way] += amount
                    while at != to:
                        wires[level, self.digits[a][:level], at, way] += amount
                        # The devices in the same place below each child have a ring of their own.
                        single[level, self.digits[a][:level], at, self.digits[a][level + 1 :], way] += amount
                        at = (at + way) % count
        for members, held in switched:
            for level in self.carrying(min(self.meet(members[0], other) for other in members[1:])):
                children: dict[tuple[int, ...], list[int]] = defaultdict(list)
                for m in members:
                    children[self.digits[m][: level + 1]].append(m)
                for child, inside in children.items():
                    if self.system.levels[level].link.fabric is Fabric.BUS:
                        bus[level, child[:-1]] += 2 * held
                    else:
                        out[level, child] += held
                        into[level, child] += held
                    for m in inside:
                        single[level, "sends", m] += held / len(inside)
                        single[level, "receives", m] += held / len(inside)
        seconds = 0.0
        for loads in (out, into, bus, wires):
            for key, load in loads.items():
                seconds = max(seconds, load / (self.system.levels[key[0]].link.bandwidth or 0))
        for (number, *_), load in single.items():
            limit = self.system.levels[int(str(number))].link.per_device
            if limit is not None:
                seconds = max(seconds, load / limit)
        return seconds


def search_tree(size: int) -> list[tuple[int, int]]:
    """The (parent, child) edges of a binary search tree of 0, 1, … after inserting rounder numbers first."""
    numbers = sorted(range(1, size + 1), key=lambda v: (-(v & -v), v))
    children: dict[int, dict[str, int]] = {v: {} for v in numbers}
    for v in numbers[1:]:
        at = numbers[0]
        while (side := "left" if v < at else "right") in children[at]:
            at = children[at][side]
        children[at][side] = v
    return [(v - 1, child - 1) for v in numbers for child in children[v].values()]


def depth_of(size: int) -> int:
    """How many edges there are between the root of a binary tree and its farthest node."""
    depth = 0
    while 2**depth < size:
        depth += 1
    return depth


def done_as(algorithm: str, collective: Collective, rotates: bool) -> Collective:
    """Without a root, a reduction and a broadcast are an all-reduce."""
    rooted = collective in (Collective.REDUCE, Collective.BROADCAST)
    rootless = algorithm in ("direct", "recursive", "doubling", "tree", "switch-tree") or (algorithm, rotates) == (
        "two-way-ring",
        False,
    )
    return Collective.ALL_REDUCE if rooted and rootless else collective


def applicable(algorithm: str, collective: Collective, fans: list[int], reduces: bool, reduces_inside: bool) -> bool:
    """Whether an algorithm can do a collective in groups with these fans, whose switches may add up what all members
    have, or what those of each outermost instance have."""
    rooted = collective in (Collective.REDUCE, Collective.BROADCAST)
    whole = rooted or collective is Collective.ALL_REDUCE
    powers = all(fan & (fan - 1) == 0 for fan in fans)
    return {
        "ring": True,
        "two-way-ring": True,
        "direct": True,
        "recursive": powers,
        "halving": collective in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER),
        "reduce-and-scatter": collective is Collective.REDUCE_SCATTER and prod(fans) < 4,
        "doubling": whole and powers,
        "tree": whole,
        "switch": whole and reduces,
        "switch-tree": whole and reduces_inside,
        "binomial": rooted,
        "ring-gather": collective is Collective.REDUCE,
    }[algorithm] and prod(fans) > 1
