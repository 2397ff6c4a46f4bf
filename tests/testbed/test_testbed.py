"""The testbed for real; skipped where namespaces cannot be made."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from meshwright import EngineError, SpecError, parse_system
from meshwright.measure.records import read_measurements
from meshwright.runtime.signals import Interrupted, interrupting
from meshwright.system.read import system_document
from meshwright.testbed import Testbed, down, find, missing_rights, running, temporary, up
from meshwright.testbed import bed as bed_module
from meshwright.testbed import build as build_module
from tests.cli.test_verbs import run, run_json
from tests.testbed.conftest import needs_testbed
from tests.traps import Traps

SPEC = "node=2@20Mbit/s,gpu=2@100Mbit/s"


def namespaces(name: str) -> set[str]:
    """Those of one testbed; others may come and go, as tests run side by side."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines() if line.startswith(f"mw-{name}")}


def checked(name: str, seconds: float) -> dict[str, Any]:
    """What `testbed check` says; in a process of its own, as it forks, which this one may have too many threads for."""
    command = [
        sys.executable,
        "-m",
        "meshwright",
        "testbed",
        "check",
        "--name",
        name,
        "--seconds",
        str(seconds),
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_nothing_is_sent_again_only_because_a_receiver_is_late(bed: Testbed) -> None:
    """Probes for lost packets, of which there are none here, made links of a busy machine carry 3% more."""
    command = ["ip", "netns", "exec", bed.network.namespace(0), "cat", "/proc/sys/net/ipv4/tcp_early_retrans"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "0"


def test_bytes_are_counted_on_the_links_they_cross(bed: Testbed) -> None:
    before = {(c.port.level, c.port.instance, c.outwards): c.bytes for c in bed.counters()}
    document = checked(bed.network.name, 0.4)
    assert [(rate["level"], rate["senders"]) for rate in document["rates"]] == [("node", 2), ("gpu", 1)]
    assert document["drops"] == 0
    grown = {
        key: c.bytes - before[key] for c in bed.counters() for key in [(c.port.level, c.port.instance, c.outwards)]
    }
    between, inside = (0.4 * rate["achieved"] for rate in document["rates"])  # what arrived while it was counted
    assert grown[0, 0, True] > between > 0  # node 0 sent to node 1
    assert grown[0, 1, False] == pytest.approx(grown[0, 0, True], rel=0.05)
    assert grown[1, 1, False] > inside > 0  # gpu 0 sent to gpu 1, inside the node
    assert grown[1, 3, False] < grown[0, 1, False]  # half of what came in went to each device
    assert sum(counter.drops for counter in bed.counters()) == 0


def test_a_job_has_the_variables_of_torchrun_and_names_of_its_own(bed: Testbed, tmp_path: Path) -> None:
    program = (
        "import os, socket, pathlib\n"
        "names = ['WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'NCCL_HOSTID']\n"
        f"path = pathlib.Path({str(tmp_path)!r}) / os.environ['RANK']\n"
        "path.write_text(' '.join([socket.gethostname(), *(os.environ[name] for name in names)]))\n"
    )
    assert bed.run([sys.executable, "-c", program]) == 0
    found = [(tmp_path / str(rank)).read_text() for rank in range(4)]
    assert found == [f"198.18.0.{rank + 1} 4 {rank % 2} 2 198.18.0.1 device{rank}" for rank in range(4)]
    assert os.uname().nodename not in ("198.18.0.1", "198.18.0.4")


def test_a_failing_rank_is_named_and_ends_the_job(bed: Testbed, capfd: pytest.CaptureFixture[str]) -> None:
    program = "import os, sys, time; sys.exit(9) if os.environ['RANK'] == '2' else time.sleep(600)"
    assert bed.run([sys.executable, "-c", program], grace=0.5) == 9
    assert capfd.readouterr().err == "rank 2 ended with exit code 9: the others are ended\n"
    assert bed.run(["sh", "-c", "[ $RANK = 3 ] && kill -KILL $$; sleep 60"], grace=0.5) == 137
    assert capfd.readouterr().err == "rank 3 was ended by signal 9: the others are ended\n"
    deadline = time.monotonic() + 20  # what was killed takes a moment to be gone, on a busy machine
    for namespace in bed.network.namespaces:
        while left := subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, check=True).stdout:
            assert time.monotonic() < deadline, left


@needs_testbed
def test_up_is_idempotent_and_down_removes_everything() -> None:
    name = f"idem{os.getpid()}"
    try:
        first = up(parse_system(SPEC), name)
        checked(name, 0.1)
        counted = first.counters()[0].bytes
        assert up(parse_system(SPEC), name) == first
        assert first.counters()[0].bytes >= counted > 0, "the same one, not a new one"
        other = up(parse_system("node=3@20Mbit/s"), name)
        assert other.system.devices == 3
        assert len(namespaces(name)) == 4
        assert running(name) == other
    finally:
        assert down(name)
    assert not namespaces(name)
    assert not down(name)
    assert find(name) is None
    with pytest.raises(EngineError, match="is not up; start it with: meshwright testbed up"):
        running(name)


def relays(name: str) -> list[int]:
    """The processes that add latency to a testbed."""
    command = ["ip", "netns", "pids", f"mw-{name}"]
    return [int(pid) for pid in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()]


@needs_testbed
def test_latency_is_that_of_the_level_at_which_devices_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traps = Traps(tmp_path)
    name = f"late{os.getpid()}"
    system = parse_system("node=2@20Mbit/s+12ms,gpu=2@100Mbit/s+3ms")
    with monkeypatch.context() as there:
        there.chdir(traps.folder)
        there.setenv("PATH", traps.path)
        assert up(system, name).run(["sh", "-c", "true"]) == 0
    assert not traps.sprung
    with temporary(system, name) as bed:
        (relay,) = relays(name)
        document = checked(name, 0.4)
        node, gpu = document["rates"]
        assert document["drops"] == 0
        assert (node["latency"], gpu["latency"]) == (12e-3, 3e-3)
        assert 3e-3 <= gpu["trip"] < 12e-3 <= node["trip"]
        counted = {(c.port.level, c.port.instance, c.outwards): c.bytes for c in bed.counters()}
        assert counted[0, 1, False] > 500_000  # node 0 sent to node 1,
        assert counted[1, 2, False] > 250_000  # one half of it to each of its devices
        assert up(bed.system, name) == bed
        assert relays(name) == [relay]
        os.kill(relay, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while relays(name) and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(EngineError, match="the process that adds it is gone: meshwright testbed down --name late"):
            running(name)
        assert up(bed.system, name) == bed, "it is built anew"
        assert running(name) == bed
        (relay,) = relays(name)
    assert not Path(f"/proc/{relay}").exists() or "Z" in Path(f"/proc/{relay}/stat").read_text().split()


@needs_testbed
def test_collectives_run_across_latency(tmp_path: Path) -> None:
    name, out = f"coll{os.getpid()}", tmp_path / "out.jsonl"
    spec = "node=2@20Mbit/s+12ms,gpu=2@100Mbit/s+3ms"
    with temporary(parse_system(spec), name, 18_000):
        command = [sys.executable, "-m", "meshwright", "bench", "--system", spec, "--axes", "data=4"]
        command += ["--reduce", "data=64KiB", "--library", "gloo", "--testbed", name, "--out", str(out)]
        command += ["--every", "1", "--best", "2", "--least", "1", "--most", "1"]
        done = subprocess.run(command, check=True, timeout=120, capture_output=True, text=True)
    assert "cannot reach" not in done.stderr  # the rank that has the store leaves last
    found = read_measurements(out)
    assert len(found) >= 3
    assert all(one.failed is None and min(one.seconds) > 12e-3 for one in found)


@needs_testbed
def test_a_crashed_run_is_cleaned_up() -> None:
    name = f"crash{os.getpid()}"
    program = (
        "import os, time\n"
        "from meshwright import parse_system\n"
        "from meshwright.testbed import up\n"
        f"bed = up(parse_system({SPEC!r}), {name!r})\n"
        "pid = os.fork()\n"
        "bed.enter(0) if pid == 0 else print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
    with temporary(parse_system("node=2@10Mbit/s"), name) as bed:  # in its place
        assert bed.system.devices == 2
    assert not namespaces(name)


@needs_testbed
@pytest.mark.parametrize(
    ("module", "at"), [(bed_module, "write_file"), (bed_module, "build"), (build_module, "_completed")]
)
def test_a_testbed_whose_building_is_interrupted_leaves_nothing(
    module: ModuleType, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"stop{os.getpid()}"
    work = getattr(module, at)
    calls: list[object] = []

    def struck(*given: Any, **options: Any) -> Any:
        done = work(*given, **options)
        calls.append(given)
        if len(calls) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return done

    monkeypatch.setattr(module, at, struck)
    done = run("testbed", "up", "--system", SPEC, "--name", name)
    assert (done.exit_code, done.stderr) == (143, "Error: interrupted by SIGTERM\n")
    assert not namespaces(name)
    assert not namespaces(f"probe-{os.getpid()}")
    assert find(name) is None


def test_a_tool_that_has_started_is_waited_for_before_a_signal_counts(tmp_path: Path) -> None:
    """Otherwise it might still make what the cleaning up looked for in vain."""
    made = tmp_path / "made"
    with pytest.raises(Interrupted), interrupting():
        build_module._completed(["sh", "-c", f"kill -TERM $PPID; sleep 0.2; touch {made}"])
    assert made.exists()


@needs_testbed
def test_namespaces_of_others_are_left_alone() -> None:
    name = f"other{os.getpid()}"
    subprocess.run(["ip", "netns", "add", f"mw-{name}-1"], check=True)
    try:
        with pytest.raises(EngineError, match="namespaces that are not ours"):
            up(parse_system(SPEC), name)
        assert f"mw-{name}-1" in namespaces(name)
        assert f"mw-{name}-0" not in namespaces(name)
    finally:
        subprocess.run(["ip", "netns", "delete", f"mw-{name}-1"], check=True)


@needs_testbed
def test_the_verbs() -> None:
    name = f"verb{os.getpid()}"
    try:
        assert "4 devices, 6 links" in run("testbed", "up", "--system", SPEC, "--name", name).stderr
        document = checked(name, 0.5)
        assert document["drops"] == 0
        assert [row["level"] for row in document["rates"]] == ["node", "gpu"]
        links = run_json("testbed", "status", "--name", name)["links"]
        assert [(row["level"], row["instance"]) for row in links[:3]] == [("node", 0), ("node", 1), ("gpu", 0)]
        assert links[0]["bandwidth"] == 2.5e6
        table = run("testbed", "status", "--name", name).stdout
        assert "node 0" in table
        assert "20Mbit/s" in table
        command = [
            sys.executable,
            "-m",
            "meshwright",
            "testbed",
            "exec",
            "--name",
            name,
            "--",
            "sh",
            "-c",
            "exit $RANK",
        ]
        assert subprocess.run(command, check=False).returncode in (1, 2, 3)
    finally:
        assert "is down" in run("testbed", "down", "--name", name).stderr
    assert "was not up" in run("testbed", "down", "--name", name).stderr
    assert run("testbed", "status", "--name", name).exit_code == 3
    assert "expected a command" in run("testbed", "exec", "--name", name).stderr


def test_without_the_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    done = run("testbed", "up", "--system", SPEC)
    assert done.exit_code == 3
    assert done.stderr.strip() == "Error: a testbed needs root, to make network namespaces: run it with sudo"
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert missing_rights() == "a testbed needs the command ip: install iproute2"


def test_what_is_known_about_a_testbed_may_be_damaged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("meshwright.testbed.bed.STATE", tmp_path)
    (tmp_path / "testbed-x.json").write_text("{")
    with pytest.raises(SpecError, match="cannot read what is known about testbed 'x'"):
        find("x")
    (tmp_path / "testbed-x.json").write_text(json.dumps({"devices": 1}))
    with pytest.raises(SpecError, match="cannot read what is known about testbed 'x'"):
        find("x")


def test_what_others_could_have_written_about_a_testbed_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    state = tmp_path / "meshwright"
    monkeypatch.setattr("meshwright.testbed.bed.STATE", state)
    monkeypatch.setattr("meshwright.testbed.build.missing_rights", lambda: "")
    assert find("x") is None
    known = state / "testbed-x.json"

    def refuses(message: str) -> None:
        for act in (find, down, running):
            with pytest.raises(EngineError, match=message):
                act("x")

    state.mkdir(mode=0o755)
    assert find("x") is None
    known.write_text(json.dumps({"system": system_document(parse_system(SPEC))}))
    assert find("x") is not None
    known.chmod(0o666)
    refuses(r"testbed-x\.json can be written to by others, so it is not trusted")
    known.chmod(0o644)
    known.rename(tmp_path / "elsewhere")
    known.symlink_to(tmp_path / "elsewhere")
    refuses(r"testbed-x\.json is a link")
    known.unlink()
    (tmp_path / "elsewhere").rename(known)
    state.chmod(0o777)
    refuses("meshwright can be written to by others, so it is not trusted")
    with pytest.raises(EngineError, match="meshwright can be written to by others"):
        up(parse_system(SPEC), "x")
    state.chmod(0o755)
    state.rename(tmp_path / "moved")
    state.symlink_to(tmp_path / "moved")
    refuses("meshwright is a link")
    state.unlink()
    (tmp_path / "moved").rename(state)
    assert find("x") is not None
    if os.geteuid() == 0:
        os.chown(state, 12_345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    refuses("meshwright belongs to user")


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed (Debian: openmpi-bin)")
def test_mpi_runs_across_the_links(bed: Testbed, tmp_path: Path) -> None:
    out = tmp_path / "m.jsonl"
    arguments = ["bench", "--system", SPEC, "--axes", "data=4", "--reduce", "data=256KiB", "--out", str(out)]
    arguments += ["--engine", "mpi", "--every", "1", "--best", "0", "--least", "1", "--most", "1"]
    python, traps = [sys.executable, "-P", "-m", "meshwright"], Traps(tmp_path)
    done = subprocess.run(
        [*python, "testbed", "exec", "--name", bed.network.name, "--mpi", "--", *python, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=traps.folder,
        env=os.environ | {"PATH": traps.path},
    )
    assert done.returncode == 0, done.stderr
    assert not traps.sprung
    found = read_measurements(out)
    assert [one.program for one in found] == ["default", "AllReduce all"]
    for one in found:
        assert one.failed is None
        assert one.links is not None
        assert one.links["node"] > 256 * 1024  # at least the bound of an all-reduce between two nodes


def test_a_device_is_found_by_its_address(bed: Testbed) -> None:
    assert bed.device("198.18.0.3") == 2
    with pytest.raises(SpecError, match=r"has no device with the address '10\.0\.0\.1'"):
        bed.device("10.0.0.1")


def test_streams_begin_when_all_ends_are_there(bed: Testbed) -> None:
    """Also where it takes longer than the measurement until the processes of a device run."""
    program = (
        "import sys, time\n"
        "from meshwright.testbed import bed\n"
        "from meshwright.testbed.rates import measure_rates\n"
        "enter = bed.Testbed.enter\n"
        "bed.Testbed.enter = lambda self, device: (time.sleep(1.5 * (device > 0)), enter(self, device))[1]\n"
        "print(*[rate.achieved > 0 for rate in measure_rates(bed.running(sys.argv[1]), 0.2)])\n"
    )
    command = [sys.executable, "-c", program, bed.network.name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("True True\n", "")
