import os
import weakref
from pathlib import Path

from tests.show.chromium import _ended, collect_leftovers


class _Left:
    """Something that only the garbage collector ends, with a file that nobody has closed."""

    def __init__(self) -> None:
        self.me = self
        self.file = Path(os.devnull).open()  # noqa: SIM115


def test_what_browsers_leave_is_collected_without_a_word() -> None:
    """A warning about the file would be an error, as everywhere in the tests."""
    left = _Left()
    found = weakref.ref(left)
    _ended.append(left)
    del left
    collect_leftovers()
    assert found() is None
