"""Traces: a plan in time as Chrome's trace events, which Perfetto and chrome://tracing show.

A process is a device. Its first track has the communications one after the other, each once; the second has what was
measured of them. Below, there is a track for the links of each level, and more than one where steps overlap there.

Perfetto drops an event that overlaps another one of its track, be it by a nanosecond. So times are whole nanoseconds
here, and written so that they still are when a reader multiplies the microseconds of the file by 1000 and cuts off the
rest.
"""

import json
from collections.abc import Sequence
from itertools import islice, product
from math import inf, nextafter, prod
from pathlib import Path
from typing import Any

from meshwright.language.program import Step
from meshwright.measure.records import Measurement
from meshwright.placement.hierarchy import digits_of, number_of
from meshwright.placement.placement import Placement
from meshwright.planning.plan import Plan, Planned
from meshwright.runtime.calls import describe
from meshwright.show.measured import Seen, seen
from meshwright.show.timeline import Timeline, timeline
from meshwright.text.files import write_file

MOST_DEVICES = 256
"""With more devices, only some of each kind have a process."""

MOST_EVENTS = 400_000
"""A trace has at most about this many events, so that it can be opened; beyond, fewer devices have a process."""

PREDICTED, MEASURED = 1, 2
"""The tracks of the whole communications."""

FIRST_PROCESS = 1000
"""The number of the first device's process, to which Perfetto adds its name: device 12 is process 1012, where all have
one. Process 0 would be an idle processor."""

Event = dict[str, Any]


def write_trace(plan: Plan, path: Path, measurements: Sequence[Measurement] = ()) -> str:
    """Write the trace of a plan to a file; returns which devices are left out, if some are."""
    document = trace_document(plan, measurements)
    write_file(path, json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n", "the trace")
    return str(document["otherData"].get("shown", ""))


def trace_document(plan: Plan, measurements: Sequence[Measurement] = ()) -> dict[str, Any]:
    """The trace of a plan, as plain data."""
    system, lines = plan.placement.system, [timeline(plan, planned) for planned in plan.communications]
    spans = sum(sum(len(span.phase.loads) for span in line.spans()) for line in lines)
    devices = _devices(system.counts, min(MOST_DEVICES, max(1, MOST_EVENTS // max(1, spans))))
    about: dict[str, Any] = {"system": system.name, "library": plan.library.name, "devices": system.devices}
    if len(devices) < system.devices:
        about["shown"] = f"{len(devices)} of {system.devices:,} devices have a process; the others do the same"
    measured = [seen(plan, planned, measurements) for planned in plan.communications]
    names, events = [], []
    for process, device in enumerate(devices, FIRST_PROCESS):
        one = _Device(plan, device, process)
        start = 0.0
        for planned, line, known in zip(plan.communications, lines, measured, strict=True):
            one.add(planned, line, start, known)
            start += max(planned.seconds, known.seconds if known else 0.0)
        names += one.names(len(str(devices[-1])))
        events += one.events
    events.sort(key=lambda event: (event["ts"], event["pid"], event["tid"]))
    return {"traceEvents": [*names, *events], "displayTimeUnit": "ms", "otherData": about}


def _devices(counts: Sequence[int], most: int) -> list[int]:
    """The devices that have a process: all, or of each level the first two, which are of different kinds."""
    if prod(counts) <= most:
        return list(range(prod(counts)))
    digits = product(*(range(min(count, 2)) for count in counts))
    return [number_of(each, counts) for each in islice(digits, most)]


class _Device:
    """The events of one device."""

    def __init__(self, plan: Plan, device: int, process: int) -> None:
        self.plan, self.device, self.process = plan, device, process
        self.levels = [level.name for level in plan.placement.system.levels]
        self.events: list[Event] = []
        self.busy: dict[tuple[int, int], int] = {}  # by level and lane, the nanosecond in which the last event ends

    def add(self, planned: Planned, line: Timeline, start: float, known: Seen | None) -> None:
        """Add one of the plan's communications, which starts at `start` seconds, and what was measured of it."""
        one, axes = planned.communication, planned.communication.axes
        name = one.name or describe(planned)
        args = {"program": self.plan.program_text(planned), "count": one.count, "hidden": one.hidden}
        at = nanoseconds(start)
        self._event(PREDICTED, name, at, nanoseconds(start + planned.seconds), args | {"bytes": one.bytes})
        if known is not None:
            self._event(MEASURED, name, at, nanoseconds(start + known.seconds), {"engine": known.engine})
        digits = _digits(self.plan.placement, axes, self.device)
        for span in line.spans():
            flow = line.flows[span.flow]
            if flow.program is not None and not _takes_part(flow.program.steps[span.step], digits):
                continue
            begin, end = nanoseconds(start + span.start), nanoseconds(start + span.end)
            for load in (load for load in span.phase.loads if load.bytes):
                args = {"chunk": span.chunk, "algorithm": flow.costs[span.step].algorithm}
                args |= {"link_bytes": load.bytes, "link_seconds": load.seconds}
                track, free = self._lane(self.levels.index(load.level), begin, end)
                self._event(track, flow.names[span.step], max(begin, free), end, args)

    def _lane(self, level: int, start: int, end: int) -> tuple[int, int]:
        """The number of a track of a level where nothing is under way, and since when that is so.

        What is rounded may seem to overlap by a nanosecond what it follows.
        """
        lane = 0
        while (free := self.busy.get((level, lane), 0)) > start + 1:
            lane += 1
        self.busy[level, lane] = max(free, end)
        return _track(level, lane), free

    def _event(self, track: int, name: str, start: int, end: int, args: dict[str, Any]) -> None:
        kind = "measured" if track == MEASURED else "predicted"
        event = {"ph": "X", "name": name, "cat": kind, "pid": self.process, "tid": track, "ts": microseconds(start)}
        self.events.append(event | {"dur": microseconds(max(0, end - start)), "args": args})

    def names(self, width: int) -> list[Event]:
        """The names of the process and its tracks; Perfetto sorts processes by their names, so numbers have a width."""
        at = ", ".join(f"{axis} {k}" for axis, k in self.plan.placement.coordinates(self.device).items())
        found = [
            _name("process_name", self.process, 0, name=f"device {self.device:0{width}} ({at})"),
            _name("process_sort_index", self.process, 0, sort_index=self.process),
        ]
        tracks = {PREDICTED: "communications, predicted"}
        if any(event["tid"] == MEASURED for event in self.events):
            tracks[MEASURED] = "communications, measured"
        for level, lane in sorted(self.busy):
            more = f" ({lane + 1})" if lane else ""
            tracks[_track(level, lane)] = f"links of {self.levels[level]}, predicted{more}"
        for track, name in tracks.items():
            found.append(_name("thread_name", self.process, track, name=name))
            found.append(_name("thread_sort_index", self.process, track, sort_index=track))
        return found


def _digits(placement: Placement, axes: Sequence[str], device: int) -> list[int]:
    """The digits of a device in the hierarchy of its reduction group."""
    rows, found = placement.rows(axes), []
    positions = digits_of(device, placement.system.counts)
    for position, column in zip(positions, zip(*placement.matrix, strict=True), strict=True):
        digits, factors = digits_of(position, column), [column[row] for row in rows]
        if prod(factors) > 1:
            found.append(number_of([digits[row] for row in rows], factors))
    return found


def _takes_part(step: Step, digits: Sequence[int]) -> bool:
    """Whether a device is in a group of a step: with masters, only those with zeros below the group's levels are."""
    return not (step.grouping.masters and any(digits[step.grouping.last + 1 :]))


def nanoseconds(seconds: float) -> int:
    """Seconds as whole nanoseconds."""
    return round(seconds * 1e9)


def microseconds(number: int) -> float:
    """Nanoseconds as microseconds, from which they come again where a reader cuts off what is not whole.

    >>> microseconds(1001), int(1.001 * 1000), int(microseconds(1001) * 1000)
    (1.0010000000000001, 1000, 1001)
    """
    found = number / 1000
    return found if int(found * 1000) >= number else nextafter(found, inf)


def _track(level: int, lane: int) -> int:
    """The number of a track, which no process has: Perfetto would take it for the main one and put it first."""
    return 10_000 * (level + 1) + lane


def _name(what: str, process: int, track: int, **args: Any) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": track, "ts": 0, "args": args}
