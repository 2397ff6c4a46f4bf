"""Carries out the rounds of discovery by measurement on the ranks of a job: rank 0 explores, and all do as it says."""

from collections.abc import Callable, Sequence
from functools import partial

from meshwright.discovery.explore import Explorer, Measured
from meshwright.discovery.rounds import Partition, Round, Seconds
from meshwright.errors import SpecError
from meshwright.measure.peers.peers import Peers

BLOCKS = 8
"""In how many blocks a transfer is sent; it is timed from when the first has arrived."""

TRIPS = 6
"""How many round trips a pair makes; the shortest counts."""

LEAST, MOST, ALL = 0.03, 0.25, 6.0
"""Seconds that a transfer is to take: at least, at most, and for all ranks together."""


def measure_job(
    peers: Peers, told: Sequence[Partition], seed: int = 0, watch: Callable[[int, int, int], object] = lambda *_: None
) -> Measured | None:
    """Explore how ranks are connected; all of them call this, and rank 0 gets what was found.

    told: groups of ranks that are known already, from the finest to the coarsest. watch: is told on rank 0, before each
    round, how many rounds there were before this batch, how many of it there were, and how many it has.
    """
    if peers.size < 2:
        raise SpecError("there is one rank only, so there is nothing to measure between: start at least two")
    rounds: list[Round] | None = []
    if peers.rank:
        while (rounds := peers.shared(rounds)) is not None:
            carry_out(peers, rounds)
        return None
    exploring = Explorer(peers.size, told, min(MOST, max(LEAST, ALL / peers.size)), seed).explore()
    rounds, before = next(exploring), 0
    while True:
        peers.shared(rounds)
        try:
            seconds = carry_out(peers, rounds, partial(watch, before))
            before += len(rounds)
            rounds = exploring.send(seconds)
        except StopIteration as ended:
            peers.shared(None)
            found: Measured = ended.value
            return found


def carry_out(
    peers: Peers, rounds: Sequence[Round], watch: Callable[[int, int], object] = lambda *_: None
) -> list[Seconds]:
    """What every rank does in rounds; how long each pair of each took."""
    mine = []
    for number, each in enumerate(rounds):
        watch(number, len(rounds))
        mine.append(_one(peers, each))
    every = peers.everyone(mine)
    return [[every[receiver][number] for _, receiver in each.pairs] for number, each in enumerate(rounds)]


def _one(peers: Peers, each: Round) -> float:
    """Take part in a round; how long the receiver waited for what it got, once it came. 0 for those who got nothing."""
    to = next((receiver for sender, receiver in each.pairs if sender == peers.rank), None)
    source = next((sender for sender, receiver in each.pairs if receiver == peers.rank), None)
    peers.wait()
    if not each.bytes:
        partner = to if to is not None else source
        return 0.0 if partner is None else peers.trip(partner, to is not None, TRIPS)
    times = peers.transfer(to, source, max(1, each.bytes // BLOCKS), BLOCKS)
    return max(1e-9, times[-1] - times[0]) * BLOCKS / (BLOCKS - 1) if times else 0.0
