"""Measurements as a file: one JSON object per line, each written as it happens, so that a killed run loses nothing.

The first line names the format. A line `{"started": ID}` precedes each measurement; if the result is missing, the run
was killed in the middle. If it was killed while it wrote a line, that torn line is cut off when the file is opened
again. For example, this run was killed during its second measurement:

    {"format": "meshwright-measurements", "version": 1}
    {"started": "[{…}, \"AllReduce all\", …]"}
    {"system": {…}, "program": "AllReduce all", …, "seconds": [0.21, 0.20, 0.21], …}
    {"started": "[{…}, \"Reduce all; Broadcast all\", …]"}
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from meshwright.errors import MeshwrightError, SpecError
from meshwright.language.goals import as_goal
from meshwright.placement.placement import Placement
from meshwright.system.model import System
from meshwright.system.read import system_of
from meshwright.text.files import append_file
from meshwright.text.spec import as_tuple, check_type, is_number, no_constant, shown, unknown
from meshwright.workload.communication import Reduction

FORMAT, VERSION = "meshwright-measurements", 1
HEADER = {"format": FORMAT, "version": VERSION}

PATIENCE = 10.0  # seconds to wait for another process that adds to the same file
MAX_TEXT = 2**27  # the most bytes of a file of measurements
SHORTEST, LONGEST = 1e-9, 1e6  # what the times of measurements lie between, in seconds

# In place of a program, as DEFAULT_PROGRAM is:
SEND = "send"  # devices of one instance of a level send the payload to their counterparts in the next


@dataclass(frozen=True, slots=True)
class Measurement:
    """One program of one reduction on one placement, measured: the seconds of the slowest rank in each repetition."""

    system: dict[str, Any]  # as in system files
    axes: list[str]
    matrix: list[list[int]]
    over: list[str]
    goal: str
    bytes: int
    program: str
    engine: str
    alone: bool = False  # whether only the first group ran, not all at once
    seconds: list[float] = field(default_factory=list)
    links: dict[str, int] | None = None  # for each level, the bytes on its busiest link in one run, on a testbed
    failed: str | None = None  # why there is no result

    @property
    def id(self) -> str:
        """What tells measurements apart: everything but the results. It is in files, so its form must not change."""
        return json.dumps(
            [self.system, self.axes, self.matrix, self.over, self.goal, self.bytes, self.program, self.engine]
            + ([self.alone] if self.alone else []),
            sort_keys=True,
        )

    def placement(self, system: System | None = None) -> Placement:
        """Where the axes were, on the system of the measurement or on another one of the same shape."""
        rows = tuple(as_tuple(row, int, "factors") for row in as_tuple(self.matrix, list, "rows"))
        return Placement(system or system_of(self.system, "its system"), as_tuple(self.axes, str, "axes"), rows)


class Records(AbstractContextManager["Records"]):
    """A file of measurements that is being added to; refuses at once where it cannot be written."""

    def __init__(self, path: Path) -> None:
        """Open the file, or start it; cut off a torn last line."""
        self.path = path
        self.done: dict[str, Measurement] = {}
        self.unfinished: dict[str, int] = {}
        self._file = append_file(path, "measurements to")
        try:
            self._lock()
            if self._load() == 0:
                self._write(HEADER)
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        """Be the only process that adds to the file; one that was just killed may take a moment to be gone."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SpecError(
                        f"another process adds measurements to {str(self.path)!r}: wait for it, or name another file"
                    ) from None
                time.sleep(0.05)
            except OSError:  # a file system without locks
                return None

    def _load(self) -> int:
        """Read what the file has, and cut off a torn last line; returns how many bytes are left."""
        text = _text(self.path)
        size, whole = len(text), text.rfind(b"\n") + 1
        if whole == 0 and not _line(HEADER).startswith(text):
            raise SpecError(f"{str(self.path)!r} is not a file of measurements, so nothing is added to it")
        for entry in entries(self.path):
            if isinstance(entry, Measurement):
                self.done[entry.id] = entry
                self.unfinished.pop(entry.id, None)
            else:
                self.unfinished[entry] = self.unfinished.get(entry, 0) + 1
        if whole < size:
            os.truncate(self._file.fileno(), whole)
        return whole

    def start(self, measurement: Measurement) -> None:
        """Note that a measurement begins."""
        self._write({"started": measurement.id})

    def touch(self) -> None:
        """Show that a measurement goes on."""
        os.utime(self._file.fileno())

    def add(self, measurement: Measurement) -> None:
        """Add a result."""
        self.done[measurement.id] = measurement
        self._write(asdict(measurement))

    def _write(self, line: dict[str, Any]) -> None:
        handle, text = self._file.fileno(), _line(line)
        before = os.fstat(handle).st_size
        try:
            while text:  # a disk that is getting full takes only some of it
                text = text[os.write(handle, text) :]
            os.fsync(handle)
        except OSError as error:
            with suppress(OSError):
                os.truncate(handle, before)
            self._file.close()
            raise SpecError(f"cannot write measurements to {str(self.path)!r}: {error}") from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps(document, allow_nan=False).encode() + b"\n"


def read_measurements(path: Path) -> list[Measurement]:
    """The measurements of a file, each the last of its kind."""
    found = {entry.id: entry for entry in entries(path) if isinstance(entry, Measurement)}
    if not found:
        raise SpecError(f"{path} has no measurements")
    return list(found.values())


def entries(path: Path) -> Iterator[Measurement | str]:
    """The measurements of a file, each checked completely, and the ids of those that were started, in order."""
    text = _text(path)
    for number, line in enumerate(text[: text.rfind(b"\n") + 1].split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            document = json.loads(line, parse_constant=no_constant)
        except (ValueError, RecursionError):
            raise SpecError(
                f"{path} line {number}: expected a JSON object, not {line[:40].decode(errors='replace')!r}"
            ) from None
        if number == 1:
            if not isinstance(document, dict) or document.get("format") != FORMAT:
                raise SpecError(f"{path} is not a file of measurements: line 1 should be {{'format': {FORMAT!r}, …}}")
            if document.get("version") != VERSION:
                raise SpecError(f"{path} has version {shown(document.get('version'))}; this Meshwright reads {VERSION}")
            continue
        if isinstance(document, dict) and set(document) == {"started"}:
            yield str(document["started"])
            continue
        try:
            yield _measurement(document)
        except MeshwrightError as error:
            raise SpecError(f"{path} line {number}: not a measurement: {error}") from None


def _measurement(document: Any) -> Measurement:
    """A measurement from its line; refuses what no bench writes."""
    check_type(document, dict, "a JSON object")
    known = {one.name: one for one in fields(Measurement)}
    for key in document:
        if key not in known:
            raise SpecError(unknown("key", key, known))
    for key, one in known.items():
        if key not in document and one.default is MISSING and one.default_factory is MISSING:
            raise SpecError(f"{key!r} is missing")
    found = Measurement(**document)
    system = system_of(found.system, "its system")
    for key in ("program", "engine"):
        check_type(getattr(found, key), str, f"a text for {key!r}")
    found.placement(system)
    for axis in Reduction(as_tuple(found.over, str, "axes"), found.bytes, goal=as_goal(found.goal)).axes:
        if axis not in found.axes:
            raise SpecError(unknown("axis", axis, found.axes))
    check_type(found.alone, bool, "true or false for 'alone'")
    for seconds in as_tuple(found.seconds, object, "seconds"):
        check_seconds(seconds)
    if found.links is not None:
        check_type(found.links, dict, "the bytes of each level for 'links'")
        for level, amount in found.links.items():
            check_type(amount, int, f"the bytes that crossed {shown(level)}")
    if found.failed is not None:
        check_type(found.failed, str, "why it failed, as text")
    return found


def check_seconds(seconds: float) -> None:
    """Refuse what no clock can show for a collective."""
    if not is_number(seconds) or not SHORTEST <= seconds <= LONGEST:
        raise SpecError(f"{shown(seconds)} is no time that was measured: expected {SHORTEST:g} to {LONGEST:g} seconds")


def _text(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_TEXT + 1)
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read measurements from {str(path)!r}: {error}") from None
    if len(text) > MAX_TEXT:
        raise SpecError(f"the measurements in {str(path)!r} have more than {MAX_TEXT:,} bytes: split the file")
    return text
