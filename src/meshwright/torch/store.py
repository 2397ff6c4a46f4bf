"""Agreement between ranks through the store that init_process_group already has: no tensors, no process group, no
device.

The first rank of those concerned collects what everyone has to say, judges, and publishes the verdict, so that all
end with the same error, or none does.

A call on a TCPStore waits for its server without a limit, also where it takes a timeout: a wait that has timed out is
cancelled, and the server is to confirm that. So a server that hangs holds up whoever calls it, and, as the call keeps
the store's lock, everyone else in the process. `in_time` does such calls, and cuts the connection when time is up.
"""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from meshwright.engine import first_line, rank_list
from meshwright.errors import EngineError

T = TypeVar("T")

HEARING = 3.0
"""Seconds that the first rank stays after a bad verdict, so that the others hear it: its process may have the store."""

ANSWER = 2.0
"""Seconds that a store gets to answer beyond what ranks wait for each other."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that the first rank waits for what the others say, and they for its verdict."""

    collect: float
    listen: float

    @classmethod
    def of(cls, timeout: float) -> "Patience":
        """How long to wait for ranks that may take until the timeout to come, or to fail in a call of their own."""
        return cls(0.8 * timeout, timeout + HEARING)


LATE = Patience(2.5, 4.5)
"""For finding out together why a call has failed: everyone notices at about the same time."""


def default_store() -> Store:
    """The store that init_process_group made."""
    return c10d._get_default_store()


def agree(
    store: Store,
    ranks: Sequence[int],
    rank: int,
    patience: Patience,
    key: str,
    before: str | None,
    value: Any,
    judge: Callable[[dict[int, Any]], str],
    wake: Callable[[], None] | None = None,
) -> None:
    """Let the ranks compare a value each under a key. If `judge(values)` returns a message, every rank raises it.

    before: the key of their agreement before this one. Everyone is past it, so its verdict can go.
    wake: called on the first rank when the others are late, and may make them come.
    """
    first, others = ranks[0], ranks[1:]

    def collect(stop: threading.Event) -> tuple[str, bool]:
        store.set(f"{key}/{rank}", json.dumps(value))
        keys = {f"{key}/{each}": each for each in ranks}
        if not _arrive(store, list(keys), patience.collect, stop) and wake is not None:
            wake()
            _arrive(store, list(keys), LATE.collect, stop)
        said = {each: json.loads(store.get(name)) for name, each in keys.items() if store.check([name])}
        missing = [each for each in ranks if each not in said]
        if stop.is_set():
            verdict = f"rank {rank} was interrupted"
        elif missing:
            verdict = f"{rank_list(missing)} did not join the others within {patience.collect:g} s"
        else:
            verdict = judge(said)
        store.set(f"{key}/verdict", json.dumps([verdict, not missing]))
        if verdict:
            _arrive(store, [f"{key}/heard/{each}" for each in others if each in said], HEARING, stop)
        for name in (*keys, *([f"{before}/verdict"] if before else ())):
            store.delete_key(name)
        return verdict, not missing

    def listen(stop: threading.Event) -> tuple[str, bool]:
        store.set(f"{key}/{rank}", json.dumps(value))
        if not _arrive(store, [f"{key}/verdict"], patience.listen, stop):
            return f"rank {rank} heard nothing from rank {first} for {patience.listen:g} s", False
        verdict, complete = json.loads(store.get(f"{key}/verdict"))
        if verdict:
            store.set(f"{key}/heard/{rank}", "!")
        return verdict, complete

    limit = patience.listen + ANSWER
    verdict, agreed = in_time(store, limit, rank, collect if rank == first else listen)
    if verdict:
        raise EngineError(verdict, agreed=agreed)


def announce(store: Store, ranks: Sequence[int], rank: int, key: str, value: Any) -> None:
    """Say something in an agreement without waiting for it; of the first rank, it is the verdict."""

    def tell(_: threading.Event) -> None:
        store.set(f"{key}/{rank}", json.dumps(value))
        if rank == ranks[0]:
            store.set(f"{key}/verdict", json.dumps([f"rank {rank} {value[0]}", True]))

    with contextlib.suppress(EngineError):  # nobody is there to hear it
        in_time(store, ANSWER, rank, tell)


def leave(store: Store, world: int, rank: int, key: str, patience: float) -> None:
    """Need the store no more. Rank 0, whose process may be the one that has it, goes when all others have said so."""
    others = [f"{key}/left/{other}" for other in range(1, world)]

    def part(stop: threading.Event) -> None:
        if rank:
            store.set(f"{key}/left/{rank}", "!")
        elif others and _arrive(store, others, patience, stop):
            for name in others:
                store.delete_key(name)

    with contextlib.suppress(EngineError):  # it is gone already
        in_time(store, patience + ANSWER, rank, part)


def in_time(store: Store, seconds: float, rank: int, work: Callable[[threading.Event], T]) -> T:
    """Do work that calls the store, on a thread of its own; when time is up, cut the connection to the store and raise.

    The work gets an event that tells it to stop. Its thread is gone on return, so that none is left when the
    interpreter ends: a thread that comes back from C++ then would abort the process.
    """
    stop, outcome = threading.Event(), Future[T]()
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else -1

    def run() -> None:
        try:
            with torch.cuda.device(device):  # a thread starts with the first one
                outcome.set_result(work(stop))
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="meshwright-store", daemon=True)
    thread.start()
    try:
        return outcome.result(seconds)
    except TimeoutError:
        raise EngineError(
            f"rank {rank} waited {seconds:g} s for the store of init_process_group: the process that has it, usually "
            "that of rank 0, has died or hangs"
        ) from None
    except RuntimeError as error:
        raise EngineError(f"rank {rank} cannot reach the others: {first_line(error)}") from error
    finally:
        stop.set()
        thread.join(0.5)
        if thread.is_alive():
            _hang_up(store)
            thread.join(2)


def _arrive(store: Store, keys: list[str], seconds: float, stop: threading.Event) -> bool:
    """Whether keys are set in time. The store's own wait would keep it from every other thread of this process."""
    deadline, pause = time.monotonic() + seconds, 0.0002
    while keys and not store.check(keys):
        if time.monotonic() > deadline or stop.wait(pause):
            return False
        pause = min(2 * pause, 0.02)
    return True


def _hang_up(store: Store) -> None:
    """Cut this process's connections to the store, so that calls end that wait for an answer."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore):
        return
    with contextlib.suppress(OSError):
        there = {_address(found[4][0]) for found in socket.getaddrinfo(store.host, store.port)}
        for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
                host, port, *_ = connection.getpeername()
                if port == store.port and _address(host) in there:
                    connection.shutdown(socket.SHUT_RDWR)


def _address(text: Any) -> IPv4Address | IPv6Address:
    """An address, without the clothes that IPv4 wears on an IPv6 socket."""
    address = ip_address(str(text).partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
