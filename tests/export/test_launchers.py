"""Plans for launchers and schedulers: torchrun, DeepSpeed, Kubernetes; and Megatron's order string."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright import Plan, SpecError, fixed_row, parse_reduction, parse_system, plan
from meshwright.export.formats import export
from meshwright.export.hosts import seatings
from meshwright.export.request import Exported, Request


def planned(system: str, rows: dict[str, tuple[int, ...]]) -> Plan:
    """A plan with the given placement."""
    sizes = dict.fromkeys(rows, 1)
    for axis, row in rows.items():
        for factor in row:
            sizes[axis] *= factor
    fixed = [fixed_row(axis, row) for axis, row in rows.items()]
    (first, *_) = (axis for axis, size in sizes.items() if size > 1)
    return plan(
        parse_system(system), sizes, [parse_reduction(f"{first}=1MiB")], constraints=fixed, ranges=False
    ).candidates[0]


NODES = "node=2@1GB/s,gpu=4@8GB/s"
ALIGNED = planned(NODES, {"data": (2, 1), "tensor": (1, 4)})
CROSSED = planned(NODES, {"data": (1, 4), "tensor": (2, 1)})
TWISTED = planned("node=2@1GB/s,socket=2@4GB/s,gpu=2@8GB/s", {"data": (2, 1, 2), "tensor": (1, 2, 1)})
RACKS = planned("rack=2@1GB/s,node=2@2GB/s,gpu=4@8GB/s", {"data": (2, 1, 2), "tensor": (1, 2, 2)})
PODS = planned("pod=2@1GB/s,rack=2@2GB/s,node=3@4GB/s,gpu=2@8GB/s", {"data": (2, 1, 1, 1), "tensor": (1, 2, 3, 2)})


def text(form: str, plan: Plan, hosts: str = "a,b", **more: Any) -> Exported:
    return export(form, Request(plan, tuple(hosts.split(",") if hosts else ()), **more))


def test_torchrun_starts_each_host_with_its_node_rank() -> None:
    lines = text("torchrun", ALIGNED).text.splitlines()
    assert lines == [
        "# on a: ranks 0 to 3",
        "torchrun --nnodes=2 --nproc-per-node=4 --node-rank=0 --master-addr=a --master-port=29500 train.py",
        "# on b: ranks 4 to 7",
        "torchrun --nnodes=2 --nproc-per-node=4 --node-rank=1 --master-addr=a --master-port=29500 train.py",
    ]


def test_torchrun_is_told_another_order_of_gpus() -> None:
    first = text("torchrun", TWISTED).text.splitlines()[1]
    assert first.startswith("CUDA_VISIBLE_DEVICES=0,2,1,3 torchrun ")
    positions = [seat.position for seat in seatings(TWISTED.placement, ["a", "b"])]
    assert positions[:4] == [0, 2, 1, 3]


def test_torchrun_really_numbers_ranks_so(tmp_path: Path) -> None:
    """With one host, the line is run as it is."""
    line = text("torchrun", planned("node=1@1GB/s,gpu=2@8GB/s", {"data": (1, 2)}), "localhost").text.splitlines()[1]
    (tmp_path / "train.py").write_text("import os; open(os.environ['RANK'], 'w').write(os.environ['LOCAL_RANK'])\n")
    words = [sys.executable, "-m", "torch.distributed.run", *shlex.split(line)[1:]]
    words[words.index("--master-port=29500")] = "--master-port=0"
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["0", "1"]


@pytest.mark.parametrize("form", ["torchrun", "deepspeed"])
def test_ranks_that_do_not_fill_one_host_after_the_other(form: str) -> None:
    with pytest.raises(
        SpecError, match="rank 0 belongs on a and rank 1 on b; write a rankfile, hostfile or slurm file"
    ):
        text(form, CROSSED)
    assert text(form, CROSSED, order="devices").text


def test_deepspeed() -> None:
    assert text("deepspeed", ALIGNED).text == "a slots=4\nb slots=4\n"
    with pytest.raises(SpecError, match="by the axes the ranks on a are on its GPUs 0, 2, 1, 3; torchrun can say that"):
        text("deepspeed", TWISTED)


@pytest.mark.parametrize("form", ["rankfile", "hostfile", "slurm", "torchrun", "deepspeed"])
def test_formats_that_need_hosts_ask_for_them(form: str) -> None:
    with pytest.raises(SpecError, match="say where the plan is to run: either --hosts"):
        text(form, ALIGNED, "")
    with pytest.raises(SpecError, match="3 hosts were given, but the system node=2,gpu=4 can be"):
        text(form, ALIGNED, "a,b,c")


def documents(found: Exported) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(found.text))


def test_kubernetes_keeps_the_pods_of_a_rack_together() -> None:
    found = text("kubernetes", RACKS, "", labels={"rack": "example.com/rack"})
    (job,) = documents(found)
    assert (job["kind"], job["spec"]["completions"], job["spec"]["completionMode"]) == ("Job", 4, "Indexed")
    assert job["spec"]["template"]["metadata"]["annotations"] == {
        "kueue.x-k8s.io/podset-slice-required-topology": "example.com/rack",
        "kueue.x-k8s.io/podset-slice-size": "2",
    }
    assert "# tensor stays inside one rack." in found.text.splitlines()
    assert "# data stays" not in found.text


def test_kubernetes_with_several_levels_above_hosts() -> None:
    found = text("kubernetes", PODS, "", labels={"rack": "r", "pod": "p"})
    annotations = documents(found)[0]["spec"]["template"]["metadata"]["annotations"]
    (layers,) = annotations.values()
    assert json.loads(layers) == [{"topology": "p", "size": 6}, {"topology": "r", "size": 3}]
    assert any("TASMultiLayerTopology" in note for note in found.notes)


def test_kubernetes_says_the_host_of_every_rank() -> None:
    ranks, job = documents(text("kubernetes", CROSSED))
    lines = ranks["data"]["ranks"].splitlines()
    assert lines[:3] == ["0 a 0", "1 b 0", "2 a 1"]
    terms = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    assert terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] == [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["a", "b"]}]}
    ]
    assert "metadata" not in job["spec"]["template"]
    assert "# data stays inside one pod." in text("kubernetes", CROSSED).text


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({}, "which label of the nodes says what rack they are in"),
        ({"rack": "x", "row": "y"}, "--label row=…: the levels above hosts are rack"),
    ],
)
def test_labels_that_do_not_fit(labels: dict[str, str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        text("kubernetes", RACKS, "", labels=labels)


def test_what_a_pod_is_must_be_known() -> None:
    unnamed = planned("a=2@1GB/s,b=2@8GB/s", {"data": (2, 2)})
    with pytest.raises(SpecError, match="no level of the system is called node"):
        text("kubernetes", unnamed, "")
    assert documents(text("kubernetes", unnamed, "x,y"))[-1]["spec"]["completions"] == 2


def test_megatron() -> None:
    assert text("megatron", ALIGNED, "").text == (
        'parallel_state.initialize_model_parallel(\n    tensor_model_parallel_size=4,\n    order="tp-dp",\n)\n'
    )
    assert 'order="dp-tp"' in text("megatron", CROSSED, "").text


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (TWISTED, "no order of the axes gives this placement.*; rankfile, hostfile and slurm apply any placement"),
        (
            planned(NODES, {"data": (2, 1), "rows": (1, 4)}),
            "Megatron has no name for the axis 'rows' .it knows tp: ten",
        ),
        (
            planned("node=2@1GB/s,gpu=4@8GB/s", {"shard": (2, 1), "tensor": (1, 2), "data": (1, 2)}),
            "Megatron has no order string for the axes",
        ),
    ],
)
def test_why_megatron_has_no_order_string(found: Plan, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        text("megatron", found, "")
