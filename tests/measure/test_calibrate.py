"""Fits find what was put in."""

from dataclasses import replace

import pytest

from meshwright import Collective, SpecError, load_library, parse_system
from meshwright.cost.library import Library, LibraryRule
from meshwright.cost.model import CostModel
from meshwright.language.goals import PROGRAM_GOALS, flat_program
from meshwright.measure.calibrate import fit, message_rate, shared_processors
from meshwright.measure.observations import Observation, by_level, microbenchmarks, observations
from meshwright.measure.records import SEND, Measurement
from meshwright.placement.layout import layout_of
from meshwright.system.model import System
from meshwright.system.read import system_document

GUESS = parse_system("node=4@10MB/s,gpu=4@100MB/s")
TRUTH = parse_system("node=4@9MB/s+2ms,gpu=4@80MB/s+500us")
SIZES = (1 << 19, 1 << 20, 1 << 21)


def with_efficiency(library: Library, values: dict[Collective, float]) -> Library:
    rules = tuple(
        (kind, tuple(replace(rule, efficiency=values.get(kind, 1.0)) for rule in rules))
        for kind, rules in library.rules
    )
    return replace(library, rules=rules, call=0.0, message=0.0)  # a fit takes them for latency


def made_up(system: System, library: Library, noise: float = 0.0) -> list[Observation]:
    """What the model says would be observed."""
    found = []
    for level in system.levels:
        for size in SIZES:
            for number, goal in enumerate(PROGRAM_GOALS):
                model = CostModel(layout_of(by_level(system), [level.name]), library, size)
                wobble = 1 + noise * (-1) ** (number + size.bit_length())
                found.append(
                    Observation(level.name, goal.flat, size, model.seconds(flat_program(goal, 1), goal) * wobble)
                )
            inside = 4 if level.name == "node" else 1
            assert level.link.bandwidth
            found.append(Observation(level.name, None, size, 0.003 + size * inside / level.link.bandwidth))
    return found


EFFICIENCY = {
    Collective.ALL_REDUCE: 0.95,
    Collective.ALL_GATHER: 0.8,
    Collective.BROADCAST: 1.0,
    Collective.REDUCE: 0.9,
}


def test_bandwidth_latency_and_efficiency_are_found() -> None:
    library = with_efficiency(load_library("gloo"), EFFICIENCY)
    found = fit(GUESS, load_library("gloo"), made_up(TRUTH, library))
    for level, truth in zip(found.system.levels, TRUTH.levels, strict=True):
        assert level.link.bandwidth == pytest.approx(truth.link.bandwidth, rel=0.005)
        assert level.link.latency == pytest.approx(truth.link.latency, rel=1e-4)
    rules = dict(found.library.rules)
    for kind, value in EFFICIENCY.items():
        assert rules[kind][-1].efficiency == pytest.approx(value, rel=0.01)
    assert found.residual < 1e-6
    assert max(found.efficiency_error.values()) < 0.01
    assert found.library.name == "gloo-calibrated"


def test_what_is_done_otherwise_in_chunks_is_calibrated_too() -> None:
    chunked = replace(load_library("gloo"), in_chunks=((Collective.ALL_GATHER, (LibraryRule(("direct",)),)),))
    found = fit(GUESS, chunked, made_up(TRUTH, with_efficiency(load_library("gloo"), EFFICIENCY)))
    ((kind, (rule,)),) = found.library.in_chunks
    assert kind is Collective.ALL_GATHER
    assert rule.algorithms == ("direct",)
    assert rule.efficiency == dict(found.library.rules)[kind][-1].efficiency < 0.9


def test_noise_shows_in_the_errors_and_is_not_taken_for_efficiency() -> None:
    library = with_efficiency(load_library("gloo"), EFFICIENCY)
    found = fit(GUESS, load_library("gloo"), made_up(TRUTH, library, noise=0.05))
    assert 0.01 < found.residual < 0.1
    assert max(found.efficiency_error.values()) > 0.01
    rules = dict(found.library.rules)
    assert rules[Collective.ALL_GATHER][-1].efficiency == pytest.approx(0.9, rel=0.15)


def test_levels_that_nothing_tells_about_stay_as_they_were() -> None:
    library = load_library("gloo")
    inner = [one for one in made_up(TRUTH, library) if one.level == "gpu"]
    found = fit(GUESS, library, inner)
    assert found.system.levels[0].link.latency == 0
    assert found.system.levels[0].link.bandwidth == pytest.approx(10e6)
    assert set(found.latency_error) == {"gpu"}


def test_the_rate_of_messages_is_found_from_the_smallest_collectives() -> None:
    library = load_library("gloo")
    truth = replace(TRUTH, message_rate=5000.0)
    free = replace(truth, levels=tuple(replace(one, link=replace(one.link, latency=0.0)) for one in truth.levels))
    seen = []
    for level in ("node", "gpu"):
        for size in (1 << 8, 1 << 20):
            for goal in PROGRAM_GOALS:
                model = CostModel(layout_of(by_level(free), [level]), library, size)
                seen.append(Observation(level, goal.flat, size, model.seconds(flat_program(goal, 1), goal)))
    assert message_rate(GUESS, library, seen) == pytest.approx(5000, rel=0.01)
    with pytest.raises(SpecError, match="nothing tells the rate of messages"):
        message_rate(GUESS, library, [one for one in seen if one.collective is None])
    # Levels with latency of their own say nothing of the processors.
    slow = [replace(one, seconds=one.seconds + 0.1) if one.level == "node" else one for one in seen]
    assert message_rate(parse_system("node=4@10MB/s+9ms,gpu=4@100MB/s"), library, slow) == pytest.approx(5000, rel=0.01)
    with pytest.raises(SpecError, match="in a level without latency"):
        message_rate(TRUTH, library, seen)


def test_latency_on_shared_processors_is_that_of_the_network_where_it_has_some() -> None:
    nominal = parse_system("node=4@10MB/s+2ms,gpu=4@100MB/s")
    fitted = parse_system("node=4@9MB/s+4ms,gpu=4@80MB/s+1ms")
    found = shared_processors(fitted, 5000, nominal, load_library("ring"))
    assert found.message_rate == 5000
    assert [level.link.latency for level in found.levels] == [4e-3, 1 / 5000]
    halves = shared_processors(fitted, 5000, nominal, load_library("gloo"))
    assert [level.link.latency for level in halves.levels] == [4e-3, 0.5 / 5000]
    assert [level.link.bandwidth for level in found.levels] == [9e6, 80e6]


def test_nothing_to_calibrate_from() -> None:
    with pytest.raises(SpecError, match="there is nothing to calibrate from"):
        fit(GUESS, load_library("gloo"), [])


def test_microbenchmarks_cover_levels_collectives_and_sends() -> None:
    wanted = microbenchmarks(GUESS, load_library("gloo"), [1 << 20])
    kinds = [(one.over[0], one.program, one.alone) for case in wanted for one in case.measurements("torch")]
    for level in ("node", "gpu"):
        for collective in Collective:
            assert (level, f"{collective} all", False) in kinds
        assert (level, "AllReduce all", True) in kinds
        assert (level, SEND, False) in kinds
    assert ("node", SEND, True) in kinds
    assert len(kinds) == len(set(kinds)) == 15
    sends = {case.sends for case in wanted if case.sends}
    assert sends == {((0, 4),), ((0, 4), (1, 5), (2, 6), (3, 7)), ((0, 1),)}
    assert len(microbenchmarks(GUESS, load_library("gloo"), [1 << 20], rooted=False)) == 11


def test_only_what_fills_one_level_is_an_observation() -> None:
    base = Measurement(
        system_document(GUESS), ["node", "gpu"], [[4, 1], [1, 4]], ["gpu"], "all-reduce", 8, "AllReduce all", "torch"
    )
    timed = replace(base, seconds=[3.0, 1.0, 2.0])
    others = [
        base,
        replace(timed, failed="x"),
        replace(timed, over=["node", "gpu"]),
        replace(timed, program="default"),
        replace(timed, axes=["data", "shard"]),
    ]
    assert observations([timed, *others]) == [Observation("gpu", Collective.ALL_REDUCE, 8, 2.0)]
    assert observations([replace(timed, program=SEND, alone=True)]) == [Observation("gpu", None, 8, 2.0, True)]
