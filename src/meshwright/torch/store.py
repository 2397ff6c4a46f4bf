"""Agreement between ranks through the store that init_process_group already has: no tensors, no process group, no
device.

The first rank of those concerned collects what everyone has to say, judges, and publishes the verdict, so that all
end with the same error, or none does.
"""

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Any

import torch.distributed.distributed_c10d as c10d

from meshwright.engine import first_line, rank_list
from meshwright.errors import EngineError

PATIENCE = 1.5
"""How much longer than the first rank waits for the others they wait for its verdict."""


def agree(
    key: str,
    ranks: Sequence[int],
    rank: int,
    value: Any,
    judge: Callable[[dict[int, Any]], str],
    timeout: float,
    before: str | None = None,
) -> None:
    """Let the ranks compare a value each; raise what the judge complains about, on every one of them.

    `before` is the key of their agreement before this one: everyone is past it, so its verdict can go.
    """
    store = c10d._get_default_store()
    try:
        store.set(f"{key}/{rank}", json.dumps(value))
        if rank == ranks[0]:
            verdict = _collect(store, key, ranks, judge, timeout)
            store.set(f"{key}/verdict", "!" + verdict)  # a store cannot hold an empty text
            for name in (*(f"{key}/{other}" for other in ranks), *([f"{before}/verdict"] if before else ())):
                store.delete_key(name)
        else:
            store.wait([f"{key}/verdict"], timedelta(seconds=timeout * PATIENCE))
            verdict = store.get(f"{key}/verdict").decode()[1:]
    except RuntimeError as error:
        raise EngineError(f"rank {rank} heard nothing from rank {ranks[0]}: {first_line(error)}") from error
    if verdict:
        raise EngineError(verdict)


def _collect(store: Any, key: str, ranks: Sequence[int], judge: Callable[[dict[int, Any]], str], timeout: float) -> str:
    keys = [f"{key}/{rank}" for rank in ranks]
    try:
        store.wait(keys, timedelta(seconds=timeout))
    except RuntimeError:
        missing = [rank for rank, name in zip(ranks, keys, strict=True) if not store.check([name])]
        if missing:
            return f"{rank_list(missing)} did not join the others within {timeout:g} s"
    return judge({rank: json.loads(store.get(name)) for rank, name in zip(ranks, keys, strict=True)})


class CallCheck:
    """Compares the calls of one reduction between the ranks of its group.

    Everyone checks at the same calls as long as all make the same ones; a rank that checks alone, because the others
    take a call for one they know, ends with an error after the timeout, and so do those that wait for it.
    """

    EVERY = 64

    def __init__(self, key: str, ranks: Sequence[int], rank: int, timeout: float) -> None:
        """Nothing is compared yet."""
        self.key, self.ranks, self.rank, self.timeout = key, ranks, rank, timeout
        self.calls = 0
        self.history = ""  # a digest of all calls before this one
        self.known: set[str] = set()
        self.before: str | None = None

    def __call__(self, call: str, always: bool) -> None:
        """Compare a call, in words, if it is of a new kind, if it is time to compare all calls so far, or if asked
        to.
        """
        self.calls += 1
        if always or call not in self.known or self.calls % self.EVERY == 0:
            key = f"{self.key}/{self.calls}"
            agree(key, self.ranks, self.rank, [call, self.history], self.judge, self.timeout, self.before)
            self.before = key
            self.known.add(call)
        self.history = sha256(f"{self.history} {call}".encode()).hexdigest()

    def judge(self, calls: dict[int, Any]) -> str:
        """Say who called differently."""
        first = self.ranks[0]
        for position, what in ((0, "call"), (1, "history")):
            different = [rank for rank in self.ranks if calls[rank][position] != calls[first][position]]
            if not different:
                continue
            other = different[0]
            if what == "call":
                theirs = f"{rank_list(different)} {calls[other][0]}"
                return f"the ranks call differently: rank {first} {calls[first][0]}, {theirs}"
            return (
                f"{rank_list(different)} made other calls than rank {first} before this one (their last {self.EVERY} "
                "or fewer), so results since then may be wrong"
            )
        return ""
