"""What people read fits 100 columns, in a pipe and in a terminal; in a terminal, `plan` draws the placement."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.console import Console

from meshwright import Placement, parse_system, placements, preset
from meshwright.cli.drawing import drawn
from meshwright.cli.output import print_table, wrap
from tests.cli.test_verbs import run
from tests.golden import TRANSCRIPTS, Entry, read_transcript

MOST = 100

COPIED = ("|   torch: ", "|   jax: ")
"""How lines begin that are code to copy: a line of Python is not broken."""

FOR_FILES = ("export", "hosts", "reproduce")
"""Verbs whose output is what a file of another tool, or a page, holds."""


def too_wide(entry: Entry) -> list[str]:
    """The lines of a recorded command's output that are wider than what people read may be."""
    words = entry.command.split()
    if words[0] == "cat" or set(words) & {*FOR_FILES, "run", "--json", "--help"}:
        return []
    written = [line for line in entry.lines if line.startswith("|") and not line.startswith(COPIED)]
    return [line for line in written if len(line) > MOST + 2]


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_no_line_is_wider_than_100_columns(path: Path) -> None:
    assert [line for entry in read_transcript(path) for line in too_wide(entry)] == []


def test_wide_lines_would_be_seen() -> None:
    wide = "| " + "x" * (MOST + 1)
    assert too_wide(Entry("meshwright systems", (wide, wide[:-1], "! " + wide))) == [wide]
    assert too_wide(Entry("meshwright systems --json", (wide,))) == []


def test_cells_are_wrapped_between_steps_and_words() -> None:
    steps = "ReduceScatter inside node; AllReduce across node; AllGather inside node, in 3 chunks"
    assert wrap(steps, 200) == [steps]
    assert wrap(steps, 55) == [
        "ReduceScatter inside node; AllReduce across node;",
        "AllGather inside node, in 3 chunks",
    ]
    assert wrap(steps, 16) == [
        "ReduceScatter",
        "inside node;",
        "AllReduce across",
        "node; AllGather",
        "inside node, in",
        "3 chunks",
    ]
    assert wrap("  indented cell", 12) == ["  indented", "  cell"]
    assert wrap("", 5) == [""]
    assert wrap("1,234,567", 3) == ["1,234,567"]  # nothing is cut


def test_tables_shrink_their_widest_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [["1", "word " * 30, "short"], ["2", "x", ""]]
    for columns in (60, 100, 400):
        monkeypatch.setenv("COLUMNS", str(columns))
        print_table(["", "long", "last"], rows)
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= columns
        assert (len(lines) == 3) is (columns == 400)
        assert all(line == line.rstrip() for line in lines)
        assert sum(line.count("word") for line in lines) == 30
    monkeypatch.setenv("COLUMNS", "60")
    print_table(["a"], [["y" * 90]])
    assert capsys.readouterr().out == f"a\n{'y' * 90}\n"  # a word is never cut


def test_what_was_run_fits(tmp_path: Path) -> None:
    """Of `run`, the transcripts have no lines as they are broken: that follows from the times."""
    steps = ["node=2@1GB/s+5us,gpu=4@8GB/s+1us", "--axes", "data=8", "--reduce", "data=16MiB", "--chunks", "8"]
    assert run("plan", "--system", *steps, "--out", str(tmp_path / "plan.json")).exit_code == 0
    done = run(
        "run", str(tmp_path / "plan.json"), "--engine", "numpy", "--bytes", "1MiB", "--repeat", "1", columns=MOST
    )
    assert done.exit_code == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= MOST
    assert "in 6 chunks" in " ".join(done.stdout.split())


# In a terminal


PLAN = ["plan", "--system", "node=2@1GB/s,gpu=4@8GB/s", "--axes", "data=4,tensor=2", "--reduce", "data=64MiB"]


def in_terminal(arguments: list[str], **environment: str) -> str:
    """What a command writes to a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, MOST, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    command = [sys.executable, "-m", "meshwright", *arguments]
    started = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**kept, "TERM": "xterm-256color", **environment}
    )
    os.close(theirs)
    text = b""
    while True:
        try:
            some = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not some:
            break
        text += some
    os.close(ours)
    assert started.wait() == 0, text.decode()
    return text.decode().replace("\r\n", "\n")


DRAWN = """
        data=4  tensor=2
node 0  0011    0101
node 1  2233    0101
"""


def test_plan_draws_the_placement_in_a_terminal() -> None:
    fixed = [*PLAN, "--placement", "data=2x2,tensor=1x2"]
    coloured = in_terminal(fixed)
    assert "\x1b[30;48;5;" in coloured
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", coloured)
    assert DRAWN in plain
    assert max(map(len, (line for line in plain.splitlines() if not line.startswith(("  torch:", "  jax:"))))) <= MOST
    without = in_terminal(fixed, NO_COLOR="1")
    assert "48;5;" not in without
    assert DRAWN in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", without)


def text_of(placement: Placement, width: int = MOST) -> list[str]:
    return [line.plain for line in drawn(placement, width)]


def test_drawings_of_other_systems() -> None:
    racks = parse_system("rack=2,node=2,gpu=2")
    placement = Placement(racks, ("a", "b", "one"), ((2, 1, 2), (1, 2, 1), (1, 1, 1)))
    assert text_of(placement)[:3] == ["               a=4  b=2", "rack 0 node 0  01   00", "rack 0 node 1  01   11"]
    wide = next(placements(preset("cpu-cluster"), {"a": 16, "b": 16}))  # two levels in a row
    assert text_of(wide)[1] == f"node 0  {'0' * 16} {'1' * 16}  {'0123456789abcdef'} {'0123456789abcdef'}"
    first = next(placements(preset("dgx-h100"), {"data": 16, "tensor": 8}))
    lines = text_of(first)
    assert lines[1] == "node 0  00000000  01234567"
    assert lines[-1] == "… and 8 more rows like these, 128 devices in all"
    assert len(lines) == 10
    many = next(placements(preset("gb200-nvl72"), {"data": 144, "tensor": 8}))
    lines = text_of(many)
    assert max(map(len, lines)) <= MOST
    assert any("…" in line for line in lines[:2])
    blank = Placement(parse_system("gpu=1"), ("a",), ((1,),))
    assert text_of(blank) == []


def test_drawings_fit_narrow_terminals() -> None:
    console = Console(width=60)
    for placement in list(placements(preset("cpu-racks"), {"a": 64, "b": 8, "c": 8}))[:20]:
        for line in drawn(placement, 60):
            assert console.measure(line).maximum <= 60
