"""The testbed: a hierarchical cluster for real on one machine, with namespaces for devices and shaped links between
them.

    with temporary(parse_system("node=4@20Mbit/s,gpu=4@200Mbit/s")) as bed:
        bed.run(["python", "-m", "meshwright", "run", "plan.json", "--engine", "torch"])

Everything that it makes is inside network namespaces of its own, whose names it writes down before it makes them, and
`down` removes just these. Only root (CAP_NET_ADMIN and CAP_SYS_ADMIN) can do that.
"""

import ctypes
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from meshwright.errors import EngineError, SpecError
from meshwright.runtime.launch import find_program, safe_environment
from meshwright.runtime.seats import TESTBED
from meshwright.runtime.signals import die_with_parent, holding_back
from meshwright.system.model import System
from meshwright.system.read import parse_system_yaml, system_document
from meshwright.testbed.network import BURST, INTERFACE, Network, Port
from meshwright.text.files import write_file

STATE = Path("/run/meshwright")
NAMESPACES = Path("/run/netns")
DEFAULT_NAME = "testbed"
RELAY = "meshwright.testbed.relay"
TUN = "/dev/net/tun"


@dataclass(frozen=True, slots=True)
class Counter:
    """What has crossed one direction of a link, and what was dropped there."""

    port: Port
    outwards: bool
    bytes: int
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

    def environment(self, device: int, port: int) -> dict[str, str]:
        """What torchrun would tell the rank of a device; the devices inside an innermost switch count as one host."""
        devices, here = self.system.devices, self.system.counts[-1]
        return {
            "RANK": str(device),
            "WORLD_SIZE": str(devices),
            "LOCAL_RANK": str(device % here),
            "LOCAL_WORLD_SIZE": str(here),
            "GROUP_RANK": str(device // here),
            "MASTER_ADDR": self.network.address(0),
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # silence warnings that addresses have no names here
            "OMP_NUM_THREADS": "1",  # many ranks share few cores
            TESTBED: self.network.name,
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
        hosts = ",".join(f"{self.network.address(device)}:1" for device in range(self.system.devices))
        launcher = [
            "mpirun",
            "-n",
            str(self.system.devices),
            "--host",
            hosts,
            "--allow-run-as-root",
            "--bind-to",
            "none",
        ]
        launcher += [word for name, value in settings.items() for word in ("--mca", name, value)]
        for name, value in ((TESTBED, self.network.name), ("OMP_NUM_THREADS", "1")):
            launcher += ["-x", f"{name}={value}"]
        return self.command(0, [*launcher, *command])

    def device(self, address: str) -> int:
        """The device with an address."""
        for device in range(self.system.devices):
            if self.network.address(device) == address:
                return device
        raise SpecError(f"testbed {self.network.name!r} has no device with the address {address!r}")

    def run(self, command: Sequence[str], environment: Mapping[str, str] = os.environ, grace: float = 10.0) -> int:
        """Run a command on every device, as ranks of one job; 0, or the exit code of the first one to fail.

        They have no stdin. When one fails it is named on stderr and the others are ended, with what they started; so
        they are when this process is interrupted, and they alone when it is killed.
        """
        started: list[subprocess.Popen[bytes]] = []
        port = self.port()
        die = partial(die_with_parent, os.getpid(), signal.SIGTERM)
        failed = 0
        try:
            for device in range(self.system.devices):
                settings = {**safe_environment(environment), **self.environment(device, port)}
                started.append(
                    subprocess.Popen(
                        self.command(device, command),
                        env=settings,
                        stdin=subprocess.DEVNULL,
                        process_group=0,
                        preexec_fn=die,
                    )
                )
            waiting = list(started)
            while waiting and not failed:
                time.sleep(0.02)
                for rank, process in enumerate(started):
                    if process in waiting and process.poll() is not None:
                        waiting.remove(process)
                        if process.returncode and not failed:
                            failed = process.returncode
                            print(f"rank {rank} {ending(failed)}: the others are ended", file=sys.stderr, flush=True)
        finally:
            if any(process.poll() != 0 for process in started):
                _end(started, grace if failed else 0.0)
        return failed if failed >= 0 else 128 - failed

    def counters(self) -> list[Counter]:
        """What has crossed each link since the testbed came up, outermost links first."""
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for namespace in self.network.namespaces:
            for qdisc in json.loads(_run(["tc", "-n", namespace, "-s", "-j", "qdisc", "show"])):
                if qdisc.get("root"):
                    found[namespace, qdisc["dev"]] = qdisc["bytes"], qdisc["drops"]
        if self.network.delayed:  # what the process that adds latency was too slow for
            for interface in json.loads(_run(["ip", "-n", self.network.fabric, "-s", "-j", "link", "show"])):
                if (end := (self.network.fabric, interface["ifname"])) in found:
                    crossed, drops = found[end]
                    found[end] = crossed, drops + interface["stats64"]["tx"]["dropped"]
        return [
            Counter(port, outwards, *found[end])
            for port in self.network.ports()
            for outwards, end in ((True, port.up), (False, port.down))
        ]

    def down(self) -> None:
        """Remove it."""
        down(self.network.name)


def ending(code: int) -> str:
    """How a process ended, in words."""
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def up(system: System, name: str = DEFAULT_NAME, burst: int = BURST) -> Testbed:
    """Build a testbed; one that is up already for the same system and burst is taken as it is, another is replaced."""
    network = Network(name, system, burst)
    _check_rights()
    if network.delayed and not Path(TUN).exists():
        raise EngineError(f"latency needs {TUN}, which this machine does not have: load the kernel's module tun")
    if (present := find(name)) is not None:
        if present.network == network and set(network.namespaces) <= _existing() and _relayed(network):
            return present
        down(name)
    taken = _existing().intersection(network.namespaces)
    if taken:
        raise EngineError(
            f"there are namespaces that are not ours: {', '.join(sorted(taken)[:3])}; take another --name"
        )
    STATE.mkdir(mode=0o755, exist_ok=True)
    _check_trusted(STATE)
    try:
        write_file(_state(name), json.dumps({"system": system_document(system), "burst": burst}))
        _build(network)
    except BaseException:
        down(name)
        raise
    return Testbed(network)


def find(name: str = DEFAULT_NAME) -> Testbed | None:
    """The testbed with a name, if it is up."""
    try:
        for path in (STATE, _state(name)):
            _check_trusted(path)
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
    if not _relayed(bed.network):
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
    _check_rights()
    present = _existing()
    mine = [namespace for namespace in bed.network.namespaces if namespace in present]
    _end_inside(mine)
    _batch(["ip", "-force", "-batch", "-"], [f"netns delete {namespace}" for namespace in mine])
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


def missing_rights() -> str:
    """Why no testbed can be built here; empty if one can."""
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2"), ("bridge", "iproute2"), ("unshare", "util-linux")):
        if find_program(tool) is None:
            return f"a testbed needs the command {tool}: install {package}"
    if os.geteuid() != 0:
        return "a testbed needs root, to make network namespaces: run it with sudo"
    probe = f"mw-probe-{os.getpid()}"
    try:
        made = _started(["ip", "netns", "add", probe], capture_output=True)
    finally:
        _started(["ip", "netns", "delete", probe], capture_output=True)
    return "" if made.returncode == 0 else f"network namespaces cannot be made here: {made.stderr.strip()}"


def _check_rights() -> None:
    if reason := missing_rights():
        raise EngineError(reason)


def _state(name: str) -> Path:
    return STATE / f"testbed-{name}.json"


def _check_trusted(path: Path) -> None:
    """Refuse what is not this user's or root's alone: root acts on what these files say."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise EngineError(f"{path} is a link, so what it leads to is not trusted: remove it")
    if found.st_uid not in (0, os.geteuid()):
        raise EngineError(f"{path} belongs to user {found.st_uid}, so it is not trusted: remove it")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise EngineError(f"{path} can be written to by others, so it is not trusted: remove it")


def _existing() -> set[str]:
    return {line.split()[0] for line in _run(["ip", "netns", "list"]).splitlines() if line.strip()}


def _build(network: Network) -> None:
    _batch(["ip", "-batch", "-"], [f"netns add {namespace}" for namespace in network.namespaces])
    settings = "; ".join(
        f"echo {value} > /proc/sys/net/{name}"
        for name, value in (
            ("ipv6/conf/all/disable_ipv6", "1"),
            ("ipv6/conf/default/disable_ipv6", "1"),
            ("ipv4/tcp_congestion_control", "reno"),
            ("ipv4/tcp_slow_start_after_idle", "0"),
            ("ipv4/conf/all/rp_filter", "0"),  # what was held arrives at another interface than answers leave by
            ("ipv4/conf/default/rp_filter", "0"),
        )
    )
    for namespace in network.namespaces:
        _run(["ip", "netns", "exec", namespace, "sh", "-c", settings.replace(">", "2>/dev/null >") + "; true"])
    _batch(["ip", "-n", network.fabric, "-batch", "-"], network.link_commands())
    for device in range(network.system.devices):
        _batch(["ip", "-n", network.namespace(device), "-batch", "-"], network.device_commands(device))
    for namespace, lines in network.shape_commands().items():
        _batch(["tc", "-n", namespace, "-batch", "-"], lines)
    _batch(["bridge", "-n", network.fabric, "-batch", "-"], network.bridge_commands())
    if network.delayed:
        # In a session of its own, with nothing of this process's: it lives until the testbed is taken down.
        relay = ["setsid", "--fork", sys.executable, "-P", "-m", RELAY, network.name]
        said = _started(relay, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
        if not _relayed(network):
            raise EngineError(f"the process that adds latency has ended: {said.strip()[-300:]}")


def _relayed(network: Network) -> bool:
    """Whether the process that adds latency is there, if the network needs it."""
    if not network.delayed:
        return True
    pids = _run(["ip", "netns", "pids", network.fabric]).split()
    return any(RELAY.encode() in _command_line(pid) for pid in pids)


def _command_line(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has just ended
        return b""


def _started(command: Sequence[str], **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run one of the system's tools to its end; none of them is looked for in the current folder.

    A signal that asks to end waits for the tool. Otherwise a tool that was just started could still make a namespace
    after the cleaning up.
    """
    with holding_back():
        return subprocess.run(command, text=True, check=False, env=safe_environment(), **options)


def _run(command: Sequence[str]) -> str:
    done = _started(command, capture_output=True)
    if done.returncode != 0:
        raise EngineError(f"{' '.join(command[:6])} failed: {done.stderr.strip()[:300]}")
    return done.stdout


def _batch(command: Sequence[str], lines: Sequence[str]) -> None:
    if not lines:
        return
    done = _started(command, input="\n".join(lines) + "\n", capture_output=True)
    if done.returncode != 0:
        raise EngineError(f"{' '.join(command)} failed: {done.stderr.strip()[:300]}")


def enter(namespace: str) -> None:
    """Move this process into a network namespace; Python has a function for it from 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    _check_trusted(NAMESPACES)
    handle = os.open(NAMESPACES / namespace, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if libc.setns(handle, 0x40000000) != 0:  # CLONE_NEWNET
            raise EngineError(f"cannot enter {namespace}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(handle)


def _end(processes: Sequence["subprocess.Popen[Any]"], grace: float) -> None:
    """End processes that were started here, and what they started, after some time to end by themselves."""
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(0.05)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        deadline = time.monotonic() + 5
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))


def _end_inside(namespaces: Sequence[str]) -> None:
    """End the processes inside namespaces of a testbed."""
    for namespace in namespaces:
        for pid in _run(["ip", "netns", "pids", namespace]).split():
            if int(pid) != os.getpid():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    continue
