"""The five collectives on flat NumPy arrays: blocking, and non-blocking for chunks.

They stay apart: libraries choose better algorithms for blocking calls, which are faster for a single chunk.
"""

from collections.abc import Callable, Iterator
from typing import Any

from mpi4py import MPI

from meshwright.language.program import Collective
from meshwright.mpi.arrays import Array
from meshwright.runtime.role import part_length

OPERATIONS = {"sum": MPI.SUM, "avg": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}


def run_collective(collective: Collective, group: Any, source: Array, target: Array, op: "MPI.Op") -> None:
    """Run a collective in a group; AllReduce, Reduce and Broadcast work in place, on `target`."""
    if collective is Collective.ALL_REDUCE:
        group.Allreduce(MPI.IN_PLACE, target, op)
    elif collective is Collective.REDUCE_SCATTER:
        group.Reduce_scatter_block(source, target, op)
    elif collective is Collective.ALL_GATHER:
        group.Allgather(source, target)
    elif collective is Collective.BROADCAST:
        group.Bcast(target)
    elif group.rank == 0:
        group.Reduce(MPI.IN_PLACE, target, op)
    else:
        group.Reduce(source, None, op)


def start_collective(
    collective: Collective, group: Any, source: Array, target: Array, op: "MPI.Op", new: Callable[[int, Array], Array]
) -> Iterator[Any]:
    """The same with non-blocking calls: yields each request, and goes on when that is done.

    new: a flat array of a length, with the dtype of another one.

    Open MPI's non-blocking all-reduce in place goes up and down a tree with all of the payload, and so does its
    reduce-scatter. Both are made of sends to everyone here, which move the least that can be, with any library.
    """
    if collective in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER):
        whole = target if collective is Collective.ALL_REDUCE else source
        parts = [part_length(whole.size, group.size, k) for k in range(group.size)]
        own = parts[group.rank]
        arrived = new(group.size * own, whole)
        yield group.Ialltoallv([whole, parts], [arrived, [own] * group.size])
        total = arrived[:own]
        for k in range(1, group.size):
            op.Reduce_local(arrived[k * own : (k + 1) * own], total)
        if collective is Collective.ALL_REDUCE:
            yield group.Iallgatherv(total, [target, parts])
        else:
            target[...] = total
    elif collective is Collective.ALL_GATHER:
        yield group.Iallgather(source, target)
    elif collective is Collective.BROADCAST:
        yield group.Ibcast(target)
    elif group.rank == 0:
        yield group.Ireduce(MPI.IN_PLACE, target, op)
    else:
        yield group.Ireduce(source, None, op)
