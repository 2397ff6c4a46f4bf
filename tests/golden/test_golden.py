"""What the commands print is what was recorded."""

from pathlib import Path

import pytest

from meshwright.cli import VERBS
from tests.golden import TRANSCRIPTS, Entry, read_transcript, run_transcript, same


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_commands_print_what_was_recorded(path: Path) -> None:
    changed = []
    for old, new in zip(read_transcript(path), run_transcript(path), strict=True):
        if not same(old, new):
            changed.append(f"recorded:\n{old}\nnow:\n{new}\n")
    assert not changed, "\n".join([*changed, "python -m tests.golden records it again, if that is meant"])


def test_every_verb_is_recorded() -> None:
    commands = [entry.command for path in TRANSCRIPTS for entry in read_transcript(path)]
    assert len(commands) == len(set(commands)) >= 60
    for verb in VERBS:
        assert any(command.startswith(f"meshwright {verb}") for command in commands), verb


def test_only_the_last_digits_of_a_number_may_differ() -> None:
    old = Entry("c", ('| {"a": [0.1, 2, "1e-05s"]}', "! in 2.5s"))
    assert same(old, Entry("c", ('| {"a": [0.10000000000001, 2, "1.00000000000001e-05s"]}', "! in 2.5s")))
    for other in ('| {"a": [0.1001, 2, "1e-05s"]}', '| {"a": [0.1, 2.0, "1e-05s"]}', '| {"b": [0.1, 2, "1e-05s"]}'):
        assert not same(old, Entry("c", (other, "! in 2.5s")))
    residual, elsewhere, error = (Entry("c", (f'| {{"residual": {one}}}',)) for one in (4.1e-16, 1.5e-15, 1.5e-12))
    assert same(residual, elsewhere)
    assert not same(residual, error)
    assert not same(old, Entry("c", (old.lines[0], "! in 2.501s")))
    assert not same(old, Entry("c", (*old.lines, "= 1")))
