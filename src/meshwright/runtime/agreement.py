"""Agreement between ranks: do all have the same plan, sit where it says, and make the same calls?"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from zlib import crc32

from meshwright.errors import EngineError, MeshwrightError
from meshwright.planning.plan import Plan
from meshwright.planning.tuning import check_tunable
from meshwright.runtime.role import Role, role_of
from meshwright.runtime.seats import Seat, check_devices, layout_fault
from meshwright.runtime.words import rank_list
from meshwright.system.model import System


def digest(plan: Plan) -> str:
    """A short text that differs between plans that would run differently."""
    text = json.dumps([[level.count for level in plan.placement.system.levels], plan.document()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def introduce(
    plan: Plan, world: int, rank: int, at: Seat | None, check: str = "first", tune: bool = False
) -> tuple[dict[str, Any], list[Role]]:
    """What a rank says of itself when ranks compare their plans, and its roles in the plan's reductions.

    tune: whether it is to be tuned while it runs.
    """
    said: dict[str, Any] = {"plan": "", "seat": at, "check": check, "tune": tune, "fault": ""}
    try:
        if not isinstance(plan, Plan):
            raise EngineError(f"expected a Plan, as read_plan gives one, not {type(plan).__name__}")
        said["plan"] = digest(plan)
        check_devices(plan.placement.system, world, tuned=plan.is_tuned)
        if tune:
            check_tunable(plan)
        return said, [role_of(plan, number, rank, tune) for number in range(len(plan.reductions))]
    except MeshwrightError as error:  # for all ranks to raise
        return said | {"fault": str(error)}, []


def judge_start(system: System | None, said: Mapping[int, Any]) -> str:
    """What is wrong with what the ranks say of themselves: their plan, its faults, and where they sit."""
    if faulty := {rank: each["fault"] for rank, each in said.items() if each["fault"]}:
        first = next(iter(faulty.values()))
        everyone = len(faulty) == len(said) and set(faulty.values()) == {first}
        return first if everyone else f"{rank_list(faulty)}: {first}"
    other = [rank for rank, each in said.items() if each["plan"] != said[0]["plan"]]
    if other:
        have = "has" if len(other) == 1 else "have"
        return f"{rank_list(other)} {have} another plan than rank 0: give every process the same plan file"
    for name in ("check", "tune"):
        if other := [rank for rank, each in said.items() if each.get(name) != said[0].get(name)]:
            theirs, first = said[other[0]].get(name), said[0].get(name)
            return f"rank {other[0]} has {name}={theirs!r}, but rank 0 {first!r}: give every process the same"
    seats = {rank: Seat(*each["seat"]) if each["seat"] else None for rank, each in said.items()}
    return "" if system is None else layout_fault(system, seats)


Judge = Callable[[dict[int, Any]], str]  # says what is wrong with the values of the ranks; empty if nothing is


class Channel(Protocol):
    """How the ranks of a group talk to each other, other than with collectives."""

    def agree(self, key: str, before: str | None, value: Any, judge: Judge) -> None:
        """Compare a value each under a key: if `judge(values)` returns a message, every rank raises it.

        before: the key of their agreement before this one. Everyone has read it, so what is kept for it can be deleted.
        """

    def announce(self, key: str, value: Any) -> None:
        """Say something in an agreement without waiting for it."""


class CallCheck:
    """Compares the calls over the same axes with the same goal between the ranks of their group.

    Programs make the same calls in every step. So a call is compared unless it has come right after the same call
    before, as one that is out of place seldom has. As long as all ranks make the same calls, they compare at the same
    ones.

    For example, in each step all have made a call of 4 MiB and then one of 8 MiB, and now rank 0 makes one of 8 MiB
    where the others make one of 4 MiB. Rank 0 compares, as it has never made two of 8 MiB in a row; the others do not,
    and wait for rank 0 in the collective. So all wait, and all end with an error after the timeout, whose reason
    `explain` then finds. Had rank 0 not compared, gloo would end the processes that get more bytes than they expect.
    """

    CALLS, BYTES = 64, 2**26
    """After this number of calls or bytes all calls so far are compared: often enough to notice, too seldom to cost."""

    PAIRS = 10_000
    """With more pairs of calls than this, all are forgotten: sizes which always change are not to fill the memory."""

    def __init__(self, key: str, ranks: Sequence[int], mode: str, channel: Channel) -> None:
        """Nothing is compared yet; mode is first, always or never."""
        if mode not in ("first", "always", "never"):
            raise EngineError(f"check={mode!r}: expected 'first', 'always' or 'never'")
        self.key, self.ranks, self.channel = key, ranks, channel
        self.never, self.always = mode == "never" or len(ranks) == 1, mode == "always"
        self.calls = self.since = self.bytes = 0
        self.history = self.past = 0  # digests of all calls so far, and of those before the last one
        self.last: tuple[str, ...] = ()
        self.known: set[tuple[tuple[str, ...], tuple[str, ...]]] = set()  # calls, each with the one before it
        self.before: str | None = None

    def __call__(self, call: tuple[str, ...], payload: int) -> None:
        """Compare a call if it has never followed the one before it, if it is time to compare all, or if asked to."""
        self.calls += 1
        if self.never:
            return
        self.since += 1
        self.bytes += payload
        self.past, self.history = self.history, crc32(repr(call).encode(), self.history)
        both = self.last, call
        if self.always or self.since >= self.CALLS or self.bytes >= self.BYTES or both not in self.known:
            self.compare(" ".join(call))
            if len(self.known) >= self.PAIRS:
                self.known.clear()
            self.known.add(both)
        self.last = call

    def compare(self, call: str) -> None:
        """Compare a call, and all before it."""
        self.since = self.CALLS  # where this ends in an error, the next call is compared too
        try:
            self.channel.agree(self._key(), self.before, [call, self.past], self.judge)
        except EngineError:
            self.history = self.past  # nobody made this call
            raise
        self.before, self.since, self.bytes = self._key(), 0, 0

    def refuse(self, message: str) -> None:
        """Tell the others that this rank cannot make its call, without waiting for them."""
        self.calls += 1
        if len(self.ranks) > 1:
            self.channel.announce(self._key(), [f"cannot: {message}", self.history])
        self.since = self.CALLS  # the others may not have refused, so the next call is compared

    def explain(self, call: tuple[str, ...], error: EngineError, channel: Channel) -> EngineError:
        """Find out with the others why a call failed: some may have made another one, or none at all.

        A rank that compares this call still waits under its key, so that key is used: it gets the answer
        too. If the call has been compared already, its key is used up, and another one is taken.
        """
        if len(self.ranks) == 1:
            return error
        key = f"{self._key()}/after" if self.before == self._key() else self._key()
        try:
            channel.agree(key, None, [" ".join(call), self.past], self.judge)
        except EngineError as found:
            reason = f"{found}; {error}" if found.agreed else f"{error}; {found}"
            return EngineError(reason, agreed=found.agreed)
        return error

    def finish(self) -> None:
        """Compare the calls since the last comparison."""
        if self.since and not self.never:
            self.calls += 1
            self.past = self.history
            self.compare("makes no more calls")

    def _key(self) -> str:
        return f"{self.key}/{self.calls}"

    def judge(self, calls: dict[int, Any]) -> str:
        """The message that names the ranks that called differently; empty if none did."""
        first = self.ranks[0]
        if different := [rank for rank in self.ranks if calls[rank][0] != calls[first][0]]:
            theirs = f"{rank_list(different)} {calls[different[0]][0]}"
            return f"the ranks call differently: rank {first} {calls[first][0]}, {theirs}"
        if different := [rank for rank in self.ranks if calls[rank][1] != calls[first][1]]:
            return (
                f"{rank_list(different)} made other calls than rank {first} since the ranks compared theirs last, so "
                "results since then may be wrong"
            )
        return ""


def call_checks(
    roles: Sequence[Role], mode: str, channel: Callable[[int, tuple[int, ...]], Channel], key: str = ""
) -> list[CallCheck]:
    """The check of each of a plan's reductions; those with the same goal over the same axes share one."""
    found: dict[object, CallCheck] = {}
    checks = []
    for number, role in enumerate(roles):
        reduction = role.planned.communication
        kind = reduction.goal, frozenset(reduction.axes)
        if kind not in found:
            # With the group's first rank: other groups of the same reduction have verdicts of their own.
            own = f"{key}/{number}/{role.ranks[0]}"
            found[kind] = CallCheck(own, role.ranks, mode, channel(number, role.ranks))
        checks.append(found[kind])
    return checks
