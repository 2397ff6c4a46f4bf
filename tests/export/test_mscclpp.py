"""MSCCL++ execution plans: programs inside a node are run by the interpreter; and what there is no room for."""

import json
from itertools import islice
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import Goal, Hierarchy, Pipelined, SpecError, parse_hierarchy, parse_pipelined, program_graph
from meshwright.export.formats import export
from meshwright.export.request import Exported, Request
from tests.export.memory import RaceError
from tests.export.mscclpp import Run
from tests.export.plans import SIZE, plan_of

GOALS = (Goal.ALL_REDUCE, Goal.REDUCE_SCATTER, Goal.ALL_GATHER, Goal.BROADCAST)


def exported(
    text: Pipelined | str, spec: str = "socket=2,gpu=4", goal: Goal = Goal.ALL_REDUCE, instances: int = 1
) -> Exported:
    hierarchy = parse_hierarchy(spec)
    pipelined = parse_pipelined(text, hierarchy) if isinstance(text, str) else text
    return export("mscclpp", Request(plan_of(pipelined, hierarchy, goal), hosts=("a",), instances=instances))


@pytest.mark.parametrize(("chunks", "instances"), [(1, 1), (3, 2)])
@pytest.mark.parametrize("goal", GOALS)
def test_every_program_gives_the_true_result(goal: Goal, chunks: int, instances: int) -> None:
    graph = program_graph(2, goal, max_steps=5)
    count = 0
    for program in graph.programs():
        Run(exported(Pipelined.of(program, chunks), goal=goal, instances=instances).text, seed=count).run()
        count += 1
    assert count == graph.count()


@given(st.data(), st.sampled_from(GOALS))
def test_any_hierarchy_chunks_and_instances(data: st.DataObject, goal: Goal) -> None:
    radices = data.draw(st.lists(st.sampled_from([2, 2, 3, 4]), min_size=1, max_size=3).filter(lambda r: prod(r) <= 12))
    hierarchy = Hierarchy(tuple("abc"[: len(radices)]), tuple(radices))
    programs = list(islice(program_graph(len(radices), goal, max_steps=4).programs(), 500))
    mixed = data.draw(st.lists(st.tuples(st.sampled_from(programs), st.integers(1, 2)), min_size=1, max_size=2))
    request = Request(plan_of(Pipelined(tuple(mixed)), hierarchy, goal), ("a",), instances=data.draw(st.integers(1, 2)))
    try:
        found = export("mscclpp", request)
    except SpecError as refused:
        if "there is room for" not in str(refused):
            raise
        return
    Run(found.text, seed=data.draw(st.integers(0, 100))).run()


def test_more_devices_than_an_operation_takes() -> None:
    Run(exported("AllReduce all", "gpu=12").text).run()


def test_the_document() -> None:
    found = exported("ReduceScatter all; AllGather all, in 2 chunks", "gpu=4")
    document: Any = json.loads(found.text)
    gpus = document.pop("gpus")
    assert document == {
        "name": "meshwright all-reduce gpu=4",
        "collective": "allreduce",
        "protocol": "Simple",
        "inplace": True,
        "reuse_resources": False,
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": 16,
        "min_message_size": SIZE // 2,
        "max_message_size": SIZE * 2,
    }
    assert [len(gpu["threadblocks"]) for gpu in gpus] == [2] * 4
    names = [operation["name"] for operation in gpus[0]["threadblocks"][0]["ops"]]
    meet = ["nop", "signal", "wait", "nop"]
    assert names == [*meet, "rre", *meet, "put", *meet]
    assert any("of 512KiB to 2MiB, in a multiple of 128 bytes" in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "spec", "goal", "message"),
    [
        ("AllReduce all, in 200 chunks", "gpu=4", Goal.ALL_REDUCE, "needs 200 thread blocks, one for each chunk and"),
        ("AllReduce all", "gpu=20", Goal.ALL_REDUCE, "needs 19 channels of a thread block, and there is room for 16"),
        ("Reduce all", "gpu=4", Goal.REDUCE, "MSCCL.. has no reduce, only allreduce, .* msccl carries it"),
    ],
)
def test_what_there_is_no_room_for(text: str, spec: str, goal: Goal, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        exported(text, spec, goal)


def test_groups_over_several_hosts_are_refused() -> None:
    hierarchy = parse_hierarchy("node=2,gpu=4")
    plan = plan_of(parse_pipelined("AllReduce all", hierarchy), hierarchy)
    with pytest.raises(SpecError, match="a group over data spans 2 hosts; msccl carries programs over several"):
        export("mscclpp", Request(plan))
    unnamed = plan_of(parse_pipelined("AllReduce all", parse_hierarchy("a=2,b=2")), parse_hierarchy("a=2,b=2"))
    with pytest.raises(SpecError, match="no level of the system is called node"):
        export("mscclpp", Request(unnamed))


def test_the_interpreter_finds_races() -> None:
    text = "ReduceScatter inside socket; AllReduce across socket; AllGather inside socket"
    document = json.loads(exported(text).text)
    for gpu in document["gpus"]:
        (block,) = gpu["threadblocks"]
        block["ops"] = [op for op in block["ops"] if op["name"] not in ("signal", "wait")]
    with pytest.raises(RaceError):
        Run(json.dumps(document)).run()
