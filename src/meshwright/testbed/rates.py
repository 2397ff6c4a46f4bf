"""Measures what the links of a testbed really carry, and how long a byte takes: plain TCP, a process per device."""

import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import prod

from meshwright.errors import EngineError
from meshwright.runtime.signals import fork
from meshwright.testbed.bed import Testbed

PORT = 15_201
PINGS = 20
ROUNDS = 10  # round trips after which a stream has reached its full speed
BLOCK = 1 << 16
CONNECTING = 10.0  # seconds that the two ends of a stream may take to find each other, or to say something
BEGIN, END = b"b", b"e"

Task = Callable[[Callable[[], None]], int]
"""What one end of a stream does; it is given what to call when it is connected, which returns when all others are."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What went through the port of one instance of a level, outwards, beside what is configured: bytes per second."""

    level: str
    senders: int
    configured: float
    achieved: float
    latency: float  # of a message between two instances, configured, in seconds
    trip: float  # what a single byte took, in seconds

    @property
    def error(self) -> float:
        """How far off it is, as a share of what is configured."""
        return self.achieved / self.configured - 1


def measure_rates(bed: Testbed, seconds: float = 2.0) -> list[Rate]:
    """Fill the port of the first instance of each level that has a neighbour, from all devices behind it at once."""
    rates = []
    counts = bed.system.counts
    for level, here in enumerate(bed.system.levels):
        if here.count == 1:
            continue
        inside = prod(counts[level + 1 :])
        pairs = [(device, device + inside) for device in range(inside)]
        # What the devices can send together may be less than the port carries.
        limits = [
            prod(counts[level + 1 : k + 1]) * (bed.system.levels[k].link.bandwidth or 0.0)
            for k in range(level, len(counts))
        ]
        carried, trip = _streams(bed, pairs, seconds), _trip(bed, *pairs[0])
        rates.append(Rate(here.name, inside, min(limits), carried, here.link.latency, trip))
    return rates


def _streams(bed: Testbed, pairs: list[tuple[int, int]], seconds: float) -> float:
    """The bytes per second that arrive when some devices send to others, without the start."""
    warm = seconds / 2 + ROUNDS * 2 * bed.network.latency(*pairs[0])
    tasks: list[tuple[int, Task]] = []
    for sender, receiver in pairs:
        address = bed.network.address(receiver)
        tasks += [(receiver, partial(_receive, address, warm, seconds)), (sender, partial(_send, address))]
    return sum(_at_devices(bed, tasks)) / seconds


def _trip(bed: Testbed, sender: int, receiver: int) -> float:
    """The seconds that a byte takes: half of the shortest way there and back."""
    address = bed.network.address(receiver)
    _, shortest = _at_devices(bed, [(receiver, partial(_echo, address)), (sender, partial(_ping, address))])
    return shortest / 2e9


def _at_devices(bed: Testbed, tasks: list[tuple[int, Task]]) -> list[int]:
    """Do a task in a process of its own at each of some devices; their results. All begin when all are connected."""
    children: list[tuple[int, socket.socket]] = []
    for device, work in tasks:
        here, there = socket.socketpair()
        children.append((fork(partial(_answer, bed, device, work, there)), here))
        there.close()
    connected = [here.recv(1) for _, here in children]
    for _, here in children:
        with suppress(BrokenPipeError):
            here.sendall(BEGIN if all(connected) else END)
    results: list[int] = []
    for pid, here in children:
        answer = here.recv(8)
        here.close()
        os.waitpid(pid, 0)
        if len(answer) == 8:
            results += struct.unpack("q", answer)
    if len(results) < len(tasks):
        raise EngineError(f"{len(tasks) - len(results)} of {len(tasks)} ends of test streams failed")
    return results


def _answer(bed: Testbed, device: int, work: Task, parent: socket.socket) -> None:
    """Do a task at a device, and tell its result."""
    bed.enter(device)
    parent.settimeout(3 * CONNECTING)

    def begin() -> None:
        parent.sendall(b".")
        if parent.recv(1) != BEGIN:
            raise EngineError("the other end of a test stream failed")

    parent.sendall(struct.pack("q", work(begin)))


def _accepted(address: str) -> socket.socket:
    """The connection of the other end."""
    with socket.create_server((address, PORT)) as server:
        server.settimeout(CONNECTING)
        connection, _ = server.accept()
    connection.settimeout(CONNECTING)
    return connection


def _connected(address: str) -> socket.socket:
    """A connection to the other end, which may not listen yet."""
    deadline = time.monotonic() + CONNECTING
    while True:
        try:
            return socket.create_connection((address, PORT), timeout=CONNECTING)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _receive(address: str, warm: float, seconds: float, begin: Callable[[], None]) -> int:
    """Count what arrives in the time after the streams have come up to speed."""
    with _accepted(address) as connection:
        begin()
        start = time.monotonic() + warm
        count = 0
        while True:
            got = len(connection.recv(BLOCK))
            now = time.monotonic()
            if now >= start + seconds or got == 0:
                return count
            if now >= start:
                count += got


def _send(address: str, begin: Callable[[], None]) -> int:
    """Send until the other end hangs up."""
    data = bytes(BLOCK)
    with _connected(address) as connection, suppress(BrokenPipeError, ConnectionResetError):
        begin()
        while True:
            connection.send(data)
    return 0


def _echo(address: str, begin: Callable[[], None]) -> int:
    with _accepted(address) as connection:
        begin()
        while data := connection.recv(1):
            connection.send(data)
    return 0


def _ping(address: str, begin: Callable[[], None]) -> int:
    """The shortest time in nanoseconds from sending a byte to having it back."""
    times = []
    with _connected(address) as connection:
        begin()
        for _ in range(PINGS):
            sent = time.monotonic_ns()
            connection.send(b".")
            connection.recv(1)
            times.append(time.monotonic_ns() - sent)
    return min(times)
