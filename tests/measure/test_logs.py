"""Logs of other benchmarks."""

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright import Collective, SpecError
from meshwright.measure.logs import read_log
from meshwright.measure.observations import Observation

NCCL = """# Collective test starting: all_reduce_perf
# nThread 1 nGpus 8 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    55.37   18.94   33.14      0    54.86   19.11   33.45      0
     4194304       1048576     float     sum      -1    92.50   45.34   79.35      0    91.85   45.66   79.91      0
# Out of bounds values : 0 OK
"""
OSU = """# OSU MPI Allreduce Latency Test v7.3
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)
1024                   11.25
1048576               812.50
"""
BANDWIDTH = """# OSU MPI Bandwidth Test v7.3
# Size      Bandwidth (MB/s)
1048576             12000.00
"""


def log(tmp_path: Path, text: str, name: str = "run.log") -> Path:
    (tmp_path / name).write_text(text)
    return tmp_path / name


def rounded(seen: list[Observation]) -> list[Observation]:
    return [replace(one, seconds=round(one.seconds, 9)) for one in seen]


def test_nccl_tests(tmp_path: Path) -> None:
    assert rounded(read_log(log(tmp_path, NCCL), "gpu", 8)) == [
        Observation("gpu", Collective.ALL_REDUCE, 1048576, 55.37e-6),
        Observation("gpu", Collective.ALL_REDUCE, 4194304, 92.5e-6),
    ]


def test_older_nccl_tests_are_told_by_their_file(tmp_path: Path) -> None:
    older = "\n".join(NCCL.splitlines()[1:])
    assert read_log(log(tmp_path, older, "reduce_scatter-8.log"), "gpu", 8)[0].collective is Collective.REDUCE_SCATTER
    assert read_log(log(tmp_path, older, "all_gather.txt"), "gpu", 8)[0].collective is Collective.ALL_GATHER
    for name in ("all_reduce_8.log", "all_reduce_perf.log", "8x_all_reduce_perf_h100.txt"):
        assert read_log(log(tmp_path, older, name), "gpu", 8)[0].collective is Collective.ALL_REDUCE
    assert read_log(log(tmp_path, older, "reduce_perf_8.log"), "gpu", 8)[0].collective is Collective.REDUCE
    for name in ("mystery.log", "all_reduce_and_all_gather.log", "reduced.log"):
        with pytest.raises(SpecError, match="expected the output of nccl-tests"):
            read_log(log(tmp_path, older, name), "gpu", 8)


def test_osu(tmp_path: Path) -> None:
    assert rounded(read_log(log(tmp_path, OSU), "node", 4)) == [
        Observation("node", Collective.ALL_REDUCE, 1024, 11.25e-6),
        Observation("node", Collective.ALL_REDUCE, 1048576, 812.5e-6),
    ]
    gather = read_log(log(tmp_path, OSU.replace("Allreduce", "Allgather")), "node", 4)
    assert gather[0].bytes == 4096  # OSU names the size of a part
    (send,) = read_log(log(tmp_path, BANDWIDTH), "node", 2)
    assert send.collective is None
    assert send.seconds == pytest.approx(1048576 / 12e9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "line 1: expected the output of nccl-tests"),
        (NCCL.replace("55.37", "fast"), r"line 6: expected size, count, type, redop, root, time"),
        (NCCL.replace("all_reduce_perf", "hypercube_perf"), "line 1: 'hypercube' is none of"),
        (NCCL.replace("all_reduce_perf", "x" * 5000 + "_perf"), "line 1: 'x{78}… is none of"),
        (OSU.replace("Allreduce", "x" * 5000), "line 1: the OSU test 'x{78}… is none of"),
        (
            OSU.replace("812.50", "soon"),
            "line 5: expected a size and a time or bandwidth, not '1048576               soon'",
        ),
        (OSU.replace("Allreduce", "Alltoall"), "line 1: the OSU test 'Alltoall' is none of"),
        ("# OSU MPI Allreduce Latency Test v7.3\n", "has no measurements; was the run cut off"),
    ],
)
def test_unexpected_logs_name_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read_log(log(tmp_path, text), "gpu", 8)


def test_a_missing_log(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot read the log"):
        read_log(tmp_path / "none", "gpu", 8)
