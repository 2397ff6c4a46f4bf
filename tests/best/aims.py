"""The aims: random problems, each of which meets a case that is easily got wrong."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from random import Random

from meshwright import (
    Fabric,
    Level,
    Link,
    Reduction,
    System,
)
from meshwright.cost.library import library_names, load_library
from meshwright.language.goals import PROGRAM_GOALS, Goal
from tests.best.listed import Problem, matrices, orders

MOST_PLACED = 800
"""Problems with more placements, in all orders that matter, are not listed."""


def _links(random: Random, count: int) -> list[Link]:
    """Plain links, with bandwidths that are wide apart or equal."""
    return [
        Link(random.choice([1e9, 1e9, 8e9, 1e11]), latency=random.choice([0.0, 0.0, 1e-6, 2e-5])) for _ in range(count)
    ]


def _system(counts: Sequence[int], links: Sequence[Link]) -> System:
    numbered = enumerate(zip(counts, links, strict=True))
    return System("drawn", tuple(Level(f"l{k}", count, link) for k, (count, link) in numbered))


def _dealt(random: Random, primes: Sequence[int], parts: int) -> list[int]:
    sizes = [1] * parts
    for prime in primes:
        sizes[random.randrange(parts)] *= prime
    return sizes


def _axes(sizes: Sequence[int]) -> dict[str, int]:
    return dict(zip("abcdef", sizes, strict=False))


def _over(random: Random, axes: dict[str, int]) -> tuple[str, ...]:
    return tuple(random.sample(list(axes), random.randint(1, len(axes))))


def _reductions(random: Random, axes: dict[str, int], most: int = 3) -> tuple[Reduction, ...]:
    return tuple(
        Reduction(
            _over(random, axes),
            random.choice([random.randint(1, 1000), random.randint(10**5, 10**8)]),
            random.choice([1, 1, 2, 10]),
            random.choice(PROGRAM_GOALS),
        )
        for _ in range(random.randint(1, most))
    )


def at_thresholds(random: Random) -> Problem:
    """A device holds, at some step, as many bytes as a rule of the library ends with, or one byte more or less."""
    library = random.choice(["nccl-sockets", "openmpi", "gloo"])
    primes = [random.choice([2, 2, 3, 5]) for _ in range(random.randint(2, 5))]
    counts = _dealt(random, primes, random.randint(1, 2))
    axes = _axes(_dealt(random, primes, random.randint(1, 3)))
    return Problem(
        _system(counts, _links(random, len(counts))),
        axes,
        tuple(_at_threshold(random, axes, library) for _ in range(random.randint(1, 2))),
        library,
        random.randint(1, 4),
        random.randint(1, 3),
    )


def _at_threshold(random: Random, axes: dict[str, int], library: str, chunks: int = 1) -> Reduction:
    over = _over(random, axes)
    size = prod(axes[name] for name in over)
    parts = random.choice([part for part in range(1, size + 1) if size % part == 0])
    ranks = random.choice([some for some in range(1, size + 1) if size % some == 0])
    rules = [rule for _, each in load_library(library).rules for rule in each]
    end = random.choice([limit for rule in rules if (limit := rule.limit(ranks))])
    beside = random.choice([-1, 0, 0, 1])
    return Reduction(over, end * parts * chunks + beside, random.choice([1, 1, 3]), random.choice(PROGRAM_GOALS))


def with_ones(random: Random) -> Problem:
    """Axes and levels of size 1."""
    primes = [random.choice([2, 2, 3]) for _ in range(random.randint(1, 4))]
    counts = _dealt(random, primes, random.randint(1, 2))
    sizes = _dealt(random, primes, random.randint(1, 3))
    for _ in range(random.randint(1, 3)):
        sizes.insert(random.randint(0, len(sizes)), 1)
    if random.random() < 0.5:
        counts.insert(random.randint(0, len(counts)), 1)
    axes = _axes(sizes)
    fabric = random.choice(list(Fabric))
    links = [Link(link.bandwidth, link.latency, fabric=fabric) for link in _links(random, len(counts))]
    return Problem(
        _system(counts, links), axes, _reductions(random, axes), random.choice(library_names()), random.randint(1, 4)
    )


def on_tori(random: Random) -> Problem:
    """Rings in several dimensions, with a limit for each device, and a switch among them at times."""
    primes = [random.choice([2, 2, 2, 3]) for _ in range(random.randint(2, 5))]
    counts = _dealt(random, primes, random.randint(1, 3))
    links = []
    for _ in counts:
        each = random.choice([1e9, 2e9, 8e9])
        limit = random.choice([None, each, each / 2, each / 4])
        fabric = random.choice([Fabric.RING, Fabric.RING, Fabric.SWITCH])
        links.append(Link(each * random.choice([1, 4]), per_device=limit, fabric=fabric, bypass=random.random() < 0.5))
    axes = _axes(_dealt(random, primes, random.randint(1, 3)))
    library = random.choice(["ideal", "ring", "nccl"])
    return Problem(_system(counts, links), axes, _reductions(random, axes, 2), library, random.randint(1, 3))


def of_six_axes(random: Random) -> Problem:
    """Six axes, most of them in one ring or in one node."""
    sizes = [random.choice([1, 2, 2, 3]) for _ in range(6)]
    while prod(sizes) > 48:
        sizes[random.randrange(6)] = 1
    primes = [size for size in sizes if size > 1]
    counts = _dealt(random, primes, random.choice([1, 1, 2]))
    fabric = random.choice([Fabric.RING, Fabric.RING, *Fabric])
    links = [Link(link.bandwidth, link.latency, fabric=fabric) for link in _links(random, len(counts))]
    axes = _axes(sizes)
    return Problem(_system(counts, links), axes, _reductions(random, axes, 2), random.choice(["ideal", "ring"]), 2)


def in_chunks(random: Random) -> Problem:
    """Payloads near a threshold, whose chunks meet another rule; on links that are alike, so that all levels count."""
    library = random.choice(["nccl", "nccl-sockets", "openmpi", "gloo", "ideal"])
    counts = [random.choice([2, 3, 4]), random.choice([2, 4, 8])]
    links = [Link(random.uniform(2e9, 2e10), random.choice([0.0, 1e-5, 1e-4])) for _ in counts]
    axes = _axes([prod(counts)] if random.random() < 0.7 else counts)
    rules = library if library not in ("ideal", "nccl") else "nccl-sockets"
    one = _at_threshold(random, axes, rules, random.choice([1, 2, 3, 4]))
    payload = random.choice([one.bytes, int(one.bytes * random.uniform(0.5, 2))])
    reductions = (Reduction(one.axes, payload, one.count, random.choice([one.goal, Goal.ALL_REDUCE])),)
    chunks = random.choice([4, 16, 64])
    return Problem(_system(counts, links), axes, reductions, library, 1, random.randint(1, 3), chunks)


def with_roots(random: Random) -> Problem:
    """Reduce and Broadcast, where only some devices send as much as others."""
    primes = [random.choice([2, 2, 3]) for _ in range(random.randint(2, 4))]
    counts = _dealt(random, primes, random.randint(1, 3))
    axes = _axes(_dealt(random, primes, random.randint(1, 3)))
    links = []
    for link in _links(random, len(counts)):
        limit = random.choice([None, 1e9, 2.5e8])
        links.append(Link(link.bandwidth, link.latency, limit, random.choice(list(Fabric)), random.random() < 0.5))
    reductions = tuple(
        Reduction(_over(random, axes), random.randint(1, 10**8), 1, random.choice([Goal.REDUCE, Goal.BROADCAST]))
        for _ in range(random.randint(1, 2))
    )
    return Problem(_system(counts, links), axes, reductions, random.choice(library_names()), random.randint(1, 4), 2)


def near_ties(random: Random) -> Problem:
    """Equal links and equal axes, with payloads that differ by a byte or not at all."""
    prime, length = random.choice([(2, 4), (2, 6), (3, 3)])
    counts = _dealt(random, [prime] * length, random.randint(2, 3))
    axes = _axes(_dealt(random, [prime] * length, random.randint(2, 4)))
    link = random.choice(_links(random, 1))
    payload = random.randint(1, 10**8)
    reductions = tuple(
        Reduction(_over(random, axes), payload + random.choice([0, 0, 1]), 1, random.choice(PROGRAM_GOALS))
        for _ in range(random.randint(2, 4))
    )
    library = random.choice(["ring", "ideal", "openmpi"])
    return Problem(_system(counts, [link] * len(counts)), axes, reductions, library, random.randint(1, 5))


AIMS = {
    "thresholds": at_thresholds,
    "axes of size 1": with_ones,
    "tori": on_tori,
    "six axes": of_six_axes,
    "chunks": in_chunks,
    "roots": with_roots,
    "near ties": near_ties,
}


def draw(aim: str, seed: int, number: int) -> Problem:
    """A numbered problem; of those with too many placements, the next is taken."""
    random = Random(f"{aim}/{seed}/{number}")
    while True:
        problem = AIMS[aim](random)
        many = sum(1 for _ in matrices(list(problem.axes.values()), problem.system.counts))
        if many * len(orders(problem)) <= MOST_PLACED:
            return replace(problem, swept=random.random() < 0.5)
