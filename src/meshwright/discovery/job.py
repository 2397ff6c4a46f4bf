"""What the ranks of a running job tell about where they are, made a topology."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from meshwright.discovery.explore import Measured
from meshwright.discovery.hosts import HOST
from meshwright.discovery.measured import measured_tiers, ports_of
from meshwright.discovery.model import Place, Port, Tier, Topology, listed, switch_tiers
from meshwright.discovery.nesting import grow, nest
from meshwright.discovery.regular import leaves
from meshwright.discovery.rounds import Partition
from meshwright.discovery.smi import parse_smi
from meshwright.errors import SpecError

CHIP = "chip"
"""The kind of a device that JAX knows."""

RANK = "rank"
"""The kind of a device that nothing is known of, but that a rank runs on it."""

ISLAND = "island"
"""The kind of groups inside a host that only measurements show."""

JOB = "the job"
"""What messages call this source."""


@dataclass(frozen=True, slots=True)
class Told:
    """What one rank tells: the name of its host, and all that it can find out without rights.

    address, pattern: Slurm's SLURM_TOPOLOGY_ADDR, like `spine.leaf4.n386`, and what its words are, like
        `switch.switch.node`; empty without Slurm.
    matrix: what `nvidia-smi topo -m` prints there; empty if there is no such program, or another rank tells it.
    numa: the NUMA node whose processors the rank may use; None if it may use those of several.
    slice: the TPU slice of the host; None if there is none.
    chips: where each of the rank's devices is in the slice, if JAX knows it; empty without JAX.
    """

    host: str
    address: str = ""
    pattern: str = ""
    matrix: str = ""
    numa: int | None = None
    slice: int | None = None
    chips: tuple[tuple[int, ...], ...] = ()


def job_topology(told: Sequence[Told], measured: Measured | None = None) -> Topology:
    """The topology of a job from what its ranks tell, in the order of their numbers, and what they measured."""
    ranks = _by_host(told)
    notes: list[str] = []
    ports = ports_of(measured) if measured else {}
    hosts = {
        host: Place(HOST, "", _inside(host, numbers, told, ports, notes), ports.get(tuple(numbers)))
        for host, numbers in ranks.items()
    }
    notes += _torus(told)
    tiers, odd = _tiers(told)
    if measured is not None:
        tiers = measured_tiers(tiers, ranks, measured, ports)
    return Topology(JOB, tiers, hosts, odd=odd, notes=tuple(dict.fromkeys(notes)))


def _by_host(told: Sequence[Told]) -> dict[str, list[int]]:
    ranks: dict[str, list[int]] = {}
    for rank, one in enumerate(told):
        ranks.setdefault(one.host, []).append(rank)
    return ranks


def _tiers(told: Sequence[Told]) -> tuple[tuple[Tier, ...], dict[str, str]]:
    """What groups of hosts ranks tell, outermost first, and which hosts are in none."""
    first = {host: told[numbers[0]] for host, numbers in _by_host(told).items()}
    tiers, odd = _switches(first)
    if slices := {host: str(one.slice) for host, one in first.items() if one.slice is not None}:
        tiers = (*tiers, Tier("slice", slices))
    return tiers, odd


def told_groups(told: Sequence[Told]) -> list[Partition]:
    """The groups of ranks that are told, from the finest to the coarsest: those on one host, and groups of hosts."""
    ranks = _by_host(told)
    tiers, odd = _tiers(told)
    nested = nest([host for host in ranks if host not in odd], tiers)
    found: list[Partition] = [tuple(map(tuple, ranks.values()))]
    for tier in reversed(nested.tiers if not odd and not nested.odd else ()):
        groups: dict[str, list[int]] = {}
        for host, numbers in ranks.items():
            groups.setdefault(tier.groups[host], []).extend(numbers)
        found.append(tuple(tuple(sorted(group)) for group in groups.values()))
    return found


def _torus(told: Sequence[Told]) -> list[str]:
    """What the coordinates of chips say, if those of a slice fill a box."""
    slices: dict[int | None, set[tuple[int, ...]]] = {}
    for one in told:
        slices.setdefault(one.slice, set()).update(one.chips)
    shapes = set()
    for chips in slices.values():
        if len({len(chip) for chip in chips}) == 1 and any(chips):
            shapes.add(tuple(len(set(along)) for along in zip(*chips, strict=True)))
    if len(shapes) != 1 or any(prod(next(iter(shapes))) != len(chips) for chips in slices.values()):
        return []
    (shape,) = shapes
    size = " x ".join(map(str, shape))
    return [
        f"the chips of a slice are {size}, wired as rings, in which hosts are no level: the presets of TPUs show how"
    ]


def ranks_in_order(told: Sequence[Told], hosts: Sequence[str]) -> list[int]:
    """The ranks of a job, in the order of the devices of these hosts."""
    return [rank for host in hosts for rank, one in enumerate(told) if one.host == host]


def _inside(
    host: str, ranks: Sequence[int], told: Sequence[Told], ports: Mapping[tuple[int, ...], Port], notes: list[str]
) -> tuple[Place, ...]:
    """The devices of a host: its GPUs, if each rank has one or a single rank has all; otherwise its ranks."""
    matrix = next((told[rank].matrix for rank in ranks if told[rank].matrix), "")
    if matrix:
        try:
            found = parse_smi(matrix, f"`nvidia-smi topo -m` on {host}")
        except SpecError as error:
            notes.append(f"what links GPUs is not known: {error}")
        else:
            assert found.every is not None
            count = sum(1 for _ in leaves(found.every))
            if len(ranks) in (1, count):
                notes.extend(found.notes)
                return found.every.children
            notes.append(f"{host} has {count} GPUs and {len(ranks)} ranks, so how its GPUs are linked is not used")
    if len(ranks) == 1:
        chips = told[ranks[0]].chips
        return tuple(Place(CHIP, f"chip{k}") for k in range(len(chips))) if len(chips) > 1 else ()
    numa = {str(rank): str(told[rank].numa) for rank in ranks if told[rank].numa is not None}
    tiers = [Tier("numa", numa)] if len(numa) == len(ranks) and not ports else []
    here = [group for group in ports if set(group) < set(ranks) and len(group) > 1]
    for size in sorted({len(group) for group in here}):
        parts = {str(rank): str(group[0]) for group in here if len(group) == size for rank in group}
        tiers.append(Tier(ISLAND, parts, {str(group[0]): ports[group] for group in here if len(group) == size}))
    places = {str(rank): Place(RANK, f"rank{rank}", (), ports.get((rank,))) for rank in ranks}
    return grow(nest(list(places), tiers), places, host).children


def _switches(first: Mapping[str, Told]) -> tuple[tuple[Tier, ...], dict[str, str]]:
    """The tiers that Slurm tells, from one rank of each host, and the hosts that it tells nothing of."""
    paths: dict[str, tuple[str, ...]] = {}
    kinds: tuple[str, ...] = ()
    for host, one in first.items():
        words = one.pattern.split(".")
        names = one.address.split(".", len(words) - 1)  # the name of the host itself may have dots
        if len(words) == len(names) and len(words) > 1:
            paths[host], kinds = tuple(names[:-1]), tuple(words[:-1])
    if not paths:
        return (), {}
    tiers, odd = switch_tiers(paths, {})
    if set(kinds) != {"switch"}:
        tiers = tuple(Tier(kind, tier.groups) for kind, tier in zip(kinds, tiers, strict=False))
    silent = [host for host in first if host not in paths]
    return tiers, odd | {host: f"has no SLURM_TOPOLOGY_ADDR, unlike {listed(list(paths)[:1])}" for host in silent}
