import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import (
    Collective,
    Fabric,
    Goal,
    Level,
    Link,
    MeshwrightError,
    Placement,
    PlacementError,
    Reduction,
    SpecError,
    System,
    TooLargeError,
    parse_reduction,
    parse_system,
    placements,
    plan,
    preset,
    program_graph,
    read_plan,
    write_plan,
)
from meshwright.bound import bound
from meshwright.cost import CostModel
from meshwright.explain import what_would_help, why
from meshwright.layout import layout_of
from meshwright.plan import flat_program
from meshwright.profiles import library_names, load_library, read_library_text
from meshwright.reproduce import axis_sizes, cases, search_costs, summary
from tests.strategies import systems_with_axes
from tests.test_cost import links

A100 = preset("gcp-a100:4")
AXES = {"data": 4, "shard": 16}


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
                st.sampled_from(list(Goal)),
            ),
            min_size=1,
            max_size=3,
        )
    )
    return system, axes, reductions, draw(st.sampled_from(library_names()))


@given(problems())
@settings(max_examples=150)
def test_the_best_plans_are_those_of_brute_force(
    problem: tuple[System, dict[str, int], list[Reduction], str],
) -> None:
    system, axes, reductions, library = problem
    totals = []
    for placement in placements(system, axes):
        total = 0.0
        for reduction in reductions:
            model = CostModel(layout_of(placement, reduction.axes), load_library(library), reduction.bytes)
            programs = program_graph(len(model.layout.levels), reduction.goal, 3).programs()
            total += reduction.count * min(model.seconds(program, reduction.goal) for program in programs)
        totals.append(total)
    ranking = plan(system, axes, reductions, library=library, top=3, max_steps=3)
    assert [c.seconds for c in ranking.candidates] == pytest.approx(sorted(totals)[:3], rel=1e-9)
    assert ranking.placements == len(totals)
    for candidate in ranking.candidates:
        assert candidate.bound_seconds <= candidate.seconds * (1 + 1e-9)
        assert candidate.seconds <= candidate.default_seconds * (1 + 1e-9)


@given(problems(), st.data())
@settings(max_examples=300)
def test_no_program_is_faster_than_the_bound(
    problem: tuple[System, dict[str, int], list[Reduction], str], data: st.DataObject
) -> None:
    system, axes, reductions, library = problem
    placement = data.draw(st.sampled_from(list(placements(system, axes))))
    for reduction in reductions:
        model = CostModel(layout_of(placement, reduction.axes), load_library(library), reduction.bytes)
        bound = model.bound(reduction.goal)
        for program in program_graph(len(model.layout.levels), reduction.goal, 4).programs():
            assert bound <= model.seconds(program, reduction.goal) * (1 + 1e-9)


@pytest.mark.parametrize("goal", Goal)
def test_the_bound_is_reached_where_it_can_be(goal: Goal) -> None:
    """On one switch without latency, a flat ring of the goal's collective is optimal."""
    system = parse_system("gpu=8@1GB/s")
    (placement,) = placements(system, {"a": 8})
    model = CostModel(layout_of(placement, ["a"]), load_library("ring"), 8_000_000)
    assert model.bound(goal) == pytest.approx(model.seconds(flat_program(goal, 1), goal))


def test_the_papers_spread_and_gain() -> None:
    times = [
        plan(A100, AXES, [Reduction(("data",), 2**33)], placement=placement).candidates[0].default_seconds
        for placement in placements(A100, AXES)
    ]
    assert max(times) / min(times) == pytest.approx(540)
    two = plan(preset("gcp-a100:2"), {"data": 32}, [Reduction(("data",), 2**32)]).candidates[0]
    assert two.speedup == pytest.approx(1.8355, abs=1e-4)
    program = two.reductions[0].program.text(two.hierarchy(two.reductions[0]))
    assert program == "ReduceScatter inside node; AllReduce across node; AllGather inside node"


def test_several_reductions_share_the_fast_place() -> None:
    reductions = [parse_reduction("data=2GiB"), parse_reduction("shard=64MiB*80")]
    ranking = plan(A100, AXES, reductions)
    best = ranking.candidates[0]
    assert best.placement.matrix == ((2, 2), (2, 8))
    assert best.seconds == pytest.approx(sum(r.seconds * r.reduction.count for r in best.reductions))
    assert all(a.seconds <= b.seconds for a, b in pairwise(ranking.candidates))
    alone = plan(A100, AXES, reductions[:1]).candidates[0]
    assert alone.placement.matrix == ((1, 4), (4, 4))


def test_a_placement_and_one_reduction_rank_its_programs() -> None:
    placement = Placement(A100, ("data", "shard"), ((2, 2), (2, 8)))
    ranking = plan(A100, AXES, [parse_reduction("shard=1GiB")], placement=placement, top=100)
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
    with pytest.raises(SpecError, match="no program of at most 5 steps reaches the goal reduce"):
        plan(slow_start, {"a": 4}, [Reduction(("a",), 2**20, goal=Goal.REDUCE)], collectives=some)


def test_an_axis_of_one_costs_nothing() -> None:
    best = plan(A100, {"data": 64, "one": 1}, [Reduction(("one",), 2**20)]).candidates[0]
    assert (best.seconds, best.default_seconds, best.bound_seconds, best.speedup) == (0, 0, 0, 1.0)
    assert "single device" in " ".join(why(best))


@pytest.mark.parametrize(
    ("system", "axes", "reduction", "library", "reason"),
    [
        ("gcp-a100:4", "data=4,shard=16", "data=2GiB", "ring", "its groups lie inside one node"),
        ("node=4@8GB/s+20us,gpu=4@200GB/s+5us", "data=16", "data=1kB", "ideal", "latency-bound"),
        ("dgx-h100:1", "data=8", "data=1GiB", "nccl", "the gpu switch adds up by itself"),
        ("gcp-a100:2", "data=32", "data=4GiB", "ideal", r"\(tree\), no sequence of steps is faster"),
        ("gcp-a100:2", "data=32", "data=4GiB", "ring", "1.84x faster than one AllReduce: they load node 1.94x less"),
        ("gcp-a100:2", "data=32", "data=4GiB", "ring", "1.06x the bound: in between, links of one level wait"),
        ("node=4@8GB/s+20us,gpu=4@200GB/s+5us", "data=16", "data=1kB", "ring", "mostly latency"),
        ("node=3@1GB/s", "a=3", "a=1GiB", "openmpi", "reaches the bound"),
        ("node=4@8GB/s", "data=4", "data=4GiB", "ring", "only across node"),
    ],
)
def test_the_reason_is_said(system: str, axes: str, reduction: str, library: str, reason: str) -> None:
    from meshwright import load_system, parse_axes

    ranking = plan(load_system(system), parse_axes(axes), [parse_reduction(reduction)], library=library)
    lines = why(ranking.candidates[0])
    assert len(lines) == 3
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError("\n".join(lines))


def test_what_would_help_names_the_bottleneck_first() -> None:
    best = plan(preset("gcp-a100:2"), {"data": 32}, [Reduction(("data",), 2**32)]).candidates[0]
    helps = what_would_help(best)
    assert [entry.change for entry in helps] == ["twice the bandwidth of node", "twice the bandwidth of gpu"]
    faster = replace(A100.levels[0], count=2, link=Link(16e9))
    system = System("faster", (faster, A100.levels[1]))
    again = plan(system, {"data": 32}, [Reduction(("data",), 2**32)]).candidates[0]
    assert helps[0].seconds == pytest.approx(again.seconds)


# -- reductions, plan files, libraries --


@pytest.mark.parametrize(
    ("text", "reduction"),
    [
        ("data=2GiB", Reduction(("data",), 2**31)),
        ("data + shard = 1MiB * 80", Reduction(("data", "shard"), 2**20, 80)),
        ("reduce-scatter:shard=1kB", Reduction(("shard",), 1000, goal=Goal.REDUCE_SCATTER)),
    ],
)
def test_reductions_from_text(text: str, reduction: Reduction) -> None:
    assert parse_reduction(text) == reduction


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data", "is not .GOAL:.AXIS"),
        ("=2GiB", "is not .GOAL:.AXIS"),
        ("data+=2GiB", "is not .GOAL:.AXIS"),
        ("data=2", "has no unit"),
        ("data=0B", "bytes=0; expected a whole number from 1"),
        ("data=2GiB*0", "has the count 0; expected a whole number from 1"),
        ("data=2GiB*x", "has the count 'x'"),
        ("data=2GiB*", "has the count ''"),
        ("sum:data=2GiB", "unknown goal 'sum'"),
    ],
)
def test_malformed_reductions_are_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_reduction(text)


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


@given(problems())
@settings(max_examples=50)
def test_plan_files_read_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, problem: tuple[System, dict[str, int], list[Reduction], str]
) -> None:
    system, axes, reductions, library = problem
    best = plan(system, axes, reductions, library=library, top=1, max_steps=3).candidates[0]
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    write_plan(best, path)
    assert read_plan(path) == best


def write_edited(tmp_path: Path, edit: Any) -> Path:
    path = tmp_path / "plan.json"
    write_plan(plan(A100, AXES, [parse_reduction("shard=1GiB*3")], top=1).candidates[0], path)
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d.update(format="x"), "not a plan file"),
        (lambda d: d.update(version=2), "of version 2; this Meshwright reads version 1"),
        (lambda d: d.pop("library"), "'library' is missing"),
        (lambda d: d.update(extra=1), "unknown key 'extra'"),
        (lambda d: d.update(seconds=1.0), "seconds: it is 1.0, but the reductions add up to"),
        (lambda d: d.update(speedup="fast"), "speedup: 'fast' is not what is expected"),
        (lambda d: d["placement"].update(matrix=[[4, 1], [1, 8]]), "placement: .* multiply to 8"),
        (lambda d: d["placement"].update(axes="data"), "placement.axes: 'data' is not what is expected"),
        (lambda d: d["system"]["levels"][0].update(count=0), "plan.json: system line 1: .* count 0"),
        (lambda d: d["library"]["collectives"].pop("Reduce"), "plan.json: library line 1: .* needs 'Reduce'"),
        (lambda d: d.update(reductions=[]), "reductions: there are none"),
        (lambda d: d["reductions"][0].update(program="AllReduce insde node"), r"reductions\[0\].program: cannot read"),
        (
            lambda d: d["reductions"][0].update(program="AllGather all"),
            r"reductions\[0\].program: .* not valid: step 1",
        ),
        (lambda d: d["reductions"][0].update(axes=["shrd"]), r"reductions\[0\].axes: unknown axis 'shrd'"),
        (lambda d: d["reductions"][0].update(bytes=-1), r"reductions\[0\]: a reduction has bytes=-1"),
        (lambda d: d["reductions"][0].update(goal="sum"), r"reductions\[0\]: unknown goal 'sum'"),
        (lambda d: d["reductions"][0].update(seconds=-1), r"reductions\[0\].seconds: it is -1, but this program"),
        (lambda d: d["reductions"][0].update(seconds=10**400), r"reductions\[0\].seconds: it is 1000"),
        (lambda d: d.update(seconds=10**400), "seconds: it is 1000"),
        (lambda d: d["reductions"][0].update(program="Reduce all; Broadcast all"), "this library takes"),
        (lambda d: d["reductions"][0].update(bytes=5), "this library takes"),
        (lambda d: d["reductions"][0].update(bytes=10**400), "bytes=1000"),
        (lambda d: d["reductions"][0].update(axes=[1]), "names its axes"),
        (lambda d: d["system"]["levels"][1].update(bandwidth="80GB/s"), "the file was edited"),
        (lambda d: d["system"]["levels"][0].pop("bandwidth"), r"reductions\[0\]: level 'node' .* no bandwidth"),
        (lambda d: d["library"].update(rotates="no"), "expected true or false"),
        (lambda d: d["placement"].update(matrix=[4, 1]), "placement.matrix: expected a list of rows"),
        (lambda d: d["placement"].update(axes=[1, 2]), "placement.axes: expected names"),
        (lambda d: d["reductions"].append(3), r"reductions\[1\]: expected an object"),
    ],
)
def test_edited_plan_files_are_refused_with_the_place(tmp_path: Path, edit: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read_plan(write_edited(tmp_path, edit))


def test_consistent_edits_and_doubled_keys_are_noticed(tmp_path: Path) -> None:
    def halve(document: Any) -> None:
        for entry in (document, *document["reductions"]):
            entry["seconds"] /= 2
        document["speedup"] *= 2

    with pytest.raises(SpecError, match=r"reductions\[0\].seconds: .* the file was edited"):
        read_plan(write_edited(tmp_path, halve))
    path = write_edited(tmp_path, lambda _document: None)
    path.write_text(path.read_text().replace('"version": 1', '"version": 7, "version": 1'))
    with pytest.raises(SpecError, match="the key 'version' appears 2 times"):
        read_plan(path)


def test_a_plan_is_written_through_links_and_into_pipes(tmp_path: Path) -> None:
    best = plan(A100, AXES, [parse_reduction("data=1GiB")]).candidates[0]
    (tmp_path / "real").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "real" / "plan.json")
    write_plan(best, tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert read_plan(tmp_path / "real" / "plan.json") == best
    assert [entry.name for entry in (tmp_path / "real").iterdir()] == ["plan.json"]
    write_plan(best, Path("/dev/null"))
    assert Path("/dev/null").is_char_device()


def test_truncated_and_absent_plan_files_are_refused(tmp_path: Path) -> None:
    path = write_edited(tmp_path, lambda _document: None)
    path.write_text(path.read_text()[:300])
    with pytest.raises(SpecError, match=r"plan.json line 1: not a whole JSON document .* cut off"):
        read_plan(path)
    with pytest.raises(SpecError, match="there is no plan file"):
        read_plan(tmp_path / "absent.json")
    with pytest.raises(SpecError, match="cannot write the plan file"):
        write_plan(plan(A100, AXES, [parse_reduction("data=1GiB")]).candidates[0], tmp_path / "no" / "plan.json")


RULES = "{{AllReduce: {0}, ReduceScatter: {0}, AllGather: {0}, Reduce: {0}, Broadcast: {0}}}"


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("[]", "must be a list that is not empty"),
        ("[{algorithms: [rings]}]", "unknown algorithm 'rings'; did you mean 'ring'"),
        ("[{algorithms: [ring], up_to: 1kB}]", "the last rule must have no 'up_to'"),
        ("[{algorithms: [ring]}, {algorithms: [ring]}]", "the last rule must have no 'up_to'"),
        ("[{algorithms: [ring], efficiency: 2}]", "at most 1"),
        ("[{algorithms: [ring], efficiency: x}]", "at most 1"),
        ("[{efficiency: 1}]", "needs 'algorithms'"),
    ],
)
def test_malformed_libraries_are_refused(rule: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read_library_text(f"collectives: {RULES.format(rule)}", "mine.yaml")


def test_a_library_of_ones_own_needs_no_code(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"collectives: {RULES.format('[{algorithms: [ring], efficiency: 0.5}]')}")
    reduction = [parse_reduction("data=1GiB")]
    half = plan(A100, AXES, reduction, library=str(path)).candidates[0]
    assert half.seconds == pytest.approx(2 * plan(A100, AXES, reduction).candidates[0].seconds)
    assert half.library.name == "mine"


def test_rules_go_by_the_bytes_that_a_device_holds() -> None:
    rule = load_library("openmpi").rule
    assert rule(Collective.ALL_REDUCE, 10_000).algorithms == ("doubling",)
    assert rule(Collective.ALL_REDUCE, 10_001).algorithms == ("recursive",)


def test_a_library_without_a_usable_algorithm_is_refused() -> None:
    library = read_library_text(f"collectives: {RULES.format('[{algorithms: [doubling]}]')}", "mine.yaml")
    with pytest.raises(SpecError, match=r"has no algorithm for AllReduce in groups of shape .*'otherwise'"):
        plan(parse_system("node=3@1GB/s"), {"a": 3}, [Reduction(("a",), 1)], library=library)


def test_the_gloo_profile_gives_what_was_measured() -> None:
    """4 x 4 devices, 20 and 200 Mbit/s, 2 MiB: medians on shaped links, in milliseconds."""
    system = parse_system("node=4@20Mbit/s,gpu=4@200Mbit/s")
    (placement,) = placements(system, {"a": 16})
    model = CostModel(layout_of(placement, ["a"]), load_library("gloo"), 2**21)
    from meshwright import parse_program

    def milliseconds(text: str) -> float:
        return 1000 * model.seconds(parse_program(text, model.layout.hierarchy))

    assert milliseconds("AllReduce all") == pytest.approx(1597, rel=0.03)
    assert milliseconds("ReduceScatter inside node; AllReduce across node; AllGather inside node") == pytest.approx(
        1497, rel=0.06
    )
    assert milliseconds("Reduce inside node; AllReduce masters of node; Broadcast inside node") == pytest.approx(
        1640, rel=0.03
    )


@pytest.mark.parametrize(
    ("levels", "matrix", "goal", "seconds"),
    [
        # A switch that reduces helps only groups that meet in it.
        ([(1, Link(1e9, reduces=True)), (8, Link(1e9))], ((1, 8),), Goal.ALL_REDUCE, 1.75),
        ([(8, Link(1e9, reduces=True))], ((8,),), Goal.ALL_REDUCE, 1.0),
        # A bus carries what comes in from outside as well.
        ([(4, Link(1e12)), (4, Link(1e9, fabric=Fabric.BUS))], ((4, 4),), Goal.ALL_REDUCE, 9.0),
        # A device whose own card is its second way out.
        ([(2, Link(8e9, per_device=1e9)), (8, Link(1e9, bypass=True))], ((1, 8), (2, 1)), Goal.REDUCE, 0.5),
        # On a ring both neighbours can be sent to; what goes four children far takes up four links.
        ([(8, Link(1e9, fabric=Fabric.RING))], ((8,),), Goal.ALL_REDUCE, 0.875),
        ([(8, Link(1e9, fabric=Fabric.RING))], ((2,), (4,)), Goal.ALL_REDUCE, 2.0),
        ([(8, Link(1e9, fabric=Fabric.RING))], ((4,), (2,)), Goal.ALL_REDUCE, 1.5),
        # Switches at both levels add up.
        ([(4, Link(1e9, reduces=True)), (4, Link(1e9, reduces=True))], ((4, 4),), Goal.ALL_REDUCE, 1.0),
    ],
)
def test_bounds_by_hand(
    levels: list[tuple[int, Link]], matrix: tuple[tuple[int, ...], ...], goal: Goal, seconds: float
) -> None:
    system = System("hand", tuple(Level(f"l{k}", count, link) for k, (count, link) in enumerate(levels)))
    placement = Placement(system, ("data", "other")[: len(matrix)], matrix)
    assert bound(layout_of(placement, ["data"]), goal, 10**9) == pytest.approx(seconds)


def test_the_latency_of_a_ring_counts_its_slowest_chunk() -> None:
    """2 x 4 devices, 10 us and 1 us: two outer and six inner edges, less one inner, twice round."""
    system = parse_system("node=2@1TB/s+10us,gpu=4@1TB/s+1us")
    (placement,) = placements(system, {"a": 8})
    model = CostModel(layout_of(placement, ["a"]), load_library("ring"), 1)
    assert model.seconds(flat_program(Goal.ALL_REDUCE, 2)) == pytest.approx(50e-6, rel=1e-3)


def test_switches_add_up_over_several_levels() -> None:
    reducing = Link(1e9, reduces=True)
    for inner, seconds in ((reducing, 1.0), (replace(reducing, bypass=True), 1.875), (Link(1e9), 1.875)):
        system = System("sharp", (Level("node", 4, reducing), Level("gpu", 4, inner)))
        best = plan(system, {"a": 16}, [Reduction(("a",), 10**9)], library="nccl").candidates[0]
        assert best.default_seconds == pytest.approx(seconds)


def test_a_ring_that_runs_both_ways_reaches_the_bound_on_a_ring() -> None:
    system = System("ring", (Level("x", 8, Link(1e9, fabric=Fabric.RING)),))
    best = plan(system, {"a": 8}, [Reduction(("a",), 10**9)], library="ideal").candidates[0]
    assert best.seconds == pytest.approx(best.bound_seconds)
    one_way = plan(system, {"a": 8}, [Reduction(("a",), 10**9)], library="ring").candidates[0]
    assert one_way.seconds == pytest.approx(2 * best.seconds)


def test_long_rings_are_refused() -> None:
    system = System("long", (Level("x", 4096, Link(1e9, fabric=Fabric.RING)),))
    with pytest.raises(TooLargeError, match="a ring of 4,096 children is too long"):
        plan(system, {"a": 4096}, [Reduction(("a",), 1)])


# -- the paper --


def test_the_papers_axes() -> None:
    assert list(axis_sizes(16)) == [(16,), (2, 8), (2, 2, 4), (4, 4)]


def test_the_papers_figures() -> None:
    found = summary(list(cases("gcp-a100:2")))
    assert found.spread == pytest.approx(540)
    assert found.best == pytest.approx(1.8355, abs=1e-4)
    assert found.wins > 0.5
    assert summary(list(cases("gcp-v100:2"))).best < found.best


def test_each_technique_makes_the_search_smaller() -> None:
    states = [cost.states for cost in search_costs(3)]
    assert states == sorted(states, reverse=True)
    assert len(states) == 3


def test_ring_fabrics_tell_neighbours_from_strangers() -> None:
    """On a ring of 8, groups of neighbours do not meet; groups of strangers share every link."""
    system = System("ring", (replace(parse_system("gpu=8@1GB/s").levels[0], link=Link(1e9, fabric=Fabric.RING)),))
    seconds = {}
    for axes in ({"far": 4, "near": 2}, {"near": 2, "far": 4}):
        for axis in axes:
            (placement,) = placements(system, axes)
            model = CostModel(layout_of(placement, [axis]), load_library("ring"), 10**9)
            seconds[tuple(axes), axis] = model.seconds(flat_program(Goal.ALL_REDUCE, 1))
    # The last axis of a level holds neighbours: pairs exchange over one link, while pairs four apart cross four.
    assert seconds[("far", "near"), "near"] == pytest.approx(1.0)
    assert seconds[("near", "far"), "near"] == pytest.approx(4.0)


def test_errors_are_the_projects_own() -> None:
    with pytest.raises(MeshwrightError):
        plan(A100, AXES, [Reduction(("data",), 1)], top=0)
