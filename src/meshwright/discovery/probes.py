"""Probes: items of ranks that meet in rounds, and how near they turn out to be; the bytes of transfers are adapted."""

from collections.abc import Callable, Generator, Iterable, Sequence
from math import log
from random import Random
from typing import TypeVar

import numpy as np

from meshwright.discovery.evidence import Nearnesses
from meshwright.discovery.rounds import Group, Pairing, Partition, Round, Seconds, all_met, exchange

T = TypeVar("T")
Probing = Generator[list[Round], list[Seconds], T]
"""Gives rounds to be carried out, gets how long each took, and ends with a result."""

FIRST, LEAST, MOST = 1 << 16, 1 << 14, 1 << 30
"""Bytes of a transfer: at first, at least, at most."""

BATCH = 8
"""How many rounds are carried out before their results are looked at."""

MOST_MET = 96
"""How many rounds of a tournament are made at first; the others only if these suggest no groups of equal size."""


class Prober:
    """Measures between ranks. seconds: how long a transfer may take."""

    def __init__(self, seconds: float, seed: int) -> None:
        self.seconds, self.random = seconds, Random(seed)
        self.volume, self.rounds = FIRST, 0
        self.trips: dict[tuple[int, int], float] = {}

    def carry_out(self, rounds: Iterable[Round]) -> Probing[list[Seconds]]:
        """The results of rounds, in batches; the bytes are adapted after each to what a transfer is to take."""
        results: list[Seconds] = []
        waiting = list(rounds)
        while waiting:
            batch = [Round(each.pairs, each.bytes and self.volume) for each in waiting[:BATCH]]
            waiting = waiting[BATCH:]
            self.rounds += len(batch)
            took = yield batch
            results += [
                seconds if not each.bytes else [each.bytes / max(one, 1e-9) for one in seconds]
                for each, seconds in zip(batch, took, strict=True)
            ]
            self._adapt([one for each, seconds in zip(batch, took, strict=True) if each.bytes for one in seconds])
        return results

    def _adapt(self, seconds: Sequence[float]) -> None:
        """Choose the bytes so that nearly all transfers end in time."""
        if len(seconds):
            factor = self.seconds / max(float(np.quantile(seconds, 0.95)), 1e-9)
            self.volume = int(min(MOST, max(LEAST, self.volume * min(8.0, max(0.125, factor)))))

    def all_trips(self, everyone: Group) -> Probing[None]:
        """Measure the round trips between ranks."""
        items = tuple((rank,) for rank in everyone)
        met = list(all_met([range(len(items))], self.random))[:MOST_MET]
        rounds = [exchange(each, items, 0, self.random) for each in met]
        for each, seconds in zip(rounds, (yield from self.carry_out(rounds)), strict=True):
            self.trips |= {tuple(sorted(pair)): one for pair, one in zip(each.pairs, seconds, strict=True)}  # type: ignore[misc]

    def find_volume(self, alone: Partition) -> Probing[None]:
        """Find out how many bytes fill the time of a transfer between ranks."""
        for met in list(all_met([range(len(alone))], self.random))[:6]:
            before = self.volume
            yield from self.carry_out([exchange(met, alone, self.volume, self.random)])
            if 0.5 < self.volume / before < 2:
                return

    def trip(self, items: Partition, one: int, other: int) -> float | None:
        """The usual round trip between ranks of two items, of those that were measured."""
        pairs = [(min(a, b), max(a, b)) for a in items[one] for b in items[other]]
        known = [self.trips[pair] for pair in pairs if pair in self.trips]
        return float(np.median(known)) if known else None

    def near(
        self, met: Sequence[Pairing], items: Partition, by: str, add_up: Callable[[list[float]], float] = sum
    ) -> Probing[list[Nearnesses]]:
        """How near items were in rounds: the logarithm of what they sent each other, or of a round trip, negative.

        add_up: makes one rate of those of all pairs of ranks, which are in both directions.
        """
        size = self.volume if by == "rate" else 0
        rounds = [exchange(each, items, size, self.random) for each in met]
        results = yield from self.carry_out(rounds)
        home = {rank: k for k, item in enumerate(items) for rank in item}
        found: list[Nearnesses] = []
        for each, values in zip(rounds, results, strict=True):
            sums: dict[tuple[int, int], list[float]] = {}
            for (sender, receiver), value in zip(each.pairs, values, strict=True):
                pair = home[sender], home[receiver]
                sums.setdefault((min(pair), max(pair)), []).append(value)
            if by == "rate":
                found.append({pair: log(add_up(rates) / 2) for pair, rates in sums.items()})
            else:
                found.append({pair: -log(min(times)) for pair, times in sums.items()})
        return found
