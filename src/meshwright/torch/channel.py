"""Agreement between ranks through the store of init_process_group: comparing values, and finding out who is missing.

It needs no tensors, no process group and no device. The first of the ranks collects the values of all, judges them, and
publishes the verdict, so that all ranks raise the same error, or none does.

A call on a TCPStore may wait for ever for its server even if it takes a timeout: after the timeout it cancels the wait,
and waits for the server to confirm that. So a server that hangs blocks the caller, and, as the call keeps the store's
lock, everyone else in the process. `in_time` does such calls, and cuts the connection when time is up.
"""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed import DistNetworkError

from meshwright.errors import EngineError
from meshwright.runtime.agreement import Judge
from meshwright.runtime.words import first_line, rank_list

T = TypeVar("T")

# Seconds that the first rank stays after a bad verdict, so that the others hear it: its process may have the store.
HEARING = 3.0
ANSWER = 2.0  # seconds that a store gets to answer when the time for it is up


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds that the first rank waits for the others' values, they for its verdict, and all for the store."""

    collect: float
    listen: float
    answer: float

    @classmethod
    def of(cls, timeout: float) -> "Waits":
        """How long to wait for ranks that may take until the timeout to come, or to fail in a call of their own."""
        return cls(0.8 * timeout, timeout + HEARING, timeout)


LATE = Waits(2.5, 4.0, 0.0)  # to find out together why a call has failed: all notice at about the same time


class TimedStore:
    """Calls on a store, of which the one under way is timed."""

    def __init__(self, store: Store) -> None:
        self.store, self.since = store, inf

    def call(self, work: Callable[[], T]) -> T:
        """Do what may wait for the store's answer."""
        self.since = time.monotonic()
        try:
            return work()
        finally:
            self.since = inf

    def set(self, key: str, value: str) -> None:
        """Write down a text."""
        self.call(lambda: self.store.set(key, value))

    def get(self, key: str) -> Any:
        """A value that is there, and was written as JSON."""
        return json.loads(self.call(lambda: self.store.get(key)))

    def has(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return self.call(lambda: self.store.check(keys))

    def delete(self, keys: Iterable[str]) -> None:
        """Forget keys."""
        for key in keys:
            self.call(partial(self.store.delete_key, key))

    def arrive(self, keys: list[str], seconds: float, stop: threading.Event) -> bool:
        """Whether keys are there in time. The store's own wait would keep it from every other thread of the process."""
        deadline, pause = time.monotonic() + seconds, 0.0002
        while keys and not self.has(keys):
            if time.monotonic() > deadline or stop.wait(pause):
                return False
            pause = min(2 * pause, 0.02)
        return True


def default_store() -> Store:
    """The store that init_process_group made."""
    return c10d._get_default_store()


def own_connection(store: Store) -> Store:
    """A store with the same contents through another connection.

    A thread that waits for a key holds up all others that use the same connection. So of two groups that ranks make at
    the same time, on one thread each, the first could wait on one rank, the second on the other, and for ever.
    """
    another: Store = store.clone()  # type: ignore[attr-defined]
    return another


@dataclass(frozen=True, slots=True)
class StoreChannel:
    """Agreement between some ranks; a `Channel` of the runtime's."""

    store: Store
    ranks: Sequence[int]
    rank: int
    waits: Waits
    break_waits: Callable[[], None] | None = None  # called on the first rank if others are late: they may be in a call

    def agree(self, key: str, before: str | None, value: Any, judge: Judge) -> None:
        """Compare a value each under a key; the verdict under the key before can go."""
        is_first = self.rank == self.ranks[0]
        work = partial(self._collect, key, before, value, judge) if is_first else partial(self._listen, key, value)
        verdict, agreed = in_time(self.store, self.waits.answer, self.rank, work)
        if verdict:
            raise EngineError(verdict, agreed=agreed)

    def announce(self, key: str, value: Any) -> None:
        """Publish a value in an agreement without waiting for the others; the first rank's is the verdict."""

        def tell(timed: TimedStore, _: threading.Event) -> None:
            timed.set(f"{key}/{self.rank}", json.dumps(value))
            if self.rank == self.ranks[0]:
                timed.set(f"{key}/verdict", json.dumps([f"rank {self.rank} {value[0]}", True]))

        with contextlib.suppress(EngineError):  # the store is gone, and so are its readers
            in_time(self.store, 0.0, self.rank, tell)

    def _collect(
        self, key: str, before: str | None, value: Any, judge: Judge, timed: TimedStore, stop: threading.Event
    ) -> tuple[str, bool]:
        """What the first rank does: it collects the values of all ranks, and publishes the verdict."""
        timed.set(f"{key}/{self.rank}", json.dumps(value))
        keys = {f"{key}/{each}": each for each in self.ranks}
        if not timed.arrive(list(keys), self.waits.collect, stop) and self.break_waits is not None:
            self.break_waits()
            timed.arrive(list(keys), LATE.collect, stop)
        said = {each: timed.get(name) for name, each in keys.items() if timed.has([name])}
        missing = [each for each in self.ranks if each not in said]
        if stop.is_set():
            verdict = f"rank {self.rank} was interrupted"
        elif missing:
            verdict = f"{rank_list(missing)} did not join the others within {self.waits.collect:g} s"
        else:
            verdict = judge(said)
        timed.set(f"{key}/verdict", json.dumps([verdict, not missing]))
        if verdict:
            timed.arrive([f"{key}/heard/{each}" for each in self.ranks[1:] if each in said], HEARING, stop)
        timed.delete([*keys, *([f"{before}/verdict"] if before else ())])
        return verdict, not missing

    def _listen(self, key: str, value: Any, timed: TimedStore, stop: threading.Event) -> tuple[str, bool]:
        """What the other ranks do: they publish their value, and wait for the verdict."""
        timed.set(f"{key}/{self.rank}", json.dumps(value))
        if not timed.arrive([f"{key}/verdict"], self.waits.listen, stop):
            return f"rank {self.rank} heard nothing from rank {self.ranks[0]} for {self.waits.listen:g} s", False
        verdict, complete = timed.get(f"{key}/verdict")
        if verdict:
            timed.set(f"{key}/heard/{self.rank}", "!")
        return verdict, complete


def leave(store: Store, ranks: Sequence[int], rank: int, key: str, patience: float) -> None:
    """Say that this rank needs the store no more. The first one, whose process may have the store, waits for all."""
    others = [f"{key}/left/{other}" for other in ranks[1:]]

    def go(timed: TimedStore, stop: threading.Event) -> None:
        if rank != ranks[0]:
            timed.set(f"{key}/left/{rank}", "!")
        elif timed.arrive(others, patience, stop):
            timed.delete(others)

    with contextlib.suppress(EngineError):  # it is gone already
        in_time(store, 0.0, rank, go)


def tell_first(store: Store, ranks: Sequence[int], rank: int, key: str, text: str, seconds: float) -> dict[int, Any]:
    """Tell the first rank something, as JSON; it gets what all have told that came in time, and others nothing."""
    keys = {f"{key}/{each}": each for each in ranks}

    def tell(line: TimedStore, stop: threading.Event) -> dict[int, Any]:
        line.set(f"{key}/{rank}", text)
        if rank != ranks[0]:
            return {}
        line.arrive(list(keys), seconds, stop)
        return {each: line.get(name) for name, each in keys.items() if line.has([name])}

    with contextlib.suppress(EngineError):  # the store is gone
        return in_time(store, 0.0, rank, tell)
    return {rank: json.loads(text)}


def in_time(store: Store, seconds: float, rank: int, work: Callable[[TimedStore, threading.Event], T]) -> T:
    """Do work that calls the store, on a thread of its own. If the store owes an answer when time is up, and for two
    seconds at least, cut the connection to it and raise.

    The work gets an event that tells it to stop. Its thread is gone on return, so that none is left when the
    interpreter ends: a thread that comes back from C++ then would abort the process.
    """
    timed, stop, outcome = TimedStore(store), threading.Event(), Future[T]()
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else -1

    def run() -> None:
        try:
            with torch.cuda.device(device):  # a thread starts with the first one
                outcome.set_result(work(timed, stop))
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="meshwright-store", daemon=True)
    thread.start()
    deadline = time.monotonic() + seconds
    try:
        while not outcome.done():
            wait([outcome], 0.2)
            if time.monotonic() > max(deadline, timed.since + ANSWER):
                raise EngineError(
                    f"rank {rank} waited {max(seconds, ANSWER):g} s for the store of init_process_group: the process "
                    "that has it, usually that of rank 0, has died or hangs"
                )
        return outcome.result()
    except DistNetworkError as error:
        raise EngineError(
            f"rank {rank} lost the store of init_process_group, through which ranks agree: the process that has it, "
            f"usually that of rank 0, has ended ({first_line(error)})"
        ) from error
    finally:
        stop.set()
        thread.join(0.5)
        if thread.is_alive():
            _hang_up(store)
            thread.join(2)


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
    """An address; that of IPv4 on an IPv6 socket, ::ffff:10.0.0.1, as plain 10.0.0.1."""
    address = ip_address(str(text).partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
