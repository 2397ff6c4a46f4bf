"""Ctrl-C during `plan`, and the line that shows progress."""

import json
import os
import signal
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from meshwright import Reduction, parse_system, plan, read_plan
from meshwright.cli import main
from meshwright.cli import progress as progress_module
from meshwright.cli.progress import progress
from meshwright.planning import planner, search, sweep
from meshwright.planning.ranking import Sofar
from meshwright.planning.terms import Found, Problem

SYSTEM = "a=8@25GB/s,b=8@50GB/s,c=8@50GB/s,d=8@200GB/s"
REDUCTIONS = [f"--reduce={pair}=256MiB" for pair in ("w+x", "x+y", "y+z", "w+z", "w+y")]
COMMAND = ["plan", "--system", SYSTEM, "--axes", "w=8,x=8,y=8,z=8", *REDUCTIONS, "--top", "2"]


def interrupted(monkeypatch: pytest.MonkeyPatch, after: int, number: int = signal.SIGINT, *more: str) -> Result:
    """What the command prints when a signal comes after the search has reported some times."""
    searching = search.searching

    def stopped(problem: Problem) -> Iterator[Found]:
        for count, found in enumerate(searching(problem)):
            yield found
            if count == after:
                os.kill(os.getpid(), number)

    monkeypatch.setattr(search, "REPORTED", 1)
    monkeypatch.setattr(search, "PATIENCE", 300)
    monkeypatch.setattr(sweep, "REPORTED", 1)
    monkeypatch.setattr(planner, "searching", stopped)
    return CliRunner().invoke(main, [*COMMAND, *more])


@pytest.mark.parametrize("after", [0, 20])
def test_ctrl_c_gives_the_best_so_far_and_the_gap(after: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    proven = json.loads(CliRunner().invoke(main, [*COMMAND, "--json"]).stdout)
    assert (proven["interrupted"], proven["at_least_seconds"], proven["gap"]) == (False, None, 0.0)
    out = tmp_path / "plan.json"
    result = interrupted(monkeypatch, after, signal.SIGINT, "--json", "--out", str(out))
    assert result.exit_code == 130
    found = json.loads(result.stdout)
    best, truth = found["candidates"][0]["seconds"], proven["candidates"][0]["seconds"]
    assert found["interrupted"]
    assert len(found["candidates"]) <= found["evaluated"]
    assert found["at_least_seconds"] <= truth * (1 + 1e-9) <= best * (1 + 2e-9)
    assert found["gap"] == pytest.approx(best / found["at_least_seconds"] - 1)
    assert read_plan(out).seconds == pytest.approx(best)


def test_the_certificate_says_that_nothing_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    result = interrupted(monkeypatch, 3, signal.SIGINT, "--compare")
    assert result.exit_code == 130
    assert "2,008 placements: " in result.stdout
    assert "were timed; not proven: interrupted; no placement can be faster than " in result.stdout
    assert "(gap " in result.stdout
    assert "Beside what is done today" not in result.stdout


def test_other_signals_end_it_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    result = interrupted(monkeypatch, 3, signal.SIGTERM)
    assert (result.exit_code, result.stdout) == (143, "")
    assert result.stderr == "Error: interrupted by SIGTERM\n"


def test_ctrl_c_before_anything_is_found_ends_with_the_usual_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: Problem) -> Iterator[Found]:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
        yield from ()

    monkeypatch.setattr(planner, "searching", nothing)
    result = CliRunner().invoke(main, COMMAND)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "Error: interrupted by SIGINT\n")


def test_who_watches_a_search_may_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "REPORTED", 1)
    seen: list[Sofar] = []

    def watch(sofar: Sofar) -> None:
        seen.append(sofar)
        if len(seen) == 5:
            raise TimeoutError

    what = [Reduction(tuple(pair), 2**28) for pair in ("wx", "xy", "yz", "wz", "wy")]
    with pytest.raises(TimeoutError):
        plan(parse_system(SYSTEM), dict.fromkeys("wxyz", 8), what, top=2, watch=watch)
    ranking = seen[-1].ranking()
    best = plan(parse_system(SYSTEM), dict.fromkeys("wxyz", 8), what, top=2)
    assert best.at_least is None
    assert ranking.at_least is not None
    truth = best.candidates[0].seconds
    assert ranking.at_least <= truth * (1 + 1e-9) <= ranking.candidates[0].seconds * (1 + 2e-9)
    assert ranking.candidates[0].seconds <= ranking.at_least * (1 + ranking.gap) * (1 + 1e-9)


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_a_line_on_a_terminal(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "PATIENCE", 0.0)
    shown = StringIO()
    with progress(Console(file=shown, force_terminal=terminal, width=80)) as show:
        show("7 of [12] placements timed")
        for _ in range(100):
            if "7 of [12] placements timed" in shown.getvalue():
                break
            time.sleep(0.1 if terminal else 0)
    assert ("7 of [12] placements timed" in shown.getvalue()) is terminal
    assert bool(shown.getvalue()) is terminal


def test_what_takes_less_than_two_seconds_shows_nothing() -> None:
    shown = StringIO()
    with progress(Console(file=shown, force_terminal=True)) as show:
        show("nearly done")
    assert shown.getvalue() == ""
