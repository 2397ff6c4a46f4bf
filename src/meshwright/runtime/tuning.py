"""Tuning while a program runs: its first calls take the candidates in turn, and then all take the fastest.

Nothing here depends on an engine. `Turns` is the state of one reduction for one class of sizes. Every rank has one, and
all are in the same state: whose turn it is depends on the number of calls alone, and what is left out and taken depends
on the times of the slowest rank, which all ranks have.
"""

import time
from collections.abc import Callable, Sequence

from meshwright.cost.pipeline import Pipeline
from meshwright.language.program import Pipelined
from meshwright.planning.plan import Plan, Tuned, cost_model
from meshwright.planning.tuning import beaten, candidates, check_tunable, choose, retuned, simplest
from meshwright.runtime.role import Cut, Role

CALLS = 40
"""After this number of calls, at most, it is settled what to take."""

BEST = 4
"""How many programs take turns beside the library's own collective."""

FEWEST = 2
"""How often each is measured before the slow ones are left out."""

TRIMMED = 5
"""From this number of times on, the longest does not count: a call may wait for something else than the links."""

Largest = Callable[[Sequence[float]], list[float]]
"""Of some values of each rank of a reduction group, the largest of all ranks, one by one; all ranks call it at once."""


class Turns:
    """Whose turn it is among some candidates, the simplest first, and who has won.

    In the first round each makes a call that does not count, as connections are made then. After each further round
    the ranks compare their times, and what is clearly slower than another is left out. It is settled when one is left,
    or when the calls do not suffice for another round.

    For example, of three candidates the second is twice as fast as the others. Nine calls go by: a round without
    times, and two rounds with. Then the others are left out, and every further call takes the second.
    """

    def __init__(self, count: int, calls: int = CALLS) -> None:
        """Nothing is measured yet; of one candidate nothing needs to be."""
        self.calls = calls  # that are left
        self.times: list[list[float]] = [[] for _ in range(count)]
        self.left = list(range(count))  # the candidates that may still win
        self.rounds = 0
        self._mine: list[float] = []  # what the calls of this round took on this rank
        self.winner: int | None = None if count > 1 else 0

    @property
    def turn(self) -> int:
        """The candidate of the next call. Each round begins with another one, lest sizes that alternate favour one."""
        if self.winner is not None:
            return self.winner
        return self.left[(self.rounds + len(self._mine)) % len(self.left)]

    def took(self, seconds: float) -> list[float]:
        """Note what a call took on this rank; at the end of a round, all times of it, for the ranks to compare."""
        self.calls -= 1
        self._mine.append(seconds)
        return self._mine if len(self._mine) == len(self.left) else []

    def compared(self, slowest: Sequence[float]) -> None:
        """Go on with the times of the slowest rank for the calls of a round."""
        order = [self.left[(self.rounds + k) % len(self.left)] for k in range(len(self.left))]
        if self.rounds:  # the first does not count
            for candidate, seconds in zip(order, slowest, strict=True):
                self.times[candidate].append(seconds)
        self.rounds += 1
        self._mine = []
        if self.rounds > FEWEST:
            known = [self.times[k] for k in self.left]
            self.left = [k for k in self.left if not beaten(self.times[k], known)]
        if self.rounds > FEWEST and (len(self.left) == 1 or len(self.left) > self.calls):
            self.winner = self.left[simplest([trimmed(self.times[k]) for k in self.left])]


def trimmed(times: Sequence[float]) -> list[float]:
    """Times without the longest, where there are enough."""
    return sorted(times)[:-1] if len(times) >= TRIMMED else list(times)


class Race:
    """The candidates of one reduction for payloads of one class: those whose sizes have the same number of bits.

    Times of other payloads than the first are taken as if they were of that size, by what is predicted for both.
    """

    def __init__(self, plan: Plan, number: int, payload: int) -> None:
        self.plan, self.number, self.payload = plan, number, payload
        self.planned = plan.reductions[number]
        self.programs = candidates(plan, self.planned, payload, BEST)
        self.turns = Turns(len(self.programs))
        self._pipeline = Pipeline(cost_model(plan, self.planned), self.planned.communication.goal)

    @property
    def winner(self) -> Pipelined | None:
        """What all calls take; None as long as that is not settled."""
        return None if self.turns.winner is None else self.programs[self.turns.winner]

    def call(self, role: Role, length: int, width: int, run: Callable[[Sequence[Cut]], None], largest: Largest) -> None:
        """Make a call with `length` elements of `width` bytes: it takes the candidate whose turn it is.

        run: makes the call in some chunks, and returns when the result is there.
        """
        program = self.programs[self.turns.turn]
        cut = role.cut(length, width, program)
        if self.winner is not None:
            run(cut)
            return
        largest([0.0])  # so that no rank's time contains waiting for another one to come
        started = time.perf_counter()
        run(cut)
        seconds = time.perf_counter() - started
        if mine := self.turns.took(seconds * self._scale(program, length * width)):
            self.turns.compared(largest(mine))

    def _scale(self, program: Pipelined, payload: int) -> float:
        """How much longer the first payload of the class takes than another one."""
        if payload == self.payload:
            return 1.0
        return self._pipeline.at(self.payload).seconds(program) / self._pipeline.at(payload).seconds(program)

    def tuned(self, engine: str) -> Tuned:
        """What was settled, with what it was compared with."""
        bits = self.payload.bit_length()
        measured: dict[Pipelined | None, list[float]] = {
            one: trimmed(times) for one, times in zip(self.programs, self.turns.times, strict=True)
        }
        assert self.winner is not None, "it is settled"
        span = 2 ** (bits - 1), 2**bits - 1
        return choose(self.plan, self.planned, self.payload, span, engine, measured, self.turns.winner)


class Tuner:
    """The races of all reductions of a plan, each begun by the first call of its class of sizes."""

    def __init__(self, plan: Plan) -> None:
        """Refuse a plan that has nothing to choose from."""
        check_tunable(plan)
        self.plan = plan
        self.races: dict[tuple[int, int], Race] = {}

    def race(self, number: int, payload: int) -> Race:
        """The race for a reduction and a payload."""
        key = number, payload.bit_length()
        if key not in self.races:
            self.races[key] = Race(self.plan, number, payload)
        return self.races[key]

    def settled(self, engine: str) -> dict[int, list[Tuned]]:
        """What is settled so far, by the numbers of reductions."""
        found: dict[int, list[Tuned]] = {}
        for race in self.races.values():
            if race.winner is not None and len(race.programs) > 1:
                found.setdefault(race.number, []).append(race.tuned(engine))
        return found

    def plan_with(self, engine: str) -> Plan:
        """The plan with what is settled so far."""
        return retuned(self.plan, self.settled(engine))
