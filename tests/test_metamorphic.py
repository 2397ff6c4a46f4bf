"""Changes of a problem that must not change the times of its plans, or may change them in one way only."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright import Collective, Level, Link, PlacementError, Reduction, SpecError, System, inside, not_across, plan
from meshwright.cost.chunking import MARGIN, WORTH
from meshwright.cost.pipeline import CHUNKS
from meshwright.planning.ranking import Ranking
from tests.strategies import problems

Problem = tuple[System, dict[str, int], list[Reduction], str]

NOT_SLOWER = 1 + 1e-9
FEW = settings(max_examples=60)


def ranked(problem: Problem, top: int = 2, **options: object) -> Ranking:
    """The best plans."""
    system, axes, reductions, library = problem
    options = {"max_steps": 3, "ranges": False, **options}
    return plan(system, axes, reductions, library=library, top=top, **options)  # type: ignore[arg-type]


def seconds(ranking: Ranking) -> list[float]:
    """The times of the plans."""
    return [candidate.seconds for candidate in ranking.candidates]


def times(problem: Problem, top: int = 2, **options: object) -> list[float]:
    """The times of the best plans."""
    return seconds(ranked(problem, top, **options))


def no_slower(ranking: Ranking, other: Ranking, chunks: int = CHUNKS[-1]) -> bool:
    """Whether the plans take no longer than others, which have no better choices.

    In chunks, plans take the best possible time but for the margins, and for what the ranking says it has not proven.
    """
    mixed = ranking.candidates[0].library.adapts  # there are no mixes of programs elsewhere, and no margin for them
    slack = 1.0 if chunks == 1 else max(MARGIN if mixed else MARGIN * (1 - WORTH), 1 + ranking.gap)
    as_many = len(ranking.candidates) >= len(other.candidates)
    return as_many and all(a <= b * slack * NOT_SLOWER for a, b in zip(seconds(ranking), seconds(other), strict=False))


def relinked(system: System, links: Sequence[Link]) -> System:
    levels = [replace(level, link=link) for level, link in zip(system.levels, links, strict=True)]
    return replace(system, levels=tuple(levels))


@given(problems())
@FEW
def test_names_do_not_matter(problem: Problem) -> None:
    system, axes, reductions, library = problem
    levels = tuple(replace(level, name=f"x{len(system.levels) - k}") for k, level in enumerate(system.levels))
    other = (
        System("other", levels),
        {f"z{name}": size for name, size in axes.items()},
        [replace(one, axes=tuple(f"z{name}" for name in one.axes)) for one in reductions],
        library,
    )
    assert times(other) == times(problem)


@given(problems(), st.data())
@FEW
def test_the_order_of_axes_and_of_communications_does_not_matter(problem: Problem, data: st.DataObject) -> None:
    system, axes, reductions, library = problem
    shuffled = {name: axes[name] for name in data.draw(st.permutations(list(axes)))}
    over = [replace(one, axes=tuple(data.draw(st.permutations(one.axes)))) for one in reductions]
    other = system, shuffled, data.draw(st.permutations(over)), library
    assert times(other) == pytest.approx(times(problem), rel=1e-9)


@given(problems(), st.data())
@FEW
def test_axes_and_levels_of_size_one_do_not_matter(problem: Problem, data: st.DataObject) -> None:
    system, axes, reductions, library = problem
    names, levels = list(axes), list(system.levels)
    names.insert(data.draw(st.integers(0, len(names))), "one")
    link = data.draw(st.sampled_from([Link(), Link(1.0), Link(1e12, per_device=1.0, latency=1.0, bypass=True)]))
    levels.insert(data.draw(st.integers(0, len(levels))), Level("single", 1, link))
    over = [replace(one, axes=(*one.axes, "one")) if data.draw(st.booleans()) else one for one in reductions]
    other = replace(system, levels=tuple(levels)), {name: axes.get(name, 1) for name in names}, over, library
    assert times(other) == pytest.approx(times(problem), rel=1e-9)


@given(problems())
@FEW
def test_a_communication_takes_as_long_as_its_repetitions_one_by_one(problem: Problem) -> None:
    system, axes, reductions, library = problem
    few = [replace(one, count=1 + one.count % 3) for one in reductions]
    single = [replace(one, count=1) for one in few for _ in range(one.count)]
    assert times((system, axes, single, library)) == pytest.approx(times((system, axes, few, library)), rel=1e-9)


@given(problems(), st.sampled_from(["ring", "ideal"]), st.sampled_from([0.5, 2.0, 64.0]), st.sampled_from([1, 16]))
@FEW
def test_payloads_and_bandwidths_that_grow_together_take_as_long(
    problem: Problem, library: str, factor: float, chunks: int
) -> None:
    """Powers of two, so that nothing is rounded; and payloads that can be cut into 16 chunks."""
    system, axes, reductions, _ = problem
    assume(chunks == 1 or len(reductions) == 1)
    reductions = [replace(one, bytes=one.bytes * 96) for one in reductions]
    links = [
        replace(
            level.link,
            bandwidth=(level.link.bandwidth or 0) * factor,
            per_device=None if level.link.per_device is None else level.link.per_device * factor,
        )
        for level in system.levels
    ]
    scaled = [replace(one, bytes=int(one.bytes * factor)) for one in reductions]
    other = relinked(system, links), axes, scaled, library
    found = times(other, max_steps=2, max_chunks=chunks)
    assert found == pytest.approx(times((system, axes, reductions, library), max_steps=2, max_chunks=chunks), rel=1e-9)


@given(problems())
@FEW
def test_more_steps_are_never_slower(problem: Problem) -> None:
    for chunks in (1, CHUNKS[-1]):
        found = [ranked(problem, max_steps=steps, max_chunks=chunks) for steps in (1, 2, 3, 5)]
        assert all(no_slower(more, fewer, chunks) for fewer, more in pairwise(found))


@given(problems())
@FEW
def test_more_chunks_are_slower_within_the_margins_at_most(problem: Problem) -> None:
    """Whole payloads are one of the choices; of numbers of chunks, fewer may be taken that are nearly as good."""
    system, axes, reductions, library = problem
    one = system, axes, reductions[:1], library
    found = [ranked(one, top=1, max_steps=2, max_chunks=chunks) for chunks in (CHUNKS[0], 2, 16, CHUNKS[-1])]
    assert all(no_slower(ranking, found[0], 1) for ranking in found)
    assert all(no_slower(more, fewer) for fewer, more in pairwise(found))


@given(problems(), st.sets(st.sampled_from(list(Collective)), min_size=1), st.sampled_from([1, 16]))
@FEW
def test_more_collectives_are_never_slower(problem: Problem, some: set[Collective], chunks: int) -> None:
    try:
        fewer = ranked(problem, collectives=some, max_chunks=chunks)
    except SpecError:  # they do not reach the goal
        return
    assert no_slower(ranked(problem, max_chunks=chunks), fewer, chunks)


@given(problems(), st.sampled_from([1, 16]), st.data())
@FEW
def test_a_constraint_is_never_faster(problem: Problem, chunks: int, data: st.DataObject) -> None:
    system, axes, _, _ = problem
    rule = data.draw(st.sampled_from([inside, not_across]))
    constraint = rule(data.draw(st.sampled_from(list(axes))), data.draw(st.sampled_from(system.levels)).name)
    try:
        constrained = ranked(problem, constraints=[constraint], max_chunks=chunks)
    except PlacementError:  # nothing is left
        return
    assert no_slower(ranked(problem, max_chunks=chunks), constrained, chunks)


@given(problems(), st.sampled_from(["ring", "ideal"]), st.sampled_from([1, 16]), st.data())
@FEW
def test_more_bandwidth_is_never_slower(problem: Problem, library: str, chunks: int, data: st.DataObject) -> None:
    """Of a library with one algorithm for each collective, or of one that chooses the best of all."""
    system, axes, reductions, _ = problem
    reductions = reductions[:1] if chunks > 1 else reductions
    links = [level.link for level in system.levels]
    at, factor = data.draw(st.integers(0, len(links) - 1)), data.draw(st.sampled_from([1.1, 4.0]))
    limit = links[at].per_device
    links[at] = replace(
        links[at],
        bandwidth=(links[at].bandwidth or 0) * factor,
        per_device=None if limit is None else limit * data.draw(st.sampled_from([1, factor])),
    )
    before = ranked((system, axes, reductions, library), max_steps=2, max_chunks=chunks)
    after = ranked((relinked(system, links), axes, reductions, library), max_steps=2, max_chunks=chunks)
    assert no_slower(after, before, chunks)


@given(problems(), st.sampled_from(["ring", "ideal"]), st.integers(1, 2**20), st.sampled_from([1, 16]), st.data())
@FEW
def test_a_larger_payload_is_never_faster(
    problem: Problem, library: str, more: int, chunks: int, data: st.DataObject
) -> None:
    system, axes, reductions, _ = problem
    at = data.draw(st.integers(0, len(reductions) - 1))
    larger = [replace(one, bytes=one.bytes + more * (k == at)) for k, one in enumerate(reductions)]
    before, after = (ranked((system, axes, some, library), max_chunks=chunks) for some in (reductions, larger))
    assert no_slower(before, after, chunks)
