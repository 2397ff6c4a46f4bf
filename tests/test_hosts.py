"""Rank files and host orders."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright import Placement, Plan, SpecError, fixed_row, parse_reduction, parse_system, plan, write_plan
from meshwright.export.formats import export
from meshwright.export.hosts import in_order, seatings
from meshwright.export.request import Request
from meshwright.runtime.launch import mpirun_command
from meshwright.text.hostlist import format_hosts, parse_hostfile, parse_hosts
from tests.cli.test_verbs import run, run_json


def crossed(system: str) -> Plan:
    rows = [fixed_row("data", (1, 4))]
    what = [parse_reduction("data=1KiB")]
    return plan(parse_system(system), {"data": 4, "tensor": 2}, what, constraints=rows, ranges=False).candidates[0]


PLANNED, ON_CORES = crossed("node=2@1GB/s,gpu=4@8GB/s"), crossed("node=2@1GB/s,core=4@8GB/s")
CROSSED = Placement(parse_system("node=2,gpu=4"), ("data", "tensor"), ((1, 4), (2, 1)))


def test_each_rank_runs_where_the_placement_has_its_coordinates() -> None:
    seats = seatings(CROSSED, ["a", "b"])
    assert [seat.rank for seat in seats] == list(range(8))
    for seat in seats:
        data, tensor = divmod(seat.rank, 2)  # as a program that numbers ranks row by row has it
        assert CROSSED.coordinates(seat.device) == {"data": data, "tensor": tensor}
        assert (seat.host, seat.position) == ("ab"[seat.device // 4], seat.device % 4)


def test_formats() -> None:
    def lines(form: str, order: str = "axes", plan: Plan = PLANNED, bind: bool = False) -> list[str]:
        return export(form, Request(plan, ("a", "b"), order, bind)).text.splitlines()

    assert lines("rankfile")[:3] == ["rank 0=a slot=S*", "rank 1=b slot=S*", "rank 2=a slot=S*"]
    bound = lines("rankfile", plan=ON_CORES, bind=True)
    assert bound[:3] == ["rank 0=a slot=0", "rank 1=b slot=0", "rank 2=a slot=1"]
    assert lines("hostfile")[:3] == ["a:1", "b:1", "a:1"]
    assert lines("slurm") == ["a", "b"] * 4
    assert lines("slurm", "devices") == ["a"] * 4 + ["b"] * 4


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        (
            ["a", "b", "c"],
            "3 hosts were given, but the system node=2,gpu=4 can be "
            r"1 \(the whole system\), 2 \(one node each\) or 8 \(one gpu each\) hosts",
        ),
        (["a", "a"], "host 'a' is given 2 times"),
        (["a", "b c"], "'b c' is not the name of a host"),
        (["a", ""], "'' is not the name of a host"),
        (["a", "b[1-2]"], r"'b\[1-2\]' is not the name of a host"),
        ([], "0 hosts were given"),
    ],
)
def test_bad_hosts(hosts: list[str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        seatings(CROSSED, hosts)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n[1-4]", "n1 n2 n3 n4"),
        ("n[1-3,7]", "n1 n2 n3 n7"),
        ("n[9-11]", "n9 n10 n11"),
        ("n[008-010,1]", "n008 n009 n010 n1"),
        ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
        ("a, b ,n[1,2]-ib.cluster,[3-4]", "a b n1-ib.cluster n2-ib.cluster 3 4"),
        ("a", "a"),
    ],
)
def test_host_lists_as_slurm_writes_them(text: str, names: str) -> None:
    assert parse_hosts(text) == names.split()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n[1-4", "a bracket is open or closed alone in the host list 'n[1-4'"),
        ("n1-4]", "a bracket is open or closed alone"),
        ("n[[1-4]]", "a bracket is open or closed alone"),
        ("n[]", "expected numbers and ranges in brackets, like [1-4,7] or [001-010], not []"),
        ("n[a-b]", "not [a-b]"),
        ("n[1-]", "not [1-]"),
        ("n[٣]", "not [٣]"),
        ("n[4-1]", "the range 4-1 in [4-1] counts down"),
        ("n[0-99999999999999]", "more than 65,536 hosts: [0-99999999999999]"),
        ("n[" + "9" * 50 + "]", "expected numbers and ranges"),
        ("a[1-999]b[1-999]c[1-999]", "more than 65,536 hosts: 'a[1-999]b[1-999]c[1-999]'"),
        ("n[1-60000],m[1-60000]", "more than 65,536 hosts"),
    ],
)
def test_bad_host_lists(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        parse_hosts(text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1/0*8+n2/0*8", "n1 n2"),
        ("n1/0+n1/1+n2/0+n2/1", "n1 n2"),
        ("node-1.cluster/4*2", "node-1.cluster"),
    ],
)
def test_host_lists_as_pbs_writes_them(text: str, names: str) -> None:
    assert parse_hosts(text) == names.split()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a\na\nb\nb\n", "a b"),  # PBS_NODEFILE: a line per slot
        ("a slots=8 max_slots=8\n\n# b\nc:4  # four\n", "a c"),
        ("n[1-3] slots=2\n", "n1 n2 n3"),
        ("# nothing\n", ""),
    ],
)
def test_host_files(text: str, names: str) -> None:
    assert parse_hostfile(text) == names.split()


@pytest.mark.parametrize(
    "text", ["n[1-4]", "n[08-10,12],login,r1n[1-2],7", "a", "n[1-3,7],m[3,5]", "n[9-11]", "n[99-101],m[099-101,5]", ""]
)
def test_host_lists_are_written_as_slurm_does(text: str) -> None:
    assert format_hosts(parse_hosts(text)) == text


def test_hosts_where_ranks_are_not_in_the_order_of_devices_are_noticed() -> None:
    assert in_order(seatings(CROSSED, ["a", "b"]))
    twisted = Placement(parse_system("node=2,socket=2,gpu=2"), ("data", "tensor"), ((2, 1, 2), (1, 2, 1)))
    assert not in_order(seatings(twisted, ["a", "b"]))
    assert in_order(seatings(twisted, ["a", "b"], "devices"))


def test_unknown_words() -> None:
    with pytest.raises(SpecError, match="unknown order 'axis'"):
        seatings(CROSSED, ["a", "b"], "axis")
    with pytest.raises(SpecError, match="unknown format 'lsf'"):
        export("lsf", Request(PLANNED))
    with pytest.raises(SpecError, match="--bind means nothing in the format slurm; it is for rankfile"):
        export("slurm", Request(PLANNED, ("a", "b"), bind=True))


def test_ranks_are_bound_to_cores_only_where_devices_are_cores() -> None:
    with pytest.raises(SpecError, match="--bind binds ranks to cores, but the devices of this system are gpus: --wrap"):
        export("rankfile", Request(PLANNED, ("a", "b"), bind=True))


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    return written(tmp_path, "node=1@1GB/s,core=2@8GB/s", {"data": 2})


def written(folder: Path, system: str, axes: dict[str, int]) -> Path:
    best = plan(parse_system(system), axes, [parse_reduction("data=1KiB")]).candidates[0]
    write_plan(best, folder / "plan.json")
    return folder / "plan.json"


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
    assert "0 hosts were given" in run("hosts", str(plan_file), "--hostfile", os.devnull).stderr


def test_what_slurm_says_is_taken_for_its_hosts_and_never_for_one(tmp_path: Path) -> None:
    path = written(tmp_path, "rack=2@1GB/s,node=2@4GB/s,gpu=2@8GB/s", {"data": 8})
    done = run("hosts", str(path), "--hosts", "n[1-4]", "--format", "slurm", "--order", "devices")
    assert done.stdout.split() == ["n1", "n1", "n2", "n2", "n3", "n3", "n4", "n4"]
    assert "note: each host is taken for one node: 2 devices" in done.stderr
    assert "each host is taken for one rack: 4 devices" in run("hosts", str(path), "--hosts", "a,b").stderr
    assert "each host is taken for the whole system: 8 devices" in run("hosts", str(path), "--hosts", "a").stderr
    done = run("hosts", str(path), "--hosts", "n[1-3]")
    assert done.exit_code == 2
    assert "3 hosts were given, but the system rack=2,node=2,gpu=2 can be 1 (the whole system), 2 (one" in done.stderr
    assert "host 'n1' is given 2 times" in run("hosts", str(path), "--hosts", "n[1-3],n1").stderr


def test_an_order_that_a_file_cannot_say_is_told(tmp_path: Path) -> None:
    system = parse_system("node=2@1GB/s,socket=2@4GB/s,gpu=2@8GB/s")
    twisted = [fixed_row("data", (2, 1, 2))]
    found = plan(system, {"data": 4, "tensor": 2}, [parse_reduction("data=1KiB")], constraints=twisted)
    write_plan(found.candidates[0], tmp_path / "plan.json")
    arguments = ["hosts", str(tmp_path / "plan.json"), "--hosts", "a,b"]
    note = "the ranks are not in the order of the devices, which this file cannot say"
    assert note in run(*arguments).stderr
    assert note in run(*arguments, "--format", "slurm").stderr
    assert note not in run(*arguments, "--order", "devices").stderr


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"])
def test_a_wrapper_gives_each_rank_its_gpu(variable: str, tmp_path: Path) -> None:
    write_plan(PLANNED, tmp_path / "plan.json")
    script = tmp_path / "wrapper"
    assert run("hosts", str(tmp_path / "plan.json"), "--hosts", "a,b", "--wrapper", str(script)).exit_code == 0
    for seat in seatings(PLANNED.placement, ["a", "b"]):
        command = ["sh", str(script), "sh", "-c", "echo $0 $CUDA_VISIBLE_DEVICES", "an argument"]
        done = subprocess.run(command, env={variable: str(seat.rank)}, capture_output=True, text=True, check=True)
        assert done.stdout == f"an argument {seat.position}\n"
    for environment, message in (({}, "start this with mpirun, mpiexec or srun"), ({variable: "8"}, "has 8 ranks")):
        done = subprocess.run(["sh", str(script), "true"], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert message in done.stderr


def test_a_wrapper_is_for_gpus(tmp_path: Path) -> None:
    write_plan(ON_CORES, tmp_path / "plan.json")
    done = run("hosts", str(tmp_path / "plan.json"), "--hosts", "a,b", "--wrapper", str(tmp_path / "wrapper"))
    assert done.exit_code == 2
    assert "but the devices of this system are cores: --bind binds ranks to them in a rankfile" in done.stderr


def ranks_started(plan_path: Path, folder: Path, *options: str) -> list[set[int]]:
    """The cores of each rank that Open MPI started with our rank file; local ranks follow the ranks."""
    if "Open MPI" not in subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout:
        pytest.skip("this mpirun is not Open MPI's")
    ranks = folder / "ranks"
    ranks.write_text(run("hosts", str(plan_path), "--hosts", "localhost", *options).stdout)
    count = len(ranks.read_text().splitlines())
    command = [word for word in mpirun_command(count) if word not in ("--oversubscribe", "--bind-to", "none")]
    # A file each, as what ranks print may be mixed up.
    program = (
        "import os; rank, local = (os.environ[f'OMPI_COMM_WORLD_{name}'] for name in ('RANK', 'LOCAL_RANK')); "
        "assert rank == local; open(rank, 'w').write(' '.join(map(str, os.sched_getaffinity(0))))"
    )
    command += ["--rankfile", str(ranks), sys.executable, "-c", program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [set(map(int, (folder / str(rank)).read_text().split())) for rank in range(count)]


NEEDS_MPIRUN = pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")


@NEEDS_MPIRUN
def test_open_mpi_takes_the_rank_file_where_there_are_more_devices_than_cores(tmp_path: Path) -> None:
    devices = 2 * (os.cpu_count() or 1)
    path = written(tmp_path, f"node=1@1GB/s,gpu={devices}@8GB/s", {"data": devices})
    assert ranks_started(path, tmp_path) == [os.sched_getaffinity(0)] * devices


@NEEDS_MPIRUN
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_open_mpi_binds_each_rank_to_a_core_where_devices_are_cores(plan_file: Path, tmp_path: Path) -> None:
    first, second = ranks_started(plan_file, tmp_path, "--bind")
    assert not first & second, "each rank has cores of its own"
