"""The watch: a connection from every rank to rank 0, through which rank 0 learns which of the others are gone."""

import json
import os
import secrets
import selectors
import socket
import threading
from contextlib import suppress
from ipaddress import ip_address
from itertools import count
from typing import Any

from torch._C._distributed_c10d import Store

from meshwright.torch.channel import TimedStore, in_time

CONNECTING = 5.0  # seconds that a rank tries to reach rank 0
TICK = 0.1
SETTLING = 1.0  # seconds without news after which rank 0 names those that it knows to be dead, and waits for no others
WORD, DIGITS = 32, 10  # letters that a rank says first: the job's word, and its number

Place = tuple[str, int, str]
"""Where rank 0 listens, and the word by which it knows the ranks of its job."""

_made = count()  # all ranks make as many


def _key() -> str:
    return f"meshwright/watch/{next(_made)}"


class Watched:
    """A rank that rank 0 watches. While it is in a call with the others, a thread answers for it.

    One that cannot reach rank 0 goes without: it is not named then, whatever becomes of it.
    """

    def __init__(self, store: Store, rank: int, timeout: float) -> None:
        key = _key()

        def where(line: TimedStore, stop: threading.Event) -> Place | None:
            return line.get(key) if line.arrive([key], timeout, stop) else None

        self._calling = threading.Event()
        self._line: socket.socket | None = None
        place = in_time(store, timeout, rank, where)
        if place is None:
            return
        host, port, word = place
        with suppress(OSError):
            self._line = socket.create_connection((host, port), min(timeout, CONNECTING))
            self._line.settimeout(None)
            self._line.sendall(f"{word}{rank:{DIGITS}}".encode())
            threading.Thread(target=self._answer, args=(self._line,), name="meshwright-watched", daemon=True).start()

    def call(self, begins: bool) -> None:
        """Note that a call with the others begins or is done. A rank that does not come to one is not answered for."""
        (self._calling.set if begins else self._calling.clear)()

    def close(self) -> None:
        """Say that this rank is alive, so that it is not taken for dead, and hang up."""
        self._calling.set()
        if self._line is not None:
            with suppress(OSError):  # rank 0 has ended already
                self._line.sendall(b"!")
                self._line.shutdown(socket.SHUT_RDWR)
            self._line.close()

    def _answer(self, line: socket.socket) -> None:
        with suppress(OSError):
            while line.recv(1):
                self._calling.wait()
                line.sendall(b"!")


class Watcher:
    """Rank 0, which watches the others. It lets them connect, and looks at them only when something has failed.

    A process that ends closes its connections. So a rank is dead that hangs up without a word; one that is connected
    and does not answer for the whole timeout hangs; and one that is merely slow is neither.
    """

    def __init__(self, store: Store, size: int, timeout: float) -> None:
        self._others, self._timeout = size - 1, timeout
        self._lines: dict[socket.socket, bytes] = {}
        self._dead: set[int] = set()
        self._alive: set[int] = set()
        self._word = secrets.token_hex(WORD // 2)
        self._selector = selectors.DefaultSelector()
        self._server: socket.socket | None = None
        key, place = _key(), None
        with suppress(OSError):
            host, family = _reached_at(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
            self._server = socket.create_server(("", 0), family=family, backlog=size + 16)
            self._server.setblocking(False)
            self._selector.register(self._server, selectors.EVENT_READ)
            place = (host, self._server.getsockname()[1], self._word)
        in_time(store, timeout, 0, lambda line, _: line.set(key, json.dumps(place)))

    def call(self, begins: bool) -> None:
        """Nobody watches rank 0."""

    def gone(self) -> list[int]:
        """The ranks that are dead; if none is, those that do not answer until the timeout.

        Only time in which nothing happens counts, so that nobody is taken for hung because this rank is slow.
        """
        waited = quiet = 0.0
        while waited < self._timeout and len(self._dead | self._alive) < self._others:
            if self._hear():
                quiet = 0.0
                continue
            waited, quiet = waited + TICK, quiet + TICK
            if quiet >= SETTLING and (self._dead or not self._silent()):
                break
        return sorted(self._dead or self._silent())

    def close(self) -> None:
        """Hang up."""
        self._selector.close()
        for line in self._lines:
            line.close()
        if self._server is not None:
            self._server.close()

    def _silent(self) -> set[int]:
        """Ranks that are connected and have not answered."""
        connected = {rank for said in self._lines.values() if (rank := self._rank(said)) is not None}
        return connected - self._dead - self._alive

    def _rank(self, said: bytes) -> int | None:
        """The rank that a connection is of, from what it said first; None if it is not of this job."""
        word, rank = said[:WORD], said[WORD:][:DIGITS]
        return int(rank) if word == self._word.encode() and len(rank) == DIGITS else None

    def _hear(self) -> bool:
        """Let ranks in, ask them, and take what they say; whether anything happened within a moment."""
        events = self._selector.select(TICK)
        for key, _ in events:
            line: Any = key.fileobj
            with suppress(OSError):
                (self._let_in if line is self._server else self._take)(line)
        return bool(events)

    def _let_in(self, server: socket.socket) -> None:
        line, _ = server.accept()
        line.setblocking(False)
        self._lines[line] = b""
        self._selector.register(line, selectors.EVENT_READ)
        if len(self._lines) > 2 * self._others + 16:  # strangers, who must not keep this rank busy for ever
            self._selector.unregister(server)

    def _take(self, line: socket.socket) -> None:
        """What a rank says: first who it is, and when it is asked, that it is alive. If it ends before, it is dead."""
        try:
            said = line.recv(64)
        except ConnectionError:
            said = b""
        self._lines[line] += said
        whole = self._lines[line]
        rank = self._rank(whole)
        if not said or len(whole) > WORD + DIGITS:
            self._selector.unregister(line)
            if rank is not None:
                (self._alive if said else self._dead).add(rank)
        elif rank is not None:
            line.send(b"?")


def _reached_at(host: str, port: int) -> tuple[str, socket.AddressFamily]:
    """At which address this rank is seen by those that know a host's; and of which family it is."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as there:
        there.connect(address)  # sends nothing: it only chooses the way
        own = str(there.getsockname()[0])
    return (host if ip_address(own.partition("%")[0]).is_loopback else own), family
