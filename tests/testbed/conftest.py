"""A testbed for tests, where one can be built."""

from collections.abc import Callable

import pytest

from meshwright.testbed import Testbed, missing_rights
from meshwright.testbed.fixture import emulate as emulate

REASON = missing_rights()
needs_testbed = pytest.mark.skipif(bool(REASON), reason=REASON or "it can be built")


@pytest.fixture
def bed(emulate: Callable[[str], Testbed]) -> Testbed:
    """Four devices on two nodes."""
    return emulate("node=2@20Mbit/s,gpu=2@100Mbit/s")
