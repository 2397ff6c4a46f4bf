"""Latency on a testbed: a process that holds every packet for as long as its level's latency before a device gets it.

    python -m meshwright.testbed.relay NAME     # `up` starts it, where a level has latency

What is sent to a device leaves the switches through a TAP interface, which hands it to this process. A second TAP
interface, in the device's namespace, takes it from there. How long a packet is held depends on the outermost level at
which sender and receiver are in different instances. The kernel's `netem` does the same, but many kernels are built
without it; all have TAP.

For example, on node=2@20Mbit/s+2ms,gpu=2@200Mbit/s+1ms device 0 sends to device 1 and to device 3. Both packets leave
device 0 through eth0 and cross the shaped links. The one to device 1, on the same node, arrives at the TAP interface
t1, is held for 1 ms, and then written to in0 of device 1. The one to device 3, on the other node, arrives at t3 and is
held for 2 ms.
"""

import fcntl
import heapq
import os
import select
import struct
import sys
import time
from contextlib import suppress
from socket import inet_aton
from typing import NamedTuple

from meshwright.testbed.bed import known
from meshwright.testbed.build import TUN, enter
from meshwright.testbed.network import INBOX, Network

ATTACH = 0x400454CA  # TUNSETIFF
TAP = 0x0002 | 0x1000 | 0x4000  # IFF_TAP, IFF_NO_PI, IFF_VNET_HDR
OFFLOAD = 0x400454D0  # TUNSETOFFLOAD
WHOLE_SEGMENTS = 0x01 | 0x02  # TUN_F_CSUM, TUN_F_TSO4: the kernel need not cut them for us

SOURCE = slice(10 + 14 + 12, 10 + 14 + 16)  # the sender's address: behind offload data and the Ethernet header
LARGEST = 1 << 17  # no packet has more bytes
PRIORITY = 10  # of a real-time process: otherwise ranks that compute would add to the latency


class Held(NamedTuple):
    """A packet that waits. Packets are sorted by their time, and by number, so that none overtakes another."""

    until: float
    number: int
    device: int
    packet: bytes


def relay(network: Network) -> None:
    """Pass packets on until the network is removed."""
    devices = range(network.system.devices)
    arriving = {_attach(network.fabric, network.outbox(device)): device for device in devices}
    inboxes = [_attach(network.namespace(device), INBOX) for device in devices]
    latencies = {inet_aton(network.address(one)): [network.latency(one, other) for other in devices] for one in devices}
    enter(network.fabric)  # where `down` finds this process
    os.chdir("/")
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # the process that started this one reads until the end of its output
        os.dup2(nothing, stream)
    held: list[Held] = []  # a heap
    number = 0
    while True:
        patience = max(0.0, held[0].until - time.monotonic()) if held else None
        for handle in select.select(list(arriving), [], [], patience)[0]:
            device = arriving[handle]
            now = time.monotonic()
            with suppress(BlockingIOError):
                while True:
                    packet = os.read(handle, LARGEST)
                    wait = latencies[packet[SOURCE]][device] if packet[SOURCE] in latencies else 0.0
                    heapq.heappush(held, Held(now + wait, number, device, packet))
                    number += 1
        while held and held[0].until <= time.monotonic():
            due = heapq.heappop(held)
            with suppress(OSError):  # what a device cannot take is lost, as in any network
                os.write(inboxes[due.device], due.packet)


def _attach(namespace: str, interface: str) -> int:
    """The handle through which whole packets of a TAP interface are read and written."""
    enter(namespace)
    handle = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(handle, ATTACH, struct.pack("16sH22x", interface.encode(), TAP))
    fcntl.ioctl(handle, OFFLOAD, WHOLE_SEGMENTS)
    return handle


if __name__ == "__main__":
    relay(known(sys.argv[1]).network)
