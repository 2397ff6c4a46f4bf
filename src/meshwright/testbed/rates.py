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
    begin = time.monotonic() + 0.3
    warm = seconds / 2 + ROUNDS * 2 * bed.network.latency(*pairs[0])
    tasks: list[tuple[int, Callable[[], int]]] = []
    for sender, receiver in pairs:
        address = bed.network.address(receiver)
        tasks += [
            (receiver, partial(_receive, address, begin + warm, seconds)),
            (sender, partial(_send, address, begin, warm + seconds)),
        ]
    return sum(_at_devices(bed, tasks)) / seconds


def _trip(bed: Testbed, sender: int, receiver: int) -> float:
    """The seconds that a byte takes: half of the shortest way there and back."""
    address = bed.network.address(receiver)
    _, shortest = _at_devices(bed, [(receiver, partial(_echo, address)), (sender, partial(_ping, address))])
    return shortest / 2e9


def _at_devices(bed: Testbed, tasks: list[tuple[int, Callable[[], int]]]) -> list[int]:
    """Do a task in a process of its own at each of some devices, all at once; their results."""
    children: list[tuple[int, int]] = []
    for device, work in tasks:
        read, write = os.pipe()
        children.append((fork(partial(_answer, bed, device, work, write)), read))
        os.close(write)
    results: list[int] = []
    for pid, read in children:
        answer = os.read(read, 8)
        os.close(read)
        os.waitpid(pid, 0)
        if len(answer) == 8:
            results += struct.unpack("q", answer)
    if len(results) < len(tasks):
        raise EngineError(f"{len(tasks) - len(results)} of {len(tasks)} ends of test streams failed")
    return results


def _answer(bed: Testbed, device: int, work: Callable[[], int], write: int) -> None:
    """Do a task at a device, and write its result into a pipe."""
    bed.enter(device)
    os.write(write, struct.pack("q", work()))


def _receive(address: str, start: float, seconds: float) -> int:
    """Count what arrives in the time after the streams have come up to speed."""
    with socket.create_server((address, PORT)) as server:
        server.settimeout(10)
        connection, _ = server.accept()
        connection.settimeout(10)
        count = 0
        while True:
            got = len(connection.recv(BLOCK))
            now = time.monotonic()
            if now >= start + seconds or got == 0:
                return count
            if now >= start:
                count += got


def _send(address: str, begin: float, seconds: float) -> int:
    time.sleep(max(0.0, begin - time.monotonic()))
    data = bytes(BLOCK)
    gone = suppress(BrokenPipeError, ConnectionResetError)
    with socket.create_connection((address, PORT), timeout=10) as connection, gone:
        while time.monotonic() < begin + seconds + 0.5:
            connection.send(data)
    return 0


def _echo(address: str) -> int:
    with socket.create_server((address, PORT)) as server:
        server.settimeout(10)
        connection, _ = server.accept()
        connection.settimeout(10)
        while data := connection.recv(1):
            connection.send(data)
    return 0


def _ping(address: str) -> int:
    """The shortest time in nanoseconds from sending a byte to having it back."""
    deadline = time.monotonic() + 5
    while True:  # the other end may not listen yet
        try:
            connection = socket.create_connection((address, PORT), timeout=10)
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    times = []
    with connection:
        for _ in range(PINGS):
            begin = time.monotonic_ns()
            connection.send(b".")
            connection.recv(1)
            times.append(time.monotonic_ns() - begin)
    return min(times)
