"""Loads: what the phases of steps put on the links of every level, for many steps at once, as arrays.

This is the one home of the formula: how long links, messages and processors take for a phase. A step runs in all groups
of its grouping at the same time, and groups that share a port add up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple, assert_never

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.contention import Contention
from meshwright.cost.library import Library
from meshwright.cost.routing import busiest_line, busiest_link, completions
from meshwright.cost.traffic import Phases
from meshwright.placement.layout import Layout, inner_only
from meshwright.system.model import Fabric

Values = NDArray[np.float64]

PORT, INNER, SHARED, OUTER, DEVICE, DEVICE_INNER, MESSAGES = range(7)
"""The fields of `Traffic`, in their order."""


class Entry(NamedTuple):
    """A step with one algorithm: its phases, how groups share the links, and what the library's rule says."""

    phases: Phases
    sharing: Contention
    efficiency: float
    piece: int | None = None
    posted: bool = False


@dataclass(frozen=True)
class Loads:
    """The phases of some entries, one after the other.

    begins: for each entry, the number of its first phase. By phase and level of the system: shared, the bytes that one
    member of each group holds, of all groups that meet on the busiest link; bytes, what it carries; seconds, how long
    that takes; alone, whether a single device sets the time. By phase: latency, of all messages that follow each other;
    first and apart: see `together`; message and lone: the same where chunks flow; processing, what the processors take
    that devices share; call, what making the call takes of a rank's own time, for the first phase of an entry; calling,
    how long making it takes, of a rank's own time or of the processors that devices share; piece and hops: see
    `filling`; header_share: the messages' headers, as a share of `bytes` and `seconds`, which are those of the data.
    """

    begins: NDArray[np.int64]
    shared: Values
    bytes: Values
    seconds: Values
    alone: NDArray[np.bool_]
    latency: Values
    first: Values
    apart: Values
    message: Values
    lone: Values
    processing: Values
    call: Values
    calling: Values
    piece: Values
    hops: Values
    header_share: Values


def filling(held: Values, piece: Values, hops: Values) -> Values:
    """How long nothing but the first piece is on its way down a line of members that hand on pieces.

    piece: the most bytes of one; it is no more than half of what is held. hops: the seconds that a byte takes for all
    hops but the slowest, where the pieces that follow wait.

    For example, 1 MiB from GPU 0 to 1, and on to 2 over a slower link: GPU 1 hands on nothing while it gets its first
    piece of 512 KiB, so that the slower link is idle for that long.
    """
    found: Values = np.minimum(piece, held / 2) * hops
    return found


def together(work: Values, latency: Values, first: Values, apart: Values) -> Values:
    """Work and latency add up, except in a ring with handshakes, where the links work for some messages while others
    wait.

    first: the latency before anything arrives, which nothing hides. apart: the share of the work in which nothing else
    is on its way. Where chunks flow, the groups of a step need not wait for each other: links work for others while the
    messages of one are waited for. Between two chunks they idle for one latency and the library's own time for a
    message. That was measured on gloo, so it is counted for libraries with handshakes only.

    For example, a ring that sends each message in two halves, one of which is on its way while the other waits for its
    handshake: 4 turns with 20 us of work and 8 us of latency in all take 22 us, as only the first turn's latency shows.
    With 2 us of work they take 9 us: the latency of all turns, and the half of the work that nothing hides.
    """
    found: Values = np.maximum(apart * work + latency, work + first)
    return found


def loads(layout: Layout, library: Library, entries: Sequence[Entry]) -> Loads:
    """What the phases of some entries put on the links."""
    many = [len(entry.phases) for entry in entries]
    ends = np.cumsum(many, dtype=np.int64)
    begins, owner = ends - many, np.repeat(np.arange(len(entries)), many)
    traffic = np.zeros((7, len(owner), len(layout.radices)))
    for entry, begin, end in zip(entries, begins.tolist(), ends.tolist(), strict=True):
        traffic[:, begin:end, entry.sharing.outermost :] = _table(entry.phases)
    efficiency = np.array([entry.efficiency for entry in entries])[owner]
    held = np.array([entry.sharing.held for entry in entries])[owner]
    padded = [(0.0,) * entry.sharing.outermost for entry in entries]
    ports, instances = (
        np.array([before + each for before, each in zip(padded, amounts, strict=True)])[owner]
        for amounts in ([e.sharing.at_port for e in entries], [e.sharing.at_instance for e in entries])
    )
    shared, amount, seconds = ports.copy(), np.zeros(ports.shape), np.zeros(ports.shape)
    alone = np.zeros(ports.shape, np.bool_)
    for k, level in enumerate(layout.system.levels):
        link = level.link
        if level.count == 1:
            continue
        assert link.bandwidth is not None
        match link.fabric:
            case Fabric.RING:
                on_links, on_lines = _on_ring(layout, k, entries)
                amount[:, k] = ports[:, k] * on_links
            case Fabric.BUS:
                from_outside = 0.0 if link.bypass else traffic[OUTER, :, k]
                shared[:, k] = instances[:, k]
                amount[:, k] = instances[:, k] * (traffic[SHARED, :, k] + from_outside)
            case Fabric.SWITCH:
                amount[:, k] = ports[:, k] * traffic[INNER if link.bypass else PORT, :, k]
            case _:
                assert_never(link.fabric)
        seconds[:, k] = amount[:, k] / link.bandwidth / efficiency
        if link.per_device is not None:
            single = traffic[DEVICE_INNER if inner_only(link) else DEVICE, :, k]
            device = held * (on_lines if link.fabric is Fabric.RING else single)
            by_device = device / link.per_device / efficiency
            alone[:, k] = by_device > seconds[:, k] * (1 + 1e-12)  # not where the two are equal but for rounding
            amount[:, k] = np.where(alone[:, k], device, amount[:, k])
            seconds[:, k] = np.where(alone[:, k], by_device, seconds[:, k])
            shared[:, k] = np.where(alone[:, k], ports[:, k], shared[:, k])
    hops = _hops(layout, shared / held[:, None], traffic[MESSAGES]) / efficiency
    along = [entry.piece is not None and not phase.round for entry in entries for phase in entry.phases]
    piece = np.array([float(entry.piece or 0) for entry in entries])[owner]
    waits = _waits(layout, library, entries, traffic[MESSAGES], seconds, np.where(alone, 1.0, shared / held[:, None]))
    call, calling, processing = _processing(layout, library, entries, begins)
    hops = np.where(along, hops, 0.0)
    headers = _header_share(library, entries)
    return Loads(begins, shared, amount, seconds, alone, *waits, processing, call, calling, piece, hops, headers)


def _header_share(library: Library, entries: Sequence[Entry]) -> Values:
    """`header_share` of `Loads`. Groups that hold less than others are taken to have as many fewer messages.

    For example, gloo's own all-reduce of 100 KiB over 16 ranks sends messages of 3,200 bytes, as each turn of a ring
    sends in two halves. With headers of 360 bytes, links carry 11% more.
    """
    found = []
    for entry in entries:
        for phase in entry.phases:
            halves = 2 if phase.round and library.handshake and not entry.posted else 1
            found.append(library.headers * phase.sent * halves / (phase.amount * entry.sharing.held))
    return np.array(found)


@lru_cache(maxsize=65536)
def _table(phases: Phases) -> Values:
    """The fields of the traffic, by phase and level."""
    fields = [
        [(t.port, t.inner, t.shared, t.outer, t.device, t.device_inner, t.messages) for t in phase.levels]
        for phase in phases
    ]
    return np.array(fields).transpose(2, 0, 1)


def _on_ring(layout: Layout, level: int, entries: Sequence[Entry]) -> tuple[Values, Values]:
    """For each phase the most that a link of a ring carries, of one group in each place, and that one of a device does.

    Of an open column the least over all ways to complete it.
    """
    own = layout.system.levels[level]
    columns = completions(layout.columns[level], own.count, layout.radices[level])
    on_links, on_lines = [], []
    for phases, sharing, *_ in entries:
        k = level - sharing.outermost
        inside = columns if k >= 0 else ()
        for phase in phases:
            on_links.append(min([busiest_link(phase, k, column) for column in inside], default=0.0))
            if own.link.per_device is not None:
                below = prod(sharing.shape[k + 1 :])
                on_lines.append(min([busiest_line(phase, k, column, below) for column in inside], default=0.0))
    return np.array(on_links), np.array(on_lines)


def _hops(layout: Layout, groups: Values, messages: Values) -> Values:
    """The seconds that a byte of each group takes for all hops of a phase but the slowest."""
    rates = np.array([level.link.bandwidth or np.inf for level in layout.system.levels])
    each = np.where(messages > 0, groups / rates, 0.0)
    found: Values = (messages * each).sum(axis=1) - each.max(axis=1)
    return found


def _shares(layout: Layout, messages: Values, seconds: Values, groups: Values) -> tuple[Values, Values]:
    """How long links work for one group, and for a slice of its payload that goes all the way round a ring, as shares
    of the time for all groups.

    By phase and level: seconds, those of the busiest link for all groups; groups, how many share it. Where a fabric is
    a ring, groups in all places count as one.

    For example, over two nodes of four devices two of the seven turns of a slice cross the nodes' ports, which are
    slow. The other five take as long as the ports of devices do.
    """
    links = [level.link for level in layout.system.levels]
    by_itself = seconds / np.where([link.fabric is Fabric.RING for link in links], 1.0, np.maximum(groups, 1.0))
    # Ports pass on what comes from further outside, too.
    ports = np.where([inner_only(link) for link in links], 0.0, by_itself)
    crossed = np.maximum(by_itself, np.maximum.accumulate(ports[:, ::-1], axis=1)[:, ::-1])
    along = (messages * crossed).sum(axis=1) / np.maximum(messages.sum(axis=1), 1.0)
    every = seconds.max(axis=1)
    one, slice_of_one = (
        np.divide(each, every, out=np.ones(len(every)), where=every > 0) for each in (by_itself.max(axis=1), along)
    )
    return one, slice_of_one


def _waits(
    layout: Layout,
    library: Library,
    entries: Sequence[Entry],
    messages: Values,
    seconds: Values,
    groups: Values,
) -> tuple[Values, Values, Values, Values, Values]:
    """`latency`, `first`, `apart`, `message` and `lone` of `Loads`. seconds and groups: see `_shares`.

    What is known of a system's processors counts for more than what a library takes as a rule.
    """
    latencies = np.array([level.link.latency for level in layout.system.levels])
    many, path = messages.sum(axis=1), (messages * latencies).sum(axis=1)
    own = library.message if layout.system.message_rate is None else 0.0
    latency = path * library.trips + own * many
    if not library.handshake:
        return latency, latency, np.ones(len(many)), latency, np.ones(len(many))
    one, slice_of_one = _shares(layout, messages, seconds, groups)
    rings = np.array([phase.round for entry in entries for phase in entry.phases])
    slowest = np.where(messages > 0, latencies, 0.0).max(axis=1)
    posted = rings & np.array([entry.posted for entry in entries for _ in entry.phases])
    # A message and its handshake are two trips, with half of the library's own time for each. In every turn of a ring
    # all wait for the slowest of both; where receives are posted ahead, only the first message waits for its handshake.
    around = np.where(posted, path + slowest + own / 2 * (many + 1), many * (slowest * library.trips + own))
    latency = np.where(rings, around, latency)
    # In the half of its own time that is for the data nothing is sent, unless other groups use the links.
    idle = one * own / 2 * (many - 1)
    first = np.where(rings, slowest * library.trips + own + idle, latency)
    apart = np.where(posted, slice_of_one, np.where(rings, 0.5, 1.0))
    # One latency, not two: so that the times fit which gloo took on node=3@40Mbit/s+5ms,gpu=4@80Mbit/s+1ms in chunks.
    message = np.where(many > 0, slowest + own, 0.0)
    return latency, first, apart, message, np.where(posted, slice_of_one, apart * one)


def _processing(
    layout: Layout, library: Library, entries: Sequence[Entry], begins: NDArray[np.int64]
) -> tuple[Values, Values, Values]:
    """`call`, `calling` and `processing` of `Loads`.

    Where devices share processors, making a call is as much work for them as a message of each device.
    """
    rate = layout.system.message_rate
    sent = np.array([entry.sharing.groups * phase.sent for entry in entries for phase in entry.phases])
    nothing, calling = np.zeros(len(sent)), np.zeros(len(sent))
    if rate is None:
        calling[begins] = library.call
        return calling, calling, nothing
    calling[begins] = [entry.sharing.groups * prod(entry.sharing.shape) / rate for entry in entries]
    return nothing, calling, sent / rate + calling
