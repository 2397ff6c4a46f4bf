"""Recorded commands: what `meshwright` prints, word for word, so that a change of behaviour is seen and meant.

A transcript is a file of commands, each followed by what it printed when it was recorded:

    $ meshwright check "AllReduce all" --hierarchy node=2     the command; `cat FILE` shows a file that one has written
    | valid: AllReduce all                                    a line of stdout; JSON is indented
    ! note: rack has radix 1, …                               a line of stderr
    = 2                                                       the exit code, unless it is 0

The commands of a transcript run one after another in one folder, which begins with the contents of `files`.
`python -m tests.golden` records all again: `git diff` then shows what has changed.
"""

import json
import math
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from click.testing import CliRunner

from meshwright.cli import main

HERE = Path(__file__).parent
TRANSCRIPTS = sorted((HERE / "transcripts").glob("*.txt"))


@dataclass(frozen=True)
class Entry:
    """A command, and what it printed: the lines of a transcript below it."""

    command: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((f"$ {self.command}", *self.lines))


def read_transcript(path: Path) -> list[Entry]:
    """The entries of a transcript."""
    found: list[tuple[str, list[str]]] = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line:
            assert line.startswith(("| ", "! ", "= ")), f"{path.name}: {line!r}"
            found[-1][1].append(line)
    return [Entry(command, tuple(lines)) for command, lines in found]


def record(path: Path) -> None:
    """Run the commands of a transcript, and write again what has changed; what rounds differently has not."""
    entries = [
        old if same(old, new) else new for old, new in zip(read_transcript(path), run_transcript(path), strict=True)
    ]
    path.write_text("\n\n".join(map(str, entries)) + "\n", encoding="utf-8")


def run_transcript(path: Path) -> Iterator[Entry]:
    """Run the commands of a transcript."""
    with TemporaryDirectory() as name, _inside(Path(name)):
        shutil.copytree(HERE / "files", name, dirs_exist_ok=True)
        for entry in read_transcript(path):
            yield Entry(entry.command, tuple(_run(shlex.split(entry.command))))


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _run(words: list[str]) -> Iterator[str]:
    program, *arguments = words
    if program == "cat":
        (name,) = arguments
        yield from _marked("|", _shown(Path(name).read_text(encoding="utf-8"), name.endswith(".json")))
        return
    assert program == "meshwright", words
    columns = 1000 if _is_timed(arguments) else 100  # where lines are broken follows from the times
    runner = CliRunner(env={"COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "dumb"})
    done = runner.invoke(main, arguments, prog_name="meshwright")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    yield from _marked("|", _untimed(arguments, _shown(done.stdout, "--json" in arguments)))
    yield from _marked("!", done.stderr)
    if done.exit_code:
        yield f"= {done.exit_code}"


def _marked(mark: str, text: str) -> Iterator[str]:
    assert not text or text.endswith("\n"), "what is printed ends with a line break"
    yield from (f"{mark} {line}" for line in text.split("\n")[:-1])


def _shown(text: str, is_json: bool) -> str:
    """JSON with a line per entry, and a list of plain values in one line."""
    if not is_json or not text:
        return text
    lines = json.dumps(json.loads(text), indent=1, ensure_ascii=False)
    return re.sub(r"\[\n *([^\[\]{}]*?)\n *\]", lambda found: "[" + re.sub(r"\n *", " ", found[1]) + "]", lines) + "\n"


def _untimed(arguments: list[str], text: str) -> str:
    """What a command prints, without the times that it has measured."""
    if _is_timed(arguments):
        text = re.sub(r'"(seconds|default_seconds|speedup)": [^,\n]+', r'"\1": "…"', text)
        # The width of a column follows from its times.
        return re.sub(r"(\S) +", r"\1 ", re.sub(r"\b[\d.e-]+([mun]?s|x) ", "… ", text))
    if arguments[:1] == ["reproduce"]:
        return re.sub(r"\| [\d.]+ \|$", "| … |", text, flags=re.MULTILINE)
    return text


def _is_timed(arguments: list[str]) -> bool:
    return arguments[:1] == ["run"] and "--help" not in arguments


ROUNDED = 1e-13
"""Numbers may differ by this: residuals of exact fits, which are some 1e-16 on one processor and 1e-15 on another."""

_NUMBER = re.compile(r"(\d+\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+)")


def same(old: Entry, new: Entry) -> bool:
    """Whether two entries say the same: word for word, but for the last digits of a number, which machines round
    differently. Of numbers with fewer than nine digits, as people are shown them, all digits count. Of fits without
    an error, what is left is such digits alone.
    """
    before, after = _NUMBER.split(str(old)), _NUMBER.split(str(new))
    return (
        len(before) == len(after)
        and before[::2] == after[::2]
        and all(
            math.isclose(float(a), float(b), rel_tol=1e-9, abs_tol=ROUNDED)
            for a, b in zip(before[1::2], after[1::2], strict=True)
        )
    )
