"""Networks of testbeds, built and removed with the system's tools: ip, tc and bridge."""

import ctypes
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from select import POLLIN, poll
from typing import Any

from meshwright.errors import EngineError
from meshwright.runtime.launch import find_program, safe_environment
from meshwright.runtime.signals import holding_back
from meshwright.testbed.network import Network

NAMESPACES = Path("/run/netns")  # where `ip netns` has a file for each network namespace
RELAY = "meshwright.testbed.relay"
TUN = "/dev/net/tun"
ENDING = 60.0  # seconds in which a killed process ends, also while the kernel takes its interfaces away


def missing_rights() -> str:
    """Why no testbed can be built here; empty if one can."""
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2"), ("bridge", "iproute2"), ("unshare", "util-linux")):
        if find_program(tool) is None:
            return f"a testbed needs the command {tool}: install {package}"
    if os.geteuid() != 0:
        return "a testbed needs root, to make network namespaces: run it with sudo"
    probe = f"mw-probe-{os.getpid()}"
    try:
        made = _completed(["ip", "netns", "add", probe], capture_output=True)
    finally:
        _completed(["ip", "netns", "delete", probe], capture_output=True)
    return "" if made.returncode == 0 else f"network namespaces cannot be made here: {made.stderr.strip()}"


def check_rights() -> None:
    """Refuse where no testbed can be built."""
    if reason := missing_rights():
        raise EngineError(reason)


def check_trusted(path: Path) -> None:
    """Refuse what is not this user's or root's alone: root acts on what these files say."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise EngineError(f"{path} is a link, so what it leads to is not trusted: remove it")
    if found.st_uid not in (0, os.geteuid()):
        raise EngineError(f"{path} belongs to user {found.st_uid}, so it is not trusted: remove it")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise EngineError(f"{path} can be written to by others, so it is not trusted: remove it")


def existing_namespaces() -> set[str]:
    """The network namespaces of this machine, by name."""
    return {line.split()[0] for line in run_tool(["ip", "netns", "list"]).splitlines() if line.strip()}


def build(network: Network) -> None:
    """Make the namespaces of a network and the links between them, and start the relay if there is latency."""
    _batch(["ip", "-batch", "-"], [f"netns add {namespace}" for namespace in network.namespaces])
    settings = "; ".join(
        f"echo {value} > /proc/sys/net/{name}"
        for name, value in (
            ("ipv6/conf/all/disable_ipv6", "1"),
            ("ipv6/conf/default/disable_ipv6", "1"),
            ("ipv4/tcp_congestion_control", "reno"),
            ("ipv4/tcp_slow_start_after_idle", "0"),
            ("ipv4/tcp_early_retrans", "0"),  # nothing is lost, only late on busy machines: probes would load links
            ("ipv4/conf/all/rp_filter", "0"),  # what was held arrives at another interface than answers leave by
            ("ipv4/conf/default/rp_filter", "0"),
        )
    )
    for namespace in network.namespaces:
        run_tool(["ip", "netns", "exec", namespace, "sh", "-c", settings.replace(">", "2>/dev/null >") + "; true"])
    _batch(["ip", "-n", network.fabric, "-batch", "-"], network.link_commands())
    for device in range(network.system.devices):
        _batch(["ip", "-n", network.namespace(device), "-batch", "-"], network.device_commands(device))
    for namespace, lines in network.shape_commands().items():
        _batch(["tc", "-n", namespace, "-batch", "-"], lines)
    _batch(["bridge", "-n", network.fabric, "-batch", "-"], network.bridge_commands())
    if network.delayed:
        # In a session of its own: it outlives this process, until the testbed is taken down.
        relay = ["setsid", "--fork", sys.executable, "-P", "-m", RELAY, network.name]
        said = _completed(relay, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
        if not relayed(network):
            raise EngineError(f"the process that adds latency has ended: {said.strip()[-300:]}")


def relayed(network: Network) -> bool:
    """Whether the process that adds latency is there, if the network needs it."""
    if not network.delayed:
        return True
    pids = run_tool(["ip", "netns", "pids", network.fabric]).split()
    return any(RELAY.encode() in _command_line(pid) for pid in pids)


def _command_line(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has just ended
        return b""


def _completed(command: Sequence[str], **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run one of the system's tools to its end; none of them is looked for in the current folder."""
    with holding_back():  # otherwise a tool that was just started could still make a namespace after the cleaning up
        return subprocess.run(command, text=True, check=False, env=safe_environment(), **options)


def run_tool(command: Sequence[str], lines: Sequence[str] | None = None) -> str:
    """What one of the system's tools prints, which may read lines; refuses with its error where it fails."""
    text = None if lines is None else "\n".join(lines) + "\n"
    done = _completed(command, input=text, capture_output=True)
    if done.returncode != 0:
        raise EngineError(f"{' '.join(command[:6])} failed: {done.stderr.strip()[:300]}")
    return done.stdout


def _batch(command: Sequence[str], lines: Sequence[str]) -> None:
    if lines:
        run_tool(command, lines)


def enter(namespace: str) -> None:
    """Move this process into a network namespace; Python has a function for it from 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    check_trusted(NAMESPACES)
    handle = os.open(NAMESPACES / namespace, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if libc.setns(handle, 0x40000000) != 0:  # CLONE_NEWNET
            raise EngineError(f"cannot enter {namespace}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(handle)


def remove(namespaces: Sequence[str]) -> None:
    """Remove namespaces of a testbed, and end the processes inside; none of them is left when this returns."""
    with ExitStack() as handles:
        killed = {}
        for namespace in namespaces:
            for pid in map(int, run_tool(["ip", "netns", "pids", namespace]).split()):
                if pid != os.getpid() and (handle := _kill(pid, handles)) is not None:
                    killed[pid] = handle
        _batch(["ip", "-force", "-batch", "-"], [f"netns delete {namespace}" for namespace in namespaces])
        deadline = time.monotonic() + ENDING
        for pid, handle in killed.items():
            waiting = poll()
            waiting.register(handle, POLLIN)
            if not waiting.poll(1000 * max(0.0, deadline - time.monotonic())):
                raise EngineError(f"process {pid} of the testbed was killed, but has not ended for {ENDING:g} s")


def _kill(pid: int, handles: ExitStack) -> int | None:
    """Kill a process; gives a handle that can be read when it has ended, or None if it has ended before."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        handles.callback(os.close, handle)
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        return handle
    return None
