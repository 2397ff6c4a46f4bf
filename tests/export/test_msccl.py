"""MSCCL's XML: every program is run by the interpreter, in chunks too; and what there is no room for."""

import re
from dataclasses import replace
from itertools import islice
from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import (
    Goal,
    Hierarchy,
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
from tests.cli.test_verbs import run, run_json
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


@given(st.data(), st.sampled_from(PROGRAM_GOALS))
def test_any_hierarchy_chunks_and_instances(data: st.DataObject, goal: Goal) -> None:
    radices = data.draw(st.lists(st.sampled_from([2, 2, 3, 4]), min_size=1, max_size=3).filter(lambda r: prod(r) <= 18))
    hierarchy = Hierarchy(tuple("abc"[: len(radices)]), tuple(radices))
    programs = list(islice(program_graph(len(radices), goal, max_steps=4).programs(), 500))
    mixed = data.draw(st.lists(st.tuples(st.sampled_from(programs), st.integers(1, 3)), min_size=1, max_size=2))
    plan = plan_of(Pipelined(tuple(mixed)), hierarchy, goal)
    try:
        found = export("msccl", Request(plan, instances=data.draw(st.integers(1, 2))))
    except SpecError as refused:
        if "room for 256" not in str(refused):
            raise
        return
    check(found.text, seed=data.draw(st.integers(0, 100)))


def test_a_plan_of_the_planner_in_chunks(tmp_path: Path) -> None:
    system, path = "node=4@1GB/s,gpu=4@8GB/s", str(tmp_path / "plan.json")
    arguments = ["plan", "--system", system, "--axes", "data=16", "--reduce", "data=64MiB", "--chunks", "8"]
    assert run(*arguments, "--out", path).exit_code == 0
    out = tmp_path / "allreduce.xml"
    done = run("export", path, "--to", "msccl", "--out", str(out))
    assert done.exit_code == 0, done.stderr
    assert done.stdout == ""
    algorithm = check(out.read_text())
    assert int(algorithm.attributes["nchunksperloop"]) > 16, "it is planned in chunks"
    assert run_json("export", path, "--to", "msccl")["text"] == out.read_text()


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
    assert "of 512KiB to 2MiB, if 8 divides the number of elements" in found.notes[1]


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


def test_the_interpreter_runs_a_ring_as_nccl_does_it() -> None:
    """Each thread block sends and receives at once, so that it needs a queue: without one, all wait to send."""
    size, lines = 4, []
    for gpu in range(size):
        kinds = ["s", *["rrs"] * (size - 2), "rrcs", *["rcs"] * (size - 2), "r"]
        lines.append(f'<gpu id="{gpu}" i_chunks="{size}" o_chunks="{size}" s_chunks="0">')
        lines.append(f'<tb id="0" send="{(gpu + 1) % size}" recv="{(gpu - 1) % size}" chan="0">')
        for s, kind in enumerate(kinds):
            at = (gpu - s) % size
            lines.append(
                f'<step s="{s}" type="{kind}" srcbuf="i" srcoff="{at}" dstbuf="i" dstoff="{at}" cnt="1" depid="-1" '
                'deps="-1" hasdep="0"/>'
            )
        lines += ["</tb>", "</gpu>"]
    head = f'<algo nchannels="1" nchunksperloop="{size}" ngpus="{size}" coll="allreduce" inplace="1" outofplace="0">'
    algorithm = parse("".join([head, *lines, "</algo>"]))
    Run(algorithm, in_place=True, capacity=2).run()
    with pytest.raises(DeadlockError):
        Run(algorithm, in_place=True, capacity=0).run()


def test_a_queue_between_devices_changes_nothing() -> None:
    algorithm = parse(exported(f"{HYBRID}, in 4 chunks").text)
    for capacity in (1, 2, 8):
        Run(algorithm, in_place=True, seed=capacity, capacity=capacity).run()
