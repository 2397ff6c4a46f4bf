"""Ctrl-C during `plan`, and the line that shows the progress of every verb that may take long."""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
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
from meshwright.planning.constraints import Constraint
from meshwright.planning.planner import Planner
from meshwright.planning.ranking import Ranking, Sofar
from meshwright.planning.terms import Found, Problem
from tests.cli.test_verbs import run

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
    return run(*COMMAND, *more)


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


def chosen(monkeypatch: pytest.MonkeyPatch, after: int, number: int, *more: str) -> Result:
    """What `plan --choose` prints when a signal comes after some choices of sizes were planned."""
    best, planned = Planner.best, 0

    def stopped(self: Planner, top: int, constraints: Sequence[Constraint] = ()) -> Ranking:
        nonlocal planned
        planned += 1
        if planned > after:
            os.kill(os.getpid(), number)
        return best(self, top, constraints)

    monkeypatch.setattr(Planner, "best", stopped)
    command = ["plan", "--workload", "dense-70b", "--system", "dgx-h100:8", "--top", "3"]
    return run(*command, "--choose", "shard,tensor,pipeline", "--axes", "data=1", *more)


def test_ctrl_c_gives_the_best_sizes_so_far(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    every = json.loads(chosen(monkeypatch, 1000, signal.SIGINT, "--json").stdout)
    assert (every["interrupted"], every["sizes"]["tried"]) == (False, every["sizes"]["ways"])
    monkeypatch.undo()
    out = tmp_path / "plan.json"
    result = chosen(monkeypatch, 2, signal.SIGINT, "--json", "--compare", "--out", str(out))
    assert result.exit_code == 130
    found = json.loads(result.stdout)
    assert found["interrupted"]
    assert "comparison" not in found
    assert len(found["sizes"]["best"]) == 2
    assert found["sizes"]["tried"] < found["sizes"]["ways"] == every["sizes"]["ways"]
    assert found["sizes"]["best"][0]["seconds"] >= every["sizes"]["best"][0]["seconds"]
    assert read_plan(out).seconds == pytest.approx(found["candidates"][0]["seconds"])


def test_sizes_that_were_not_tried_may_be_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    result = chosen(monkeypatch, 2, signal.SIGINT)
    assert result.exit_code == 130
    assert re.search(
        r"\d+ of \d+ choices of sizes;.*; not proven: interrupted, and others may be faster.", result.stdout
    )


@pytest.mark.parametrize(("after", "number"), [(0, signal.SIGINT), (2, signal.SIGTERM)])
def test_without_sizes_or_with_another_signal_there_is_no_answer(
    after: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = chosen(monkeypatch, after, number)
    name = signal.Signals(number).name
    assert (result.exit_code, result.stdout) == (128 + number, "")
    assert result.stderr == f"Error: interrupted by {name}\n"


class AtOnce:
    """A timer that does not wait."""

    daemon = False

    def __init__(self, _seconds: float, work: Callable[[], None]) -> None:
        self.start, self.cancel, self.join = work, lambda: None, lambda: None


RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("programs --hierarchy node=2,gpu=4", ["looking for programs", "0 of 93 programs"]),
        ("programs --hierarchy node=2,gpu=4 --json", ["looking for programs", "0 of 93 programs"]),
        ("placements --system node=2,gpu=4 --axes a=4,b=2", ["counting placements", "0 of 2 placements"]),
        ("placements --system node=2,gpu=4 --axes a=4,b=2 --json", ["counting placements", "0 of 2 placements"]),
        ("reproduce", ["0 cases", "looking for all programs"]),
        (f"accuracy {RESULTS}/study-2x8.jsonl", ["predicting what was measured"]),
        (
            f"calibrate --system node=2@1GB/s,gpu=8@2GB/s --measurements {RESULTS}/calibration-2x8.jsonl --fit-only",
            ["fitting", "observations"],
        ),
        (
            "bench --system node=2@1GB/s,gpu=2@2GB/s --axes a=4 --reduce a=64B --engine numpy --every 1 --out m",
            ["0 of 1 placements, looking for programs to measure"],
        ),
        ("discover --hosts n[1-4] --node-type dgx-h100", ["reading the topology"]),
        ("plan --system node=2@1GB/s,gpu=4@2GB/s --axes a=8 --reduce a=1MB --compare", ["searching", "other tools"]),
    ],
)
def test_every_verb_shows_its_progress(
    command: str, lines: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown = StringIO()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress_module, "Timer", AtOnce)
    monkeypatch.setattr(progress_module, "Console", lambda **_: Console(file=shown, force_terminal=True, width=100))
    result = CliRunner().invoke(main, command.split())
    assert result.exit_code == 0, result.output
    for line in lines:
        assert line in shown.getvalue()


def test_of_the_ranks_only_the_first_shows_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "Timer", AtOnce)
    monkeypatch.setenv("RANK", "1")
    shown = StringIO()
    with progress(console=Console(file=shown, force_terminal=True)):
        pass
    assert shown.getvalue() == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_a_line_on_a_terminal(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "PATIENCE", 0.0)
    shown = StringIO()
    with progress(console=Console(file=shown, force_terminal=terminal, width=80)) as show:
        show("7 of [12] placements timed")
        for _ in range(100):
            if "7 of [12] placements timed" in shown.getvalue():
                break
            time.sleep(0.1 if terminal else 0)
    assert ("7 of [12] placements timed" in shown.getvalue()) is terminal
    assert bool(shown.getvalue()) is terminal


def test_what_takes_less_than_two_seconds_shows_nothing() -> None:
    shown = StringIO()
    with progress(console=Console(file=shown, force_terminal=True)) as show:
        show("nearly done")
    assert shown.getvalue() == ""


def test_the_bar_says_what_is_done_and_what_is_left() -> None:
    clock = iter(float(second) for second in range(10_000))
    shown = StringIO()
    console = Console(file=shown, force_terminal=True, width=100, get_time=lambda: next(clock))
    line = progress_module.bar(console)
    line.get_time = lambda: next(clock)
    counted, share = line.add_task("things", total=100), line.add_task("a share", total=1)
    for number in range(1, 41):
        line.update(counted, completed=number, description=f"{number} of 100 things")
        line.update(share, completed=number / 100)
    rows = console.render_str("").plain, *(line.make_tasks_table([task]) for task in line.tasks)
    console.print(*rows)
    text = shown.getvalue()
    assert "40 of 100 things" in text
    assert re.search(r"about \d+:\d\d left", text)
    assert text.count("left") == 1  # when a share will be done, no clock can tell
