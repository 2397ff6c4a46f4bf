"""Forecasts: what a library itself expects its algorithms to take, by which it chooses one, as NCCL does.

They are not what our model predicts: a library knows nothing of groups that share its links, nor of the network beyond
the cards of its nodes. So it may choose what is slower, and our model then tells how long that takes.

For example, an all-reduce of NCCL over 8 nodes with 8 GPUs each, where a node sends 200 GB/s. It expects 283 us of
latency and 93 GB/s of a ring, 82 us and 86 GB/s of a tree: for 200 MB it takes the tree, for 250 MB the ring.
"""

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from math import ceil, floor, inf
from typing import Any

import yaml

from meshwright.errors import SpecError
from meshwright.language.program import ROOTED, Collective
from meshwright.text.spec import as_tuple, is_number, shown
from meshwright.text.units import parse_bandwidth, parse_seconds
from meshwright.text.yamlfile import Reader, items, mapping, parsed, problem

FORESEEN = ("ring", "tree", "switch", "switch-tree")
"""The algorithms whose hops are known as libraries count them."""

FIRST = 64
"""The bytes from which on `Forecast.by_size` counts."""

MOST_SIZES = 40
"""How many numbers `Forecast.by_size` may have: up to 32 TiB."""

PLATEAU = 1024
"""The bytes for each rank from which on a ring has its plateau: 64 in each of 16 channels."""

LEAST_SHARE = 0.001

MOST_LATENCY = 1.0
"""The most seconds of a call or a hop."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a library knows of a group when it chooses an algorithm.

    ranks: of the group; nodes: how many nodes they are on. inside: the bytes per second that a rank can send to others
    on its node. between: those that a node can send to others, through the network cards of the group's ranks.
    switches: those of `switch` and `switch-tree` that the switches can do.
    """

    ranks: int
    nodes: int = 1
    inside: float = inf
    between: float = inf
    switches: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a library expects of an algorithm: a latency, and a share of the bandwidth.

    call: seconds before anything is sent. inside, between: seconds of a hop inside a node, and between nodes; single:
    the latter in a ring where each node has one rank of the group; None if that makes no difference. posting: in a ring
    over several nodes, no hop inside one takes less.
    share: of the bandwidth, in one node, in several, and in several with one rank of the group on each; inside_share:
    of that inside nodes again. most: bytes per second at most, in one node, in two, and in more; empty for no limit.
    by_size: the share of that again which is reached with 64 bytes, 128, and so on, each up to the next; with more, all
    of it. plateau: by this the latency of an all-reduce on a ring grows between nodes, except of small payloads.
    """

    call: float
    inside: float
    between: float
    single: float | None = None
    posting: float = 0.0
    share: tuple[float, ...] = (1.0, 1.0, 1.0)
    inside_share: float = 1.0
    most: tuple[float, ...] = ()
    by_size: tuple[float, ...] = ()
    plateau: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what no library can expect."""
        for name in ("share", "most", "by_size"):
            object.__setattr__(self, name, as_tuple(getattr(self, name), object, f"numbers for {name!r}"))
        for name in ("call", "inside", "between", "single", "posting"):
            value = getattr(self, name)
            if (value, name) != (None, "single") and not (is_number(value) and 0 <= value <= MOST_LATENCY):
                raise SpecError(f"expected seconds from 0 to {MOST_LATENCY:g} for {name!r}, not {shown(value)}")
        if len(self.share) != 3:
            raise SpecError(
                "expected one share or three, in one node, in several, and in several with one rank on each; not "
                f"{shown(self.share)}"
            )
        for share in (*self.share, self.inside_share, *self.by_size):
            if not is_number(share) or not LEAST_SHARE <= share <= 1:
                raise SpecError(f"a share of the bandwidth is at least {LEAST_SHARE} and at most 1, not {shown(share)}")
        if len(self.by_size) > MOST_SIZES:
            raise SpecError(f"'by_size' has {len(self.by_size)} numbers; expected at most {MOST_SIZES}")
        if len(self.most) not in (0, 3) or not all(is_number(rate) and 0 < rate < inf for rate in self.most):
            raise SpecError(f"expected three bandwidths in 'most', for one node, two, and more; not {shown(self.most)}")
        if not is_number(self.plateau) or not 1 <= self.plateau <= 100:
            raise SpecError(f"a plateau is a factor from 1 to 100, not {shown(self.plateau)}")

    def __hash__(self) -> int:  # choices are looked up often
        return hash((self.call, self.inside, self.between))

    def line(self, algorithm: str, collective: Collective, seen: Seen, size: int) -> tuple[float, float]:
        """The seconds that it expects without bytes and for each byte, of payloads of `size` bytes or a little more."""
        inside, between = hops(algorithm, collective, seen)
        alone = seen.ranks == seen.nodes > 1
        ring = algorithm == "ring" and collective not in ROOTED
        hop = self.single if ring and alone and self.single is not None else self.between
        latency = self.call + inside * max(self.inside, self.posting * (ring and seen.nodes > 1)) + between * hop
        if ring and collective is Collective.ALL_REDUCE and seen.nodes > 1 and size >= PLATEAU * seen.ranks:
            latency *= self.plateau
        rate = bus(algorithm, replace(seen, inside=seen.inside * self.inside_share))
        rate *= self.share[0 if seen.nodes == 1 else 2 if alone else 1]
        if self.most:
            rate = min(rate, self.most[min(seen.nodes, 3) - 1])
        octave = (size // FIRST).bit_length() - 1
        if 0 <= octave < len(self.by_size):
            rate *= self.by_size[octave]
        return latency, sent(algorithm, collective, seen.ranks) / rate


def hops(algorithm: str, collective: Collective, seen: Seen) -> tuple[int, int]:
    """How many messages follow each other, as NCCL counts: inside nodes, and between them."""
    ranks, nodes = seen.ranks, seen.nodes
    if algorithm == "tree":
        return 2 * (ranks // nodes - 1), 2 * (nodes.bit_length() - 1)
    if algorithm == "switch":
        return 1, int(nodes > 1)
    if algorithm == "switch-tree":
        return 1, 2 * (nodes.bit_length() - 1)
    if collective in ROOTED:  # pieces follow each other closely
        return int(nodes == 1), int(nodes > 1)
    rounds = 2 if collective is Collective.ALL_REDUCE else 1
    return rounds * (ranks - nodes), rounds * (nodes - 1)


def bus(algorithm: str, seen: Seen) -> float:
    """The bytes per second that links can carry for an algorithm, as NCCL counts.

    Between two nodes a tree sends every byte once each way, a ring sends it twice. Through a switch, what goes up and
    what comes down do not share a link.
    """
    inside = 2 * seen.inside if algorithm in ("switch", "switch-tree") else seen.inside
    if seen.nodes == 1:
        return inside
    twice = seen.nodes == 2 and seen.ranks > 2 and algorithm in ("tree", "switch-tree")
    between = 2 * seen.between if twice else seen.between
    return between if seen.ranks == seen.nodes else min(inside, between)


def sent(algorithm: str, collective: Collective, ranks: int) -> float:
    """How many payloads each rank puts on the bus."""
    if algorithm == "tree":
        return 2.0
    if collective in ROOTED:
        return 1.0
    return (2 if collective is Collective.ALL_REDUCE else 1) * (ranks - 1) / ranks


@lru_cache(maxsize=4096)
def choices(
    forecasts: tuple[tuple[int, str, Forecast], ...], collective: Collective, seen: Seen
) -> tuple[tuple[int | None, int], ...]:
    """Which of some algorithms a library takes in a group: their numbers, each with the most bytes that a device then
    holds; the last has None. `forecasts` has the name of an algorithm behind its number, once for each protocol.

    Between some sizes all forecasts are straight lines, so the library follows the lower envelope of lines.
    """
    usable = {k: one for k, one in enumerate(forecasts) if one[1] in ("ring", "tree", *seen.switches)}
    # A library counts the bytes of the whole, and a device holds only a part of what is gathered.
    parts = seen.ranks if collective is Collective.ALL_GATHER else 1
    edges = {FIRST << k for *_, one in forecasts if one.by_size for k in range(len(one.by_size) + 1)}
    edges |= {PLATEAU * seen.ranks for *_, one in forecasts if one.plateau > 1}
    found: list[tuple[float, int]] = []
    for begin, end in pairwise([0, *sorted(edges), inf]):
        lines = {k: one.line(name, collective, seen, int(begin)) for k, (_, name, one) in usable.items()}
        at, taken = float(begin), _least(lines, begin)
        while at < end:
            latency, slope = lines[taken]
            meets = [((lines[k][0] - latency) / (slope - lines[k][1]), k) for k in lines if lines[k][1] < slope]
            at, following = min(meets, default=(inf, taken))
            number = usable[taken][0]
            # At an edge the forecasts of the next sizes hold already.
            limit = inf if at >= end == inf else ceil(end / parts) - 1 if at >= end else floor(at / parts)
            if found and found[-1][1] == number:
                found.pop()
            found.append((limit, number))
            taken = following
    limits = [0, *accumulate([limit for limit, _ in found], max)]
    return tuple(
        (None if limit == inf else int(limit), taken)
        for before, limit, (_, taken) in zip(limits, limits[1:], found, strict=False)
        if limit > before
    )


def _least(lines: dict[int, tuple[float, float]], at: float) -> int:
    """The number of the lowest line; of equal ones, that of the flattest."""
    return min(lines, key=lambda k: (lines[k][0] + at * lines[k][1], lines[k][1]))


def forecast_document(forecast: Forecast) -> dict[str, Any]:
    """A forecast as plain data; `forecasts_of` reads it back exactly."""
    document: dict[str, Any] = {name: f"{getattr(forecast, name)!r}s" for name in ("call", "inside", "between")}
    document |= {"single": f"{forecast.single!r}s"} if forecast.single is not None else {}
    document |= {"posting": f"{forecast.posting!r}s"} if forecast.posting else {}
    document |= {"share": list(forecast.share)} if forecast.share != (1, 1, 1) else {}
    document |= {name: value for name in ("inside_share", "plateau") if (value := getattr(forecast, name)) != 1}
    document |= {"most": [f"{rate!r}B/s" for rate in forecast.most]} if forecast.most else {}
    return document | ({"by_size": list(forecast.by_size)} if forecast.by_size else {})


def forecasts_of(node: yaml.Node, source: str) -> tuple[Forecast, ...]:
    """The forecasts of a rule, from a list in a library's file."""
    return tuple(_forecast(child, source) for child in items(node, source, "the forecasts of a rule"))


def _forecast(node: yaml.Node, source: str) -> Forecast:
    values = mapping(node, source, "a forecast", _KEYS, ["call", "inside", "between"])
    try:
        return Forecast(**values)
    except SpecError as error:
        raise problem(node, source, str(error)) from None


def _share(node: yaml.Node, source: str) -> tuple[float, ...]:
    if isinstance(node, yaml.ScalarNode):
        return (parsed(_parse_factor)(node, source),) * 3
    return _several(parsed(_parse_factor), "'share'", node, source)


def _several(reader: Reader, what: str, node: yaml.Node, source: str) -> tuple[Any, ...]:
    return tuple(reader(child, source) for child in items(node, source, what))


def _parse_factor(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SpecError(f"expected a number, like 0.92, not {shown(text)}") from None


_KEYS: dict[str, Reader] = {
    **dict.fromkeys(("call", "inside", "between", "single", "posting"), parsed(parse_seconds)),
    **dict.fromkeys(("inside_share", "plateau"), parsed(_parse_factor)),
    "share": _share,
    "most": partial(_several, parsed(parse_bandwidth), "'most'"),
    "by_size": partial(_several, parsed(_parse_factor), "'by_size'"),
}
