"""What was measured between ranks, made ports and tiers of a topology."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, inf

from meshwright.discovery.evidence import LOW
from meshwright.discovery.explore import Measured, Tied
from meshwright.discovery.model import Port, Tier, listed
from meshwright.system.model import Link
from meshwright.text.units import format_bandwidth, format_seconds

GROUP = "group"
"""The kind of groups of hosts that only measurements show."""

SLOWER = 0.8
"""A rank alone has a limit of its own if it gets less than this share of what the links on its way carry."""


def ports_of(measured: Measured) -> dict[tuple[int, ...], Port]:
    """The port of each group of ranks that was measured."""
    found: dict[tuple[int, ...], Port] = {}
    finer = inf
    for level in reversed(measured.levels):
        if level.rate > 0:
            alone = _rounded(level.alone) if 0 < level.alone < SLOWER * min(level.rate, finer) else None
            link = Link(_rounded(level.rate), _rounded(level.latency), alone)
            found |= {group: Port(link, said(level)) for group in level.groups}
        finer = min(finer, level.alone or inf)
    return found


def said(level: Tied) -> str:
    """How a level was found, in words."""
    evidence = level.evidence
    if level.by == "told" or evidence.inside is None or evidence.across is None:
        return "measured"
    (one, mate), near = evidence.inside
    (other, far_mate), far = evidence.across
    by_rate = level.by == "rate"
    values = [format_bandwidth(exp(value)) if by_rate else format_seconds(exp(-value)) for value in (near, far)]
    pairs = f"ranks {one} and {mate} {values[0]}, ranks {other} and {far_mate} {values[1]}"
    return f"measured; groups with confidence {evidence.confidence:.3f} by {level.by}: {pairs}"


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def measured_tiers(
    tiers: Sequence[Tier], ranks: Mapping[str, list[int]], measured: Measured, ports: Mapping[tuple[int, ...], Port]
) -> tuple[Tier, ...]:
    """The tiers that were told, with what was measured of them, and those that only measurements show."""
    found = list(tiers)
    unnamed = 0
    for level in reversed(measured.levels):
        home = {rank: group for group in level.groups for rank in group}
        if len(level.groups) >= len(ranks):
            continue  # hosts, or what is inside them
        groups = {host: home[numbers[0]] for host, numbers in ranks.items()}
        same = next((k for k, tier in enumerate(found) if _same_groups(tier.groups, groups)), None)
        if same is None:
            unnamed += 1
            names = {group: f"group of rank {group[0]}" for group in level.groups}
            kind = GROUP if unnamed == 1 else f"{GROUP}{unnamed}"
            found.append(Tier(kind, {host: names[group] for host, group in groups.items()}))
            same = len(found) - 1
        tier = found[same]
        known = {tier.groups[host]: ports[group] for host, group in groups.items() if group in ports}
        found[same] = replace(tier, ports=known)
    return tuple(found)


def _same_groups(names: Mapping[str, str], groups: Mapping[str, tuple[int, ...]]) -> bool:
    pairs = {(names.get(host), group) for host, group in groups.items()}
    return len(pairs) == len({name for name, _ in pairs}) == len({group for _, group in pairs})


def doubts(measured: Measured) -> list[str]:
    """What the measurements do not decide."""
    found = []
    for level in measured.levels:
        evidence = level.evidence
        if evidence.confidence < LOW:
            why = f"; ranks {listed(list(map(str, evidence.doubtful)))} do not fit" if evidence.doubtful else ""
            found.append(
                f"low confidence ({evidence.confidence:.2f}) in the {len(level.groups)} groups "
                f"{listed(['-'.join(map(str, group)) for group in level.groups])}: transfers between them were slower "
                f"by a factor of {evidence.ratio:.2f} only, or not the same each time{why}"
            )
    if measured.missed.confidence < LOW:
        found.append(
            f"low confidence ({measured.missed.confidence:.2f}) that there are no more levels: rates vary, but not as "
            "groups would explain; measure again when nothing else uses the network"
        )
    return found
