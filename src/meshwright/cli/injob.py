"""`meshwright discover` in the ranks of a job: they tell rank 0 where they are, and measure; it alone goes on."""

import os
import sys
from functools import partial

from meshwright.cli.output import stdout_kept
from meshwright.cli.progress import Show, progress
from meshwright.discovery.explore import Measured
from meshwright.discovery.job import Told, told_groups
from meshwright.errors import EngineError, SpecError
from meshwright.measure.here import tell
from meshwright.measure.peers.peers import join
from meshwright.measure.probing import measure_job
from meshwright.runtime.dropin import launched
from meshwright.runtime.signals import end_at_once


def ask_ranks(engine: str | None, timeout: float, measure: bool) -> tuple[list[Told], Measured | None]:
    """What the ranks of this job tell and measure. Only rank 0 returns: in the others the process ends here.

    What goes wrong for all is said by rank 0 alone.
    """
    if measure and engine == "jax":
        raise SpecError("--measure takes ranks of PyTorch or MPI: leave out --engine jax, and use torchrun or mpirun")
    end_at_once()
    try:
        with stdout_kept():
            peers = join(engine, timeout)
            told = tell(peers)
            with progress("measuring between ranks") as show:
                watch = partial(_watch, show)
                measured = measure_job(peers, told_groups(told), watch=watch) if measure else None
            peers.close()
    except EngineError as error:
        if error.agreed and (launched(os.environ) or (0, 0))[0]:
            sys.exit(3)
        raise
    if peers.rank:
        sys.exit(0)
    return told, measured


def _watch(show: Show, before: int, done: int, batch: int) -> None:
    """How far it is. What is measured next follows from the results, so only what is left of a batch is known."""
    show(f"measuring between ranks: {before + done} rounds, {done} of {batch} of this question", done, batch)
