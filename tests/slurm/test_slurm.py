"""Slurm for real: a job finds out where it is, and the ranks of a plan run where the plan has them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright import read_plan
from meshwright.runtime.signals import interrupting
from meshwright.system.read import parse_system
from meshwright.testbed import down, temporary
from tests.cli.test_verbs import run, run_json
from tests.slurm.cluster import Slurm, missing, slurm

SYSTEM = "spine=2@50Mbit/s,leaf=2@100Mbit/s,node=2@200Mbit/s"
HOSTS = ("n5", "n2", "n8", "n1", "n4", "n7", "n3", "n6")
"""The names of the devices' hosts: not in their order, so that it matters which host a rank is on."""

TOPOLOGY = """\
SwitchName=core Switches=spine[1-2]
SwitchName=spine1 Switches=leaf[1-2]
SwitchName=spine2 Switches=leaf[3-4]
SwitchName=leaf1 Nodes=n[2,5]
SwitchName=leaf2 Nodes=n[1,8]
SwitchName=leaf3 Nodes=n[4,7]
SwitchName=leaf4 Nodes=n[3,6]
"""
PYTHON = [sys.executable, "-P", "-m", "meshwright"]


@pytest.fixture(autouse=True)
def _needs_slurm() -> None:
    if reason := missing():
        pytest.skip(reason)


def levels(document: dict[str, Any]) -> dict[str, int]:
    return {level["name"]: level["count"] for level in document["system"]["levels"]}


def groups(hosts: Sequence[str], size: int) -> set[frozenset[str]]:
    """The hosts in groups of so many, in their order."""
    return {frozenset(hosts[k : k + size]) for k in range(0, len(hosts), size)}


def test_a_job_finds_out_where_it_is_and_ranks_run_where_the_plan_has_them(tmp_path: Path) -> None:
    with (
        interrupting(),
        temporary(parse_system(SYSTEM), f"slurm{os.getpid()}") as bed,
        slurm(bed, HOSTS, TOPOLOGY, tmp_path) as cluster,
    ):
        job = allocate(cluster)
        discover_in_a_job(cluster, job)
        meet_where_a_file_has_rank_0(cluster, job)
        compare_with_files(cluster)
        launch_a_plan(cluster, "job", job)
        cluster.run(["scancel", job["SLURM_JOB_ID"]])
        discover_from_files(cluster)
        launch_a_plan(cluster, "files", {})


def allocate(cluster: Slurm) -> dict[str, str]:
    """A job on half of the hosts, below one spine; what tells srun to run inside it."""
    done = cluster.run(["salloc", "--no-shell", "--nodelist=n[1-2,5,8]", "--ntasks-per-node=1"])
    granted = re.search(r"Granted job allocation (\d+)", done.stderr)
    assert granted, done.stderr
    return {"SLURM_JOB_ID": granted[1]}


def discover_in_a_job(cluster: Slurm, job: dict[str, str]) -> None:
    """The ranks of a job tell where they are in topology.conf."""
    out = ["--out", str(cluster.folder / "job.yaml"), "--hosts-out", str(cluster.folder / "job.hosts")]
    command = [*PYTHON, "discover", "--json", "--timeout", "500s", *out]
    told = json.loads(cluster.run(["srun", *command], job).stdout)
    assert levels(told) == {"leaf": 2, "node": 2}
    assert groups(told["hosts"], 2) == groups(HOSTS[:4], 2)
    assert told["irregular"] == told["left_out"] == []
    named = ["n1", "n2", "n5", "n8"]  # Slurm numbers ranks in the order of the names
    assert [named[rank] for rank in told["ranks"]] == told["hosts"]
    assert (cluster.folder / "job.hosts").read_text().split() == told["hosts"]


def meet_where_a_file_has_rank_0(cluster: Slurm, job: dict[str, str]) -> None:
    """Ranks meet also if rank 0 is not on the first host that Slurm names."""
    (cluster.folder / "two").write_text("n8\nn1\n")
    command = ["srun", "--distribution=arbitrary", *PYTHON, "discover", "--json", "--timeout", "500s"]
    told = json.loads(cluster.run(command, job | {"SLURM_HOSTFILE": str(cluster.folder / "two")}).stdout)
    assert (levels(told), told["hosts"], told["ranks"]) == ({"node": 2}, ["n8", "n1"], [0, 1])


def compare_with_files(cluster: Slurm) -> None:
    """topology.conf, and what scontrol prints of it, tell the same of the job's hosts as the job."""
    (cluster.folder / "shown").write_text(cluster.run(["scontrol", "show", "topology"]).stdout)
    hosts = (cluster.folder / "job.hosts").read_text().split()
    for source in ("topology.conf", "shown"):
        told = run_json("discover", str(cluster.folder / source), "--hosts", "n[1-2,5,8]")
        assert told["system"]["levels"] == load(cluster.folder / "job.yaml")["levels"], source
        assert groups(told["hosts"], 2) == groups(hosts, 2), source


def discover_from_files(cluster: Slurm) -> None:
    """topology.conf, and what scontrol prints of it, with a list that says how many GPUs hosts have."""
    (cluster.folder / "gpus.csv").write_text("host,gpus\n" + "".join(f"{host},2\n" for host in HOSTS))
    out = ["--out", str(cluster.folder / "files.yaml"), "--hosts-out", str(cluster.folder / "files.hosts")]
    for source in ("shown", "topology.conf"):
        told = run_json("discover", str(cluster.folder / source), str(cluster.folder / "gpus.csv"), *out)
        assert levels(told) == {"spine": 2, "leaf": 2, "node": 2, "gpu": 2}, source
        assert told["irregular"] == told["left_out"] == []
        for size in (2, 4):
            assert groups(told["hosts"], size) == groups(HOSTS, size), source


def launch_a_plan(cluster: Slurm, name: str, job: dict[str, str]) -> None:
    """Plan for what was discovered, start the plan's ranks, and ask each where it is."""
    system, names, plan, ranks, wrapper = (
        cluster.folder / f"{name}.{end}" for end in ("yaml", "hosts", "plan", "ranks", "sh")
    )
    document = load(system)
    for level, rate in zip(document["levels"], ("50Mbit/s", "100Mbit/s", "200Mbit/s", "1Gbit/s"), strict=False):
        level["bandwidth"] = rate  # which nothing tells, so a person writes it
    system.write_text(yaml.safe_dump(document))
    hosts, devices = names.read_text().split(), prod(levels({"system": document}).values())
    each = devices // len(hosts)
    axes = [
        "--axes",
        f"tensor={2 * each},data={len(hosts) // 2}",
        "--reduce",
        "tensor=64MiB*10",
        "--reduce",
        "data=1MiB",
    ]
    assert run("plan", "--system", str(system), *axes, "--out", str(plan)).exit_code == 0
    where = [str(plan), "--hostfile", str(names)]
    assert run("export", *where, "--to", "slurm", "--out", str(ranks), "--wrapper", str(wrapper)).exit_code == 0
    assert run("hosts", *where, "--format", "slurm").stdout == ranks.read_text()
    script = 'echo "$SLURM_PROCID $SLURMD_NODENAME $(hostname) $CUDA_VISIBLE_DEVICES $(ip -4 -o addr show dev eth0)"'
    command = ["srun", "--distribution=arbitrary", "sh", str(wrapper), "sh", "-c", script]
    told = cluster.run(command, job | {"SLURM_HOSTFILE": str(ranks)}).stdout
    found = {int(words[0]): words[1:] for words in map(str.split, told.splitlines())}
    assert sorted(found) == list(range(devices)), told
    mesh = read_plan(plan).placement.mesh()
    order = mesh.reshape(-1).tolist()
    assert order != sorted(order)  # otherwise the order of hosts would do
    for rank, device in enumerate(order):
        host, itself, gpu, *_, address = found[rank][:7]
        assert host == itself == hosts[device // each]
        assert int(gpu) == device % each
        assert address.partition("/")[0] == cluster.bed.network.address(HOSTS.index(host))
    for group in mesh.reshape(2 * each, -1).T.tolist():  # what sends most is below one leaf
        assert frozenset(hosts[device // each] for device in group) in groups(HOSTS, 2)


def load(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    return document


KILLED = """
from pathlib import Path
from meshwright import parse_system
from meshwright.testbed import up
from tests.slurm.cluster import Slurm

cluster = Slurm(up(parse_system("node=1@100Mbit/s"), {name!r}), ["n1"], "SwitchName=s Nodes=n1\\n", Path({folder!r}))
cluster.start()
print("up", flush=True)
cluster.run(["srun", "sleep", "600"])
"""


def test_what_was_started_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    name = f"killed{os.getpid()}"
    program = KILLED.format(name=name, folder=str(tmp_path))
    try:
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            assert pids(name)
            process.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 60
        while left := pids(name):
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
    finally:
        down(name)


def pids(name: str) -> list[str]:
    """The processes on the host of a testbed of one."""
    listed = subprocess.run(["ip", "netns", "pids", f"mw-{name}-0"], capture_output=True, text=True, check=True)
    return listed.stdout.split()
