"""What is shown of a plan is what the planner, the cost model and the semantics say."""

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

import pytest

from meshwright import (
    Collective,
    Hierarchy,
    Library,
    LibraryRule,
    Plan,
    parse_reduction,
    parse_system,
    program_graph,
    read_plan,
    write_plan,
)
from meshwright.language.goals import PROGRAM_GOALS, Goal
from meshwright.language.program import Pipelined, Program
from meshwright.language.semantics import State, apply_step, state_of
from meshwright.placement.hierarchy import digits_of
from meshwright.planning.plan import DEFAULT_PROGRAM, Measured, Tuned, cost_model, predict
from meshwright.planning.planner import plan as make_plan
from meshwright.planning.settings import Settings
from meshwright.show.snippets import command, snippets
from meshwright.show.timeline import timeline
from meshwright.show.view import MOST_DRAWN, MOST_PLANS, view_of
from tests.cli.test_verbs import run
from tests.export.plans import plan_of
from tests.show.plans import FORMS, best, measurement, ranking


@pytest.mark.parametrize("form", FORMS)
def test_chunks_flow_for_as_long_as_is_predicted(form: str) -> None:
    for plan in ranking(form).candidates:
        for planned in plan.communications:
            when = timeline(plan, planned)
            spans = list(when.spans())
            assert max((span.end for span in spans), default=0.0) == pytest.approx(planned.seconds, rel=1e-9)
            assert [when.order.count(k) for k in range(len(when.flows))] == [count for _, count in planned.shares]
            busy: dict[tuple[int, int], tuple[float, float]] = {}
            for span in spans if len(when.flows) == 1 else ():
                key = span.step, next(k for k, phase in enumerate(_phases(when, span.step)) if phase is span.phase)
                earlier, last = busy.get(key, (0.0, 0.0))
                assert earlier <= span.start * (1 + 1e-9)  # a step has at most two chunks at a time
                busy[key] = last, span.end


def _phases(when: Any, step: int) -> Any:
    return when.flows[0].costs[step].phases


def test_a_mix_of_programs_has_a_flow_for_each() -> None:
    plan = best("a mix")
    (planned,) = plan.reductions
    programs = tuple(islice(program_graph(2, max_steps=3).programs(), 3))
    mixed = Pipelined(tuple(zip(programs, (3, 2, 1), strict=True)))
    planned = predict(cost_model(plan, planned), planned.communication, mixed)
    when = timeline(plan, planned)
    assert len(when.flows) == 3
    assert sorted(when.order) == [0, 0, 0, 1, 1, 2]
    assert max(span.end for span in when.spans()) == pytest.approx(planned.seconds, rel=1e-9)


def expanded(state: list[list[int] | None], radices: tuple[int, ...]) -> State:
    """A state of a view as the exact semantics has it: for each device and part, the contributors as bits."""
    places = [digits_of(number, radices) for number in range(prod(radices))]
    found = []
    for own in places:
        entry = state[sum((digit == 0) << level for level, digit in enumerate(own))]
        if entry is None:
            found.append((0,) * len(places))
            continue
        along, over = entry

        def agree(other: tuple[int, ...], levels: int, own: tuple[int, ...] = own) -> bool:
            return all(a == b for level, (a, b) in enumerate(zip(own, other, strict=True)) if levels >> level & 1)

        who = sum(1 << k for k, other in enumerate(places) if agree(other, ~over))
        found.append(tuple(who if agree(part, along) else 0 for part in places))
    return tuple(found)


@pytest.mark.parametrize("goal", PROGRAM_GOALS)
@pytest.mark.parametrize("radices", [(2,), (2, 3), (2, 2, 2)])
def test_the_playback_is_what_the_semantics_says(goal: Goal, radices: tuple[int, ...]) -> None:
    hierarchy = Hierarchy(("rack", "node", "gpu")[-len(radices) :], radices)
    for program in islice(program_graph(len(radices), goal, 4).programs(), 0, 400, 9):
        plan = plan_of(Pipelined.of(program), hierarchy, goal)
        found = view_of(_timed(plan), ranking("one device"))
        (flow,) = found["plans"][found["chosen"]]["communications"][0]["flows"]
        state = state_of(goal.start, hierarchy.size)
        states = [state, *(state := apply_step(state, step, radices) for step in program.steps)]
        assert [expanded(each, radices) for each in flow["states"]] == states


def _timed(plan: Plan) -> Plan:
    """A plan with the times that the model predicts."""
    (planned,) = plan.communications
    return replace(plan, communications=(predict(cost_model(plan, planned), planned.communication, planned.pipelined),))


@pytest.mark.parametrize("form", FORMS)
def test_a_view_is_small_and_says_what_the_plan_says(form: str) -> None:
    found = view_of(best(form), ranking(form))
    text = json.dumps(found, allow_nan=False)
    assert len(text) < 60_000
    assert json.loads(text) == found
    chosen = found["plans"][found["chosen"]]
    assert chosen["matrix"] == [list(row) for row in best(form).placement.matrix]
    assert [each["seconds"] for each in found["plans"]] == pytest.approx(
        [each.seconds for each in ranking(form).candidates[:MOST_PLANS]], rel=1e-5
    )
    assert found["certificate"] == ranking(form).certificate()


def test_a_plan_from_a_file_is_shown_beside_other_placements(tmp_path: Path) -> None:
    write_plan(ranking("two levels").candidates[1], tmp_path / "second.json")
    found = view_of(read_plan(tmp_path / "second.json"))
    assert found["chosen"] == 1
    assert [each["matrix"] for each in found["plans"]] == [
        [list(row) for row in each.placement.matrix] for each in ranking("two levels").candidates
    ]
    assert any(each["kind"] == "plan" and "another placement" in each["change"] for each in found["advice"])


NARROW = Library(
    "narrow",
    False,
    tuple(
        (each, (LibraryRule(("recursive" if each is Collective.REDUCE_SCATTER else "ring",)),)) for each in Collective
    ),
)
"""It has no ReduceScatter for groups whose size is no power of two."""


def test_a_plan_whose_other_placements_cannot_be_had_is_shown(tmp_path: Path) -> None:
    alone = make_plan(
        "node=2@1GB/s,gpu=3@8GB/s", {"data": 6}, [parse_reduction("data=1MiB")], library=NARROW, max_steps=1
    )
    write_plan(alone.candidates[0], tmp_path / "plan.json")
    found = view_of(read_plan(tmp_path / "plan.json"))
    (note,) = found["notes"]
    assert note.startswith("Other placements are not shown: the library 'narrow' has no algorithm for ReduceScatter in")
    assert [each["seconds"] for each in found["plans"]] == pytest.approx([alone.candidates[0].seconds], rel=1e-5)
    assert run("explain", f"{tmp_path}/plan.json").exit_code == 0


def test_a_plan_in_more_chunks_than_are_searched_is_shown(tmp_path: Path) -> None:
    plan = best("in chunks")
    first, *others = plan.communications
    program = next(program_graph(len(plan.hierarchy(first).names), max_steps=3).programs())
    cut = predict(cost_model(plan, first), first.communication, Pipelined(((program, 100),)))
    write_plan(replace(plan, communications=(cut, *others)), tmp_path / "plan.json")
    found = view_of(read_plan(tmp_path / "plan.json"))
    assert len(found["plans"]) > 1
    assert len(found["plans"][found["chosen"]]["communications"][0]["order"]) == 100
    assert found["snippets"][0]["note"].endswith("these were measured, or written by hand.")
    assert run("explain", f"{tmp_path}/plan.json").exit_code == 0


def test_programs_on_one_placement_are_candidates_too() -> None:
    best_plan = best("two levels")
    one = best_plan.communications[0].communication
    at = best_plan.placement
    found = make_plan(at.system, at.sizes, [one], placement=at, top=3)
    view = view_of(found.candidates[0], found)
    assert [each["communications"][0]["program"] for each in view["plans"]] == [
        each.program_text(each.reductions[0]) for each in found.candidates
    ]
    assert view["chosen"] == 0


@pytest.mark.parametrize(
    ("system", "drawn"),
    [
        ("node=4@1GB/s,gpu=8@8GB/s", [4, 8]),
        ("node=128@1GB/s,gpu=8@8GB/s", [128, 8]),
        ("pod=64@1GB/s,rack=16@1GB/s,node=16@1GB/s,gpu=8@8GB/s", [2, 4, 16, 8]),
        ("node=1000@1GB/s,gpu=1000@8GB/s", [2, 512]),
    ],
)
def test_large_systems_are_drawn_in_part_and_say_so(system: str, drawn: list[int]) -> None:
    levels = parse_system(system).levels
    plan = best("one device")
    size = prod(level.count for level in levels)
    at = replace(plan.placement, system=parse_system(system), axes=("data",), matrix=(tuple(x.count for x in levels),))
    planned = predict(
        cost_model(replace(plan, placement=at), plan.reductions[0]),
        plan.reductions[0].communication,
        Pipelined.of(next(program_graph(len(levels), max_steps=1).programs())),
    )
    found = view_of(replace(plan, placement=at, communications=(planned,)), ranking("one device"))
    assert [level["drawn"] for level in found["system"]["levels"]] == drawn
    assert prod(drawn) <= MOST_DRAWN
    assert any(f"Of {size:,} devices the first are drawn" in note for note in found["notes"]) == (prod(drawn) < size)


def gives(text: str, plan: Plan, path: Path) -> bool:
    """Whether a command writes a plan with the same placement and programs."""
    assert run(*shlex.split(text)[1:], "--out", str(path)).exit_code == 0
    again = read_plan(path)
    programs = [[each.program_text(one) for one in each.reductions] for each in (again, plan)]
    return again.placement == plan.placement and programs[0] == programs[1]


@pytest.mark.parametrize("form", [form for form in FORMS if form != "a mix"])
def test_the_command_line_gives_the_same_plan(form: str, tmp_path: Path) -> None:
    assert gives(command(best(form)).text, best(form), tmp_path / "plan.json")


@pytest.mark.parametrize(
    "settings",
    [
        Settings(placement_only=True),
        Settings("gloo", placement_only=True),
        Settings("nccl", engine="jax"),
        Settings("nccl", no_rooted=True, chunks=4),
        Settings("nccl", max_steps=2),
        Settings("nccl", chunks=32),
    ],
)
def test_the_command_line_gives_the_same_plan_with_the_same_settings(settings: Settings, tmp_path: Path) -> None:
    """Also those of a file, which does not say how it was made, where these are found."""
    reductions = [parse_reduction(text) for text in ("data=64MiB", "tensor=1MiB*80")]
    sizes = {"data": 8, "tensor": 4}
    (plan, *_) = make_plan("node=4@1GB/s+5us,gpu=8@3GB/s", sizes, reductions, **settings.arguments()).candidates
    told = command(plan, settings=settings)
    assert not told.note
    assert gives(told.text, plan, tmp_path / "plan.json")
    known = command(read_plan(tmp_path / "plan.json"))
    assert not known.note
    assert gives(known.text, plan, tmp_path / "again.json")


def test_what_is_to_be_copied_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For JAX all of it, on eight devices; PyTorch and MPI would need ranks: all names in it are there."""
    reductions = [parse_reduction("data=1MiB"), parse_reduction("tensor=1MiB")]
    sizes, jax = {"data": 4, "tensor": 2}, Settings(engine="jax").arguments()
    (plan, *_) = make_plan("node=2@1GB/s,gpu=4@8GB/s", sizes, reductions, **jax).candidates
    write_plan(plan, tmp_path / "plan.json")
    monkeypatch.chdir(tmp_path)
    found = {each.name: each.text for each in snippets(plan)}
    names: dict[str, Any] = {}
    exec(found["JAX"].partition("\n\n# or")[0], names)
    assert names["mesh"].devices.shape == (4, 2)
    exec(found["JAX"].partition("too\n")[2], names)
    assert sorted(names["mesh"].shape.values()) != []
    for name, begin in (("PyTorch", "programs\n"), ("MPI", "train.py\n")):
        command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F821,E9", "-"]
        text = found[name].rpartition(begin)[2]
        assert "Reducer" in text
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_what_the_command_line_cannot_say_is_named() -> None:
    plan = best("two levels")
    other = replace(plan.placement.system, name="<script>alert(1)</script>")
    found = command(replace(plan, placement=replace(plan.placement, system=other)))
    assert "--system system.yaml" in found.text
    assert "system.yaml" in found.note


def test_measurements_stand_beside_predictions() -> None:
    plan = best("two levels")
    text = plan.program_text(plan.reductions[0])
    known = [
        measurement(plan, text, [2.5, 2.0, 9.0]),
        measurement(plan, DEFAULT_PROGRAM, [4.0]),
        replace(measurement(plan, text, [1.0]), bytes=7),
        replace(measurement(plan, text, [1.0]), alone=True),
    ]
    first, second = view_of(plan, measurements=known)["plans"][0]["communications"]
    assert first["measured"] == {"engine": "torch", "seconds": 2.5, "default_seconds": 4.0}
    assert second["measured"] is None


def test_what_a_plan_was_tuned_by_stands_beside_predictions() -> None:
    plan = best("two levels")
    first, *others = plan.reductions
    size = first.communication.bytes
    chosen, own = Measured(first.pipelined, 2.5, 0.1), Measured(None, 4.0, 0.1)
    tuned = replace(first, tuned=(Tuned(size, size, size, "mpi", "here", chosen, (own,)),))
    found = view_of(replace(plan, communications=(tuned, *others)))["plans"][0]["communications"]
    assert found[0]["measured"] == {"engine": "mpi", "seconds": 2.5, "default_seconds": 4.0}


def test_a_program_without_steps_is_shown() -> None:
    (found,) = view_of(best("one device"))["plans"][0]["communications"]
    assert found["program"] == "nothing"
    assert found["flows"] == [{"steps": [], "states": [[[0, 0]]]}]
    assert best("one device").reductions[0].program == Program(())
