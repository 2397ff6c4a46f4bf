"""The figures of measurements whose truth is known."""

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright import Reduction, SpecError, load_library, parse_system, placements
from meshwright.measure.accuracy import join, report, scatter
from meshwright.measure.bench import cases
from meshwright.measure.records import Measurement

SYSTEM = parse_system("node=2@1GB/s,gpu=4@8GB/s")
RING = load_library("ring")


def measured(factor: float = 1.0) -> list[Measurement]:
    """Measurements that are what the model says, times a factor."""
    found = []
    reductions = [Reduction(("data",), 1 << 20), Reduction(("shard",), 1 << 20)]
    for case in cases(placements(SYSTEM, {"data": 2, "shard": 4}), reductions, RING, every=2, best=3):
        for number, one in zip(case.numbers, case.measurements("torch"), strict=True):
            planned = case.plan.reductions[number or 0]
            seconds = planned.default_seconds if number is None else planned.seconds
            found.append(replace(one, seconds=[seconds * factor] * 3))
    return found


def test_perfect_predictions() -> None:
    figures = report(join(measured(), RING))
    assert figures.pairs == 4  # two placements, two reductions
    assert figures.top == {1: 1.0, 3: 1.0, 5: 1.0, 10: 1.0}
    assert figures.median_error == pytest.approx(0, abs=1e-12)
    assert figures.worst_tenth_error == pytest.approx(0, abs=1e-12)
    assert figures.correlation == pytest.approx(1)
    assert figures.noise == 0
    assert figures.over_bound >= 1
    assert figures.best_speedup >= 1


def test_times_that_are_all_off_by_a_quarter_are_ranked_right() -> None:
    figures = report(join(measured(1.25), RING))
    assert figures.median_error == pytest.approx(0.2)
    assert figures.top[1] == 1.0


def test_a_fast_program_that_was_predicted_slow_is_a_miss() -> None:
    changed = measured()
    slow = max((one for one in changed if one.program != "default"), key=lambda one: one.seconds[0])
    changed[changed.index(slow)] = replace(slow, seconds=[1e-9])
    figures = report(join(changed, RING))
    assert figures.top[1] == pytest.approx(3 / 4)


def test_a_fast_program_that_was_not_among_the_best_predicted_is_seen_if_it_was_drawn() -> None:
    reductions = [Reduction(("data",), 1 << 20)]
    (case,) = cases(placements(SYSTEM, {"data": 8}), reductions, RING, every=0, best=10, sample=5)
    numbered = zip(case.numbers[1:], case.measurements("torch")[1:], strict=True)
    found = [replace(one, seconds=[case.plan.reductions[number or 0].seconds]) for number, one in numbered]
    assert report(join(found, RING)).top[10] == 1
    assert sum(report(join(found, RING)).others.values()) == 5
    assert report(join(found[:10], RING)).others == {}
    found[12] = replace(found[12], seconds=[1e-9])
    assert report(join(found, RING)).top[10] == 0


def test_a_program_within_the_noise_of_the_fastest_is_as_fast() -> None:
    pairs = join(measured(), RING)
    assert all(pair.hit(1, 0.0) for pair in pairs)
    outcome = pairs[0].outcomes[0]
    nearly = replace(
        pairs[0],
        outcomes=(replace(outcome, program="new", measured=outcome.measured * 0.99, predicted=9.0), *pairs[0].outcomes),
    )
    assert not nearly.hit(1, 0.0)
    assert nearly.hit(1, 0.02)


def test_the_spread_is_between_placements() -> None:
    figures = report(join(measured(), RING))
    times: dict[tuple[str, ...], list[float]] = {}
    for one in measured():
        if one.program == "default":
            times.setdefault(tuple(one.over), []).append(one.seconds[0])
    assert figures.spread == pytest.approx(max(max(each) / min(each) for each in times.values()))


def test_failures_do_not_count() -> None:
    some = measured()
    broken = [replace(one, failed="x", seconds=[]) for one in some]
    with pytest.raises(SpecError, match="none of the measurements has a result"):
        join(broken, RING)
    assert report(join([*some, *broken], RING)).pairs == 4


def test_another_system_must_have_the_same_shape() -> None:
    faster = parse_system("node=2@2GB/s,gpu=4@16GB/s")
    assert report(join(measured(), RING, faster)).median_error == pytest.approx(0.5)
    with pytest.raises(SpecError, match="has the counts"):
        join(measured(), RING, parse_system("node=4@1GB/s,gpu=2@8GB/s"))


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    scatter(join(measured(1.25), RING), tmp_path / "accuracy.svg")
    text = (tmp_path / "accuracy.svg").read_text()
    assert "<svg" in text
    assert text.count("<use ") > 20  # a mark for each program
    with pytest.raises(SpecError, match=r"cannot write the file .*No such file"):
        scatter(join(measured(), RING), tmp_path / "no" / "accuracy.svg")
    with pytest.raises(SpecError, match=r"cannot draw .*Format 'docx' is not supported"):
        scatter(join(measured(), RING), tmp_path / "accuracy.docx")
    scatter(join(measured(), RING), tmp_path / "accuracy")
    assert (tmp_path / "accuracy").read_bytes().startswith(b"\x89PNG")
