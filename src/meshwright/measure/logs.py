"""Observations from logs that people have already: the output of nccl-tests and of the OSU microbenchmarks."""

import re
from collections.abc import Iterator
from pathlib import Path

from meshwright.errors import SpecError
from meshwright.language.program import Collective
from meshwright.measure.observations import Observation
from meshwright.text.spec import shown

_NCCL = {
    "all_reduce": Collective.ALL_REDUCE,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "all_gather": Collective.ALL_GATHER,
    "reduce": Collective.REDUCE,
    "broadcast": Collective.BROADCAST,
    "sendrecv": None,
}
_OSU = {
    "Allreduce": Collective.ALL_REDUCE,
    "Reduce_scatter": Collective.REDUCE_SCATTER,
    "Allgather": Collective.ALL_GATHER,
    "Reduce": Collective.REDUCE,
    "Broadcast": Collective.BROADCAST,
    "Bcast": Collective.BROADCAST,
}

_WHOLE = re.compile("[0-9]{1,18}")


def read_log(path: Path, level: str, ranks: int) -> list[Observation]:
    """The observations in a log of nccl-tests or OSU microbenchmarks that ran inside one level, with `ranks` ranks.

    Sizes are what each device holds: for a reduce-scatter what it gives, for an all-gather what it ends with.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise SpecError(f"cannot read the log {str(path)!r}: {error}") from None
    found = list(_observations(path, lines, level, ranks))
    if not found:
        raise SpecError(f"{path} has no measurements; was the run cut off?")
    return found


def _observations(path: Path, lines: list[str], level: str, ranks: int) -> Iterator[Observation]:
    for number, line in enumerate(lines, 1):
        if found := re.match(r"#\s*OSU MPI(?:-CUDA)?\s+(?:Non-blocking )?(\w+)(?:\s+\w+)*\s+Test", line):
            return _osu(path, lines, number, found[1], level, ranks)
        if found := re.search(r"Collective test starting:\s*(\w+?)_perf", line):
            return _nccl(path, lines, number, found[1], level)
    # Older nccl-tests do not say which they are, but their files often do: all_reduce_perf_8.log.
    names = "|".join(sorted(_NCCL, key=len, reverse=True))  # all_reduce before reduce
    said = set(re.findall(rf"(?<![a-z])({names})(?![a-z])", path.stem))
    if len(said) == 1 and any("out-of-place" in line for line in lines):
        return _nccl(path, lines, 0, said.pop(), level)
    raise SpecError(
        f"{path} line 1: expected the output of nccl-tests ('# Collective test starting: all_reduce_perf', or a file "
        "name like all_reduce.log) or of an OSU microbenchmark ('# OSU MPI Allreduce Latency Test')"
    )


def _rows(lines: list[str], after: int) -> Iterator[tuple[int, str, list[str]]]:
    """The rows behind a line, without comments: the number of each, the row itself, and its words."""
    for number, line in enumerate(map(str.strip, lines[after:]), after + 1):
        if line and not line.startswith("#"):
            yield number, line, line.split()


def _nccl(path: Path, lines: list[str], after: int, name: str, level: str) -> Iterator[Observation]:
    """Rows of `size count type redop root time algbw busbw …`; the time is in microseconds."""
    if name not in _NCCL:
        raise SpecError(f"{path} line {after}: {shown(name)} is none of {', '.join(_NCCL)}")
    for number, line, words in _rows(lines, after):
        if not _WHOLE.fullmatch(words[0]):
            continue  # warnings and notes between the rows
        if len(words) < 8 or not _is_number(words[5]):
            raise SpecError(
                f"{path} line {number}: expected size, count, type, redop, root, time, …, not {shown(line)}"
            )
        size, seconds = int(words[0]), float(words[5]) * 1e-6
        if size > 0 and seconds > 0:
            yield Observation(level, _NCCL[name], size, seconds)


def _osu(path: Path, lines: list[str], after: int, name: str, level: str, ranks: int) -> Iterator[Observation]:
    """Rows of `size latency`, in microseconds, or `size bandwidth`, in MB/s."""
    known = [*_OSU, "Latency", "Bandwidth"]
    if name not in known:
        raise SpecError(f"{path} line {after}: the OSU test {shown(name)} is none of {', '.join(known)}")
    for number, line, words in _rows(lines, after):
        if len(words) < 2 or not _WHOLE.fullmatch(words[0]) or not _is_number(words[1]):
            raise SpecError(f"{path} line {number}: expected a size and a time or bandwidth, not {shown(line)}")
        size, value = int(words[0]), float(words[1])
        if size == 0 or value <= 0:
            continue
        seconds = size / (value * 1e6) if name == "Bandwidth" else value * 1e-6
        # OSU's all-gather names the size of one rank's part.
        whole = size * ranks if name == "Allgather" else size
        yield Observation(level, _OSU.get(name), whole, seconds)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
