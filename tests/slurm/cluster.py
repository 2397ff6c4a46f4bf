"""Slurm on a testbed: a controller, and a daemon for each emulated host, in the namespaces of the hosts.

Everything that it starts is a child of this process, in a process namespace of its own, so that ending the child ends
all that a daemon has started. The kernel ends them too if this process is killed. Its files, also the key and the
socket of its own munge, are in one folder, and its ports are in the testbed's network namespaces: a Slurm that this
machine may have is not touched.
"""

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from meshwright.runtime.launch import find_program, safe_environment
from meshwright.runtime.signals import die_with_parent, interrupting
from meshwright.testbed import Testbed, missing_rights

PROGRAMS = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client"}
"""What is needed, and the Debian package that has it."""

ALONE = ("--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
"""The options of unshare for a process that has its own name of the host, and ends all that it started with itself."""

PATIENCE = 600.0
"""Seconds after which daemons that do not come up and commands that do not end are given up."""

CONFIGURATION = """\
ClusterName=meshwright
SlurmctldHost={controller}({address})
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
TopologyPlugin=topology/tree
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
MessageTimeout=100
TCPTimeout=30
SlurmdTimeout=600
UnkillableStepTimeout=120
"""


def missing() -> str:
    """Why Slurm cannot be started here; empty if it can."""
    if reason := missing_rights():
        return reason
    packages = sorted({package for program, package in PROGRAMS.items() if find_program(program) is None})
    if packages:
        return f"Slurm is not installed; scripts/install-slurm installs {', '.join(packages)}"
    probe = ["unshare", "--mount", *ALONE, "sh", "-c", "hostname probe && mount --bind /etc/hosts /etc/hosts"]
    tried = subprocess.run(probe, env=safe_environment(), capture_output=True, text=True, check=False)
    return (
        "" if tried.returncode == 0 else f"processes cannot have namespaces of their own here: {tried.stderr.strip()}"
    )


@dataclass
class Slurm:
    """A cluster that is up, or coming up. hosts: the names of the devices' hosts, in the order of the devices."""

    bed: Testbed
    hosts: Sequence[str]
    topology: str
    folder: Path
    daemons: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def write(self) -> None:
        """Write what the daemons read."""
        addresses = [self.bed.network.address(device) for device in range(len(self.hosts))]
        lines = [
            f"NodeName={host} NodeAddr={address} CPUs=4" for host, address in zip(self.hosts, addresses, strict=True)
        ]
        lines.append(f"PartitionName=all Nodes={','.join(self.hosts)} Default=YES MaxTime=INFINITE State=UP")
        settings = CONFIGURATION.format(controller=self.hosts[0], address=addresses[0], folder=self.folder)
        (self.folder / "slurm.conf").write_text(settings + "\n".join(lines) + "\n")
        (self.folder / "topology.conf").write_text(self.topology)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        names = "".join(f"{address} {host}\n" for host, address in zip(self.hosts, addresses, strict=True))
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        (self.folder / "state").mkdir()
        key = self.folder / "key"
        key.touch(0o400)
        key.write_bytes(secrets.token_bytes(128))

    def start(self) -> None:
        """Start all daemons, and wait until every host is ready for jobs."""
        self.write()
        ours = [
            f"--socket={self.folder / 'munge'}",
            f"--key-file={self.folder / 'key'}",
            *(f"--{name}-file={self.folder / f'munge.{name}'}" for name in ("pid", "seed", "log")),
        ]
        self._daemon("munged", 0, ["munged", "--foreground", "--force", "--num-threads=2", *ours])
        credential = ["munge", "--no-input", f"--socket={self.folder / 'munge'}"]
        self._wait("munge", lambda: self._run(credential, {}).returncode == 0)
        self._daemon("slurmctld", 0, ["slurmctld", "-D", "-f", str(self.folder / "slurm.conf")])
        for device, host in enumerate(self.hosts):
            self._daemon(host, device, ["slurmd", "-D", "-f", str(self.folder / "slurm.conf")])
        self._wait("hosts that are idle", self._idle)

    def stop(self) -> None:
        """End everything that was started."""
        for process in self.daemons.values():
            process.kill()
        for process in self.daemons.values():
            process.wait()

    def run(self, command: Sequence[str], more: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        """Run a command on the first host, where the controller is; what it printed. It must succeed."""
        done = self._run(command, more or {})
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}{self.logs()}"
        return done

    def logs(self) -> str:
        """The last lines of what the daemons wrote."""
        files = sorted(self.folder.glob("*.log"))
        return "".join(f"\n{path.name}:\n" + "\n".join(path.read_text().splitlines()[-15:]) for path in files)

    def _environment(self) -> dict[str, str]:
        clean = {name: value for name, value in safe_environment().items() if not name.startswith(("SLURM", "SRUN"))}
        return clean | {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }

    def _inside(self, device: int, command: Sequence[str], alive: tuple[int, int]) -> list[str]:
        """A command on a host: in its network, under its name, with the names of the others, and alone in /proc.

        alive: a pipe that unshare has open. What unshare starts asks the kernel to end with it, and would miss an end
        that comes before; then nobody has the pipe's end for writing any more, and there is nothing to wait for.
        """
        read, write = alive
        ended = f"exec {write}>&-; read -t 0.01 -u {read}; [ $? -gt 128 ] || exit 1; exec {read}<&-"
        # `ip netns exec` gives a mount namespace too, so what is mounted is seen there only.
        script = f'{ended}; hostname {self.hosts[device]} && mount --bind {self.folder}/hosts /etc/hosts && exec "$@"'
        alone = ["unshare", *ALONE, "bash", "-c", script, "bash"]
        return ["ip", "netns", "exec", self.bed.network.namespace(device), *alone, *command]

    def _run(self, command: Sequence[str], more: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
        with pipe() as alive:
            return subprocess.run(
                self._inside(0, command, alive),
                env=self._environment() | dict(more),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
                pass_fds=alive,
                preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGKILL),
            )

    def _daemon(self, name: str, device: int, command: Sequence[str]) -> None:
        with (self.folder / f"{name}.said.log").open("wb") as said, pipe() as alive:
            self.daemons[name] = subprocess.Popen(
                self._inside(device, command, alive),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                pass_fds=alive,
                preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGKILL),
            )

    def _wait(self, what: str, come: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not come():
            for name, process in self.daemons.items():
                assert process.poll() is None, f"{name} has ended: {self.logs()}"
            assert time.monotonic() < deadline, f"waited in vain for {what}: {self.logs()}"
            time.sleep(0.1)

    def _idle(self) -> bool:
        asked = self._run(["sinfo", "--noheader", "--Node", "--format=%T"], {})
        return asked.stdout.split() == ["idle"] * len(self.hosts)


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe for the time of a with statement: its ends for reading and for writing."""
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


@contextmanager
def slurm(bed: Testbed, hosts: Sequence[str], topology: str, folder: Path) -> Iterator[Slurm]:
    """Slurm on a testbed for the time of a with statement; signals that ask this process to end, end it too."""
    cluster = Slurm(bed, hosts, topology, folder)
    with interrupting():
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
