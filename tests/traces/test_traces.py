"""Traces of real runs, and what is said about files that cannot be used.

The files of NCCL are of one program on four ranks that shared a GPU, with the mesh data=2,tensor=2. In each of two
profiled and four recorded steps it called: an all-reduce over data of 1,000,000 bfloat16 that matrix products hid, and
one that nothing hid; all-gathers, reduce-scatters and all-to-alls over tensor, in all forms; a broadcast and a reduce
of all ranks; a message from data 0 to data 1, and one from each rank to the next in a ring of all four.
"""

import gzip
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright import MeshwrightError, load_workload
from meshwright.workload.recorded import Translation
from meshwright.workload.traces.kineto import kineto_trace
from meshwright.workload.traces.read import merged, trace_of, workload_of_traces
from tests.cli.test_verbs import run, run_json

FILES = Path(__file__).parent / "files"
PROFILED = [FILES / f"nccl-rank{rank}.pt.trace.json.gz" for rank in (0, 3)]
DUMPED = [FILES / f"nccl_trace_rank_{rank}.json" for rank in (0, 3)]

CALLED = {
    ("all-reduce of 2MB", "data", 2_000_000): 2,
    ("broadcast of 2MB", "data+tensor", 2_000_000): 1,
    ("reduce of 2MB", "data+tensor", 2_000_000): 1,
    ("all-reduce of 10kB", "tensor", 10_000): 1,
    ("all-gather of 8kB", "tensor", 8_000): 1,
    ("all-gather of 4kB", "tensor", 4_000): 2,
    ("reduce-scatter of 4kB", "tensor", 4_000): 2,
    ("all-to-all of 8kB", "tensor", 8_000): 1,
    ("all-to-all of 1.2kB", "tensor", 1_200): 1,
    ("point-to-point forward of 2kB", "data", 2_000): 1,
    ("point-to-point forward of 2kB", "tensor", 2_000): 1,
}


def told(found: Translation) -> dict[tuple[str, str, int], int]:
    return {(one.name, "+".join(one.axes), one.bytes): one.count for one in found.workload.communications}


@pytest.mark.parametrize("paths", [PROFILED, PROFILED[:1], DUMPED, DUMPED[:1]], ids=["k0+3", "k0", "f0+3", "f0"])
@pytest.mark.parametrize("axes", [None, {"data": 2, "tensor": 2}], ids=["found", "given"])
def test_what_nccl_sent(paths: list[Path], axes: dict[str, int] | None) -> None:
    found = workload_of_traces(paths, axes, None if paths[0] in PROFILED else 4)
    assert dict(found.workload.axes) == {"data": 2, "tensor": 2}
    assert told(found) == CALLED
    assert found.notes == ()
    (ring,) = found.left_out  # from the last rank to the first is no step along one axis
    assert (ring.call.rank, ring.call.to) == (3, 0)


def test_the_share_that_is_hidden_behind_kernels() -> None:
    hidden = {one.name: one.hidden for one in workload_of_traces(PROFILED).workload.communications}
    assert hidden.pop("all-reduce of 2MB") == pytest.approx(0.5, abs=0.01)  # one of two
    assert set(hidden.values()) == {0.0}


def gloo(folder: Path) -> None:
    """Four real ranks; the recorder is switched on by the environment, which is read once when PyTorch is loaded."""
    on = {"TORCH_FR_BUFFER_SIZE": "100", "TORCH_NCCL_TRACE_BUFFER_SIZE": "100", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.traces.ranks"]
    environment = os.environ | on | {"FOLDER": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr


def test_dumps_of_gloo_tell_groups_together(tmp_path: Path) -> None:
    gloo(tmp_path)
    pickled = sorted(tmp_path.glob("trace_rank_*"))
    found = workload_of_traces(pickled, steps=3)
    assert found == workload_of_traces(sorted(tmp_path.glob("json_rank_*")), steps=3)
    assert dict(found.workload.axes) == {"data": 2, "tensor": 2}
    assert told(found) == {
        ("all-reduce of 4kB", "data", 4000): 2,
        ("all-gather of 16kB", "tensor", 16000): 1,
        ("broadcast of 2kB", "data+tensor", 2000): 1,
    }
    assert (found.left_out, found.notes) == ((), ())
    with pytest.raises(MeshwrightError, match=r"which ranks are in the group '\d'; give the dumps of all ranks"):
        workload_of_traces(pickled[:1], steps=3)
    with pytest.raises(MeshwrightError, match="the pickle cannot be read: is it cut off"):
        trace_of(pickled[0].read_bytes()[:-100], "trace")


def test_the_command(tmp_path: Path) -> None:
    out = tmp_path / "step.yaml"
    done = run("workload", "from-trace", *map(str, PROFILED), "--out", str(out), "--name", "mine")
    assert done.exit_code == 0, done.stderr
    assert "all-reduce of 2MB" in done.stdout
    assert "left out: point-to-point from rank 3 to 0, 4kB in all: the ranks are no neighbours" in done.stderr
    assert load_workload(out).workload().communications == tuple(workload_of_traces(PROFILED).workload.communications)
    assert yaml.safe_load(out.read_text())["name"] == "mine"
    document = run_json("workload", "from-trace", *map(str, DUMPED), "--steps", "4", "--axes", "a=2,b=2")
    assert document["axes"] == {"a": 2, "b": 2}
    assert [(one["kind"], one["ranks"]) for one in document["left_out"]] == [("point-to-point", [3, 0])]
    planned = run_json("plan", "--system", "node=2@1GB/s,gpu=2@8GB/s", "--workload", str(out))
    assert planned["candidates"][0]["placement"]["matrix"] == [[1, 2], [2, 1]]
    refused = run("workload", "from-trace", str(DUMPED[0]))
    assert refused.exit_code == 2
    assert "no ProfilerStep# marks, so the number of steps is not known: say it with --steps 10" in refused.stderr


# What can be wrong


def profile(**args: Any) -> dict[str, Any]:
    """A trace with one call, of which some arguments are different; None takes one away."""
    call = {
        "Collective name": "allreduce",
        "dtype": "Float",
        "In msg nelems": 10,
        "Out msg nelems": 10,
        "Group size": 2,
        "Process Group Name": "7",
        "Process Group Ranks": "[0, 1]",
    }
    kept = {key: value for key, value in (call | args).items() if value is not None}
    events = [
        {"name": "ProfilerStep#1", "ph": "X", "ts": 0.0, "dur": 10.0},
        {"name": "record_param_comms", "ph": "X", "ts": 1.0, "dur": 1.0, "args": kept},
        {"name": "record_param_comms", "ph": "X", "ts": 11.0, "dur": 1.0, "args": kept},  # after the step
    ]
    return {"distributedInfo": {"rank": 0, "world_size": 2}, "traceEvents": events}


def test_calls_outside_of_steps_do_not_count() -> None:
    (call,) = merged([kineto_trace(profile(), "t")]).calls
    assert (call.kind, call.ranks, call.bytes, call.count) == ("all-reduce", (0, 1), 40, 1)


def test_ranks_that_are_cut_off_come_from_elsewhere() -> None:
    cut = {"Process Group Ranks": "[0, 2, ...]", "Group size": 4}
    strided = profile(**cut, **{"Global rank start": 0, "Global rank stride": 2})
    assert kineto_trace(strided, "t").groups == {"7": (0, 2, 4, 6)}
    told = profile(**cut)
    told["distributedInfo"]["pg_config"] = [{"pg_name": "7", "ranks": [0, 2, 3, 9]}]
    assert kineto_trace(told, "t").groups == {"7": (0, 2, 3, 9)}
    with pytest.raises(MeshwrightError, match="t: it does not tell which ranks are in the group '7'"):
        kineto_trace(profile(**cut), "t")


class Evil:
    def __reduce__(self) -> Any:
        return print, ("taken over",)


ENTRY = {
    "profiling_name": "nccl:all_reduce",
    "process_group": ["0", "default_pg"],
    "input_sizes": [[10]],
    "input_dtypes": ["Float"],
    "output_sizes": [[10]],
    "output_dtypes": ["Float"],
}


def dump(**changes: Any) -> bytes:
    """A dump with one call, of which some fields are different."""
    config = changes.pop("pg_config", {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}})
    return pickle.dumps({"version": "2.10", "pg_config": config, "entries": [ENTRY | changes]}, 2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it is empty; expected a trace that torch.profiler wrote"),
        (b"PK\x03\x04", "no format that is known; expected a trace"),
        (b"[" * 5000, "malformed JSON, perhaps cut off"),
        (b'{"traceEvents": [', "malformed JSON, perhaps cut off"),
        (b'{"levels": []}', "it has neither 'traceEvents' nor 'entries'; expected a trace"),
        (b"3.5", "no format that is known"),
        (b'{"traceEvents": []}', "there are no record_param_comms events.*record_shapes=True.*gloo"),
        (b"[]", "there are no record_param_comms events"),
        (b'{"entries": []}', "has no calls; TORCH_FR_BUFFER_SIZE=2000"),
        (json.dumps(profile(**{"In msg nelems": None})).encode(), "a call has no sizes.*record_shapes=True"),
        (json.dumps(profile(dtype="Quaternion")).encode(), "values of the type 'Quaternion', whose size is not known"),
        (pickle.dumps(Evil()), "it asks for .*print.*, which no dump of Flight Recorder does"),
        (pickle.dumps(Evil(), 0), "no format that is known"),
        (dump()[:-20], "the pickle cannot be read: is it cut off"),
        (dump(profiling_name=3), "an entry of Flight Recorder has no profiling_name"),
        (dump(process_group=None), "an entry has no process_group"),
        (dump(input_sizes=None), "an entry has no input_sizes and input_dtypes"),
        (dump(input_sizes=[[-1]]), "input_sizes that are no shapes"),
        (dump(input_dtypes=[]), "values of the type a NoneType, whose size is not known"),
    ],
)
def test_files_that_cannot_be_used(data: bytes, message: str) -> None:
    with pytest.raises(MeshwrightError, match=f"^rank_0: .*{message}"):
        trace_of(data, "rank_0")


def test_the_largest_numbers_of_a_pickle_take_no_memory() -> None:
    with pytest.raises(MeshwrightError, match="the pickle cannot be read"):
        trace_of(b"\x80\x02]r\xff\xff\xff\x7f", "rank_0")


def test_files_that_do_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(MeshwrightError, match="are both of rank 0; give one file for each rank"):
        workload_of_traces([PROFILED[0], PROFILED[0]])
    with pytest.raises(MeshwrightError, match=r"different numbers of steps: .*rank0.*2, .*rank_3.json none"):
        workload_of_traces([PROFILED[0], DUMPED[1]])
    with pytest.raises(MeshwrightError, match="there is no trace"):
        workload_of_traces([tmp_path / "absent"])
    with pytest.raises(MeshwrightError, match="cannot read the trace"):
        workload_of_traces([tmp_path])
    with pytest.raises(MeshwrightError, match="multiply to 8, but"):
        workload_of_traces(PROFILED, {"data": 8})
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(PROFILED[0].read_bytes()[:2000])
    with pytest.raises(MeshwrightError, match=r"cut.json.gz: the file cannot be unpacked; is it cut off"):
        workload_of_traces([cut])
    with pytest.raises(MeshwrightError, match=r"dump.pkl: it does not tell of which rank it is"):
        merged([trace_of(dump(pg_config={}), "dump.pkl")])
    older = profile() | {"distributedInfo": {}}  # then the rank is the smallest that is in all groups
    assert [call.rank for call in merged([kineto_trace(older, "host_17.1699999999999.pt.trace.json")]).calls] == [0]


def test_what_was_received_counts_where_the_sender_has_no_trace() -> None:
    calls = [Path(PROFILED[0]), Path(PROFILED[1])]
    alone = merged([trace_of(gzip.decompress(calls[1].read_bytes()), "t")]).calls
    sent = {(call.rank, call.to) for call in alone if call.kind == "point-to-point"}
    assert sent == {(3, 0), (2, 3), (1, 3)}


def test_a_dump_that_was_overwritten_is_noted() -> None:
    found = merged([trace_of(dump(record_id=17), "rank_0")])
    assert found.notes == ("rank_0: older calls were overwritten; a larger TORCH_FR_BUFFER_SIZE keeps more",)
    assert merged([trace_of(dump(record_id=0), "any name")]).notes == ()
