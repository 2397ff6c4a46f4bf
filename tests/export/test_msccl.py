"""MSCCL's XML: every program is run by the interpreter, in chunks too; and what there is no room for."""

import re
from dataclasses import replace
from itertools import islice

import pytest

from meshwright import (
    Goal,
    Pipelined,
    Placement,
    Program,
    SpecError,
    parse_hierarchy,
    parse_pipelined,
    parse_program,
    program_graph,
)
from meshwright.export.formats import export
from meshwright.export.request import Exported, Request
from meshwright.language.goals import PROGRAM_GOALS
from tests.export.memory import RaceError
from tests.export.msccl import DeadlockError, Run, check, parse
from tests.export.plans import SIZE, plan_of

HYBRID = "ReduceScatter inside node; AllReduce across node; AllGather inside node"


def exported(
    text: Pipelined | str, spec: str = "node=2,gpu=4", goal: Goal = Goal.ALL_REDUCE, instances: int = 1
) -> Exported:
    hierarchy = parse_hierarchy(spec)
    pipelined = parse_pipelined(text, hierarchy) if isinstance(text, str) else text
    return export("msccl", Request(plan_of(pipelined, hierarchy, goal), instances=instances))


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("goal", PROGRAM_GOALS)
def test_every_program_gives_the_true_result(goal: Goal, chunks: int) -> None:
    graph = program_graph(2, goal, max_steps=5)
    count = 0
    for program in graph.programs():
        check(exported(Pipelined.of(program, chunks), goal=goal).text, seed=count)
        count += 1
    assert count == graph.count()


@pytest.mark.parametrize("goal", PROGRAM_GOALS)
def test_samples_of_more_devices_in_chunks(goal: Goal) -> None:
    programs = list(program_graph(2, goal, max_steps=4).programs())
    for program in programs[:: max(1, len(programs) // 3)]:
        check(exported(Pipelined.of(program, 2), "node=4,gpu=8", goal).text)


@pytest.mark.parametrize("goal", PROGRAM_GOALS)
def test_three_levels(goal: Goal) -> None:
    for program in islice(program_graph(3, goal, max_steps=4).programs(), 0, 400, 40):
        check(exported(Pipelined.of(program, 2), "rack=2,node=3,gpu=2", goal).text)


def test_chunks_that_take_different_programs() -> None:
    other = "ReduceScatter across node; AllReduce inside node; AllGather across node"
    algorithm = check(exported(f"{HYBRID}, in 3 chunks | {other}, in 2 chunks").text)
    assert algorithm.attributes["nchunksperloop"] == "40"
    assert algorithm.attributes["nchannels"] == "6"


def test_instances_have_channels_of_their_own() -> None:
    algorithm = check(exported(f"{HYBRID}, in 2 chunks", instances=4).text)
    assert algorithm.attributes["nchannels"] == "12"
    assert algorithm.attributes["nchunksperloop"] == str(2 * 4 * 8)
    assert len(algorithm.blocks[0]) == 4 * 3 * 2


def test_attributes() -> None:
    found = exported(HYBRID)
    attributes = parse(found.text).attributes
    assert attributes | {"name": ""} == {
        "name": "",
        "proto": "Simple",
        "nchannels": "3",
        "nchunksperloop": "8",
        "ngpus": "8",
        "coll": "allreduce",
        "inplace": "1",
        "outofplace": "1",
        "minBytes": str(SIZE // 2),
        "maxBytes": str(SIZE * 2),
    }
    assert found.notes[0].startswith("not in this file: the placement")
    assert f"{SIZE // 2} to {SIZE * 2} bytes" in found.notes[1]


def test_sizes_can_be_said() -> None:
    plan = plan_of(Pipelined.of(parse_program("AllReduce all", parse_hierarchy("gpu=4"))), parse_hierarchy("gpu=4"))
    found = export("msccl", Request(plan, least=0, most=2**40))
    assert 'minBytes="0" maxBytes="1099511627776"' in found.text
    with pytest.raises(SpecError, match="--min-bytes 9 is more than --max-bytes 8"):
        export("msccl", Request(plan, least=9, most=8))


def test_what_a_device_keeps_is_sent_in_one_message() -> None:
    """The level that is scattered first comes first in the payload."""
    blocks = parse(exported(HYBRID).text).blocks[0]
    assert [[step.count for step in block.steps if step.type != "nop"] for block in blocks] == [
        [2, 2, 2],
        [2, 2, 2],
        [1, 1],
        [1, 1],
        [2, 2, 2],
        [2, 2, 2],
    ]


def test_messages_stay_below_what_msccl_can_count() -> None:
    found = exported("Reduce all; Broadcast all, in 1 chunk", "a=2")
    assert 'cnt="1"' in found.text
    wide = exported("ReduceScatter inside node; AllReduce across node; AllGather inside node", "node=80,gpu=2")
    assert max(int(count) for count in re.findall(r'cnt="(\d+)"', wide.text)) == 71


def test_roots() -> None:
    assert any("rank 0 as root" in note for note in exported("Broadcast all", goal=Goal.BROADCAST).notes)


@pytest.mark.parametrize(
    ("text", "spec", "instances", "message"),
    [
        ("AllReduce all, in 32 chunks", "node=4,gpu=8", 1, "would have 1984 steps or more, and MSCCL has room for 256"),
        ("AllReduce all, in 1024 chunks", "node=16,gpu=32", 1, "would have 1046528 steps or more"),
        (f"{HYBRID}, in 43 chunks", "node=4,gpu=2", 1, "would have 258 steps or more"),
        ("Reduce all; Broadcast all", "node=1024,gpu=1024", 1, "a group has 1048576 devices; at most 512 are written"),
        (HYBRID, "node=2,gpu=4", 32, "in 32 instances need 96 channels, and NCCL has 32"),
    ],
)
def test_what_there_is_no_room_for(text: str, spec: str, instances: int, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        exported(text, spec, instances=instances)


def test_pieces_that_are_not_consecutive_take_more_steps() -> None:
    text = "ReduceScatter inside node; ReduceScatter across node, in 10 chunks"
    with pytest.raises(SpecError, match="would have 280 steps or more"):
        exported(text, "node=4,gpu=8", Goal.REDUCE_SCATTER)


def test_a_group_of_one_device() -> None:
    plan = plan_of(Pipelined.of(Program(())), parse_hierarchy("gpu=2"))
    alone = Placement(plan.placement.system, ("data", "other"), ((1,), (2,)))
    with pytest.raises(SpecError, match="the program does nothing, as its group is a single device"):
        export("msccl", Request(replace(plan, placement=alone)))


def test_more_steps_than_some_libraries_take_are_told() -> None:
    notes = exported("AllReduce all, in 3 chunks", "node=4,gpu=8").notes
    assert any("186 steps: RCCL and msccl-executor-nccl take at most 64" in note for note in notes)


# The interpreter finds what is wrong.


def broken(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


def test_the_interpreter_finds_races() -> None:
    text = exported("AllReduce all", "gpu=3").text
    with pytest.raises(RaceError):
        check(broken(text, 'depid="1" deps="0"', 'depid="-1" deps="-1"'))


def test_the_interpreter_finds_circles() -> None:
    text = exported("AllReduce all", "gpu=2").text
    awaited = broken(text, 'cnt="1" depid="-1" deps="-1" hasdep="1"', 'cnt="1" depid="1" deps="0" hasdep="1"')
    with pytest.raises(DeadlockError):
        check(broken(awaited, 'cnt="1" depid="-1" deps="-1" hasdep="1"', 'cnt="1" depid="0" deps="0" hasdep="1"'))


def test_the_interpreter_finds_wrong_results() -> None:
    text = exported("AllReduce all", "gpu=2").text
    with pytest.raises(AssertionError):
        check(broken(text, 'type="rrc"', 'type="r"'))


def test_a_queue_between_devices_changes_nothing() -> None:
    algorithm = parse(exported(f"{HYBRID}, in 4 chunks").text)
    for capacity in (1, 2, 8):
        Run(algorithm, in_place=True, seed=capacity, capacity=capacity).run()
