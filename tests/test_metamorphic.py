"""Changes of a problem that must not change the times of its plans, or may change them in one way only."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright import Collective, Level, Link, PlacementError, Reduction, SpecError, System, inside, not_across, plan
from meshwright.cost.pipeline import CHUNKS
from tests.best.listed import MARGIN
from tests.strategies import problems

Problem = tuple[System, dict[str, int], list[Reduction], str]

NOT_SLOWER = 1 + 1e-9
FEW = settings(max_examples=60)


def times(problem: Problem, top: int = 2, **options: object) -> list[float]:
    """The times of the best plans."""
    system, axes, reductions, library = problem
    options = {"max_steps": 3, "ranges": False, **options}
    ranking = plan(system, axes, reductions, library=library, top=top, **options)  # type: ignore[arg-type]
    return [candidate.seconds for candidate in ranking.candidates]


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
    """But for the margins: chunks have to gain something over the best program without."""
    for chunks, margin in ((1, 1.0), (CHUNKS[-1], MARGIN)):
        found = [times(problem, max_steps=steps, max_chunks=chunks)[0] for steps in (1, 2, 3, 5)]
        for fewer, more in pairwise(found):
            assert more <= fewer * margin * NOT_SLOWER


@given(problems())
@FEW
def test_more_chunks_are_slower_within_the_margins_at_most(problem: Problem) -> None:
    """Whole payloads are one of the choices; of numbers of chunks, fewer may be taken that are nearly as good."""
    system, axes, reductions, library = problem
    one = system, axes, reductions[:1], library
    found = [times(one, top=1, max_steps=2, max_chunks=chunks)[0] for chunks in (CHUNKS[0], 2, 16, CHUNKS[-1])]
    assert max(found) <= found[0] * NOT_SLOWER
    for fewer, more in pairwise(found):
        assert more <= fewer * MARGIN * NOT_SLOWER


@given(problems(), st.sets(st.sampled_from(list(Collective)), min_size=1))
@FEW
def test_more_collectives_are_never_slower(problem: Problem, some: set[Collective]) -> None:
    try:
        fewer = times(problem, collectives=some)
    except SpecError:  # they do not reach the goal
        return
    assert times(problem)[0] <= fewer[0] * NOT_SLOWER


@given(problems(), st.data())
@FEW
def test_a_constraint_is_never_faster(problem: Problem, data: st.DataObject) -> None:
    system, axes, _, _ = problem
    rule = data.draw(st.sampled_from([inside, not_across]))
    constraint = rule(data.draw(st.sampled_from(list(axes))), data.draw(st.sampled_from(system.levels)).name)
    try:
        constrained = times(problem, constraints=[constraint])
    except PlacementError:  # nothing is left
        return
    free = times(problem)
    assert all(a <= b * NOT_SLOWER for a, b in zip(free, constrained, strict=False))


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
    before = times((system, axes, reductions, library), max_steps=2, max_chunks=chunks)
    after = times((relinked(system, links), axes, reductions, library), max_steps=2, max_chunks=chunks)
    margin = MARGIN if chunks > 1 else 1.0
    assert all(a <= b * margin * NOT_SLOWER for a, b in zip(after, before, strict=True))


@given(problems(), st.sampled_from(["ring", "ideal"]), st.integers(1, 2**20), st.data())
@FEW
def test_a_larger_payload_is_never_faster(problem: Problem, library: str, more: int, data: st.DataObject) -> None:
    system, axes, reductions, _ = problem
    at = data.draw(st.integers(0, len(reductions) - 1))
    larger = [replace(one, bytes=one.bytes + more * (k == at)) for k, one in enumerate(reductions)]
    before, after = times((system, axes, reductions, library)), times((system, axes, larger, library))
    assert all(a * NOT_SLOWER >= b for a, b in zip(after, before, strict=True))
