"""Agreement between ranks through the store that init_process_group already has: no tensors, no process group, no
device.

The first rank of those concerned collects what everyone has to say, judges, and publishes the verdict, so that all
end with the same error, or none does.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed.distributed_c10d as c10d

from meshwright.engine import first_line, rank_list
from meshwright.errors import EngineError

COLLECT = 0.8
"""The share of the timeout for which the first rank waits for the others; they wait for its verdict all of it."""


def agree(
    ranks: Sequence[int],
    rank: int,
    timeout: float,
    key: str,
    before: str | None,
    value: Any,
    judge: Callable[[dict[int, Any]], str],
) -> None:
    """Let the ranks compare a value each under a key; raise what the judge complains about, on every one of them.

    `before` is the key of their agreement before this one: everyone is past it, so its verdict can go.
    """
    store = c10d._get_default_store()
    try:
        store.set(f"{key}/{rank}", json.dumps(value))
        if rank == ranks[0]:
            verdict = _collect(store, key, ranks, judge, timeout * COLLECT)
            store.set(f"{key}/verdict", "!" + verdict)  # a store cannot hold an empty text
            for name in (*(f"{key}/{other}" for other in ranks), *([f"{before}/verdict"] if before else ())):
                store.delete_key(name)
        elif _arrives(store, [f"{key}/verdict"], timeout):
            verdict = store.get(f"{key}/verdict").decode()[1:]
        else:
            verdict = f"rank {rank} heard nothing from rank {ranks[0]} for {timeout:g} s"
    except RuntimeError as error:
        raise EngineError(f"rank {rank} cannot reach the others: {first_line(error)}") from error
    if verdict:
        raise EngineError(verdict)


def announce(ranks: Sequence[int], rank: int, key: str, value: Any) -> None:
    """Say something in an agreement without waiting for it; of the first rank, it is the verdict."""
    store = c10d._get_default_store()
    try:
        store.set(f"{key}/{rank}", json.dumps(value))
        if rank == ranks[0]:
            store.set(f"{key}/verdict", f"!rank {rank} {value[0]}")
    except RuntimeError:
        return  # nobody is there to hear it


def leave(world: int, rank: int, key: str, patience: float) -> None:
    """Need the store no more. Rank 0, whose process may be the one that has it, goes when all others have said so."""
    store = c10d._get_default_store()
    others = [f"{key}/left/{other}" for other in range(1, world)]
    try:
        if rank:
            store.set(f"{key}/left/{rank}", "!")
        elif others and _arrives(store, others, patience):
            for name in others:
                store.delete_key(name)
    except RuntimeError:
        return  # it is gone already


def _collect(store: Any, key: str, ranks: Sequence[int], judge: Callable[[dict[int, Any]], str], timeout: float) -> str:
    keys = [f"{key}/{rank}" for rank in ranks]
    if not _arrives(store, keys, timeout):
        missing = [rank for rank, name in zip(ranks, keys, strict=True) if not store.check([name])]
        if missing:
            return f"{rank_list(missing)} did not join the others within {timeout:g} s"
    return judge({rank: json.loads(store.get(name)) for rank, name in zip(ranks, keys, strict=True)})


def _arrives(store: Any, keys: list[str], timeout: float) -> bool:
    """Whether keys are set in time. The store's own wait would keep it from every other thread of this process."""
    deadline, pause = time.monotonic() + timeout, 0.0002
    while not store.check(keys):
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    return True
