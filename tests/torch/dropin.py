"""What ranks do in the tests of scripts that nobody changed: the plan comes from the environment."""

import os
import re
import runpy
import sys
import time
import warnings
from contextlib import redirect_stderr, redirect_stdout, suppress
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from meshwright import autoload
from meshwright.runtime.tuning import CALLS

SCRIPT = Path(__file__).with_name("script.py")
EXAMPLES = Path(__file__).parents[2] / "examples" / "gpt"


def run_script(rank: int, folder: str, plan: str | None, inductor: str, *cases: str) -> str:
    """Run the script as PyTorch's autoloading lets it run; the table at the end."""
    warnings.simplefilter("ignore")  # PyTorch's, about names that are to change
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = inductor
    if plan is not None:
        os.environ["MESHWRIGHT_PLAN"] = plan
        autoload.start()
        assert os.environ["LOCAL_RANK"] == str(rank)
    sys.argv = [str(SCRIPT), folder, *cases]
    runpy.run_path(str(SCRIPT), run_name="__main__")
    if plan is None:
        assert not hasattr(dist.distributed_c10d._new_process_group_helper, "__wrapped__")
        return ""
    _check_methods()
    from meshwright.torch.dropin import _tally

    return _tally.table()


def run_examples(_: int, plan: str | None, ports: list[int], *scripts: str) -> list[list[float]]:
    """Run training scripts; the losses that rank 0 prints."""
    warnings.simplefilter("ignore")
    if plan is not None:
        os.environ["MESHWRIGHT_PLAN"] = plan
        autoload.start()
    sys.path.insert(0, str(EXAMPLES))  # where Python looks for what a script imports
    size = ["--width", "16", "--layers", "1", "--heads", "2", "--context", "4", "--batch", "1", "--steps", "3"]
    losses = []
    for script, port in zip(scripts, ports, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        sys.argv = [script, *size]
        with redirect_stdout(StringIO()) as said:
            runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        losses.append([float(loss) for loss in re.findall(r"loss (\S+),", said.getvalue())])
    return losses


def record(rank: int, path: str, folder: str, axes: str, case: str) -> None:
    """Run a case of the script, and record it."""
    warnings.simplefilter("ignore")
    os.environ["MESHWRIGHT_RECORD"] = path
    os.environ["MESHWRIGHT_AXES"] = axes
    autoload.start()
    sys.argv = [str(SCRIPT), folder, case]
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert os.environ["RANK"] == str(rank)


def tuned(rank: int, plan: str, out: str) -> str:
    """Calls of a script that tune the plan; the table at the end."""
    os.environ.update(MESHWRIGHT_PLAN=plan, MESHWRIGHT_TUNE=out)
    autoload.start()
    dist.init_process_group("gloo")
    for _ in range(CALLS + 2):
        tensor = torch.arange(16_384, dtype=torch.int32) + rank
        dist.all_reduce(tensor)
        assert torch.equal(tensor, 4 * torch.arange(16_384, dtype=torch.int32) + 6)
    dist.destroy_process_group()
    from meshwright.torch.dropin import _session, _tally

    assert _session is not None
    return _tally.table(_session.gain)


def natively(rank: int, plan: str) -> dict[tuple[str, int], tuple[int, int]]:
    """Calls that the plan leaves to the library; how many there were of each kind, and how many were timed."""
    os.environ["MESHWRIGHT_PLAN"] = plan
    autoload.start()
    dist.init_process_group("gloo")
    from meshwright.torch.backend import EACH
    from meshwright.torch.dropin import _tally

    group: Any = dist.distributed_c10d._get_default_group()
    one, two = torch.ones(1), torch.ones(2)
    own = group.native.allreduce([one.clone()])
    own.wait()
    for _ in range(3 * EACH - 1):
        dist.all_reduce(one.fill_(1))
        assert one.item() == 2
        work: Any = dist.all_reduce(two.fill_(rank), async_op=True)
        assert type(work) is type(own)
        work.wait()
        assert two.tolist() == [1, 1]
    parts = [torch.zeros(3), torch.zeros(3)]
    for _ in range(2):
        dist.all_gather(parts, torch.full((3,), float(rank)))
        assert [part[0].item() for part in parts] == [0, 1]
    options = dist.AllreduceCoalescedOptions()
    options.asyncOp = False
    for _ in range(2):
        group.allreduce_coalesced([one.fill_(1), two.fill_(2)], options).wait()
        assert [one.item(), two[0].item()] == [2, 4]
    group.allreduce(tensors=[one.fill_(1)], opts=dist.AllreduceOptions()).wait()  # as it is, and not counted
    sparse = torch.sparse_coo_tensor(torch.tensor([[rank]]), torch.ones(1), (2,), check_invariants=True)
    dist.all_reduce(sparse)
    assert [one.item(), sparse.to_dense().tolist()] == [2, [1, 1]]
    with pytest.raises(TypeError, match="incompatible function arguments"):
        group.allreduce()
    dist.destroy_process_group()
    return {(kind[1], kind[2]): (found.calls, found.timed) for kind, found in _tally.sums.items() if not kind[3]}


def _check_methods() -> None:
    """All that communicates is a method of Python: PyTorch would hold the interpreter's lock in any other."""
    from meshwright.torch.backend import PlannedGroup

    settings = {"rank", "size", "name", "boxed", "unbox", "group_name", "group_desc", "bound_device_id"}
    settings |= {"_get_backend", "_get_backend_name", "_backend_id", "_id", "_device_types", "_register_backend"}
    settings |= {"_set_default_backend", "_set_group_name", "_set_group_desc", "_has_hooks", "_wait_for_pending_works"}
    settings |= {"_register_on_completion_hook", "use_pg_for_symm_mem_rendezvous", "_pybind11_conduit_v1_"}
    known = {name for name in vars(dist.ProcessGroup) if not (name.startswith("__") or name.isupper())}
    assert known - {"BackendType"} - settings <= set(vars(PlannedGroup))


def refused(rank: int, plan: str, port: int) -> list[str]:
    """What is found out in init_process_group ends all ranks, and rank 0 says why: another backend, a wrong seat."""
    os.environ["MESHWRIGHT_PLAN"] = plan
    os.environ["MESHWRIGHT_RERANK"] = "0"
    autoload.start()
    said = []
    seat = {"LOCAL_RANK": str(rank // 2), "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": str(port)}
    for backend, variables in (("mpi", {}), ("ucc", {}), ("gloo", seat)):
        os.environ.update(variables)
        with redirect_stderr(StringIO()) as text, pytest.raises(SystemExit) as caught:
            dist.init_process_group(backend)
        assert caught.value.code == 3
        said.append(text.getvalue())
    return said


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
    for _ in range(2):  # more in a row are not compared
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
