"""A simulated network: links of a known hierarchy that transfers share fairly, with noise; ranks sit in any order."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, prod
from random import Random

from meshwright.discovery.explore import Explorer, Measured
from meshwright.discovery.rounds import Partition, Round, Seconds

Edge = tuple[int, int, int]
"""A level, an instance of it, and a direction."""


@dataclass
class Network:
    """Levels, outermost first, with the rate of each child's port and the latency between children.

    noise: how far times are off, as a standard deviation of their logarithms, one by one and round by round.
    outliers: the share of transfers that take three times as long.
    """

    counts: tuple[int, ...]
    rates: tuple[float, ...]
    latencies: tuple[float, ...]
    noise: float
    random: Random
    outliers: float = 0.02
    seconds: float = 0.0
    order: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        devices = prod(self.counts)
        self.order = self.order or self.random.sample(range(devices), devices)

    def instance(self, rank: int, level: int) -> int:
        return self.order[rank] // prod(self.counts[level + 1 :])

    def truth(self) -> list[Partition]:
        """The groups of ranks on each level."""
        found = []
        for level in range(len(self.counts)):
            groups: dict[int, list[int]] = {}
            for rank in range(len(self.order)):
                groups.setdefault(self.instance(rank, level), []).append(rank)
            found.append(tuple(sorted(map(tuple, groups.values()))))
        return found

    def path(self, sender: int, receiver: int) -> list[Edge]:
        ends = [(k, self.instance(sender, k), self.instance(receiver, k)) for k in range(len(self.counts))]
        return [edge for k, one, other in ends if one != other for edge in ((k, one, 0), (k, other, 1))]

    def fair(self, pairs: Sequence[tuple[int, int]]) -> list[float]:
        """What each transfer gets: the links that have least for each are full first."""
        paths = [self.path(*pair) for pair in pairs]
        users: dict[Edge, set[int]] = {}
        for number, path in enumerate(paths):
            for edge in path:
                users.setdefault(edge, set()).add(number)
        left = {edge: self.rates[edge[0]] for edge in users}
        rates = [0.0] * len(pairs)
        while users:
            shares = {edge: left[edge] / len(numbers) for edge, numbers in users.items()}
            share = min(shares.values())
            for edge in [edge for edge, one in shares.items() if one < share * (1 + 1e-9)]:
                for number in list(users[edge]):
                    rates[number] = share
                    for other in paths[number]:
                        users[other].discard(number)
                        left[other] -= share
            users = {edge: numbers for edge, numbers in users.items() if numbers}
        return rates

    def carry_out(self, rounds: Sequence[Round]) -> list[Seconds]:
        found: list[Seconds] = []
        for each in rounds:
            slow = exp(abs(self.random.gauss(0, self.noise)))
            if each.bytes:
                alone = [each.bytes / rate for rate in self.fair(each.pairs)]
                times = [one * slow * exp(self.random.gauss(0, self.noise)) for one in alone]
                times = [one * (3 if self.random.random() < self.outliers else 1) for one in times]
            else:
                levels = [min(edge[0] for edge in self.path(*pair)) for pair in each.pairs]
                late = [2e-4 * slow * exp(abs(self.random.gauss(0, 2 * self.noise))) for _ in each.pairs]
                times = [2 * self.latencies[level] + more for level, more in zip(levels, late, strict=True)]
            self.seconds += max(times, default=0.0)
            found.append(times)
        return found

    def explored(self, told: Sequence[Partition] = (), seconds: float = 0.2) -> Measured:
        exploring = Explorer(len(self.order), told, seconds).explore()
        rounds = next(exploring)
        while True:
            try:
                rounds = exploring.send(self.carry_out(rounds))
            except StopIteration as ended:
                found: Measured = ended.value
                return found


def drawn(random: Random, ratios: Sequence[float], noises: Sequence[float] = (0.03, 0.1)) -> Network:
    """A cluster of 4 to 24 devices on two or three levels; each level's links are slower by one of the ratios."""
    while True:
        counts = tuple(random.randint(2, 6) for _ in range(random.choice((2, 3))))
        if 4 <= prod(counts) <= 24:
            break
    rates = [1e7]
    for _ in counts[1:]:
        rates.insert(0, rates[0] / random.choice(ratios))
    latencies = sorted((random.choice((1, 2, 4, 8)) * 1e-3 for _ in counts), reverse=True)
    late = random.random() < 0.5
    none = tuple(0.0 for _ in counts)
    return Network(counts, tuple(rates), tuple(latencies) if late else none, random.choice(noises), random)
