import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from meshwright import (
    Goal,
    Reduction,
    SpecError,
    System,
    parse_reduction,
    plan,
    read_plan,
    write_plan,
)
from tests.strategies import A100, AXES, problems


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
        ("data+data=2GiB", "each of its axes once"),
    ],
)
def test_malformed_reductions_are_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_reduction(text)


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
        (lambda d: d.update(version=5), "of version 5; this Meshwright reads versions 1 to 4"),
        (lambda d: d.update(version=True), "of version True; this Meshwright reads versions 1 to 4"),
        (lambda d: d.pop("library"), "'library' is missing"),
        (lambda d: d.update(extra=1), "unknown key 'extra'"),
        (lambda d: d.update(seconds=1.0), "seconds: it is 1.0, but the communications add up to"),
        (lambda d: d.update(speedup="fast"), "speedup: 'fast' is not what is expected"),
        (lambda d: d["placement"].update(matrix=[[4, 1], [1, 8]]), "placement: .* multiply to 8"),
        (lambda d: d["placement"].update(axes="data"), "placement.axes: 'data' is not what is expected"),
        (lambda d: d["system"]["levels"][0].update(count=0), "plan.json: system: .* count 0"),
        (lambda d: d["library"]["collectives"].pop("Reduce"), "plan.json: library: .* needs 'Reduce'"),
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
        (lambda d: d["placement"].update(axes=["data"]), r"placement.axes: \['data'\] is not what is expected"),
        (
            lambda d: d["placement"]["axes"].update(data=9),
            "axes: they are .*'data': 9.*, but the rows multiply to",
        ),
        (lambda d: d["reductions"].append(3), r"reductions\[1\]: expected an object"),
        (lambda d: d["reductions"][0].pop("ranges"), r"reductions\[0\]: 'ranges' is missing"),
        (lambda d: d["reductions"][0].update(ranges=3), r"reductions\[0\].ranges: 3 is not what is expected"),
        (lambda d: d["reductions"][0]["ranges"].append([]), r"ranges\[\d\]: expected an object with bytes, program"),
        (lambda d: d["reductions"][0]["ranges"][0].update(bytes=0), r"ranges\[0\]: the payload is 0 bytes"),
        (lambda d: d["reductions"][0]["ranges"][0].update(bytes=2000), r"ranges\[0\].seconds: it is .* was edited"),
        (lambda d: d["reductions"][0]["ranges"][0].update(program="x"), r"ranges\[0\].program: cannot read"),
        (
            lambda d: d["reductions"][0]["ranges"].append(d["reductions"][0]["ranges"][0]),
            r"reductions\[0\]: expected ranges from growing payloads on, not \[1024, 1024\]",
        ),
        (
            lambda d: d["reductions"][0].update(ranges=d["reductions"][0]["alternatives"][:1]),
            r"reductions\[0\]: the range of the planned payload has another program",
        ),
        (lambda d: d["reductions"][0]["alternatives"][0].update(program="AllGather all"), r"alternatives\[0\].* valid"),
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
    path.write_text(path.read_text().replace('"version": 4', '"version": 7, "version": 4'))
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


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    best = plan(A100, AXES, [parse_reduction("data=1GiB")]).candidates[0]
    (tmp_path / "plan.json").write_text("the old plan")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(SpecError, match="no space left"):
        write_plan(best, tmp_path / "plan.json")
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
    assert (tmp_path / "plan.json").read_text() == "the old plan"


def test_plan_files_of_versions_1_to_3_are_still_read(tmp_path: Path) -> None:
    best = plan(A100, AXES, [Reduction(("data",), 2**31)], ranges=False).candidates[0]
    assert best.reductions[0].ranges == best.reductions[0].alternatives == ()
    write_plan(best, tmp_path / "plan.json")
    document = json.loads((tmp_path / "plan.json").read_text())
    document["version"] = 3
    document["placement"]["axes"] = list(document["placement"]["axes"])
    document["system"]["levels"][0]["bandwidth"] = "8000000000.0B/s"
    (tmp_path / "plan.json").write_text(json.dumps(document))
    assert read_plan(tmp_path / "plan.json") == best
    for reduction in document["reductions"]:
        del reduction["ranges"], reduction["alternatives"]
    document["version"] = 2
    (tmp_path / "plan.json").write_text(json.dumps(document))
    assert read_plan(tmp_path / "plan.json") == best
    document["version"] = 1
    del document["transfers"]
    for reduction in document["reductions"]:
        del reduction["name"], reduction["hidden"]
    (tmp_path / "plan.json").write_text(json.dumps(document))
    assert read_plan(tmp_path / "plan.json") == best


@pytest.mark.parametrize("count", [1, 60])
def test_what_python_shows_of_a_plan_fits_a_screen(count: int) -> None:
    name = "a name that is as long as anybody might think of for a reduction over all of the axes, and longer"
    reductions = [Reduction(("data",), 2**20 + k, name=name if count > 1 else "") for k in range(count)]
    ranking = plan(A100, AXES, reductions, top=3, ranges=False)
    for shown in (repr(ranking), repr(ranking.candidates[0]), str(ranking.candidates[0])):
        lines = shown.splitlines()
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 100
        assert (shown[0], shown[-1]) == ("<", ">")
    best = repr(ranking.candidates[0])
    assert best.startswith("<Plan data=1x4,shard=4x4, ")
    assert ("… and 40 more" in best) is (count == 60)
    if count == 1:
        assert best.splitlines()[1].startswith("  all-reduce over data, 1MiB x 1: ")
        assert repr(ranking).splitlines()[1].startswith("  candidates[0]: data=1x4,shard=4x4, ")
