"""The helper that runs ranks, where it could do harm."""

import subprocess
import sys

PROGRAM = """
import os, sys
from tests import ranks

def work(rank):
    raise RuntimeError("it broke")

pids = ranks.start_ranks(2, work)
print(os.getpid(), ranks.wait_ranks(pids, ranks.time.monotonic() + 60) == dict.fromkeys(pids, 70), flush=True)
"""


def test_a_rank_that_fails_does_not_go_on_with_the_work_of_its_parent() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, check=False)
    assert done.stderr.count("RuntimeError: it broke") == 2
    (line,) = done.stdout.splitlines()
    assert line.endswith(" True")
