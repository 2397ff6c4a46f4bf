from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright import (
    Goal,
    MeshwrightError,
    PlacementError,
    Reduction,
    SpecError,
    Transfer,
    TransferKind,
    Workload,
    load_system,
    load_workload,
    plan,
)
from meshwright.planning.planfile import read_plan, write_plan
from meshwright.planning.sizes import check_memory, choose_sizes, with_devices
from meshwright.workload.communication import Line
from meshwright.workload.llm import Model, Recompute
from meshwright.workload.read import parse_flops, parse_params, parse_workload_yaml, workload_names, write_workload
from meshwright.workload.workload import derive

SMALL = Model(
    params=1_000_000, layers=4, hidden=64, seq=32, micro_batch=2, global_batch=64, dtype="bf16", heads=8, kv_heads=2
)
MIXED = replace(SMALL, params=3_000_000, expert_params=2_000_000, experts=8, top_k=2)


def amounts(model: Model, **axes: int) -> dict[str, tuple[str, tuple[str, ...], int, int]]:
    found = {}
    for line in derive("test", model, axes).lines:
        one = line.communication
        found[one.name] = (str(one.goal), one.axes, one.bytes, one.count)
    return found


def test_data_parallelism_reduces_all_gradients_once() -> None:
    assert amounts(SMALL, data=4) == {"gradients": ("all-reduce", ("data",), 4_000_000, 1)}


def test_shards_gather_weights_twice_and_scatter_gradients_for_every_micro_batch() -> None:
    # 64 sequences over 4 x 8 devices in micro-batches of 2 are one micro-batch each; 4 layers of 250,000 parameters.
    assert amounts(SMALL, data=4, shard=8) == {
        "gradients": ("all-reduce", ("data",), 500_000, 1),
        "weights": ("all-gather", ("shard",), 500_000, 8),
        "weights' gradients": ("reduce-scatter", ("shard",), 1_000_000, 4),
    }


def test_cut_matrices_sum_activations_twice_each_way() -> None:
    activations = 2 * 32 * 64 * 2  # sequences x tokens x hidden x bytes
    assert amounts(SMALL, tensor=4) == {"activations": ("all-reduce", ("tensor",), activations, 4 * 4 * 32)}
    spread = replace(SMALL, sequence_parallel=True)
    assert amounts(spread, tensor=4) == {  # the backward pass gathers once more
        "activations, all-gather": ("all-gather", ("tensor",), activations, 6 * 4 * 32),
        "activations, reduce-scatter": ("reduce-scatter", ("tensor",), activations, 4 * 4 * 32),
    }


def test_recomputing_all_sends_the_forward_pass_again() -> None:
    full = replace(MIXED, recompute=Recompute.FULL)
    once, again = amounts(MIXED, data=2, expert=4, tensor=2), amounts(full, data=2, expert=4, tensor=2)
    assert again["attention"][3] == once["attention"][3] * 3 // 2
    assert again["tokens to experts and back"][3] == once["tokens to experts and back"][3] * 3 // 2
    assert again["gradients"] == once["gradients"]
    assert amounts(replace(SMALL, recompute=Recompute.FULL), context=4)["keys and values"][3] == 3 * 4 * 32


def test_stages_send_activations_both_ways_for_every_micro_batch() -> None:
    found = amounts(SMALL, pipeline=2, tensor=2)
    assert found["stages, forward"] == ("point-to-point", ("pipeline",), 8192, 32)
    assert found["stages, backward"] == ("point-to-point", ("pipeline",), 8192, 32)
    assert found["activations"][3] == 4 * 2 * 32  # two of four layers
    spread = amounts(replace(SMALL, sequence_parallel=True), pipeline=2, tensor=2)
    assert spread["stages, forward"][2] == 4096


def test_cut_sequences_gather_keys_and_values() -> None:
    found = amounts(SMALL, context=4)
    assert found["keys and values"] == ("all-gather", ("context",), 2 * 2 * 32 * 64 // 4 * 2, 2 * 4 * 32)
    assert found["their gradients"] == ("reduce-scatter", ("context",), 2 * 2 * 32 * 64 // 4 * 2, 4 * 32)
    assert found["gradients"] == ("all-reduce", ("context",), 4_000_000, 1)
    # A device keeps at least one of the two heads of keys and values.
    assert amounts(SMALL, context=2, tensor=8)["keys and values"][2] == 2 * 2 * 32 * 64 // 8 * 2


def test_experts_get_tokens_and_keep_their_gradients_to_themselves() -> None:
    found = amounts(MIXED, data=2, expert=4, tensor=2)
    # 8 ways, 4 micro-batches; 2 of 8 experts for a token.
    assert found["tokens to experts and back"] == ("all-to-all", ("expert",), 2 * 8192, 4 * 4 * 4)
    assert found["gradients"] == ("all-reduce", ("data", "expert"), 4_000_000 // 2, 1)
    assert found["expert gradients"] == ("all-reduce", ("data",), 8_000_000 // 8, 1)
    assert found["attention"][2:] == (8192, 2 * 4 * 4)
    assert found["experts' activations"][2:] == (2 * 8192, 2 * 4 * 4)


def test_memory_by_hand() -> None:
    # 18 bytes for each parameter, and 34 s b h of activations per layer; pipeline stages hold several micro-batches.
    assert SMALL.memory({"data": 4}) == 18_000_000 + 4 * 34 * 32 * 2 * 64
    assert SMALL.memory({"shard": 4}) == 18_000_000 / 4 + 2 * 250_000 * 2 + 4 * 34 * 32 * 2 * 64
    assert SMALL.memory({"pipeline": 4}) == 18_000_000 / 4 + 4 * 34 * 32 * 2 * 64
    full = replace(SMALL, recompute=Recompute.FULL)
    assert full.memory({"tensor": 2}) == 9_000_000 + 32 * 2 * 64 * (4 * 2 + 10 + 12)


def test_computing_by_hand() -> None:
    model = replace(SMALL, flops=1e9)
    once = (6 * 1_000_000 + 12 * 4 * 64 * 32) * 64 * 32 / 1e9
    assert model.compute({"data": 4}) == pytest.approx(once / 4)
    assert model.compute({"pipeline": 4}) == pytest.approx(once / 4 * (1 + 3 / 32))
    assert SMALL.compute({"data": 4}) is None


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"pipeline": 3}, "pipeline=3 cannot cut 4 layers evenly"),
        ({"tensor": 16}, "tensor=16 cannot cut 8 heads evenly"),
        ({"expert": 2}, "expert=2 cannot cut 1 experts evenly"),
        ({"data": 64}, "a global batch of 64 sequences cannot be split over data=64"),
        ({"dta": 2}, "unknown axis 'dta'; did you mean 'data'"),
        ({"data": 1}, "communicates nothing"),
    ],
)
def test_sizes_that_do_not_fit_the_model(axes: dict[str, int], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        derive("test", SMALL, axes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "layers=0"),
        ({"dtype": "bf61"}, "did you mean 'bf16'"),
        ({"experts": 8}, "needs both"),
        ({"expert_params": 10**6, "experts": 2}, "expected fewer"),
        ({"experts": 2, "top_k": 3, "expert_params": 5}, "a token goes to 3 of 2"),
        ({"kv_heads": 3}, "8 heads cannot share 3"),
        ({"recompute": "some"}, "unknown recompute 'some'"),
    ],
)
def test_models_that_cannot_be(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        replace(SMALL, **change)


@pytest.mark.parametrize("name", workload_names())
def test_workloads_that_ship_say_where_each_line_comes_from(name: str) -> None:
    workload = load_workload(name).workload()
    assert all(line.formula and line.source for line in workload.lines)
    check_memory(workload)
    assert {"dense-70b", "moe-141b"} <= set(workload_names())


def test_a_workload_survives_its_file(tmp_path: Path) -> None:
    workload = load_workload("moe-141b").workload()
    write_workload(workload, tmp_path / "w.yaml")
    again = load_workload(str(tmp_path / "w.yaml")).workload()
    assert again.communications == workload.communications
    assert again.axes == workload.axes
    assert again.memory == pytest.approx(workload.memory, abs=1)
    assert again.device_memory == workload.device_memory
    with pytest.raises(PlacementError, match=r"lists its bytes for the axes pipeline=2,.* not for data=2"):
        load_workload(str(tmp_path / "w.yaml")).workload({"data": 2})
    with pytest.raises(SpecError, match="cannot write"):
        write_workload(workload, tmp_path)


GOOD: dict[str, Any] = {
    "axes": "data=2,tensor=2",
    "overlap": {"backward": 0.5},
    "communications": [
        {"name": "g", "kind": "all-reduce", "axes": "data", "bytes": "1MiB", "overlap": "backward"},
        {"kind": "all-to-all", "axes": ["data", "tensor"], "bytes": "4kB", "count": 3},
    ],
}


def test_a_file_that_lists_communications() -> None:
    workload = parse_workload_yaml(yaml.safe_dump(GOOD), "w.yaml").workload()
    first, second = workload.communications
    assert first == Reduction(("data",), 2**20, name="g", hidden=0.5)
    assert second == Transfer(("data", "tensor"), 4000, TransferKind.ALL_TO_ALL, 3, second.name)
    assert second.name == "2: all-to-all over data+tensor"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda d: d["communications"][0].update(kind="all-reduc"),
            r"w.yaml line 5: unknown kind 'all-reduc'; did you",
        ),
        (lambda d: d["communications"][0].update(bytes="1000"), r"line 4: '1000' is not a size: it has no unit"),
        (lambda d: d["communications"][0].update(bytes="2PB"), "bytes=2000000000000000; expected a whole number"),
        (lambda d: d["communications"][0].update(bytes="0B"), "bytes=0"),
        (lambda d: d["communications"][0].update(axes="dat"), "unknown axis 'dat'; did you mean 'data'"),
        (lambda d: d["communications"][0].update(axes=["data", "data"]), "names each of its axes once"),
        (lambda d: d["communications"][0].update(count=0), "count"),
        (lambda d: d["communications"][0].update(overlap="forward"), "unknown overlap 'forward'"),
        (lambda d: d["communications"][0].update(bits=3), "unknown key 'bits'"),
        (lambda d: d["communications"][1].update(kind="point-to-point"), "goes along one axis, not data[+]tensor"),
        (lambda d: d["overlap"].update(backward=1.5), "'1.5' is not a share of the time"),
        (lambda d: d["overlap"].update(more=0.5), "overlap 'more' is in no communication"),
        (lambda d: d["communications"][0].update(bytes="1PB"), "'g' has bytes=1000000000000000; expected"),
        (
            lambda d: d["communications"][1].update(bytes="1TB", count=10**9),
            "expected at most 1,000,000,000,000,000,000",
        ),
        (lambda d: d["communications"][0].update(hidden=0.5), "either 'hidden' or a group"),
        (lambda d: d.update(model={"params": "7B"}), "a model needs 'layers'"),
        (lambda d: d.pop("communications"), "either 'communications' or a 'model'"),
        (lambda d: d.update(communications=[]), "must be a list that is not empty"),
    ],
)
def test_bad_workload_files(edit: Any, message: str) -> None:
    document = yaml.safe_load(yaml.safe_dump(GOOD))
    edit(document)
    with pytest.raises(MeshwrightError, match=message):
        parse_workload_yaml(yaml.safe_dump(document), "w.yaml").workload()


def test_groups_that_appear_twice_are_refused() -> None:
    text = "overlap: {a: 0.1, a: 0.9}\ncommunications: [{kind: reduce, axes: x, bytes: 1B, overlap: a}]"
    with pytest.raises(SpecError, match="line 1: the key 'a' appears twice"):
        parse_workload_yaml(text, "w.yaml")


def test_names_and_hidden_shares_are_optional_in_a_file(tmp_path: Path) -> None:
    lines = (Line(Reduction(("data",), 8, hidden=0.5)), Line(Reduction(("data",), 8)))
    write_workload(Workload("plain", lines), tmp_path / "w.yaml")
    again = load_workload(str(tmp_path / "w.yaml")).workload()
    assert [one.hidden for one in again.communications] == [0.5, 0.0]


def test_a_file_keeps_the_memory_limit(tmp_path: Path) -> None:
    large = derive("large", replace(SMALL, device_memory=1e6), {"data": 4})
    write_workload(large, tmp_path / "w.yaml")
    with pytest.raises(PlacementError, match="on each device, which has"):
        check_memory(load_workload(str(tmp_path / "w.yaml")).workload())


def test_numbers_for_people() -> None:
    assert parse_params("70.6B") == 70_600_000_000
    assert parse_flops("1.5PFLOP/s") == 1.5e15
    for text in ("70b", "B", "-7B", "7 000", "1.5", "0B"):
        with pytest.raises(SpecError, match="number of parameters"):
            parse_params(text)
    for text in ("400T", "0TFLOP/s", "400 TFLOPS"):
        with pytest.raises(SpecError, match="rate of operations"):
            parse_flops(text)


def test_hidden_time_costs_nothing() -> None:
    system = load_system("dgx-h100:2")
    both = [Reduction(("data",), 2**30, name="hidden", hidden=1.0), Reduction(("tensor",), 2**20, 10, hidden=0.5)]
    best = plan(system, {"data": 2, "tensor": 8}, both).candidates[0]
    assert best.seconds == pytest.approx(best.reductions[1].seconds * 10 * 0.5)


def test_transfers_and_hidden_shares_survive_a_plan_file(tmp_path: Path) -> None:
    workload = load_workload("moe-141b").workload()
    best = plan(load_system("dgx-h100:128"), workload.axes, workload.communications, library="nccl").candidates[0]
    write_plan(best, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == best
    assert [t.communication.goal for t in best.transfers] == ["point-to-point", "point-to-point", "all-to-all"]
    text = (tmp_path / "plan.json").read_text()
    for old, new, message in (
        ('"kind": "all-to-all"', '"kind": "all-to-some"', r"transfers\[2\]: unknown kind of transfer"),
        ('"hidden": 0.8', '"hidden": 1.8', r"reductions\[0\]: a reduction 'gradients' has hidden=1.8"),
        ('"count": 896', '"count": 897', "but the communications add up to"),
    ):
        assert old in text
        (tmp_path / "plan.json").write_text(text.replace(old, new, 1))
        with pytest.raises(SpecError, match=message):
            read_plan(tmp_path / "plan.json")


def test_sizes_are_chosen_among_all_that_fit() -> None:
    file = replace_model(device_memory=float(SMALL.memory({"shard": 4, "tensor": 4})))
    system = load_system("dgx-h100:2")
    found = choose_sizes(system, file, ["data", "shard", "tensor"], {}, library="nccl")
    assert found.tried == 15  # ways to write 16 as a product of three numbers
    assert sum(found.refused.values()) + len(found.best) == 15
    assert found.refused["more memory than a device has"] > 0
    assert found.refused["layers, heads, tokens or experts cannot be cut evenly"] == 1  # tensor=16 of 8 heads
    seconds = [choice.seconds for choice in found.best]
    assert seconds == sorted(seconds)
    for choice in found.best:
        assert choice.workload.memory is not None
        assert choice.workload.memory <= file.model.device_memory
        again = plan(system, choice.workload.axes, choice.workload.communications, library="nccl").candidates[0]
        assert again.seconds == pytest.approx(choice.seconds)


def replace_model(**change: Any) -> Any:
    return replace(load_workload("dense-70b"), model=replace(SMALL, **change), overlap={})


def test_sizes_that_cannot_be_chosen() -> None:
    system = load_system("dgx-h100:2")
    with pytest.raises(PlacementError, match=r"none of 5 ways to choose data, tensor can be had: .*more memory"):
        choose_sizes(system, replace_model(device_memory=10.0), ["data", "tensor"], {})
    with pytest.raises(PlacementError, match="16 devices cannot be split over data when the others multiply to 3"):
        choose_sizes(system, replace_model(), ["data"], {"tensor": 3})
    listed = parse_workload_yaml(yaml.safe_dump(GOOD), "w.yaml")
    with pytest.raises(SpecError, match="it must describe its model"):
        choose_sizes(system, listed, ["data"], {})
    with pytest.raises(SpecError, match="expected a multiple of 8"):
        with_devices(system, 12)
    assert with_devices(system, 1024).counts == (128, 8)


def test_a_workload_in_python() -> None:
    line = Line(Reduction(("data",), 8, goal=Goal.ALL_GATHER), overlap="later")
    workload = Workload("mine", (line,), overlap={"later": 0.25})
    assert workload.communications[0].hidden == 0.25
    with pytest.raises(SpecError, match="no communications"):
        Workload("none", ())
    with pytest.raises(SpecError, match="hides 2 of the time"):
        Workload("mine", (line,), overlap={"later": 2})


def test_a_workload_can_be_planned_as_it_is() -> None:
    workload = load_workload("dense-70b").workload()
    system = load_system("dgx-h100:128")
    best = plan(system, workload.axes, workload, library="nccl").candidates[0]
    again = plan(system, workload.axes, workload, library="nccl", placement=best.placement)
    assert again.candidates == (best,)
