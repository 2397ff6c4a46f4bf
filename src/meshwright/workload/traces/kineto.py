"""Traces of PyTorch's profiler (Kineto): calls with their sizes, steps, and what the GPU did at the same time."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from meshwright.text.spec import is_number, shown
from meshwright.workload.traces.trace import (
    RECEIVE,
    SEND,
    Call,
    Trace,
    bytes_of,
    kind_of,
    label_of,
    rank_of,
    ranks_of,
    wrong,
)

Event = Mapping[str, Any]
Interval = tuple[float, float]

_HOW = "profile with torch.profiler.profile(record_shapes=True)"


def kineto_trace(document: Mapping[str, Any], source: str) -> Trace:
    """The trace in a file that `export_chrome_trace` wrote."""
    events = _listed(document.get("traceEvents"))
    told = document.get("distributedInfo")
    told = told if isinstance(told, dict) else {}
    configured = {str(group.get("pg_name")): ranks_of(group.get("ranks")) for group in _listed(told.get("pg_config"))}
    steps = [when for event in events if _named(event, "ProfilerStep#") and (when := _interval(event))]
    recorded = [event for event in events if event.get("name") == "record_param_comms" and _interval(event)]
    if not recorded:
        raise wrong(
            source,
            f"there are no record_param_comms events, which tell what NCCL sends: {_HOW}; for gloo, which has none, "
            "give the Flight Recorder dumps of all ranks",
        )
    if steps:
        recorded = [event for event in recorded if any(start <= event["ts"] < end for start, end in steps)]
    hidden = _hidden(events)
    groups: dict[str, tuple[int, ...]] = {}
    calls = []
    for event in recorded:
        args = _args(event)
        kind = kind_of(str(args.get("Collective name")))
        if kind is not None and (ranks := _ranks(args, configured)) != ():
            call = _call(kind, args, hidden.get(str(args.get("External id")), 0.0), source)
            if ranks is None:
                raise wrong(source, f"it does not tell which ranks are in the group {shown(call.group)}")
            groups[call.group] = ranks
            calls.append(call)
    rank, world = (told[key] if type(told.get(key)) is int else None for key in ("rank", "world_size"))
    rank = rank_of(source, groups) if rank is None else rank
    return Trace(source, rank, world, groups, tuple(calls), len(steps) or None)


def _listed(given: Any) -> list[Any]:
    """The mappings in a list."""
    return [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []


def _args(event: Event) -> Event:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _named(event: Event, beginning: str) -> bool:
    # The same step is there once more as what the GPU did in it.
    return str(event.get("name")).startswith(beginning) and event.get("cat") != "gpu_user_annotation"


def _interval(event: Event) -> Interval | None:
    start, length = event.get("ts"), event.get("dur")
    if start is None or length is None or not is_number(start) or not is_number(length) or length < 0:
        return None
    return start, start + length


def _ranks(args: Event, configured: Mapping[str, tuple[int, ...] | None]) -> tuple[int, ...] | None:
    """The ranks of a call's group: empty if it is a rank alone, None if they are not told."""
    told = [args.get(key) for key in ("Group size", "Global rank start", "Global rank stride")]
    size, start, stride = (number if type(number) is int else -1 for number in told)
    if size == 1:
        return ()
    # Long lists are cut off; then there are the configuration, and the first rank with the stride.
    ranks = ranks_of(args.get("Process Group Ranks")) or configured.get(str(args.get("Process Group Name")))
    if ranks is None and 0 < size <= 2**20 and start >= 0 and stride > 0:
        ranks = ranks_of([start + stride * k for k in range(size)])
    return ranks


def _call(kind: str, args: Event, hidden: float, source: str) -> Call:
    given, taken = args.get("In msg nelems"), args.get("Out msg nelems")
    if type(given) is not int or type(taken) is not int or not 0 <= given < 2**48 or not 0 <= taken < 2**48:
        raise wrong(source, f"a call has no sizes ('In msg nelems'): {_HOW}")
    values = given if kind in ("all-to-all", SEND) else max(given, taken)
    to = args.get({SEND: "Dst Rank", RECEIVE: "Src Rank"}.get(kind, ""))
    return Call(
        kind,
        str(args.get("Process Group Name", "")),
        values * bytes_of(args.get("dtype"), source),
        hidden,
        to if type(to) is int and to >= 0 else None,
        label_of(args.get("Process Group Description")),
    )


@dataclass(frozen=True)
class _Busy:
    """When a GPU computes: intervals that do not overlap, in order, and the time until the end of each."""

    starts: list[float]
    ends: list[float]
    until: list[float]

    def before(self, when: float) -> float:
        """For how long it computes before a point in time."""
        at = bisect_right(self.starts, when) - 1
        return self.until[at] - max(0.0, self.ends[at] - when) if at >= 0 else 0.0


def _busy(intervals: Iterable[Interval]) -> _Busy:
    starts: list[float] = []
    ends: list[float] = []
    for start, end in sorted(intervals):
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return _Busy(starts, ends, list(accumulate(end - start for start, end in zip(starts, ends, strict=True))))


def _hidden(events: Iterable[Event]) -> dict[str, float]:
    """The share of the time of each call's kernels in which other kernels ran on the same GPU, by its external id."""
    computing: dict[str, list[Interval]] = defaultdict(list)
    sending: list[tuple[str, str, Interval]] = []
    for event in events:
        if event.get("cat") == "kernel" and (when := _interval(event)):
            device, number = (str(_args(event).get(key)) for key in ("device", "External id"))
            if not str(event.get("name")).lower().startswith(("nccl", "rccl")):
                computing[device].append(when)
            else:
                sending.append((number, device, when))
    busy = {device: _busy(intervals) for device, intervals in computing.items()}
    times: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for number, device, (start, end) in sending:
        if device in busy:
            times[number][0] += busy[device].before(end) - busy[device].before(start)
        times[number][1] += end - start
    return {number: min(1.0, max(0.0, covered / whole)) for number, (covered, whole) in times.items() if whole}
