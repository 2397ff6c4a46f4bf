"""Traces are what the Perfetto UI takes, and their times are those that are predicted."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from meshwright import Hierarchy, Pipelined, parse_program, write_plan
from meshwright.measure.records import HEADER
from meshwright.planning.plan import DEFAULT_PROGRAM
from meshwright.show.trace import FIRST_PROCESS, MEASURED, MOST_DEVICES, PREDICTED, microseconds, trace_document
from tests.cli.test_verbs import run
from tests.export.plans import plan_of
from tests.show.chromium import started
from tests.show.perfetto import opened, rows
from tests.show.plans import FORMS, best, measurement


def tracks(document: dict[str, Any]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """The events with a duration, by process and track."""
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            found.setdefault((event["pid"], event["tid"]), []).append(event)
    return found


def whole(microseconds: float) -> int:
    """Nanoseconds, as Perfetto has them: what is not whole is cut off."""
    return int(microseconds * 1000)


@pytest.mark.parametrize("number", [0, 1, 999, 1001, 4_003, 1_234_567, 86_400_000_000_123])
def test_times_are_whole_nanoseconds(number: int) -> None:
    assert whole(json.loads(json.dumps(microseconds(number)))) == number


@pytest.mark.parametrize("form", FORMS)
def test_events_are_sorted_named_and_do_not_overlap(form: str) -> None:
    plan = best(form)
    document = trace_document(plan)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
    named = {(event["pid"], event["tid"]) for event in document["traceEvents"] if event["name"] == "thread_name"}
    found = tracks(document)
    assert set(found) == named
    for (_, track), each in found.items():
        for one, following in pairwise(each):
            assert whole(one["ts"]) + whole(one["dur"]) <= whole(following["ts"])
        if track == PREDICTED:
            total = sum(planned.seconds for planned in plan.communications)
            assert sum(event["dur"] for event in each) == pytest.approx(total * 1e6, abs=0.01)
            assert len(each) == len(plan.communications)
    devices = {process for process, _ in found}
    assert len(devices) == min(plan.placement.system.devices, MOST_DEVICES if form != "a thousand" else 4)
    assert ("shown" in document["otherData"]) == (form == "a thousand")


def test_links_are_busy_until_the_end() -> None:
    """The last event on a link ends when the communications do."""
    plan = best("in chunks")
    ends = [event["ts"] + event["dur"] for event in trace_document(plan)["traceEvents"] if event.get("dur")]
    assert max(ends) == pytest.approx(sum(planned.seconds for planned in plan.communications) * 1e6, rel=1e-6)


def test_only_masters_take_part_in_steps_of_masters() -> None:
    hierarchy = Hierarchy(("node", "gpu"), (2, 2))
    text = "Reduce inside node; AllReduce masters of node; Broadcast inside node"
    plan = plan_of(Pipelined.of(parse_program(text, hierarchy)), hierarchy)
    found = [event for event in trace_document(plan)["traceEvents"] if event["name"] == "AllReduce masters of node"]
    assert {event["pid"] for event in found} == {FIRST_PROCESS, FIRST_PROCESS + 2}  # devices 0 and 2


SLICES = """select process.name, thread.name, thread.tid, slice.name, slice.ts, slice.dur, slice.depth from slice
join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)"""


def test_the_perfetto_ui_shows_every_event(tmp_path: Path) -> None:
    """All of them with their times, processes in the order of devices, and nothing that it calls an error."""
    plan = best("in chunks")
    document = trace_document(plan, [measurement(plan, plan.program_text(plan.reductions[0]), [0.1])])
    (tmp_path / "trace.json").write_text(json.dumps(document))
    names = {
        (event["name"], event["pid"], event["tid"]): event["args"].get("name")
        for event in document["traceEvents"]
        if event["ph"] == "M"
    }
    expected = []
    for (process, track), events in tracks(document).items():
        whose = names["process_name", process, 0], names["thread_name", process, track], track
        expected += [[*whose, event["name"], whole(event["ts"]), whole(event["dur"]), 0] for event in events]
    with started() as browser, opened(browser, tmp_path / "trace.json") as page:
        assert rows(page, "select name, value from stats where severity <> 'info' and value > 0") == []
        assert sorted(rows(page, SLICES)) == sorted(expected)
        page.wait_for_function("app.trace.workspace.children.length === 64")
        shown = page.evaluate("app.trace.workspace.children.map((each) => each.name)")
        assert [name.split()[1] for name in shown] == [f"{device:02}" for device in range(64)]
        page.get_by_text("device 00 ").first.click()
        page.get_by_text("communications, measured").first.wait_for()


def test_measured_beside_predicted(tmp_path: Path) -> None:
    plan = best("two levels")
    known = [
        measurement(plan, plan.program_text(plan.reductions[0]), [3.0]),
        measurement(plan, DEFAULT_PROGRAM, [4.0]),
    ]
    write_plan(plan, tmp_path / "plan.json")
    lines = [HEADER, *({**{name: getattr(one, name) for name in one.__slots__}} for one in known)]
    (tmp_path / "measured.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ["show", f"{tmp_path}/plan.json", "--trace", f"{tmp_path}/trace.json"]
    done = run(*arguments, "--measurements", f"{tmp_path}/measured.jsonl")
    assert done.exit_code == 0, done.stderr
    found = tracks(json.loads((tmp_path / "trace.json").read_text()))
    (event,) = found[FIRST_PROCESS, MEASURED]
    assert event["dur"] == 3e6
    first, second = found[FIRST_PROCESS, PREDICTED]
    assert first["ts"] == event["ts"] == 0
    assert second["ts"] == 3e6  # after what was measured, which took longer
