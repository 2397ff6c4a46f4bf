"""What ranks do in the tests of scripts that nobody changed: the plan comes from the environment."""

import os
import runpy
import sys
import time
import warnings
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from meshwright import EngineError, autoload

SCRIPT = Path(__file__).with_name("script.py")


def run_script(rank: int, folder: str, plan: str | None, *cases: str) -> str:
    """Run the script as PyTorch's autoloading lets it run; the table at the end."""
    warnings.simplefilter("ignore")  # PyTorch's, about names that are to change
    if plan is not None:
        os.environ["MESHWRIGHT_PLAN"] = plan
        autoload.start()
        assert os.environ["LOCAL_RANK"] == str(rank)
    sys.argv = [str(SCRIPT), folder, *cases]
    runpy.run_path(str(SCRIPT), run_name="__main__")
    if plan is None:
        assert not [name for name in sys.modules if name.startswith("meshwright.torch")]
        return ""
    from meshwright.torch.dropin import _tally

    return _tally.table()


def refused(rank: int, plan: str) -> list[str]:
    """What only ranks together find out: another backend, a wrong seat, another plan on one rank."""
    os.environ["MESHWRIGHT_PLAN"] = plan
    os.environ["MESHWRIGHT_RERANK"] = "0"
    autoload.start()
    found = []
    with pytest.raises(EngineError) as caught:
        dist.init_process_group("mpi")
    found.append(str(caught.value))
    os.environ.update(LOCAL_RANK=str(rank // 2), LOCAL_WORLD_SIZE="2")
    with pytest.raises(EngineError) as caught:
        dist.init_process_group("gloo")
    return [*found, str(caught.value)]


def _reduce_twice(tensor: torch.Tensor, later: bool) -> None:
    """Twice, as those who need nothing from a rank that has died may be done with the first call."""
    for _ in range(2):
        work = dist.all_reduce(tensor, async_op=later)
        if work is not None:
            work.wait()


def dying(rank: int, plan: str) -> list[Any]:
    """A rank dies: every collective of the others raises, in time, now and later, and other groups still work."""
    os.environ["MESHWRIGHT_PLAN"] = plan
    os.environ["MESHWRIGHT_RERANK"] = "0"
    autoload.start()
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    pair = dist.new_group([0, 2])
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    if rank == 3:
        os._exit(7)
    started = time.monotonic()
    found: list[Any] = []
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught:
            _reduce_twice(tensor, rank == 0)
        found.append(str(caught.value))
    found.append(time.monotonic() - started)
    if rank != 1:
        alone = torch.ones(3)
        dist.all_reduce(alone, group=pair)
        found.append(alone.tolist())
    with suppress(RuntimeError):
        dist.destroy_process_group()
    return found
