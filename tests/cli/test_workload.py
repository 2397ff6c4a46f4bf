import json
from pathlib import Path

import pytest

from meshwright import read_plan
from tests.cli.test_verbs import run, run_json

DENSE = ["plan", "--workload", "dense-70b", "--system", "dgx-h100:128", "--library", "nccl"]
LLM = ["workload", "llm", "--params", "70B", "--layers", "80", "--hidden", "8192", "--seq", "8192"]
LLM += ["--micro-batch", "1", "--global-batch", "1024", "--dtype", "bf16"]


def test_a_model_becomes_a_workload_that_can_be_planned(tmp_path: Path) -> None:
    out = tmp_path / "w.yaml"
    shown = run(*LLM, "--axes", "data=2,tensor=8", "--hide", "gradients=0.5", "--out", str(out))
    assert shown.exit_code == 0, shown.stderr
    assert "N / (tensor x pipeline x shard) x g, once [1]" in shown.stdout
    assert "[1] DDP: Li et al., VLDB 2020" in shown.stdout
    assert "N = 70,000,000,000 parameters" in shown.stdout
    document = run_json("plan", "--workload", str(out), "--system", "dgx-h100:2", "--library", "nccl")
    best = document["candidates"][0]
    assert best["placement"]["matrix"] == [[2, 1], [1, 8]]
    assert [r["name"] for r in best["reductions"]] == ["gradients", "activations"]
    assert best["reductions"][0]["hidden"] == 0.5
    assert document["placements"] == document["evaluated"] + document["pruned"]


def test_the_whole_answer_for_a_workload(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    result = run(*DENSE, "--compare", "--out", str(out))
    assert result.exit_code == 0, result.stderr
    for part in (
        "18 placements:",
        "bounds rule out the other",
        "activations, all-gather",
        "memory per device: 28.2GB of 80GB",
        "  torch: DeviceMesh(",
        "  jax: Mesh(",
        "  megatron: order tp-dp-pp",
        "Megatron order tp-cp-ep-dp-pp",
        "best of 24 orders that line up",
        "worst of 24 orders that line up",
    ):
        assert part in result.stdout
    plan = read_plan(out)
    assert len(plan.reductions) == 5
    assert len(plan.transfers) == 2
    explained = run("explain", str(out))
    assert explained.exit_code == 0
    assert "point-to-point over pipeline" in explained.stdout


def test_the_comparison_as_data() -> None:
    document = run_json(*DENSE, "--compare", "--top", "1")
    rows = {row["name"]: row for row in document["comparison"]}
    assert rows["Megatron order tp-cp-ep-dp-pp"]["gain"] == pytest.approx(1.0)
    worst = next(row for name, row in rows.items() if name.startswith("worst of 24"))
    assert worst["gain"] > 3
    assert worst["default_seconds"] / document["candidates"][0]["seconds"] == pytest.approx(worst["gain"])


def test_constraints_change_the_answer() -> None:
    free = run_json(*DENSE, "--top", "1")
    bound = run_json(*DENSE, "--top", "1", "--not-across", "tensor=gpu")
    assert bound["candidates"][0]["seconds"] > free["candidates"][0]["seconds"]
    assert bound["candidates"][0]["placement"]["matrix"][3] == [8, 1]
    assert bound["constraints"] == ["--not-across tensor=gpu"]
    fixed = run_json(*DENSE, "--row", "tensor=2,4", "--not-across", "data=gpu")
    assert {tuple(c["placement"]["matrix"][3]) for c in fixed["candidates"]} == {(2, 4)}


def test_sizes_are_chosen() -> None:
    arguments = ["plan", "--workload", "dense-70b", "--system", "dgx-h100", "--devices", "64", "--library", "nccl"]
    document = run_json(*arguments, "--choose", "shard,tensor,pipeline", "--axes", "data=1", "--top", "2")
    assert document["sizes"]["tried"] == 28  # ways to write 64 as a product of three
    assert document["axes"] == document["sizes"]["best"][0]["axes"]
    text = run(*arguments, "--choose", "shard,tensor,pipeline", "--axes", "data=1").stdout
    assert "28 choices of sizes; " in text
    assert "Compared by communication alone" in text


def test_workloads_are_listed_and_shown() -> None:
    assert [one["name"] for one in run_json("workload", "list")["workloads"]] == ["dense-70b", "moe-141b"]
    assert "moe-141b" in run("workload", "list").stdout
    shown = run_json("workload", "show", "dense-70b", "--axes", "data=8")
    assert [one["name"] for one in shown["communications"]] == ["gradients"]
    assert "which is too much" in run("workload", "show", "dense-70b", "--axes", "data=8").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "--system", "dgx-h100", "--axes", "a=128", "--reduce", "a=1PB"], "bytes=1000000000000000; expected"),
        (["plan", "--system", "dgx-h100"], "give either --reduce"),
        (["plan", "--system", "dgx-h100", "--reduce", "data=1GB"], "--axes is missing"),
        ([*DENSE, "--reduce", "data=1GB"], "give either --reduce"),
        ([*DENSE[:2], "dense-7b", *DENSE[3:]], "unknown workload 'dense-7b'; did you mean 'dense-70b'"),
        ([*DENSE, "--inside", "tensor=rack"], "unknown level 'rack'"),
        ([*DENSE, "--inside", "tensor"], "'tensor' is not AXIS=LEVEL"),
        ([*DENSE, "--row", "tensor=eight"], "is not AXIS=FACTOR,FACTOR"),
        ([*DENSE, "--inside", "data=node", "--inside", "shard=node"], "contradict each other"),
        ([*DENSE, "--axes", "data=1024"], "needs 1.45TB on each device, which has 80GB"),
        ([*DENSE, "--axes", "data=3"], "a global batch of 1024 sequences cannot be split over data=3"),
        ([*DENSE, "--choose", "data", "--devices", "1001"], "expected a multiple of 8"),
        ([*DENSE, "--choose", "dat"], "unknown axis 'dat'"),
        ([*DENSE, "--choose", "data", "--inside", "tensor=nod"], "--inside tensor=nod: unknown level 'nod'"),
        ([*DENSE, "--choose", "data", "--inside", "tensr=node"], "--inside tensr=node: unknown axis 'tensr'"),
        ([*DENSE, "--choose", "data", "--axes", "data=4"], "data is given (4) and to be chosen"),
        ([*DENSE, "--choose", "data", "--library", "nosuch"], "Error: unknown library 'nosuch'"),
        ([*LLM, "--axes", "data=2", "--hide", "gradients=0.1", "--hide", "gradients=0.9"], "is given twice"),
        ([*DENSE, "--choose", "data,data"], "'data' appears 2 times"),
        ([*DENSE, "--choose", "data", "--placement", "[[1]]"], "no --placement"),
        ([*LLM, "--axes", "data=2", "--hide", "gradient=1"], "is not GROUP=SHARE"),
        ([*LLM, "--axes", "data=2", "--hide", "gradients=2"], "'2' is not a share"),
        ([*LLM, "--axes", "data=2,rows=2"], "unknown axis 'rows'"),
        ([*LLM, "--axes", "data=2", "--flops", "fast"], "--flops: 'fast' is not a rate"),
        ([*LLM[:3], "70G", *LLM[4:], "--axes", "data=2"], "--params: '70G' is not a number of parameters"),
        (["workload", "show", "nowhere.yaml"], "there is no workload file 'nowhere.yaml'"),
    ],
)
def test_bad_input(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.stdout
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_listed_workload_cannot_have_its_sizes_chosen(tmp_path: Path) -> None:
    listed = tmp_path / "w.yaml"
    listed.write_text(json.dumps({"communications": [{"kind": "reduce", "axes": "data", "bytes": "1MB"}]}))
    result = run("plan", "--workload", str(listed), "--system", "dgx-h100", "--choose", "data")
    assert result.exit_code == 2
    assert "it must describe its model" in result.stderr


def test_a_plan_with_transfers_only_is_explained_but_cannot_run(tmp_path: Path) -> None:
    listed = tmp_path / "w.yaml"
    listed.write_text(
        json.dumps({"communications": [{"name": "x[/y]", "kind": "all-to-all", "axes": "data", "bytes": "1MB"}]})
    )
    arguments = ["plan", "--workload", str(listed), "--system", "gpu=4@1GB/s", "--axes", "data=4"]
    planned = run(*arguments, "--out", str(tmp_path / "plan.json"))
    assert planned.exit_code == 0, planned.stderr
    assert "x[/y]" in planned.stdout
    assert "x[/y]: all-to-all over data" in run("explain", str(tmp_path / "plan.json")).stdout
    refused = run("run", str(tmp_path / "plan.json"), "--engine", "numpy")
    assert refused.exit_code == 2
    assert "only transfers" in refused.stderr
