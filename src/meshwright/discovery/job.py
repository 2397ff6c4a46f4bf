"""What the ranks of a running job tell about where they are, made a topology."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.discovery.hosts import HOST
from meshwright.discovery.model import Place, Tier, Topology, listed, switch_tiers
from meshwright.discovery.nesting import grow, nest
from meshwright.discovery.regular import leaves
from meshwright.discovery.smi import parse_smi
from meshwright.errors import SpecError

RANK = "rank"
"""The kind of a device that nothing is known of, but that a rank runs on it."""

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
    """

    host: str
    address: str = ""
    pattern: str = ""
    matrix: str = ""
    numa: int | None = None
    slice: int | None = None


def job_topology(told: Sequence[Told]) -> Topology:
    """The topology of a job from what its ranks tell, in the order of their numbers."""
    ranks: dict[str, list[int]] = {}
    for rank, one in enumerate(told):
        ranks.setdefault(one.host, []).append(rank)
    notes: list[str] = []
    hosts = {
        host: Place(HOST, "", _inside(host, numbers, told, notes) if len(told) > 1 else (), None)
        for host, numbers in ranks.items()
    }
    first = {host: told[numbers[0]] for host, numbers in ranks.items()}
    tiers, odd = _switches(first)
    if slices := {host: str(one.slice) for host, one in first.items() if one.slice is not None}:
        tiers = (*tiers, Tier("slice", slices))
    return Topology(JOB, tiers, hosts, odd=odd, notes=tuple(dict.fromkeys(notes)))


def ranks_in_order(told: Sequence[Told], hosts: Sequence[str]) -> list[int]:
    """The ranks of a job, in the order of the devices of these hosts."""
    return [rank for host in hosts for rank, one in enumerate(told) if one.host == host]


def _inside(host: str, ranks: Sequence[int], told: Sequence[Told], notes: list[str]) -> tuple[Place, ...]:
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
        return ()
    numa = {str(rank): str(told[rank].numa) for rank in ranks if told[rank].numa is not None}
    places = {str(rank): Place(RANK, f"rank{rank}") for rank in ranks}
    nested = nest(list(places), [Tier("numa", numa)] if len(numa) == len(ranks) else [])
    return grow(nested, places, host).children


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
