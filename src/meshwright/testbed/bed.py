"""Testbeds: building, finding and removing them, and running commands on their devices."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from meshwright.errors import EngineError, SpecError
from meshwright.runtime.launch import run_ranks, safe_environment
from meshwright.runtime.seats import TESTBED
from meshwright.system.model import System
from meshwright.system.read import parse_system_yaml, system_document
from meshwright.testbed.build import (
    TUN,
    build,
    check_rights,
    check_trusted,
    enter,
    existing_namespaces,
    relayed,
    remove,
    run_tool,
)
from meshwright.testbed.gpu import nccl_environment
from meshwright.testbed.network import BURST, INTERFACE, Network, Port
from meshwright.text.files import write_file

STATE = Path("/run/meshwright")  # where the testbeds that are up are written down, each before it is built
DEFAULT_NAME = "testbed"


@dataclass(frozen=True, slots=True)
class Counter:
    """What has crossed one direction of a link: bytes with all headers, packets of at most the MTU, and drops."""

    port: Port
    outwards: bool
    bytes: int
    packets: int
    drops: int


@dataclass(frozen=True, slots=True)
class Testbed:
    """A testbed that is up."""

    __test__ = False  # for pytest, which takes it for a test

    network: Network

    @property
    def system(self) -> System:
        """The system that it emulates."""
        return self.network.system

    @staticmethod
    def port() -> int:
        """A port for the ranks of this process to meet at; other processes get others."""
        return 20_000 + os.getpid() % 10_000

    def environment(self, device: int, port: int, order: Sequence[int] | None = None) -> dict[str, str]:
        """What torchrun would tell the rank of a device; the devices inside an innermost switch count as one host.

        order: the devices in the order of the ranks, if that is another one; each then counts as a host.
        """
        devices, here = self.system.devices, self.system.counts[-1] if order is None else 1
        rank = device if order is None else order.index(device)
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(devices),
            "LOCAL_RANK": str(rank % here),
            "LOCAL_WORLD_SIZE": str(here),
            "GROUP_RANK": str(rank // here),
            "MASTER_ADDR": self.network.address(order[0] if order else 0),
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # silence warnings that addresses have no names here
            "OMP_NUM_THREADS": "1",  # many ranks share few cores
            TESTBED: self.network.name,
            **nccl_environment(device),
        }

    def enter(self, device: int) -> None:
        """Move this process, which must have one thread only, into the namespace of a device."""
        enter(self.network.namespace(device))

    def command(self, device: int, command: Sequence[str]) -> list[str]:
        """The command that runs a command on a device, under a host name of its own that is its address."""
        inside = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.network.address(device)]
        return ["ip", "netns", "exec", self.network.namespace(device), *inside, *command]

    def mpirun(self, command: Sequence[str]) -> list[str]:
        """The command that runs a command on every device as the ranks of one MPI job, with Open MPI's mpirun.

        mpirun is on the first device, and reaches the others through `meshwright testbed shell` in place of ssh.
        Messages go over TCP alone, without the shortcut of reading another rank's memory, and ranks that wait give way
        to others.
        """
        settings = {
            "plm_rsh_agent": f"{sys.executable} -P -m meshwright testbed shell --name {self.network.name}",
            "btl": "tcp,self",
            "btl_tcp_flags": "0x1",
            "btl_tcp_if_include": INTERFACE,
            "oob_tcp_if_include": INTERFACE,
            "mpi_yield_when_idle": "1",
        }
        devices = self.system.devices
        hosts = ",".join(f"{self.network.address(device)}:1" for device in range(devices))
        launcher = ["mpirun", "-n", str(devices), "--host", hosts, "--allow-run-as-root", "--bind-to", "none"]
        launcher += [word for name, value in settings.items() for word in ("--mca", name, value)]
        launcher += ["-x", f"{TESTBED}={self.network.name}", "-x", "OMP_NUM_THREADS=1"]
        return self.command(0, [*launcher, *command])

    def device(self, address: str) -> int:
        """The device with an address."""
        addresses = [self.network.address(device) for device in range(self.system.devices)]
        if address not in addresses:
            raise SpecError(f"testbed {self.network.name!r} has no device with the address {address!r}")
        return addresses.index(address)

    def order(self, hosts: Sequence[str]) -> list[int]:
        """The devices in the order in which hosts name their addresses; refuses if that is not all of them once."""
        found = [self.device(host) for host in hosts]
        if sorted(found) != list(range(self.system.devices)):
            raise SpecError(
                f"{len(hosts)} hosts; expected each of the {self.system.devices} devices of testbed "
                f"{self.network.name!r} once, by its address"
            )
        return found

    def run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] = os.environ,
        grace: float = 10.0,
        order: Sequence[int] | None = None,
    ) -> int:
        """Run a command on every device, as the ranks of one job, numbered in this order; see `run_ranks`."""
        safe, port = safe_environment(environment), self.port()
        devices = range(self.system.devices) if order is None else order
        commands = [self.command(device, command) for device in devices]
        return run_ranks(commands, [safe | self.environment(device, port, order) for device in devices], grace)

    def counters(self) -> list[Counter]:
        """What has crossed each link since the testbed came up, outermost links first."""
        found: dict[tuple[str, str], tuple[int, int, int]] = {}
        for namespace in self.network.namespaces:
            for qdisc in json.loads(run_tool(["tc", "-n", namespace, "-s", "-j", "qdisc", "show"])):
                if qdisc.get("root"):
                    found[namespace, qdisc["dev"]] = qdisc["bytes"], qdisc["packets"], qdisc["drops"]
        if self.network.delayed:  # what the process that adds latency was too slow for
            for interface in json.loads(run_tool(["ip", "-n", self.network.fabric, "-s", "-j", "link", "show"])):
                if (end := (self.network.fabric, interface["ifname"])) in found:
                    crossed, packets, drops = found[end]
                    found[end] = crossed, packets, drops + interface["stats64"]["tx"]["dropped"]
        return [
            Counter(port, outwards, *found[end])
            for port in self.network.ports()
            for outwards, end in ((True, port.up), (False, port.down))
        ]

    def watch(self, work: Callable[[], object]) -> dict[str, int]:
        """Do some work; how many bytes crossed the busiest link of each level meanwhile."""
        before = [counter.bytes for counter in self.counters()]
        work()
        most = {level.name: 0 for level in self.system.levels}
        for counter, start in zip(self.counters(), before, strict=True):
            level = self.system.levels[counter.port.level].name
            most[level] = max(most[level], counter.bytes - start)
        return most

    def down(self) -> None:
        """Remove it."""
        down(self.network.name)


def up(system: System, name: str = DEFAULT_NAME, burst: int = BURST) -> Testbed:
    """Build a testbed; one that is up already for the same system and burst is taken as it is, another is replaced."""
    network = Network(name, system, burst)
    check_rights()
    if network.delayed and not Path(TUN).exists():
        raise EngineError(f"latency needs {TUN}, which this machine does not have: load the kernel's module tun")
    if (present := find(name)) is not None:
        if present.network == network and set(network.namespaces) <= existing_namespaces() and relayed(network):
            return present
        down(name)
    taken = existing_namespaces().intersection(network.namespaces)
    if taken:
        raise EngineError(
            f"there are namespaces that are not ours: {', '.join(sorted(taken)[:3])}; take another --name"
        )
    STATE.mkdir(mode=0o755, exist_ok=True)
    check_trusted(STATE)
    try:
        write_file(_state(name), json.dumps({"system": system_document(system), "burst": burst}))
        build(network)
    except BaseException:
        down(name)
        raise
    return Testbed(network)


def find(name: str = DEFAULT_NAME) -> Testbed | None:
    """The testbed with a name, if it is up."""
    try:
        for path in (STATE, _state(name)):
            check_trusted(path)
    except FileNotFoundError:
        return None
    try:
        document = json.loads(_state(name).read_text())
        system = parse_system_yaml(json.dumps(document["system"]), f"testbed {name}")
        return Testbed(Network(name, system, document.get("burst", BURST)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(f"cannot read what is known about testbed {name!r}: {error!r}") from None


def known(name: str) -> Testbed:
    """The testbed with a name, whether it works or not; refuses where there is none."""
    bed = find(name)
    if bed is None:
        raise EngineError(f"testbed {name!r} is not up; start it with: meshwright testbed up --system …")
    return bed


def running(name: str = DEFAULT_NAME) -> Testbed:
    """The testbed with a name; refuses where there is none, or one that has lost the process which adds latency."""
    bed = known(name)
    if not relayed(bed.network):
        raise EngineError(
            f"testbed {name!r} has latency, and the process that adds it is gone: "
            f"meshwright testbed down --name {name}, and up again"
        )
    return bed


def down(name: str = DEFAULT_NAME) -> bool:
    """Remove a testbed, whatever is left of it, and end the processes inside; whether there was one."""
    bed = find(name)
    if bed is None:
        return False
    check_rights()
    present = existing_namespaces()
    remove([namespace for namespace in bed.network.namespaces if namespace in present])
    _state(name).unlink(missing_ok=True)
    return True


@contextmanager
def temporary(system: System, name: str = DEFAULT_NAME, burst: int = BURST) -> Iterator[Testbed]:
    """A testbed for the time of a with statement."""
    bed = up(system, name, burst)
    try:
        yield bed
    finally:
        bed.down()


def _state(name: str) -> Path:
    return STATE / f"testbed-{name}.json"
