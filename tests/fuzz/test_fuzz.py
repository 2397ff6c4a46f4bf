"""A few thousand cases of every target; and that the driver notices what it is for."""

import os
from pathlib import Path
from typing import Any

import pytest

from meshwright import SpecError
from tests.fuzz import driver
from tests.fuzz.targets import TARGETS, Target

COUNTS = {"programs": 1000, "specs": 1000, "topologies": 500, "calls": 500, "verbs": 50}
"""Where not 100: what plans nothing is cheap."""


@pytest.mark.parametrize("name", TARGETS)
def test_everything_is_accepted_or_refused_with_a_message(name: str) -> None:
    found = driver.fuzz([name], COUNTS.get(name, 100), seed=0)["targets"][name]
    assert found["failures"] == []
    assert found["cases"] == COUNTS.get(name, 100)
    assert found["accepted"] > 0


def _raise(error: BaseException) -> None:
    raise error


def _spin() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("use", "fault"),
    [
        (lambda *_: _raise(KeyError("x")), "KeyError: 'x' at "),
        (lambda *_: _raise(SpecError("")), "a message of 0 letters"),
        (lambda *_: _raise(SpecError("x" * 6000)), "a message of 6000 letters"),
        (lambda *_: _spin(), "over 0.2 s"),
        (lambda *_: bytearray(2**31), "MemoryError"),
        (lambda *_: os.write(1, b"On entry to DLASCL"), "written to the terminal: 'On entry to DLASCL'"),
    ],
    ids=["traceback", "no message", "long message", "time", "memory", "terminal"],
)
def test_the_driver_notices(monkeypatch: pytest.MonkeyPatch, use: Any, fault: str) -> None:
    monkeypatch.setitem(TARGETS, "made up", Target(lambda random: random.random(), use, 1.0))
    monkeypatch.setattr(driver, "MOST_SECONDS", 0.2)
    (found,) = driver.fuzz(["made up"], 1, seed=0)["targets"]["made up"]["failures"]
    assert found["fault"].startswith(fault)


def test_cases_are_the_same_every_time(tmp_path: Path) -> None:
    one, other = (driver.fuzz(["logs"], 50, seed=7)["targets"]["logs"] for _ in range(2))
    assert one["accepted"] == other["accepted"] < 50
    assert not list(tmp_path.iterdir())
