"""Measures what the links of a testbed really carry: plain TCP streams, one process per device."""

import os
import socket
import struct
import time
from dataclasses import dataclass
from math import prod

from meshwright.errors import EngineError
from meshwright.testbed import Testbed

PORT = 15_201
BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Rate:
    """What went through the port of one instance of a level, outwards, beside what is configured: bytes per second."""

    level: str
    senders: int
    configured: float
    achieved: float

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
        rates.append(Rate(here.name, inside, min(limits), _streams(bed, pairs, seconds)))
    return rates


def _streams(bed: Testbed, pairs: list[tuple[int, int]], seconds: float) -> float:
    """The bytes per second that arrive when some devices send to others, without the start."""
    begin = time.monotonic() + 0.3
    children: list[tuple[int, int]] = []
    for sender, receiver in pairs:
        for device, work in ((receiver, _receive), (sender, _send)):
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    os.close(read)
                    bed.enter(device)
                    arrived = work(bed.network.address(receiver), begin, seconds)
                    os.write(write, struct.pack("q", arrived))
                    status = 0
                finally:
                    os._exit(status)
            os.close(write)
            children.append((pid, read))
    total = 0
    faults = 0
    for pid, read in children:
        answer = os.read(read, 8)
        os.close(read)
        _, status = os.waitpid(pid, 0)
        faults += status != 0
        total += struct.unpack("q", answer)[0] if len(answer) == 8 else 0
    if faults:
        raise EngineError(f"{faults} of {len(children)} test streams failed")
    return total / seconds


def _receive(address: str, begin: float, seconds: float) -> int:
    """Count what arrives in the time after the streams have come up to speed."""
    with socket.create_server((address, PORT)) as server:
        server.settimeout(10)
        connection, _ = server.accept()
        connection.settimeout(10)
        start = begin + seconds / 2
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
    with socket.create_connection((address, PORT), timeout=10) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
        try:
            while time.monotonic() < begin + 1.5 * seconds + 0.5:
                connection.send(data)
        except (BrokenPipeError, ConnectionResetError):
            pass
    return 0
