"""The emulated network as the commands that build it: namespaces, bridges for switches, shaped veth pairs for links.

One namespace, the fabric, holds a bridge for each instance of a level that has devices inside, and one for the top.
Each device has a namespace of its own with a single interface. Every link is shaped in both directions, so that the
links and not the processors are the bottleneck.

For example, node=2,gpu=2 in the testbed `x` has the namespaces mw-x (the fabric) and mw-x-0 to mw-x-3. In the fabric
are the bridges top, b0-0 and b0-1. Node 0 hangs on the top by a pair of interfaces: u0-0 at the bridge b0-0 sends
outwards, d0-0 at the top sends inwards. Device 3 hangs on b0-1 by its eth0, in mw-x-3, and p3, in the fabric.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address
from math import prod

from meshwright.errors import SpecError
from meshwright.system.model import Fabric, System

FIRST_ADDRESS = IPv4Address("198.18.0.1")  # in a range reserved for benchmarks (RFC 2544)
PREFIX = 15
MOST_DEVICES = 256
INTERFACE = "eth0"
INBOX = "in0"  # the interface through which a device gets packets that were held for latency

MTU, SMALL_MTU = 9000, 1500
HEADERS = 100  # the most bytes of a packet beyond the MTU
ASSURED = 8000  # bits per second
MOST_LATENCY = 0.5  # seconds: TCP takes the first packet for lost if it is not answered within a second
QUEUE = 64 * 2**20  # the bytes that may wait for a link: enough that nothing is dropped
PATIENCE = 5  # seconds for which TCP waits for an acknowledgement longer than it expects to: queues of slow links grow
TAP_QUEUE = 10_000  # how many packets may wait for the relay
# The bytes that a device's link lets through at once after a pause: a whole TCP segment (64 KiB). With less, the kernel
# cuts segments, which takes twice the processor time.
BURST = 70_000
# The seconds by which the kernel's timers may be late: what a link carries in them, it must let through at once.
LATE = 0.0005
SPLIT_BURST = 18_000  # on shared links segments are cut to this: with whole ones, flows would have long turns


@dataclass(frozen=True, slots=True)
class Port:
    """A shaped link of one instance of a level: the interfaces at its two ends, as (namespace, interface)."""

    level: int
    instance: int
    rate: float
    up: tuple[str, str]  # sends outwards, towards the switch of the level
    down: tuple[str, str]  # sends inwards
    devices: range  # those behind the port


@dataclass(frozen=True, slots=True)
class Network:
    """A network for a system; `name` keeps several apart. burst: bytes that a device's link lets through at once; more
    where it must, as timers are late.

    Links that devices share let two packets through, or less where they are slow. Packets are large, so that they take
    the processors little time, unless the burst is smaller than one of them.
    """

    name: str
    system: System
    burst: int = BURST

    def __post_init__(self) -> None:
        """Refuse systems that cannot be emulated."""
        if not self.name.isalnum() or len(self.name) > 20:
            raise SpecError(f"the name of a testbed has at most 20 letters and digits, unlike {self.name!r}")
        if self.system.devices > MOST_DEVICES:
            raise SpecError(f"the system has {self.system.devices:,} devices; a testbed can have {MOST_DEVICES}")
        if not SMALL_MTU + HEADERS <= self.burst <= QUEUE:
            raise SpecError(
                f"a burst of {self.burst:,} bytes; expected {SMALL_MTU + HEADERS:,} (a packet) to {QUEUE:,}"
            )
        for level in self.system.levels:
            link = level.link
            if link.latency > MOST_LATENCY:
                raise SpecError(
                    f"level {level.name!r} has {link.latency:g} s of latency; a testbed can have {MOST_LATENCY:g} s"
                )
            if link.bandwidth is None:
                raise SpecError(
                    f"level {level.name!r} has no bandwidth; add one, like {level.name}={level.count}@20Mbit/s"
                )
            if link.bandwidth < 1000:
                raise SpecError(f"level {level.name!r} has less than 8 kbit/s, which cannot be shaped")
            if link.fabric is not Fabric.SWITCH or link.bypass or link.reduces or link.per_device is not None:
                raise SpecError(f"level {level.name!r} is more than a plain switch, which is all that a testbed has")

    @property
    def fabric(self) -> str:
        """The namespace of the switches."""
        return f"mw-{self.name}"

    def namespace(self, device: int) -> str:
        """The namespace of a device."""
        return f"mw-{self.name}-{device}"

    @property
    def namespaces(self) -> list[str]:
        """All namespaces."""
        return [self.fabric, *(self.namespace(device) for device in range(self.system.devices))]

    @property
    def subnet(self) -> str:
        """All addresses."""
        return f"{FIRST_ADDRESS - 1}/{PREFIX}"

    def address(self, device: int) -> str:
        """The address of a device."""
        return str(FIRST_ADDRESS + device)

    @property
    def delayed(self) -> bool:
        """Whether packets are held for latency."""
        return any(level.link.latency for level in self.system.levels)

    def latency(self, sender: int, receiver: int) -> float:
        """How long a packet between two devices is held: the latency of the outermost level at which they differ."""
        inside = self.system.devices
        for level in self.system.levels:
            inside //= level.count
            if sender // inside != receiver // inside:
                return level.link.latency
        return 0.0

    def outbox(self, device: int) -> str:
        """The interface in the fabric through which packets for a device leave: to be held, if there is latency."""
        return f"t{device}" if self.delayed else f"p{device}"

    def ports(self) -> Iterator[Port]:
        """Every link, outermost first."""
        counts = self.system.counts
        for level, here in enumerate(self.system.levels):
            inside = prod(counts[level + 1 :])
            rate = here.link.bandwidth
            assert rate is not None
            for instance in range(prod(counts[: level + 1])):
                devices = range(instance * inside, (instance + 1) * inside)
                if level == len(counts) - 1:
                    up = (self.namespace(instance), INTERFACE)
                    down = (self.fabric, self.outbox(instance))
                else:
                    up = (self.fabric, f"u{level}-{instance}")
                    down = (self.fabric, f"d{level}-{instance}")
                yield Port(level, instance, rate, up, down, devices)

    @property
    def mtu(self) -> int:
        """The most bytes of a packet."""
        return MTU if self.burst >= MTU + HEADERS else SMALL_MTU

    def bridge(self, level: int, instance: int) -> str:
        """The switch inside an instance of a level; level -1 is the top."""
        return f"b{level}-{instance}" if level >= 0 else "top"

    def link_commands(self) -> list[str]:
        """The lines for `ip -batch` in the fabric, once the namespaces exist."""
        lines = ["link set lo up"]
        counts = self.system.counts
        bridges = [(-1, 0), *((k, i) for k in range(len(counts) - 1) for i in range(prod(counts[: k + 1])))]
        for level, instance in bridges:
            bridge = self.bridge(level, instance)
            lines += [
                f"link add {bridge} mtu {self.mtu} type bridge ageing_time 360000 mcast_snooping 0",
                f"link set {bridge} up",
            ]
        for port in self.ports():
            outer = self.bridge(port.level - 1, port.instance // counts[port.level])
            (there, near), (_, far) = port.up, port.down
            if there == self.fabric:
                lines.append(f"link add {far} mtu {self.mtu} type veth peer name {near} mtu {self.mtu}")
                lines.append(f"link set {near} master {self.bridge(port.level, port.instance)} up")
            else:
                mac = _mac(port.instance)
                if self.delayed:
                    lines += [*_tap(far, self.mtu), f"link set {far} master {outer} up"]
                    far = f"p{port.instance}"  # only for what the device sends
                there_too = f"peer name {near} mtu {self.mtu} address {mac} netns {there}"
                lines.append(f"link add {far} mtu {self.mtu} type veth {there_too}")
            lines.append(f"link set {far} master {outer} up")
            if there != self.fabric and self.delayed:
                lines.append(f"link set {far} type bridge_slave learning off flood off mcast_flood off bcast_flood off")
        return lines

    def bridge_commands(self) -> list[str]:
        """The lines for `bridge -batch`: packets for a device leave through its outbox, where they are held."""
        devices = range(self.system.devices) if self.delayed else ()
        return [f"fdb replace {_mac(device)} dev {self.outbox(device)} master static" for device in devices]

    def device_commands(self, device: int) -> list[str]:
        """The lines for `ip -batch` in the namespace of a device; all neighbours are given, so none is looked up."""
        return [
            "link set lo up",
            f"addr add {self.address(device)}/{PREFIX} dev {INTERFACE}",
            f"link set {INTERFACE} up",
            f"route replace {self.subnet} dev {INTERFACE} src {self.address(device)} rto_min {PATIENCE}s",
            *([*_tap(INBOX, self.mtu), f"link set {INBOX} address {_mac(device)} up"] if self.delayed else []),
            *(
                f"neigh add {self.address(other)} lladdr {_mac(other)} dev {INTERFACE} nud permanent"
                for other in range(self.system.devices)
                if other != device
            ),
        ]

    def shape_commands(self) -> dict[str, list[str]]:
        """The lines for `tc -batch`, by namespace."""
        lines: dict[str, list[str]] = {namespace: [] for namespace in self.namespaces}
        for port in self.ports():
            for (namespace, interface), field in ((port.up, "src"), (port.down, "dst")):
                if port.level == len(self.system.counts) - 1:
                    burst = max(self.burst, self._packet_at(port.rate))
                    rate = f"tbf rate {_bits(port.rate)}bit burst {burst} limit {QUEUE}"
                    lines[namespace].append(f"qdisc add dev {interface} root {rate}")
                else:
                    lines[namespace] += self._shared_shaper(interface, port, field)
        return lines

    def _packet_at(self, rate: float) -> int:
        """A packet, and what comes until the kernel's timer, so that no time is lost between two packets."""
        return self.mtu + HEADERS + round(rate * LATE)

    def _shared_shaper(self, interface: str, port: Port, field: str) -> list[str]:
        """A class for each device, so that concurrent flows get equal rates."""
        # A class may send its assured rate even when the link is full. So that rate is next to nothing: classes borrow
        # all they send from the link, in turns, and the link's rate holds from the first packet on.
        one, two = self.mtu + HEADERS, 2 * (self.mtu + HEADERS)
        split = f"tbf rate 10gbit burst {min(SPLIT_BURST, two)} limit {QUEUE}"
        burst = min(two, self._packet_at(port.rate))
        whole = f"htb rate {_bits(port.rate)}bit ceil {_bits(port.rate)}bit burst {burst} cburst {burst}"
        each = f"htb rate {ASSURED}bit ceil {_bits(port.rate)}bit burst {one} cburst {one} quantum {two}"
        lines = [
            f"qdisc add dev {interface} root handle 1: htb default 1",
            f"class add dev {interface} parent 1: classid 1:ffff {whole}",
            f"class add dev {interface} parent 1:ffff classid 1:1 {each}",
        ]
        for number, device in enumerate(port.devices, 0x10):
            lines += [
                f"class add dev {interface} parent 1:ffff classid 1:{number:x} {each}",
                f"qdisc add dev {interface} parent 1:{number:x} {split}",
                f"filter add dev {interface} parent 1: protocol ip prio 1 "
                f"u32 match ip {field} {self.address(device)}/32 flowid 1:{number:x}",
            ]
        return lines


def _tap(interface: str, mtu: int) -> list[str]:
    """The lines for `ip -batch` that make a TAP interface; the relay gets its packets with their offload headers."""
    return [f"tuntap add dev {interface} mode tap vnet_hdr", f"link set {interface} mtu {mtu} txqueuelen {TAP_QUEUE}"]


def _bits(rate: float) -> int:
    return round(rate * 8)


def _mac(device: int) -> str:
    return f"02:00:00:00:{device >> 8:02x}:{device & 255:02x}"
