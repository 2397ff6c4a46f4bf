"""A pytest fixture for testbeds: `from meshwright.testbed.fixture import emulate` in a conftest.py.

    def test_my_job(emulate):
        bed = emulate("node=2@20Mbit/s,gpu=2@100Mbit/s")
        assert bed.run(["python", "job.py"]) == 0

Tests are skipped where no testbed can be built.
"""

import os
from collections.abc import Callable, Iterator

import pytest

from meshwright.system.read import load_system
from meshwright.testbed.bed import Testbed, up
from meshwright.testbed.build import missing_rights


@pytest.fixture
def emulate() -> Iterator[Callable[[str], Testbed]]:
    """A function that builds testbeds from descriptions of systems; they are removed after the test."""
    if reason := missing_rights():
        pytest.skip(reason)
    beds: list[Testbed] = []

    def build(system: str) -> Testbed:
        beds.append(up(load_system(system), f"pytest{os.getpid()}x{len(beds)}"))
        return beds[-1]

    try:
        yield build
    finally:
        for bed in beds:
            bed.down()
