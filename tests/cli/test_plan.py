import json
import re
from pathlib import Path

import pytest

from meshwright import read_plan
from tests.cli.test_verbs import run, run_json

PLAN = ["plan", "--system", "gcp-a100:4", "--axes", "data=4,shard=16", "--library", "ring"]
BOTH = [*PLAN, "--reduce", "data=2GiB", "--reduce", "shard=64MiB*80"]


def test_candidates_are_ranked_and_add_up() -> None:
    document = run_json(*BOTH)
    assert document["placements"] == 3
    candidates = document["candidates"]
    assert [c["placement"]["matrix"] for c in candidates] == [
        [[2, 2], [2, 8]],
        [[1, 4], [4, 4]],
        [[4, 1], [1, 16]],
    ]
    for candidate in candidates:
        for name in ("seconds", "default_seconds", "bound_seconds"):
            assert candidate[name] == pytest.approx(sum(r[name] * r["count"] for r in candidate["reductions"]))
        assert candidate["speedup"] == pytest.approx(candidate["default_seconds"] / candidate["seconds"])
    planned = candidates[0]["reductions"][1]
    ranges, alternatives = planned.pop("ranges"), planned.pop("alternatives")
    assert [each["bytes"] for each in ranges] == sorted({each["bytes"] for each in ranges})
    assert planned["program"] in [each["program"] for each in ranges if each["bytes"] <= 2**26][-1:]
    assert len(alternatives) == 5
    assert {"bytes": 2**26, "program": "AllReduce all", "seconds": planned["default_seconds"]} in alternatives
    assert not any(one["ranges"] or one["alternatives"] for one in candidates[1]["reductions"])
    assert planned == {
        "axes": ["shard"],
        "bytes": 2**26,
        "count": 80,
        "goal": "all-reduce",
        "name": "",
        "hidden": 0.0,
        "program": "ReduceScatter inside node; AllReduce across node; AllGather inside node",
        "seconds": pytest.approx(0.0172122, rel=1e-4),
        "default_seconds": pytest.approx(0.0314573, rel=1e-4),
        "bound_seconds": pytest.approx(0.0167772, rel=1e-4),
    }


def test_the_programs_of_one_placement() -> None:
    document = run_json(*PLAN, "--reduce", "shard=1GiB", "--placement", "[[2,2],[2,8]]", "--top", "3")
    assert len(document["candidates"]) == 3
    assert all(c["placement"]["matrix"] == [[2, 2], [2, 8]] for c in document["candidates"])
    assert len({c["reductions"][0]["program"] for c in document["candidates"]}) == 3
    text = run(*PLAN, "--reduce", "shard=1GiB", "--placement", "[[2,2],[2,8]]", "--top", "3").stdout
    assert "ReduceScatter inside node; AllReduce across node; AllGather inside node" in text


def test_without_rooted_collectives() -> None:
    arguments = [*PLAN, "--reduce", "shard=1GiB", "--placement", "[[2,2],[2,8]]", "--top", "100"]
    programs = [c["reductions"][0]["program"] for c in run_json(*arguments, "--no-rooted")["candidates"]]
    assert 0 < len(programs) < 93
    assert not any("Broadcast" in program or "Reduce " in program.replace("AllReduce ", "") for program in programs)


def test_people_see_a_table_the_reason_and_the_groups() -> None:
    text = run(*BOTH).stdout
    assert "1.62x" in text
    assert (
        "61% of the time goes to data: 3 steps are 1.49x faster than one AllReduce: they load node 1.50x less" in text
    )
    assert "32 groups of 2: {0 8}  {32 40}  …" in text


def test_programs_by_size_are_shown(tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    one = ["plan", "--system", "node=4@8GB/s+20us,gpu=8@200GB/s+5us", "--axes", "data=32", "--library", "gloo"]
    for text in (run(*one, "--reduce", "data=256MiB", "--out", path).stdout, run("explain", path).stdout):
        assert re.search(r"\n  calls +program *\n  below [\d.]+KiB +ReduceScatter all; AllGather across node; ", text)
        assert re.search(
            r"\n  from [\d.]+KiB +ReduceScatter inside node; AllReduce across node; AllGather inside", text
        )
    workload = run("plan", "--system", "dgx-h100:128", "--workload", "dense-70b", "--library", "openmpi").stdout
    assert ", by size:\n  calls " in workload


def test_the_library_is_that_of_the_system_unless_it_is_given(tmp_path: Path) -> None:
    one = ["--axes", "data=8", "--reduce", "data=1MiB"]
    (tmp_path / "odd.yaml").write_text("library: mystery\nlevels: [{name: node, count: 8, bandwidth: 1GB/s}]\n")
    for system, library, why in (
        ("dgx-h100:1", "nccl", "as the system dgx-h100:1 says; --library takes another"),
        ("node=2@1GB/s,gpu=4@8GB/s", "ring", "as nothing says what runs on this system; --library takes another"),
    ):
        assert f"  library: {library}, {why}\n" in run("plan", "--system", system, *one).stdout
        assert run_json("plan", "--system", system, *one)["library"] == library
        given = run("plan", "--system", system, *one, "--library", "gloo").stdout
        assert ", library gloo:\n  placement:" in given
    assert run_json("plan", "--system", "cpu-cluster:1", "--axes", "a=32", "--reduce", "a=1kB")["library"] == "openmpi"
    refused = run("plan", "--system", str(tmp_path / "odd.yaml"), *one)
    assert refused.exit_code == 2
    assert "the system 'odd' names a library that cannot be had: unknown library 'mystery'" in refused.stderr


def test_what_the_mesh_brings_alone() -> None:
    text = run(*BOTH).stdout
    assert "\nThe mesh:\n  torch: DeviceMesh(" in text
    assert (
        "The mesh alone, with the library's own collectives: 5.74s; ranks in the order of the axes as given: 6.48s, "
        "1.13x as long; best for that is 2: 5.05s (--placement-only)" in " ".join(text.split())
    )
    alone = run_json(*BOTH)["mesh_alone"]
    assert alone == {
        "seconds": pytest.approx(5.7378, rel=1e-4),
        "as_given_seconds": pytest.approx(6.4797, rel=1e-4),
        "best_candidate": 2,
        "best_seconds": pytest.approx(5.0451, rel=1e-4),
    }
    same = run_json("plan", "--system", "node=2@1GB/s,gpu=3@8GB/s", "--axes", "data=6", "--reduce", "data=1MiB")
    assert same["mesh_alone"]["seconds"] == same["mesh_alone"]["as_given_seconds"]
    other = ["plan", "--system", "a=4@1GB/s,b=9@8GB/s", "--axes", "x=6,y=6", "--reduce", "x=1MiB"]
    assert run_json(*other)["mesh_alone"]["as_given_seconds"] is None
    assert "order of the axes as given" not in run(*other).stdout


def test_placement_only_ranks_by_the_librarys_own_collectives() -> None:
    document = run_json(*BOTH, "--placement-only")
    first, *_ = candidates = document["candidates"]
    assert first["placement"]["matrix"] == [[1, 4], [4, 4]]
    assert first["seconds"] == first["default_seconds"] == pytest.approx(5.0451, rel=1e-4)
    assert {one["program"] for each in candidates for one in each["reductions"]} == {"AllReduce all"}
    text = run(*BOTH, "--placement-only", "--chunks", "16").stdout
    assert "no sequence of steps" not in text
    assert "best for that" not in text


def test_jax_gets_neither_chunks_nor_rooted_collectives() -> None:
    one = ["plan", "--system", "node=4@50Mbit/s,gpu=4@100Mbit/s", "--axes", "data=16", "--reduce", "data=4MiB"]
    one += ["--library", "gloo", "--chunks", "16"]
    both = [run_json(*one)["candidates"][0]["reductions"][0], run_json(*one, "--engine", "jax")["candidates"][0]]
    assert "chunks" in both[0]["program"]
    programs = [each["program"] for each in both[1]["reductions"][0]["ranges"]]
    assert not any("chunk" in program or "Broadcast" in program for program in programs)


def test_a_plan_file_is_written_read_and_explained(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    written = run(*BOTH, "--out", str(path), "--json")
    assert f"wrote the best plan to {path}" in written.stderr
    assert json.loads(written.stdout)["candidates"][0] == read_plan(path).document()
    text = run("explain", str(path)).stdout
    assert "twice the bandwidth of node: 1.79s, 1.98x faster" in text
    assert "* bottleneck" in text
    steps, _, others = text.partition("\nall-reduce over data, other programs for 2GiB:\n")
    assert max(len(line) for line in steps.splitlines()[3:]) <= 100
    assert "\nall-reduce over shard, other programs for 64MiB:\n  time " in others
    document = run_json("explain", str(path))
    across = document["steps"][0][1]
    assert across["step"] == "AllReduce across node"
    (phase,) = across["phases"]
    assert phase["bottleneck"] == "node"
    assert phase["levels"][0] == {
        "level": "node",
        "groups": 16,
        "load_bytes": 16 * 2**30,
        "seconds": pytest.approx(2.147, rel=1e-3),
        "limit": "port",
    }
    assert sum(step["seconds"] for step in document["steps"][0]) == pytest.approx(document["reductions"][0]["seconds"])


def test_the_paper_is_reproduced(tmp_path: Path) -> None:
    document = run_json("reproduce", "--out", str(tmp_path / "page.md"))
    assert document["summaries"]["all"]["spread"] == pytest.approx(540)
    assert document["summaries"]["all"]["best"] == pytest.approx(1.8355, abs=1e-4)
    assert len(document["cases"]) == document["summaries"]["all"]["cases"] == 298
    page = (tmp_path / "page.md").read_text()
    for figure in ("448x", "540x", "69%", "1.27x", "2.04x", "1.84x"):
        assert figure in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*PLAN], "give either --reduce (one or more) or --workload"),
        ([*PLAN, "--reduce", "data=2"], "has no unit"),
        ([*PLAN, "--reduce", "data=0B"], "bytes=0"),
        ([*PLAN, "--reduce", "dat=2GiB"], "unknown axis 'dat'; did you mean 'data'"),
        ([*PLAN, "--reduce", "data=2GiB", "--placement", "[[4,1],[1,8]]"], "multiply to 8, but the level has 16"),
        ([*PLAN, "--reduce", "data=2GiB", "--placement", "[[2,1],[2,16]]"], "is one of the axes"),
        ([*PLAN, "--reduce", "data=2GiB", "--placement", "[4,1]"], "is not the factors of each axis"),
        ([*PLAN, "--reduce", "data=2GiB", "--placement", "4x1"], "cannot be read"),
        ([*PLAN, "--reduce", "data=2GiB", "--placement", "[" * 100_000], "cannot be read"),
        ([*PLAN, "--reduce", "data=2GiB*" + "9" * 400], "positive whole number"),
        ([*PLAN, "--reduce", "data=2000000TiB"], "bytes="),
        ([*PLAN, "--reduce", "data=2GiB", "--out", ""], "cannot write the plan file"),
        ([*PLAN, "--reduce", "data=2GiB", "--library", "nvcl"], "unknown library 'nvcl'"),
        ([*PLAN, "--reduce", "data=2GiB", "--out", "/nowhere/plan.json"], "cannot write the plan file"),
        (["plan", "--system", "node=4,gpu=16", "--axes", "a=64", "--reduce", "a=1GiB"], "level 'node'"),
        (["explain", "absent.json"], "there is no plan file"),
    ],
)
def test_bad_input_gets_a_message_and_exit_code_2(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""
