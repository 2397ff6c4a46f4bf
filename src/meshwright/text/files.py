"""Writing files: all or nothing, and never through a symbolic link that another user may have planted.

A link is followed if it belongs to this user or to root, or if only the owner of its folder can write to that folder.
A path is walked folder by folder, each opened relative to the one before, so that nobody can exchange a folder between
the check and the use.
"""

import io
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from meshwright.errors import SpecError
from meshwright.text.spec import shown

MOST_LINKS = 40
"""The most links that are followed in one path, as on Linux."""

_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def write_file(path: Path, content: str | bytes, what: str = "the file") -> None:
    """Write a whole file, or leave the old one as it was. A device or a pipe, like /dev/stdout, is written to, never
    replaced.
    """
    data = content.encode() if isinstance(content, str) else content
    with _located(path, what) as place:
        _write(place, data)


def append_file(path: Path, what: str = "the file") -> io.FileIO:
    """Open a file for appending, and create it if there is none. Refuses everything but regular files."""
    with _located(path, what) as place:
        if place.is_stream:
            raise OSError("it is no plain file, so what is written could not be read back")
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return io.FileIO(os.open(place.name, flags, 0o666, dir_fd=place.folder), "ab")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a path leads: the descriptor of a folder, a name in it, and what was found there (None: nothing).

    magic: the name is one of the links in /proc/PID/fd, which lead to an open file, whatever the link's text says.
    """

    folder: int
    name: str
    found: os.stat_result | None
    magic: bool = False

    @property
    def is_stream(self) -> bool:
        """Whether it is written to in place: a pipe, a device, or a file that is already open."""
        return self.magic or (self.found is not None and not stat.S_ISREG(self.found.st_mode))


def scratch_folder() -> "TemporaryDirectory[str]":
    """A new folder for the files of another program; nobody else can enter it, and a with statement removes it."""
    return TemporaryDirectory(prefix="meshwright-")


@contextmanager
def _located(path: Path, what: str) -> Iterator[_Place]:
    """Where a path leads. Errors, also of what is done there, become messages that name the path."""
    try:
        place = _locate(path)
        try:
            yield place
        finally:
            os.close(place.folder)
    except (OSError, ValueError) as error:
        raise SpecError(
            f"cannot write {what} {shown(str(path))}: {getattr(error, 'strerror', None) or error}"
        ) from None


def _locate(path: Path) -> _Place:
    """Follow a path to its end; refuses links that cannot be trusted.

    `todo` is the rest of the path, last name first. For example, with the link /tmp/out -> data/x, the path /tmp/out/y
    is walked as: [y, out, tmp] from /; [y, out] from /tmp; the link puts its own names first, [y, x, data] from /tmp;
    [y, x] from /tmp/data; [y] from /tmp/data/x.
    """
    todo = list(reversed(Path.cwd().joinpath(path).parts[1:]))
    folder, links = os.open("/", _FOLDER), 0
    try:
        while True:
            name = todo.pop() if todo else "."
            try:
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                if todo:
                    raise
                return _Place(folder, name, None)
            if stat.S_ISLNK(found.st_mode):
                links += 1
                if links > MOST_LINKS:
                    raise OSError(f"it leads through more than {MOST_LINKS} links")
                if not todo and _leads_to_open_file(folder, name):
                    return _Place(folder, name, found, magic=True)
                target = _followed(folder, name, found)
                if target.startswith("/"):
                    folder = _into("/", folder)
                todo += [name for name in reversed(target.split("/")) if name not in ("", ".")]
            elif not todo:
                if stat.S_ISDIR(found.st_mode):
                    raise IsADirectoryError("it is a folder")
                if not stat.S_ISREG(found.st_mode) and not _trusted(folder, found):
                    raise _refusal(f"{name}, a pipe or a device,", found)
                return _Place(folder, name, found)
            else:
                folder = _into(name, folder)
    except BaseException:
        os.close(folder)
        raise


def _into(name: str, folder: int) -> int:
    """Open a folder inside another one, whose descriptor is closed."""
    inner = os.open(name, _FOLDER, dir_fd=folder)
    os.close(folder)
    return inner


def _followed(folder: int, name: str, link: os.stat_result) -> str:
    """The target of a link; refuses one that cannot be trusted."""
    if not _trusted(folder, link):
        raise _refusal(f"the link {name}", link)
    target = os.readlink(name, dir_fd=folder)
    after = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if (link.st_dev, link.st_ino, link.st_ctime_ns) != (after.st_dev, after.st_ino, after.st_ctime_ns):
        raise PermissionError(f"the link {name} changed while it was followed")
    return target


def _trusted(folder: int, found: os.stat_result) -> bool:
    """Whether no other user can have planted what was found in a folder."""
    return found.st_uid in (0, os.geteuid()) or not os.fstat(folder).st_mode & _OTHERS_WRITE


def _refusal(what: str, found: os.stat_result) -> OSError:
    return PermissionError(
        f"{what} belongs to user {found.st_uid} and lies in a folder that others can write to, so it is not trusted; "
        "name another place"
    )


def _leads_to_open_file(folder: int, name: str) -> bool:
    """Whether a link is one of those in /proc/PID/fd."""
    with suppress(FileNotFoundError):
        return name.isdecimal() and os.fstat(folder).st_dev == Path("/proc/self").stat().st_dev
    return False


def _write(place: _Place, data: bytes) -> None:
    if place.is_stream:
        _write_all(_opened_stream(place), data)
        return
    if place.found is not None and not os.access(place.name, os.W_OK, dir_fd=place.folder, effective_ids=True):
        raise PermissionError("it is write-protected")
    unfinished = f".meshwright-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        handle = os.open(unfinished, flags, 0o666, dir_fd=place.folder)
        if place.found is not None and place.found.st_uid == os.geteuid():
            os.fchmod(handle, stat.S_IMODE(place.found.st_mode) & 0o777)
        _write_all(handle, data, sync=True)
        os.replace(unfinished, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
    except FileExistsError:  # somebody else's file: not ours to remove
        raise
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(unfinished, dir_fd=place.folder)
        raise


def _opened_stream(place: _Place) -> int:
    if not place.magic:
        return os.open(place.name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.folder)
    if os.path.samestat(os.fstat(place.folder), Path("/proc/self/fd").stat()):
        return os.dup(int(place.name))  # opening it again would write from the beginning of the file
    return os.open(place.name, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, dir_fd=place.folder)


def _write_all(handle: int, data: bytes, sync: bool = False) -> None:
    """Write everything to a descriptor, and close it."""
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(handle, left) :]
        if sync:
            os.fsync(handle)
    finally:
        os.close(handle)
