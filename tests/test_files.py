"""Writing where others can write too: what they planted is never followed, and files are whole or as before."""

import errno
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import meshwright
from meshwright import SpecError, load_workload, parse_reduction, parse_system, plan, write_plan
from meshwright.measure.records import Records
from meshwright.text.files import append_file, write_file
from meshwright.workload.read import write_workload
from tests.cli.test_verbs import run

STRANGER = 12_345


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder like /tmp: everyone can write to it."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes a link or file somebody else's."""

    def give_away(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
        else:  # then what this user made is somebody else's to the code
            monkeypatch.setattr(os, "geteuid", lambda: STRANGER)

    return give_away


def test_a_link_that_somebody_planted_is_not_followed(
    shared: Path, tmp_path: Path, planted: Callable[[Path], None]
) -> None:
    target = tmp_path / "mine"
    target.write_text("precious")
    link = shared / "plan.json"
    link.symlink_to(target)
    planted(link)
    best = plan(parse_system("node=2@1GB/s"), {"data": 2}, [parse_reduction("data=1KiB")]).candidates[0]
    for write in (
        lambda: write_file(link, "mine"),
        lambda: append_file(link),
        lambda: write_plan(best, link),
        lambda: write_workload(load_workload("dense-70b").workload(), link),
        lambda: Records(link),
    ):
        with pytest.raises(SpecError, match=r"cannot write .*: the link plan\.json belongs to user .* not trusted"):
            write()
    assert target.read_text() == "precious"
    assert link.is_symlink()


def test_a_folder_that_somebody_planted_is_not_entered(
    shared: Path, tmp_path: Path, planted: Callable[[Path], None]
) -> None:
    (tmp_path / "home").mkdir()
    (shared / "results").symlink_to(tmp_path / "home")
    planted(shared / "results")
    for write in (lambda path: write_file(path, "x"), append_file):
        with pytest.raises(SpecError, match="the link results belongs to user"):
            write(shared / "results" / "m.jsonl")
    assert not list((tmp_path / "home").iterdir())


def test_a_link_to_nothing_is_not_followed_either(
    shared: Path, tmp_path: Path, planted: Callable[[Path], None]
) -> None:
    (shared / "out").symlink_to(tmp_path / "new")
    planted(shared / "out")
    for write in (lambda path: write_file(path, "x"), append_file):
        with pytest.raises(SpecError, match="the link out belongs to user"):
            write(shared / "out")
    assert not (tmp_path / "new").exists()


def test_a_pipe_that_somebody_planted_is_not_written_to(shared: Path, planted: Callable[[Path], None]) -> None:
    os.mkfifo(shared / "out")
    planted(shared / "out")
    with pytest.raises(SpecError, match=r"out, a pipe or a device, belongs to user .* not trusted"):
        write_file(shared / "out", "x")


def test_links_of_ones_own_and_in_folders_of_ones_own_are_followed(
    shared: Path, tmp_path: Path, planted: Callable[[Path], None]
) -> None:
    target = tmp_path / "target"
    target.write_text("old")
    (shared / "mine").symlink_to("../target")
    write_file(shared / "mine", "new")
    assert (target.read_text(), (shared / "mine").is_symlink()) == ("new", True)
    with append_file(shared / "mine") as file:
        file.write(b"er")
    assert target.read_text() == "newer"
    (tmp_path / "theirs").symlink_to("target")  # in a folder that others cannot write to
    tmp_path.chmod(0o755)
    planted(tmp_path / "theirs")
    write_file(tmp_path / "theirs", "newest")
    assert (target.read_text(), (tmp_path / "theirs").is_symlink()) == ("newest", True)


def test_a_name_for_the_unfinished_file_cannot_be_taken_beforehand(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    (shared / ".meshwright-guessed").symlink_to(tmp_path / "precious")
    with pytest.raises(SpecError, match="cannot write the file"):
        write_file(shared / "out", "x")
    assert not (tmp_path / "precious").exists()
    assert (shared / ".meshwright-guessed").is_symlink(), "it is not ours to remove"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").write_text("old")

    def full(_handle: int, _data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(SpecError, match=r"cannot write the file .*No space left on device"):
        write_file(tmp_path / "out", "new")
    monkeypatch.undo()
    assert (tmp_path / "out").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_permissions_are_those_of_the_mask_or_of_the_file_before(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        write_file(tmp_path / "new", "x")
        (tmp_path / "secret").touch(mode=0o600)
        write_file(tmp_path / "secret", "x")
        append_file(tmp_path / "added").close()
    finally:
        os.umask(mask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"new": 0o640, "secret": 0o600, "added": 0o640}


def test_a_write_protected_file_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").write_text("old")
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # root may write to everything
    with pytest.raises(SpecError, match="it is write-protected"):
        write_file(tmp_path / "out", "new")
    assert (tmp_path / "out").read_text() == "old"


def test_pipes_and_open_files_are_written_to(tmp_path: Path) -> None:
    read, write = os.pipe()
    write_file(Path(f"/dev/fd/{write}"), "through a pipe")
    os.close(write)
    assert os.read(read, 100) == b"through a pipe"
    os.close(read)
    with (tmp_path / "stdout").open("wb", buffering=0) as file:  # as with > in a shell
        file.write(b"before, ")
        write_file(Path(f"/proc/self/fd/{file.fileno()}"), "in the middle")
        file.write(b", after")
    assert (tmp_path / "stdout").read_text() == "before, in the middle, after"
    os.mkfifo(tmp_path / "fifo")
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "fifo").read_text()))
    reader.start()
    write_file(tmp_path / "fifo", "through a fifo")
    reader.join(60)
    assert got == ["through a fifo"]
    write_file(Path(os.devnull), "nothing")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".", "it is a folder"),
        ("loop", "more than 40 links"),
        ("none/out", "No such file"),
        ("file/out", "Not a directory"),
        ("a\0b", "null"),
    ],
)
def test_what_cannot_be_written_is_said(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    for write in (lambda path: write_file(path, "x"), append_file):
        with pytest.raises(SpecError, match=message):
            write(tmp_path / name)


def test_measurements_need_a_plain_file_of_measurements(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path(os.devnull), Path("/dev/stdout")):
        with pytest.raises(SpecError, match=r"cannot write measurements to .*: it is no plain file"):
            Records(path)
    (tmp_path / "token").write_text("no end of line")
    with pytest.raises(SpecError, match="is not a file of measurements, so nothing is added to it"):
        Records(tmp_path / "token")
    assert (tmp_path / "token").read_text() == "no end of line"


def test_measurements_whose_first_line_is_torn_are_begun_anew(tmp_path: Path) -> None:
    Records(tmp_path / "m").close()
    whole = (tmp_path / "m").read_bytes()
    for kept in (0, 1, 20, len(whole) - 1):
        (tmp_path / "m").write_bytes(whole[:kept])
        Records(tmp_path / "m").close()
        assert (tmp_path / "m").read_bytes() == whole


def test_verbs_refuse_planted_links(shared: Path, tmp_path: Path, planted: Callable[[Path], None]) -> None:
    link = shared / "out.yaml"
    link.symlink_to(tmp_path / "target")
    planted(link)
    log = tmp_path / "osu.log"
    log.write_text("# OSU MPI Allreduce Latency Test\n# Size  Avg Latency(us)\n65536  100.0\n1048576  1000.0\n")
    system = ["--system", "node=2@1GB/s"]
    for arguments in (
        ["plan", *system, "--axes", "data=2", "--reduce", "data=1KiB", "--out", str(link)],
        ["workload", "show", "dense-70b", "--out", str(link)],
        ["calibrate", *system, "--log", f"node={log}", "--out", str(link)],
        ["bench", *system, "--axes", "data=2", "--reduce", "data=1KiB", "--engine", "numpy", "--out", str(link)],
    ):
        done = run(*arguments)
        assert (done.exit_code, "the link out.yaml belongs to user" in done.stderr) == (2, True), done.output
    assert not (tmp_path / "target").exists()


def test_nothing_is_written_but_through_this_module() -> None:
    """The rule of the house: whoever needs another way to write puts it there, with its checks."""
    writing = re.compile(
        r"write_text|write_bytes|savefig\(path|tempfile|open\([^)]*[\"'](?!rb?[\"'])[rwax]b?\+?b?[\"']"
    )
    found = []
    for path in Path(meshwright.__file__).parent.rglob("*.py"):
        if path.name != "files.py":
            lines = enumerate(path.read_text().splitlines(), 1)
            found += [f"{path}:{k}: {line}" for k, line in lines if writing.search(line)]
    assert not found
