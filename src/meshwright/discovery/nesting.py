"""Nesting: several ways to group the same things, put into one another, the coarsest outermost."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meshwright.discovery.model import Place, Port, Tier, listed
from meshwright.errors import SpecError


@dataclass(frozen=True, slots=True)
class Nested:
    """The tiers that are left, outermost first, the things that all of them have, and the others with the reason."""

    tiers: tuple[Tier, ...]
    members: tuple[str, ...]
    odd: dict[str, str]


def nest(names: Sequence[str], tiers: Sequence[Tier]) -> Nested:
    """Order tiers by their number of groups. Tiers that tell nothing are dropped: of one group, of groups of one, and
    with the same groups as another; those of fewer than half of the things too. Refuses groups that cross.

    >>> rack, row = Tier("rack", {"a": "1", "b": "2", "c": "3"}), Tier("row", {"a": "x", "b": "x", "c": "y"})
    >>> [tier.kind for tier in nest("abc", [rack, row]).tiers]
    ['row']
    """
    most = [tier for tier in tiers if 2 * sum(name in tier.groups for name in names) >= len(names)]
    odd: dict[str, str] = {}
    for tier in most:
        odd |= {name: f"is in no {tier.kind}" for name in names if name not in tier.groups}
    members = tuple(name for name in names if name not in odd)
    counted = [(len({tier.groups[name] for name in members}), tier) for tier in most]
    kept: list[Tier] = []
    for count, tier in sorted(counted, key=lambda pair: pair[0]):
        if (count == 1 and not tier.nvlink) or (count == len(members) and not tier.ports):
            continue
        if kept and _refines(members, kept[-1], tier, count):
            named = tier if tier.nvlink and not kept[-1].nvlink else kept[-1]
            kept[-1] = Tier(named.kind, named.groups, _ports(members, named, (kept[-1], tier)), named.nvlink)
        else:
            kept.append(tier)
    return Nested(tuple(kept), members, odd)


def _refines(members: Sequence[str], outer: Tier, inner: Tier, count: int) -> bool:
    """Whether both tiers have the same groups; refuses an inner group that lies in two outer ones."""
    above: dict[str, str] = {}
    for name in members:
        group, around = inner.groups[name], outer.groups[name]
        if above.setdefault(group, around) != around:
            other = next(one for one in members if inner.groups[one] == group)
            raise SpecError(
                f"{listed([other, name])} are in one {inner.kind}, {listed([group])}, but not in one {outer.kind}: "
                f"{listed([above[group], around])}; these groups are no hierarchy, so give only the files of one"
            )
    return len(set(above.values())) == count


def _ports(members: Sequence[str], named: Tier, tiers: Iterable[Tier]) -> dict[str, Port]:
    """The ports of tiers with the same groups, by the names that the groups have in one of them; the first counts."""
    found: dict[str, Port] = {}
    for tier in tiers:
        for name in members:
            if tier.groups[name] in tier.ports:
                found.setdefault(named.groups[name], tier.ports[tier.groups[name]])
    return found


def grow(nested: Nested, leaves: dict[str, Place], root: str) -> Place:
    """The tree: groups around groups around the leaves, everything in the order of the members."""
    return Place("", root, _grown(nested.tiers, list(nested.members), leaves))


def _grown(tiers: Sequence[Tier], names: list[str], leaves: dict[str, Place]) -> tuple[Place, ...]:
    if not tiers:
        return tuple(leaves[name] for name in names)
    tier, inner = tiers[0], tiers[1:]
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(tier.groups[name], []).append(name)
    return tuple(
        Place(tier.kind, group, _grown(inner, inside, leaves), tier.ports.get(group))
        for group, inside in groups.items()
    )


def united(names: Iterable[str], pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """For each name the first of those that pairs join it with, directly or over others.

    >>> united("abcd", [("d", "b")])
    {'a': 'a', 'b': 'b', 'c': 'c', 'd': 'b'}
    """
    order = {name: number for number, name in enumerate(names)}
    first = {name: name for name in order}

    def find(name: str) -> str:
        while first[name] != name:
            first[name] = first[first[name]]
            name = first[name]
        return name

    for one, other in pairs:
        ends = sorted((find(one), find(other)), key=order.__getitem__)
        first[ends[1]] = ends[0]
    return {name: find(name) for name in order}


def usual(counts: Counter[int]) -> int:
    """The most frequent number, the largest of several."""
    return max(counts, key=lambda number: (counts[number], number))
