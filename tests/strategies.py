"""What hypothesis draws: hierarchies, systems with axes that fit, links of all kinds, whole planning problems."""

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from hypothesis import strategies as st

from meshwright import Fabric, Hierarchy, Level, Link, Reduction, System, Transfer, preset
from meshwright.cost.library import library_names
from meshwright.language.goals import PROGRAM_GOALS, Goal
from meshwright.workload.communication import Communication

A100 = preset("gcp-a100:4")
AXES = {"data": 4, "shard": 16}

NAMES = ("pod", "rack", "node", "socket", "gpu", "core")


def named(radices: tuple[int, ...]) -> Hierarchy:
    return Hierarchy(NAMES[: len(radices)], radices)


def factorizations(number: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as an ordered product of factors of at least 2."""
    if number == 1:
        yield ()
    for first in range(2, number + 1):
        if number % first == 0:
            for rest in factorizations(number // first):
                yield (first, *rest)


def hierarchies(max_devices: int, max_levels: int = 4) -> st.SearchStrategy[Hierarchy]:
    radices = st.lists(st.integers(2, 8), min_size=1, max_size=max_levels).map(tuple)
    return radices.filter(lambda r: prod(r) <= max_devices).map(named)


@st.composite
def systems_with_axes(draw: st.DrawFn, max_devices: int = 64, primes: int = 0) -> tuple[System, dict[str, int]]:
    """A system and axes that fit it: the same primes, at least `primes` of them, dealt out twice."""
    return draw(dealt(draw(st.lists(st.sampled_from([2, 2, 2, 3, 5]), min_size=primes, max_size=8)), max_devices))


@st.composite
def dealt(draw: st.DrawFn, primes: list[int], max_devices: int) -> tuple[System, dict[str, int]]:
    while prod(primes) > max_devices:
        primes.pop()

    def deal(parts: int) -> list[int]:
        sizes = [1] * parts
        for prime in primes:
            sizes[draw(st.integers(0, parts - 1))] *= prime
        return sizes

    counts = deal(draw(st.integers(1, 4)))
    sizes = deal(draw(st.integers(1, 5)))
    levels = tuple(Level(NAMES[k], count, Link(bandwidth=1e9)) for k, count in enumerate(counts))
    return System("drawn", levels), dict(zip(("a", "b", "c", "d", "e"), sizes, strict=False))


@st.composite
def links(draw: st.DrawFn) -> Link:
    fabric = draw(st.sampled_from([Fabric.SWITCH, Fabric.SWITCH, Fabric.RING, Fabric.BUS]))
    return Link(
        bandwidth=draw(
            st.sampled_from([1e6, 1e9, 8e9, 1e12])
        ),  # wide apart, so that each level is the bottleneck at times
        latency=draw(st.sampled_from([0.0, 1e-6, 2e-5])),
        per_device=draw(st.sampled_from([None, None, None, 1e6, 2e9])),
        fabric=fabric,
        bypass=draw(st.booleans()),
        reduces=fabric is Fabric.SWITCH and draw(st.booleans()),
    )


@st.composite
def problems(draw: st.DrawFn) -> tuple[System, dict[str, int], list[Reduction], str]:
    system, axes = draw(systems_with_axes(max_devices=32))
    system = System("drawn", tuple(replace(level, link=draw(links())) for level in system.levels))
    reductions = draw(
        st.lists(
            st.builds(
                Reduction,
                st.lists(st.sampled_from(list(axes)), min_size=1, unique=True).map(tuple),
                st.integers(1, 2**30),
                st.integers(1, 100),
                st.sampled_from(PROGRAM_GOALS),
            ),
            min_size=1,
            max_size=3,
        )
    )
    return system, axes, reductions, draw(st.sampled_from(library_names()))


@st.composite
def communications(draw: st.DrawFn, axes: dict[str, int], most: int = 5) -> list[Communication]:
    """Reductions and transfers over some of the axes, some of them partly hidden."""
    found: list[Communication] = []
    for _ in range(draw(st.integers(1, most))):
        over = tuple(draw(st.lists(st.sampled_from(list(axes)), min_size=1, unique=True)))
        amount, count = draw(st.integers(1, 2**30)), draw(st.integers(1, 100))
        hidden = draw(st.sampled_from([0.0, 0.0, 0.5, 1.0]))
        kind = draw(st.sampled_from(list(Goal)))
        if kind.has_programs:
            found.append(Reduction(over, amount, count, kind, hidden=hidden))
        else:
            one = over[:1] if kind is Goal.POINT_TO_POINT else over
            found.append(Transfer(one, amount, kind, count, hidden=hidden))
    return found
