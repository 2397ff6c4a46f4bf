"""The exact semantics: the rule of each collective, on explicit states; everything else is checked against it.

The payload is cut into as many parts as the group has devices; a part has a digit per level, like a device. A state
says, for every device and part, whose contributions the device's copy of the part contains. Slow and obvious.

For example, a group of two devices at the start of an all-reduce: device 0 holds both parts with its own contribution,
the bits 01, and device 1 holds both with its own, 10. The state is ((0b01, 0b01), (0b10, 0b10)). ReduceScatter leaves
each device its own part with both contributions: ((0b11, 0), (0, 0b11)).
"""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import islice, product
from math import prod
from typing import Any

from meshwright.errors import InvalidProgramError, TooLargeError
from meshwright.language.goals import Goal, Holding, as_goal
from meshwright.language.program import Collective, Program, Step, check_fits, device_groups, step_text
from meshwright.placement.hierarchy import Hierarchy, digits_of, number_of
from meshwright.text.spec import check_type

Held = tuple[int, ...]
"""What one device holds: for each part the set of contributors, as bits. 0: it does not hold the part."""

State = tuple[Held, ...]
"""What every device holds."""

EXACT_LIMIT = 256
"""Groups with more devices are checked on the same levels with smaller radices: see `check_program`."""


class RuleBrokenError(Exception):
    """A rule does not hold in one group. The detail has a `{}` for each of the numbers of devices or parts."""

    def __init__(self, rule: str, detail: str, *numbers: int) -> None:
        """The group is filled in by `apply_step`."""
        self.rule, self.detail, self.numbers = rule, detail, numbers
        self.group: tuple[int, ...] = ()


def state_of(holding: Holding | None, size: int) -> State:
    """The state of a group of `size` devices at the start of a goal, or at its end."""
    everything = (1 << size) - 1
    if holding is Holding.CONTRIBUTION:
        return tuple((1 << d,) * size for d in range(size))
    if holding is Holding.PART:
        return tuple(tuple(everything if p == d else 0 for p in range(size)) for d in range(size))
    if holding is Holding.ROOT:
        return ((everything,) * size, *((0,) * size,) * (size - 1))
    assert holding is Holding.WHOLE
    return ((everything,) * size,) * size


def end_of(goal: Goal, size: int) -> State:
    """What the first devices must hold when a goal is reached: the root alone where it asks nothing of the others."""
    return state_of(goal.end, size)[: 1 if goal.end is Holding.ROOT else size]


def apply_step(state: State, step: Step, radices: tuple[int, ...]) -> State:
    """The state after a step; raises `RuleBrokenError` if a rule forbids it."""
    after = list(state)
    rule = _RULES[step.collective]
    levels = range(step.grouping.first, step.grouping.last + 1)
    for group in _groups(step.grouping, radices):
        try:
            results = rule([state[d] for d in group], group, levels, radices)
        except RuleBrokenError as forbidden:
            forbidden.group = group
            raise
        for device, held in zip(group, results, strict=True):
            after[device] = held
    return tuple(after)


_groups = lru_cache(maxsize=1024)(device_groups)
"""The groups of a step: the same ones are asked for in many states."""


def _union(states: list[Held], group: Sequence[int]) -> Held:
    """The union of what the devices hold, who must hold the same parts, at least one, with disjoint contributions."""
    parts = [[p for p, who in enumerate(held) if who] for held in states]
    for device, own in zip(group, parts, strict=True):
        if not own:
            raise RuleBrokenError("non-empty", "device {} holds nothing", device)
        if own != parts[0]:
            raise RuleBrokenError("same parts", "devices {} and {} hold different parts", group[0], device)
    union = list(states[0])
    for k in range(1, len(states)):
        for p in parts[0]:
            if union[p] & states[k][p]:
                j = next(j for j in range(k) if states[j][p] & states[k][p])
                who = _lowest(states[j][p] & states[k][p])
                raise RuleBrokenError(
                    "disjoint contributions",
                    "devices {} and {} both already contain the contribution of device {}, which would be added twice",
                    group[j],
                    group[k],
                    who,
                )
            union[p] |= states[k][p]
    return tuple(union)


def _all_reduce(states: list[Held], group: Sequence[int], _l: range, _r: tuple[int, ...]) -> list[Held]:
    return [_union(states, group)] * len(states)


def _reduce(states: list[Held], group: Sequence[int], _l: range, _r: tuple[int, ...]) -> list[Held]:
    union = _union(states, group)
    return [union] + [(0,) * len(union)] * (len(states) - 1)


def _reduce_scatter(states: list[Held], group: Sequence[int], levels: range, radices: tuple[int, ...]) -> list[Held]:
    union = _union(states, group)
    kept = [tuple(who if _agree(p, device, levels, radices) else 0 for p, who in enumerate(union)) for device in group]
    held = sum(1 for who in union if who)
    for device, own in zip(group, kept, strict=True):
        if sum(1 for who in own if who) * len(group) != held:
            raise RuleBrokenError(
                "not yet scattered",
                "what device {} and its group hold is already scattered along a level of the group",
                device,
            )
    return kept


def _all_gather(states: list[Held], group: Sequence[int], _l: range, _r: tuple[int, ...]) -> list[Held]:
    sizes = [sum(1 for who in held if who) for held in states]
    union = [0] * len(states[0])
    for k, device in enumerate(group):
        if not sizes[k]:
            raise RuleBrokenError("non-empty", "device {} holds nothing", device)
        if sizes[k] != sizes[0]:
            raise RuleBrokenError("equal sizes", "devices {} and {} hold different numbers of parts", group[0], device)
        for p, who in enumerate(states[k]):
            if who and union[p]:
                j = next(j for j in range(k) if states[j][p])
                raise RuleBrokenError("disjoint parts", "devices {} and {} both hold part {}", group[j], device, p)
            union[p] |= who
    return [tuple(union)] * len(states)


def _broadcast(states: list[Held], group: Sequence[int], _l: range, _r: tuple[int, ...]) -> list[Held]:
    first = states[0]
    for device, held in zip(group, states, strict=True):
        for p, who in enumerate(held):
            if who & ~first[p]:
                raise RuleBrokenError(
                    "contained in the first",
                    "device {} has the contribution of device {} to part {}, which device {} lacks: it would be lost",
                    device,
                    _lowest(who & ~first[p]),
                    p,
                    group[0],
                )
    if all(held == first for held in states):
        raise RuleBrokenError("something to send", "all devices already hold what device {} holds", group[0])
    return [first] * len(states)


_RULES: dict[Collective, Callable[[list[Held], Sequence[int], range, tuple[int, ...]], list[Held]]] = {
    Collective.ALL_REDUCE: _all_reduce,
    Collective.REDUCE_SCATTER: _reduce_scatter,
    Collective.ALL_GATHER: _all_gather,
    Collective.REDUCE: _reduce,
    Collective.BROADCAST: _broadcast,
}


@cache
def _agree(part: int, device: int, levels: range, radices: tuple[int, ...]) -> bool:
    """Whether a part has the digits of a device at some levels: what the device keeps when these are scattered."""
    ours, theirs = digits_of(part, radices), digits_of(device, radices)
    return all(ours[level] == theirs[level] for level in levels)


def _lowest(bits: int) -> int:
    """The number of the lowest bit that is set."""
    return (bits & -bits).bit_length() - 1


def check_program(program: Program, hierarchy: Hierarchy, goal: Goal = Goal.ALL_REDUCE) -> None:
    """Raise `InvalidProgramError`, naming step, group and rule, unless the program is valid for the goal.

    Valid: every step is allowed and changes the state, and the goal is reached after the last step, not before. That
    does not depend on the radices, so a group of more than `EXACT_LIMIT` devices is checked with smaller ones.

    >>> from meshwright import parse_hierarchy, parse_program
    >>> h = parse_hierarchy("node=4,gpu=16")
    >>> check_program(parse_program("AllReduce inside node; AllReduce across node", h), h)
    >>> try:
    ...     check_program(parse_program("AllReduce inside node; AllReduce all", h), h)
    ... except InvalidProgramError as error:
    ...     print(error.step, error.rule, "in", error.group)
    2 disjoint contributions in node=*,gpu=* (devices 0, 1, 2, 3, …)
    """
    check_type(program, Program, "a Program; parse_program makes one from text")
    check_type(hierarchy, Hierarchy, "a Hierarchy; parse_hierarchy makes one from text")
    goal = as_goal(goal)
    radices = hierarchy.radices
    check_fits(program, len(radices))
    if 2 ** len(radices) > EXACT_LIMIT:
        raise TooLargeError(f"a hierarchy of {len(radices)} levels is too large to check; at most 8 are")
    if hierarchy.size > EXACT_LIMIT:
        smaller = 3 if 3 ** len(radices) <= EXACT_LIMIT else 2
        radices = tuple(min(radix, smaller) for radix in radices)
    size = prod(radices)

    def real(numbers: Sequence[int]) -> list[int]:
        return [number_of(digits_of(number, radices), hierarchy.radices) for number in numbers]

    state, end = state_of(goal.start, size), end_of(goal, size)
    for number, step in enumerate(program.steps, 1):
        name = f"step {number} ({step_text(step, hierarchy.names)})"
        if state[: len(end)] == end:
            raise InvalidProgramError(
                "no needless steps",
                f"the goal is already reached before {name}: leave it and what follows out",
                number,
            )
        try:
            state = apply_step(state, step, radices)
        except RuleBrokenError as forbidden:
            group = _group_text(step, digits_of(forbidden.group[0], radices), hierarchy)
            detail = forbidden.detail.format(*real(forbidden.numbers))
            raise InvalidProgramError(
                forbidden.rule,
                f"{name} is not allowed in the group {group}: {detail} "
                f"(the rule of {step.collective} that is broken: {forbidden.rule})",
                number,
                group,
            ) from None
    if state[: len(end)] != end:
        detail, *numbers = _missing(state, end)
        raise InvalidProgramError(
            "reaches the goal",
            f"the program ends before the goal ({goal}) is reached: {detail.format(*real(numbers))}",
        )


def _group_text(step: Step, digits: tuple[int, ...], hierarchy: Hierarchy) -> str:
    """The group of the device with the given digits: as a pattern, and its first devices."""
    inside = range(step.grouping.first, step.grouping.last + 1)
    # Five members are enough, and they have digits below five: `product` would hold all digits of a large level.
    choices = [range(min(r, 5)) if k in inside else (digits[k],) for k, r in enumerate(hierarchy.radices)]
    pattern = ",".join(
        f"{name}={'*' if level in inside else digits[level]}" for level, name in enumerate(hierarchy.names)
    )
    members = [str(number_of(member, hierarchy.radices)) for member in islice(product(*choices), 5)]
    return f"{pattern} (devices {', '.join(members[:4])}{', …' if len(members) > 4 else ''})"


def _missing(state: State, end: State) -> tuple[Any, ...]:
    """The first difference, as a text with a `{}` for each of the numbers of devices or parts that follow."""
    for device, (held, wanted) in enumerate(zip(state, end, strict=False)):
        for part, (has, needs) in enumerate(zip(held, wanted, strict=True)):
            if has and not needs:
                return "device {} still holds part {}", device, part
            if needs and not has:
                return "device {} does not hold part {}", device, part
            if needs & ~has:
                lacking = _lowest(needs & ~has)
                return "part {} of device {} lacks the contribution of device {}", part, device, lacking
    raise AssertionError("the states are equal")
