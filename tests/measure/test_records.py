"""Files of measurements: nothing is lost, and what is damaged is said."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright import SpecError
from meshwright.measure.records import Measurement, Records, read_measurements

ONE = Measurement(
    system={"name": "s", "levels": [{"name": "gpu", "count": 2}]},
    axes=["data"],
    matrix=[[2]],
    over=["data"],
    goal="all-reduce",
    bytes=1024,
    program="AllReduce all",
    engine="numpy",
    seconds=[0.1, 0.2],
)
TWO = replace(ONE, program="default", seconds=[0.3])


def test_what_is_added_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    records = Records(path)
    for one in (ONE, TWO):
        records.start(one)
        records.add(one)
    records.close()
    assert read_measurements(path) == [ONE, TWO]
    again = Records(path)
    assert set(again.done) == {ONE.id, TWO.id}
    assert not again.unfinished
    again.close()
    assert len(path.read_text().splitlines()) == 5


def test_a_measurement_that_was_begun_is_known_as_unfinished(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    records = Records(path)
    records.add(TWO)
    records.start(ONE)
    records.start(ONE)
    records.close()
    with Records(path) as again:
        assert again.unfinished == {ONE.id: 2}


def test_only_one_at_a_time_adds_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.measure.records.PATIENCE", 0.0)
    path = tmp_path / "m.jsonl"
    with Records(path) as records:
        records.add(ONE)
        with pytest.raises(SpecError, match="another process adds measurements to"):
            Records(path)
        assert read_measurements(path) == [ONE]
    Records(path).close()


def test_a_disk_that_gets_full_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.jsonl"
    records = Records(path)
    records.add(ONE)
    before, write, room = path.read_bytes(), os.write, [100]

    def full(handle: int, data: bytes) -> int:
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, data[: room.pop()])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(SpecError, match=r"cannot write measurements to .*No space left on device"):
        records.add(TWO)
    assert path.read_bytes() == before
    monkeypatch.undo()
    with Records(path) as again:
        again.add(TWO)
    assert read_measurements(path) == [ONE, TWO]


def test_a_torn_last_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    records = Records(path)
    records.add(ONE)
    records.close()
    whole = path.read_text()
    path.write_text(whole + '{"system": {"na')
    assert read_measurements(path) == [ONE]
    records = Records(path)
    records.add(TWO)
    records.close()
    assert path.read_text().startswith(whole)
    assert read_measurements(path) == [ONE, TWO]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{broken\n", "line 1: expected a JSON object"),
        ('{"format": "other"}\n', "is not a file of measurements"),
        ('{"format": "meshwright-measurements", "version": 9}\n', "has version 9; this Meshwright reads 1"),
        ('{"format": "meshwright-measurements", "version": 1}\nnonsense\n', "line 2: expected a JSON object"),
        ('{"format": "meshwright-measurements", "version": 1}\n{"a": 1}\n', "line 2: not a measurement"),
        ('{"format": "meshwright-measurements", "version": 1}\n', "has no measurements"),
    ],
)
def test_damaged_files(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "m.jsonl").write_text(text)
    with pytest.raises(SpecError, match=message):
        read_measurements(tmp_path / "m.jsonl")


def test_what_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "m.jsonl", tmp_path, Path("/dev/full")):
        with pytest.raises(SpecError, match=r"cannot (write|read) measurements"):
            Records(path)


def test_the_id_is_of_what_is_measured_not_of_the_result() -> None:
    assert replace(ONE, seconds=[9.0], failed="x").id == ONE.id
    assert len({ONE.id, TWO.id, replace(ONE, bytes=1).id, replace(ONE, alone=True).id}) == 4
    assert json.loads(ONE.id)[-1] == "numpy"
