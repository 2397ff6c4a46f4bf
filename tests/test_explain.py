import re
from dataclasses import replace

import pytest

from meshwright import (
    Level,
    Link,
    Placement,
    Reduction,
    System,
    Timed,
    load_system,
    parse_axes,
    parse_reduction,
    parse_system,
    plan,
    preset,
)
from meshwright.planning.explain import better_plans, other_libraries, undecided, what_would_help, why
from meshwright.planning.planner import Planner
from meshwright.planning.tuning import choose, own_program, retuned
from tests.strategies import A100

SYSTEMS = {
    name: System(name, (Level("node", 2, Link(1e10)), Level("gpu", 8, inner)))
    for name, inner in (("slow-inside", Link(1e8, bypass=True)), ("reducing", Link(1e8, reduces=True)))
}


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
        ("node=4@5MB/s+20ms,gpu=4@9MB/s+5ms", "data=16", "data=100kB", "gloo", "their messages are fewer or nearer"),
        ("node=3@1GB/s", "a=3", "a=1GiB", "openmpi", "reaches the bound"),
        ("node=4@8GB/s", "data=4", "data=4GiB", "ring", "only across node"),
        ("slow-inside", "data=16", "data=4GiB", "ring", "the bound lets data go round slow inner links"),
        ("reducing", "data=16", "data=4GiB", "ring", "the bound lets the switches add up in every step"),
    ],
)
def test_the_reason_is_said(system: str, axes: str, reduction: str, library: str, reason: str) -> None:
    ranking = plan(
        SYSTEMS.get(system) or load_system(system), parse_axes(axes), [parse_reduction(reduction)], library=library
    )
    lines = why(ranking.candidates[0])
    assert len(lines) == 3
    assert re.search(reason, "\n".join(lines)), lines


def test_better_plans_on_the_same_system_are_named() -> None:
    system, what = load_system("node=4@50MB/s,gpu=4@100MB/s"), [Reduction(("data",), 2**26)]
    planner = Planner(system, {"data": 8, "tensor": 2}, what, "ring", max_chunks=1)
    worst = planner.plan(Placement(system, ("data", "tensor"), ((4, 2), (1, 2))))
    other, chunks = better_plans(worst)
    assert other.change == "another placement, data=2x4,tensor=2x1"
    assert other.seconds == planner.best(1).candidates[0].seconds < 0.99 * worst.seconds
    assert chunks.change == "plan --chunks 16"
    assert chunks.seconds < 0.99 * worst.seconds
    best = plan(system, {"data": 16}, what, library="ring", max_chunks=16).candidates[0]
    assert better_plans(best) == []


def test_other_libraries_for_the_same_hardware_and_what_predictions_cannot_tell() -> None:
    system, what = parse_system("node=2@1GB/s+5us,gpu=4@8GB/s+1us"), [Reduction(("data",), 2**24)]
    gloo, openmpi, ring = (
        plan(system, {"data": 8}, what, library=name, max_chunks=1).candidates[0]
        for name in ("gloo", "openmpi", "ring")
    )
    (other,) = other_libraries(gloo)
    assert other.change == "plan --library openmpi"
    assert other.seconds == pytest.approx(openmpi.seconds)
    assert other.seconds < 0.95 * gloo.seconds
    assert other_libraries(openmpi) == other_libraries(ring) == []
    fitted = replace(gloo, library=replace(gloo.library, name="gloo-calibrated", call=0.0))
    assert other_libraries(fitted) == []
    near = plan(system, {"data": 8}, [Reduction(("data",), 2**26)], library="gloo").candidates[0]
    (planned,) = near.reductions
    assert planned.chunks > 1
    longer = "all-reduce over data, 64MiB: the library's own would take at most 5% longer"
    for share, said in ((1.06, []), (1.04, [longer])):
        own = Timed(2**26, own_program(near, planned), share * planned.seconds)
        assert undecided(replace(near, communications=(replace(planned, alternatives=(own,)),))) == said
    times = {planned.pipelined: [1.0, 1.0]}
    tuned = retuned(near, {0: [choose(near, planned, 2**26, (2**25, 2**27), "torch", times)]})
    assert undecided(tuned) == []


def test_what_would_help_names_the_bottleneck_first() -> None:
    what = [Reduction(("data",), 2**32)]
    best = plan(preset("gcp-a100:2"), {"data": 32}, what, library="ring", max_chunks=1).candidates[0]
    helps = what_would_help(best)
    assert [entry.change for entry in helps] == ["twice the bandwidth of node", "twice the bandwidth of gpu"]
    faster = replace(A100.levels[0], count=2, link=Link(16e9))
    system = System("faster", (faster, A100.levels[1]))
    again = plan(system, {"data": 32}, [Reduction(("data",), 2**32)], max_chunks=1).candidates[0]
    assert helps[0].seconds == pytest.approx(again.seconds)


def test_the_reason_for_a_mix_names_its_programs() -> None:
    best = plan(load_system("tpu-v4"), {"d": 4096}, [Reduction(("d",), 2**36)], library="ideal", max_chunks=64)
    reason = why(best.candidates[0])[1]
    assert re.search(r"chunks that flow through the steps of 3 programs at once are 2\.\d\dx faster", reason)
    assert reason.endswith("x faster than the steps of the first of them one after the other")
