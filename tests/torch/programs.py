"""What the ranks of the PyTorch tests do."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from meshwright.torch import Reducer
from tests.engines import EXHAUSTIVE, plan_of, programs_of


@contextmanager
def gloo(timeout: float = 60) -> Iterator[None]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    try:
        yield
    finally:
        dist.destroy_process_group()


def every_program(rank: int, spec: str) -> dict[str, bytes]:
    """Runs programs on integers and floats; returns how many agreed, and the floats of each for bitwise comparison."""
    programs = programs_of(spec, every=EXHAUSTIVE[spec][0])
    plan = plan_of(spec, programs)
    bits: dict[str, bytes] = {}
    with gloo():
        reducer = Reducer(plan)
        world = dist.get_world_size()
        for number, program in enumerate(programs):
            rng = np.random.default_rng(number)
            length = int(rng.integers(1, 300))  # mostly one that does not divide
            whole = rng.integers(-1000, 1000, (world, length))
            integers = torch.from_numpy(whole[rank].copy())
            reducer.all_reduce(integers, over=number)
            assert integers.tolist() == whole.sum(0).tolist(), program
            reals = rng.standard_normal((world, length)).astype(np.float32)
            floats = torch.from_numpy(reals[rank].copy())
            reducer.all_reduce(floats, over=number)
            np.testing.assert_allclose(floats.numpy(), reals.sum(0, dtype=np.float64), rtol=1e-4, atol=1e-5)
            bits[program.text(plan.hierarchy(plan.reductions[number]))] = floats.numpy().tobytes()
        reducer.close()
    return bits
