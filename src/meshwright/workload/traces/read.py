"""Trace files: which format each is, and the calls of all ranks in them."""

import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from os import PathLike
from pathlib import Path

from meshwright.errors import SpecError
from meshwright.text.spec import check_path, shown
from meshwright.workload.recorded import Recorded, Translation, to_workload
from meshwright.workload.traces.flight import flight_trace, unpickled
from meshwright.workload.traces.hlo import hlo_calls
from meshwright.workload.traces.kineto import kineto_trace
from meshwright.workload.traces.trace import RECEIVE, SEND, Call, Recording, Trace, wrong

MOST_BYTES = 2**30
"""The most bytes of one file, unpacked."""

_KNOWN = (
    "a trace that torch.profiler wrote (export_chrome_trace, .json or .json.gz), a dump of PyTorch's Flight Recorder "
    "(its pickle or its JSON), or a program that XLA compiled (HloModule …)"
)


def workload_of_traces(
    paths: Sequence[str | PathLike[str]],
    axes: Mapping[str, int] | None = None,
    steps: int | None = None,
    name: str = "recorded",
) -> Translation:
    """The workload of one step from traces of one or several ranks.

    axes: those of the program, in row-major order of its ranks; steps: how many the traces have, which those of the
    profiler tell themselves.
    """
    if not paths:
        raise SpecError(f"no trace is given; expected {_KNOWN}")
    recording = _recording([check_path(path, "trace") for path in paths], prod(axes.values()) if axes else None)
    steps = steps or recording.steps
    if steps is None:
        raise SpecError(
            f"{paths[0]}: there are no ProfilerStep# marks, so the number of steps is not known: say it with --steps 10"
        )
    found = to_workload(recording.calls, recording.world, steps, axes, name=name)
    return Translation(found.workload, found.left_out, (*recording.notes, *found.notes))


def _recording(paths: Sequence[Path], world: int | None) -> Recording:
    traces = []
    for path in paths:
        data = _read(path)
        if data[:9] != b"HloModule":
            traces.append(trace_of(data, path.name))
        elif len(paths) == 1:
            return hlo_calls(data.decode(errors="replace"), path.name)
        else:
            raise wrong(path.name, "a compiled program tells the calls of all ranks; give it alone")
    return merged(traces, world)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise SpecError(f"there is no trace {shown(str(path))}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise wrong(str(path), "the file cannot be unpacked; is it cut off?") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SpecError(f"cannot read the trace {shown(str(path))}: {reason}") from None


def trace_of(data: bytes, source: str) -> Trace:
    """The trace in the bytes of a file; `source` is the file's name."""
    if len(data) > MOST_BYTES:
        raise wrong(source, f"more than {MOST_BYTES:,} bytes; profile fewer steps")
    start = data[:100].lstrip()
    if data[:1] == b"\x80":
        document = unpickled(data, source)
    elif start[:1] in (b"{", b"["):
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise wrong(source, f"malformed JSON, perhaps cut off: {error}") from None
    else:
        raise wrong(source, f"{'it is empty' if not data else 'no format that is known'}; expected {_KNOWN}")
    if isinstance(document, list):  # Chrome's other form has nothing but the events
        document = {"traceEvents": document}
    if isinstance(document, dict) and "traceEvents" in document:
        return kineto_trace(document, source)
    if isinstance(document, dict) and "entries" in document:
        return flight_trace(document, source)
    raise wrong(source, f"it has neither 'traceEvents' nor 'entries'; expected {_KNOWN}")


def merged(traces: Sequence[Trace], world: int | None = None) -> Recording:
    """The calls of all traces, with the ranks of their groups.

    world: how many ranks there are, if the traces do not tell.
    """
    own: dict[int, Trace] = {}
    for trace in traces:
        if trace.rank is None:
            raise wrong(trace.source, "it does not tell of which rank it is; end the file's name with it: trace_rank_0")
        if trace.rank in own:
            both = f"{own[trace.rank].source} and {trace.source}"
            raise SpecError(f"{both} are both of rank {trace.rank}; give one file for each rank")
        own[trace.rank] = trace
    # Dumps of gloo do not tell the ranks of groups: then they are those that have calls in them.
    callers: dict[str, list[int]] = defaultdict(list)
    for rank, trace in sorted(own.items()):
        for group in {call.group for call in trace.calls}:
            callers[group].append(rank)
    known = [rank + 1 for trace in traces for ranks in trace.groups.values() for rank in ranks]
    said = max(trace.world or 0 for trace in traces)
    world = said or world or max(*(rank + 1 for rank in own), *known, 1)
    steps = {trace.steps for trace in traces}
    if len(steps) > 1:
        numbers = ", ".join(f"{trace.source} {trace.steps or 'none'}" for trace in traces[:8])
        raise SpecError(f"the traces have different numbers of steps: {numbers}; give those of the same steps")
    calls = [
        recorded
        for rank, trace in own.items()
        for call, hidden in _counted(trace).items()
        if (recorded := _recorded(call, hidden, rank, callers, trace)) is not None
        # What a rank receives is what another one sent: it counts where there is no trace of the sender.
        and not (call.kind == RECEIVE and recorded.rank in own)
    ]
    notes = [
        f"{trace.source}: older calls were overwritten; a larger TORCH_FR_BUFFER_SIZE keeps more"
        for trace in traces
        if trace.cut
    ]
    return Recording(tuple(calls), world, steps.pop(), tuple(notes))


def _counted(trace: Trace) -> dict[Call, list[float]]:
    """The different calls, each with the hidden shares of all that are equal in everything else."""
    found: dict[Call, list[float]] = defaultdict(list)
    for call in trace.calls:
        found[replace(call, hidden=0.0)].append(call.hidden)
    return found


def _recorded(
    call: Call, hidden: Sequence[float], rank: int, callers: Mapping[str, Sequence[int]], trace: Trace
) -> Recorded | None:
    ranks = trace.groups.get(call.group) or tuple(callers[call.group])
    if ranks == (rank,) and call.group not in trace.groups:
        all_ranks = "give the dumps of all ranks, as gloo's tell only names of groups"
        raise wrong(trace.source, f"it does not tell which ranks are in the group {shown(call.group)}; {all_ranks}")
    if rank not in ranks:
        raise wrong(trace.source, f"rank {rank} has calls in the group {shown(list(ranks))}, which it is not in")
    share = sum(hidden) / len(hidden)
    if call.kind != RECEIVE:
        return Recorded(rank, call.kind, ranks, call.bytes, len(hidden), share, call.to, call.label)
    if call.to is None or call.to not in ranks:
        return None
    return Recorded(call.to, SEND, ranks, call.bytes, len(hidden), share, rank, call.label)
