from itertools import pairwise

import pytest
from hypothesis import given, settings

from meshwright import (
    Collective,
    Goal,
    MeshwrightError,
    Placement,
    PlacementError,
    Reduction,
    SpecError,
    System,
    parse_reduction,
    parse_system,
    placements,
    plan,
    preset,
)
from meshwright.planning.explain import why
from tests.strategies import A100, AXES, problems
from tests.test_search import BruteForce


@given(problems())
@settings(max_examples=150)
def test_the_best_plans_are_those_of_brute_force(
    problem: tuple[System, dict[str, int], list[Reduction], str],
) -> None:
    system, axes, reductions, library = problem
    brute = BruteForce(list(reductions), library)
    totals = [brute.seconds(placement) for placement in placements(system, axes)]
    ranking = plan(system, axes, reductions, library=library, top=3, max_steps=3, max_chunks=1, ranges=False)
    assert [c.seconds for c in ranking.candidates] == pytest.approx(sorted(totals)[:3], rel=1e-9)
    assert ranking.placements == len(totals)
    # gloo's exchange of small ReduceScatters puts more headers on a ring fabric than its own ring does.
    far = library == "gloo" and system.order_matters and any(one.goal is Goal.REDUCE_SCATTER for one in reductions)
    for candidate in ranking.candidates:
        assert candidate.bound_seconds <= candidate.seconds * (1 + 1e-9)
        assert far or candidate.seconds <= candidate.default_seconds * (1 + 1e-9)


def test_the_papers_spread_and_gain() -> None:
    times = [
        plan(A100, AXES, [Reduction(("data",), 2**33)], library="ring", placement=placement)
        .candidates[0]
        .default_seconds
        for placement in placements(A100, AXES)
    ]
    assert max(times) / min(times) == pytest.approx(540)
    two = plan(preset("gcp-a100:2"), {"data": 32}, [Reduction(("data",), 2**32)], library="ring").candidates[0]
    assert two.speedup == pytest.approx(1.8355, abs=1e-4)
    program = two.reductions[0].program.text(two.hierarchy(two.reductions[0]))
    assert program == "ReduceScatter inside node; AllReduce across node; AllGather inside node"


def test_several_reductions_share_the_fast_place() -> None:
    reductions = [parse_reduction("data=2GiB"), parse_reduction("shard=64MiB*80")]
    ranking = plan(A100, AXES, reductions)
    best = ranking.candidates[0]
    assert best.placement.matrix == ((2, 2), (2, 8))
    assert best.seconds == pytest.approx(sum(r.seconds * r.communication.count for r in best.reductions))
    assert all(a.seconds <= b.seconds for a, b in pairwise(ranking.candidates))
    alone = plan(A100, AXES, reductions[:1]).candidates[0]
    assert alone.placement.matrix == ((1, 4), (4, 4))


def test_a_placement_and_one_reduction_rank_its_programs() -> None:
    placement = Placement(A100, ("data", "shard"), ((2, 2), (2, 8)))
    ranking = plan(A100, AXES, [parse_reduction("shard=1GiB")], placement=placement, top=100, max_chunks=1)
    assert len(ranking.candidates) == 93
    assert len({c.reductions[0].program for c in ranking.candidates}) == 93
    assert all(a.seconds <= b.seconds * (1 + 1e-9) for a, b in pairwise(ranking.candidates))
    both = plan(A100, AXES, [parse_reduction("shard=1GiB"), parse_reduction("data=1GiB")], placement=placement)
    assert [c.placement for c in both.candidates] == [placement]


def test_collectives_can_be_left_out() -> None:
    slow_start = parse_system("node=2@1GB/s,gpu=2@1GB/s")
    some = [Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER]
    ranking = plan(slow_start, {"a": 4}, [Reduction(("a",), 2**20)], collectives=some, top=100)
    used = {step.collective for c in ranking.candidates for step in c.reductions[0].program.steps}
    assert used <= set(some)
    with pytest.raises(SpecError, match="no program of at most 5 steps reaches the goal broadcast"):
        plan(slow_start, {"a": 4}, [Reduction(("a",), 2**20, goal=Goal.BROADCAST)], collectives=some)


def test_an_axis_of_one_costs_nothing() -> None:
    best = plan(A100, {"data": 64, "one": 1}, [Reduction(("one",), 2**20)]).candidates[0]
    assert (best.seconds, best.default_seconds, best.bound_seconds, best.speedup) == (0, 0, 0, 1.0)
    assert "single device" in " ".join(why(best))


def test_bad_problems_are_refused() -> None:
    with pytest.raises(SpecError, match="at least one reduction"):
        plan(A100, AXES, [])
    with pytest.raises(PlacementError, match="unknown axis 'dat'; did you mean 'data'"):
        plan(A100, AXES, [Reduction(("dat",), 1)])
    with pytest.raises(PlacementError, match="not of"):
        plan(A100, AXES, [Reduction(("data",), 1)], placement=Placement(A100, ("x",), ((4, 16),)))
    with pytest.raises(SpecError, match=r"level 'gpu' .* has no bandwidth.*gpu=2@8GB/s.*'bandwidth: 8GB/s'"):
        plan(parse_system("node=2@1GB/s,gpu=2"), {"a": 4}, [Reduction(("a",), 1)])
    with pytest.raises(SpecError, match="unknown library 'ncl'; did you mean 'nccl'"):
        plan(A100, AXES, [Reduction(("data",), 1)], library="ncl")
    with pytest.raises(SpecError, match="as a list"):
        Reduction("data", 1)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="expected a Reduction"):
        plan(A100, AXES, ["data=1GiB"])  # type: ignore[list-item]


def test_errors_are_the_projects_own() -> None:
    with pytest.raises(MeshwrightError):
        plan(A100, AXES, [Reduction(("data",), 1)], top=0)


def test_the_search_and_the_plan_follow_the_same_rule_of_a_library() -> None:
    """75 x 262143 bytes over 75 devices are exactly 262143 bytes each, up to which a rule of Open MPI counts."""
    system = parse_system("node=2@1GB/s,gpu=150@100GB/s")
    reductions = [Reduction(("a",), 75 * 262143, 1, Goal.REDUCE_SCATTER), Reduction(("b",), 233000)]
    (best,) = plan(system, {"a": 150, "b": 2}, reductions, library="openmpi", top=1).candidates
    every = plan(system, {"a": 150, "b": 2}, reductions, library="openmpi").candidates
    assert best.placement.matrix == ((2, 75), (1, 2))
    assert best.seconds == min(candidate.seconds for candidate in every) == pytest.approx(0.020657, rel=1e-4)
