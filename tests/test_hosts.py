"""Rank files and host orders."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright import Placement, SpecError, parse_reduction, parse_system, plan, write_plan
from meshwright.hosts import host_file, in_order, seatings
from meshwright.launch import mpirun_command
from tests.cli.test_verbs import run, run_json

CROSSED = Placement(parse_system("node=2,gpu=4"), ("data", "tensor"), ((1, 4), (2, 1)))


def test_each_rank_runs_where_the_placement_has_its_coordinates() -> None:
    seats = seatings(CROSSED, ["a", "b"])
    assert [seat.rank for seat in seats] == list(range(8))
    for seat in seats:
        data, tensor = divmod(seat.rank, 2)  # as a program that numbers ranks row by row has it
        assert CROSSED.coordinates(seat.device) == {"data": data, "tensor": tensor}
        assert (seat.host, seat.position) == ("ab"[seat.device // 4], seat.device % 4)


def test_formats() -> None:
    seats = seatings(CROSSED, ["a", "b"])
    assert host_file(seats, "rankfile").splitlines()[:3] == ["rank 0=a slot=0", "rank 1=b slot=0", "rank 2=a slot=1"]
    assert host_file(seats, "machinefile").splitlines()[:3] == ["a:1", "b:1", "a:1"]
    assert host_file(seats, "slurm").splitlines() == ["a", "b"] * 4
    assert host_file(seatings(CROSSED, ["a", "b"], "devices"), "slurm").splitlines() == ["a"] * 4 + ["b"] * 4


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        (["a", "b", "c"], "3 hosts were given, but the system node=2,gpu=4 can be 1, 2 or 8 hosts"),
        (["a", "a"], "host 'a' is given 2 times"),
        (["a", "b c"], "'b c' is not the name of a host"),
        (["a", ""], "'' is not the name of a host"),
    ],
)
def test_bad_hosts(hosts: list[str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        seatings(CROSSED, hosts)


def test_hosts_where_ranks_are_not_in_the_order_of_devices_are_noticed() -> None:
    assert in_order(seatings(CROSSED, ["a", "b"]))
    twisted = Placement(parse_system("node=2,socket=2,gpu=2"), ("data", "tensor"), ((2, 1, 2), (1, 2, 1)))
    assert not in_order(seatings(twisted, ["a", "b"]))
    assert in_order(seatings(twisted, ["a", "b"], "devices"))


def test_unknown_words() -> None:
    with pytest.raises(SpecError, match="unknown order 'axis'"):
        seatings(CROSSED, ["a", "b"], "axis")
    with pytest.raises(SpecError, match="unknown format 'lsf'"):
        host_file([], "lsf")


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    system = parse_system("node=1@1GB/s,core=2@8GB/s")
    write_plan(plan(system, {"data": 2}, [parse_reduction("data=1KiB")]).candidates[0], tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_the_verb(plan_file: Path, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# the hosts\nlocalhost slots=2\n\n")
    rows = run_json("hosts", str(plan_file), "--hostfile", str(tmp_path / "hosts"))
    assert rows == [
        {"rank": 0, "host": "localhost", "position": 0, "device": 0, "coordinates": {"data": 0}},
        {"rank": 1, "host": "localhost", "position": 1, "device": 1, "coordinates": {"data": 1}},
    ]
    assert run("hosts", str(plan_file)).exit_code == 2
    assert "either --hosts a,b,… or --hostfile FILE" in run("hosts", str(plan_file)).stderr
    assert "cannot read the host file" in run("hosts", str(plan_file), "--hostfile", str(tmp_path / "none")).stderr


@pytest.mark.skipif(shutil.which("mpirun") is None or (os.cpu_count() or 1) < 2, reason="needs mpirun and two cores")
def test_open_mpi_takes_the_rank_file(plan_file: Path, tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    ranks.write_text(run("hosts", str(plan_file), "--hosts", "localhost").stdout)
    command = [word for word in mpirun_command(2) if word not in ("--oversubscribe", "--bind-to", "none")]
    # A file each, as what ranks print may be mixed up.
    program = "import os; open(os.environ['OMPI_COMM_WORLD_RANK'], 'w').write(str(sorted(os.sched_getaffinity(0))))"
    done = subprocess.run(
        [*command, "--rankfile", str(ranks), sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "Open MPI" not in subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout:
        pytest.skip("this mpirun is not Open MPI's")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "0").read_text() != (tmp_path / "1").read_text(), "each rank has cores of its own"
