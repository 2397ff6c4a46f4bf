"""What ranks do in the tests of failures: a rank, or the store, is absent, late, stopped or dead, or never closed."""

import atexit
import os
import signal
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from meshwright import Goal, parse_hierarchy, parse_program
from meshwright.torch import Reducer, channel
from tests.engines import hierarchical, pipelined_plan, plan_of, refused
from tests.torch.models import trained
from tests.torch.programs import gloo
from tests.torch.refusals import another_plan


def absent_rank(rank: int) -> str:
    with gloo(20):
        here = dist.distributed_c10d._get_default_store()
        here.set(f"here/{rank}", "!")
        if rank == 3:
            here.wait([f"here/{other}" for other in range(3)])  # whoever is still connecting would fail in PyTorch
            return ""
        return refused(lambda: Reducer(hierarchical(), timeout=5))


def warm_up(reducer: Reducer, length: int) -> None:
    """Make two calls of a length: more of them in a row are not compared."""
    for _ in range(2):
        reducer.all_reduce(torch.ones(length))


def dying_rank(rank: int, program: str, length: int) -> tuple[str, str]:
    """One rank dies between two calls: what the others are told, now and when they try again."""
    spec = "node=2,gpu=2" if "node" in program else "gpu=4"
    with gloo(20):
        reducer = Reducer(plan_of(spec, [parse_program(program, parse_hierarchy(spec))]), timeout=30)
        warm_up(reducer, length)
        if rank == 3:
            os._exit(7)
        first = refused(lambda: [reducer.all_reduce(torch.ones(length)) for _ in range(3)])
        return first, refused(lambda: reducer.all_reduce(torch.ones(length)))


def hanging_rank(rank: int) -> str:
    """One rank does not come to a call, until the others have given up."""
    with gloo(20):
        reducer = Reducer(hierarchical(), timeout=5)
        warm_up(reducer, 100)
        told = dist.distributed_c10d._get_default_store()
        if rank == 1:
            with suppress(RuntimeError):  # the store ends with rank 0
                told.wait([f"over/{other}" for other in (0, 2, 3)], timedelta(seconds=60))
            return ""
        said = refused(reducer.all_reduce(torch.ones(100), async_op=True).wait)
        told.set(f"over/{rank}", "")
        return said


def far_away(rank: int) -> bool:
    """Ranks that hear late, while rank 0, whose process has the store, ends as soon as it may."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    reducer = Reducer(hierarchical(), timeout=10)
    warm_up(reducer, 5)
    reducer.all_reduce(torch.ones(5))  # not compared before the end
    if rank:
        _hear_late()
    reducer.close()
    return True


def _hear_late() -> None:
    """Take half a second longer to notice what others say."""
    arrive = channel.TimedStore.arrive

    def late(*given: Any) -> bool:
        heard = arrive(*given)
        time.sleep(0.5)
        return heard

    setattr(channel.TimedStore, "arrive", late)  # noqa: B010


def late_listeners(rank: int, what: str) -> str:
    """Ranks that hear of a fault late, while rank 0, whose process has the store, ends at once."""
    if rank:
        _hear_late()
    if what == "absent":
        return absent_rank(rank)
    return another_plan(rank)


def stopped_store(rank: int, when: str) -> tuple[str, str]:
    """Rank 0, whose process has the store, stops: what the others are told, and that the process group can go."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    if when == "start":
        dist.barrier()
        if rank == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        said = refused(lambda: Reducer(hierarchical(), timeout=2))
    else:
        reducer = Reducer(hierarchical(), timeout=2)
        warm_up(reducer, 100)
        if rank == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        length = 100 if when == "call" else 101  # one of a new kind is compared first
        said = refused(lambda: reducer.all_reduce(torch.ones(length)))
        reducer.close()
    dist.destroy_process_group()
    return said, ", ".join(thread.name for thread in threading.enumerate() if "store" in thread.name)


def unclosed(rank: int) -> int:
    """Calls with chunks and without, and DDP; nobody closes anything. How many threads of gloo's live on at the end."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    reducer, chunks = Reducer(hierarchical()), Reducer(pipelined_plan(Goal.ALL_REDUCE))
    for each in (reducer, chunks):
        assert each.all_reduce(torch.ones(4000), async_op=True).wait()[0].item() == 4
    trained(rank, with_plan=True)
    dist.destroy_process_group()
    atexit._run_exitfuncs()  # as the interpreter does when it ends
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return names.count("pt_gloo_runloop")
