"""Synthesis: programs are paths in the graph of symbolic states, from a goal's start to one of its ends.

The graph depends on the number of levels, never on the radices. Counting, listing and ranking all walk the same graph.
"""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from heapq import heappop, heappush
from itertools import accumulate
from math import frexp, inf, ldexp
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import MeshwrightError, TooLargeError
from meshwright.language.goals import Goal, as_goal
from meshwright.language.program import Collective, Program, Step, as_collectives
from meshwright.language.symbolic import HOPELESS_LEVELS, State, hopeless, is_end, state_of, successors
from meshwright.text.spec import shown

MAX_STEPS = 5
"""The default limit on the length of programs, as in the paper."""

LONGEST = 64
"""Longer programs are not searched: far fewer steps reach any goal."""

MAX_LEVELS = 8
"""Hierarchies with more levels are not searched."""

MAX_ENTRIES = 2_000_000
"""A graph whose states have more entries than this, all together, is not built: it would take minutes."""

Cost = Callable[[State, Step], float]
"""The cost of a step taken in a state; never negative."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True)
class ProgramGraph:
    """The symbolic states on the valid programs of at most `max_steps` steps, and the steps between them.

    ends: the states that reach the goal; there are several where it does not matter what some devices hold.
    """

    levels: int
    goal: Goal
    max_steps: int
    start: State
    ends: frozenset[State]
    edges: Mapping[State, tuple[tuple[Step, State], ...]]

    @cached_property
    def lengths(self) -> dict[State, int]:
        """For each state the possible numbers of steps to the end, as bits: 0b1010 is one step or three."""
        lengths = dict.fromkeys(self.ends, 1)
        before: dict[State, int] = {}
        backwards = list(self.edges.items())[::-1]  # most steps lead to states that were found later
        while lengths != before:  # at most one turn for each step
            before = dict(lengths)
            for state, edges in backwards:
                bits = 0
                for _, after in edges:
                    bits |= lengths.get(after, 0) << 1
                if bits:
                    lengths[state] = bits & (2 << self.max_steps) - 1
        return lengths

    def count(self) -> int:
        """How many programs there are, without listing them."""
        reached = counts = dict.fromkeys(self.ends, 1)
        for _ in range(self.max_steps):
            sums = {state: sum(counts.get(after, 0) for _, after in edges) for state, edges in self.edges.items()}
            counts = sums | reached
        return counts.get(self.start, 0)

    def programs(self) -> Iterator[Program]:
        """All programs, lazily, the shortest first."""
        for length in range(self.max_steps + 1):
            if self.lengths.get(self.start, 0) >> length & 1:
                for steps in self._paths(self.start, length):
                    yield Program(steps)

    def _paths(self, state: State, length: int) -> Iterator[tuple[Step, ...]]:
        if length == 0:
            yield ()
            return
        for step, after in self.edges[state]:
            if self.lengths.get(after, 0) >> length - 1 & 1:
                for rest in self._paths(after, length - 1):
                    yield (step, *rest)

    @cached_property
    def _numbered(self) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
        """The graph as arrays: the start's number, the number of the state that each edge leads to, and at which edge
        the edges of each state begin.

        All ends have the number after all other states; the next one stands for all states without a way to an end.
        """
        end = len(self.edges)
        numbers = {state: number for number, state in enumerate(self.edges)} | dict.fromkeys(self.ends, end)
        targets = [numbers.get(after, end + 1) for out in self.edges.values() for _, after in out]
        begins = list(accumulate((len(out) for out in self.edges.values()), initial=0))
        return numbers[self.start], np.array(targets, dtype=np.int64), np.array(begins, dtype=np.int64)

    @cached_property
    def _made(self) -> dict[object, Any]:
        return {}

    def once(self, make: "Callable[[ProgramGraph], T]") -> T:
        """What a function makes of this graph, made once."""
        if make not in self._made:
            self._made[make] = make(self)
        found: T = self._made[make]
        return found

    @cached_property
    def _kinds(self) -> dict[object, tuple[list[Any], NDArray[np.int64]]]:
        return {}

    def kinds(self, kind: Callable[[int, State, Step], K]) -> tuple[list[K], NDArray[np.int64]]:
        """The kinds of edges that a function tells apart, and for every edge the number of its kind.

        `kind` says what the cost of a step taken in a state depends on. Many edges share a kind: for example, an
        AllReduce over all nodes costs the same in every state in which the devices hold equally much.
        """
        if kind not in self._kinds:
            found: dict[K, int] = {}
            edges = [(state, step) for state, out in self.edges.items() for step, _ in out]
            index = [found.setdefault(kind(self.levels, state, step), len(found)) for state, step in edges]
            self._kinds[kind] = list(found), np.array(index, dtype=np.int64)
        return self._kinds[kind]

    def least(
        self,
        kind: Callable[[int, State, Step], K],
        costs: Callable[[Sequence[K]], Sequence[float] | NDArray[np.float64]],
    ) -> float:
        """The cost of the cheapest program, without the program; infinite if there is none.

        `costs` is called once, with all kinds of edges (see `kinds`).
        """
        kinds, index = self.kinds(kind)
        return self.least_by(np.asarray(costs(kinds))[index])

    def least_by(self, prices: NDArray[np.float64]) -> float:
        """The same, where every edge has a price; the edges are numbered as in `kinds`."""
        if self.start in self.ends:
            return 0.0
        if self.start not in self.edges:
            return inf
        return float(self._left(prices)[-1][self._numbered[0]])

    def cheapest(self, prices: NDArray[np.float64]) -> tuple[float, list[int]]:
        """The cost of the cheapest program, and its edges by their numbers, where every edge has a price.

        The edges are numbered as in `kinds`. There must be a program.
        """
        at, targets, begins = self._numbered
        left = self._left(prices)
        cost, path = float(left[-1][at]), []
        for later in left[-2::-1]:
            if at < len(begins) - 1:
                out = slice(begins[at], begins[at + 1])
                path.append(int(begins[at] + np.argmin(prices[out] + later[targets[out]])))
                at = targets[path[-1]]
        return cost, path

    def _left(self, prices: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """For each number of steps from zero on, the least cost from every state to the end in at most these."""
        _, targets, begins = self._numbered
        left = [np.append(np.full(len(begins) - 1, inf), [0.0, inf])]
        for steps in range(self.max_steps):
            left.append(np.append(np.minimum.reduceat(prices + left[-1][targets], begins[:-1]), [0.0, inf]))
            if np.array_equal(left[-1], left[-2]):  # more steps change nothing
                return left + left[-1:] * (self.max_steps - steps - 1)
        return left

    def ranked(self, cost: Cost) -> Iterator[tuple[float, Program]]:
        """All programs with their costs, lazily, the cheapest first; of equal cost, the one with fewer steps.

        This is an A* search whose estimate is exact: the cost of what remains is computed backwards from the end for
        every state and every number of steps left. So each program costs as much work as it has steps: the first is the
        best, the first k are the k best.

        For example, with at most two steps, let AllReduce all cost 5, AllReduce inside 1 and AllReduce across 3. From
        the start the heap has "AllReduce all" at 5 + 0, and "inside" first at 1 + 3, "across" first at 3 + 1. The two
        at 4 come out first, each leads to the end, and both programs are given before the one of a single step.
        """
        edges = [(state, step) for state, out in self.edges.items() for step, _ in out]
        yield from self.ranked_by(np.array([cost(state, step) for state, step in edges]))

    def ranked_by(self, prices: NDArray[np.float64]) -> Iterator[tuple[float, Program]]:
        """The same, where every edge has a price; the edges are numbered as in `kinds`."""
        for cost, path in self.ranked_paths(prices):
            yield cost, self.program(path)

    def program(self, path: Sequence[int]) -> Program:
        """The program whose steps are these edges."""
        return Program(tuple([self._steps[edge] for edge in path]))

    @cached_property
    def _steps(self) -> list[Step]:
        return [step for out in self.edges.values() for step, _ in out]

    def ranked_paths(self, prices: NDArray[np.float64]) -> Iterator[tuple[float, tuple[int, ...]]]:
        """The same, each program as its edges."""
        if not (prices >= 0).all():
            raise MeshwrightError("the cost function gave a cost that is negative or not a number")
        if self.start in self.ends:
            yield 0.0, ()
            return
        if self.start not in self.edges:
            return
        start, targets, begins = self._numbered
        costs, lengths = self._remaining(prices)
        if costs[-1][start] == inf:
            return
        pushed = 0
        heap: list[tuple[float, int, int, float, tuple[int, ...], int]] = [(0.0, 0, pushed, 0.0, (), start)]
        while heap:
            _, _, _, spent, path, at = heappop(heap)
            if at == len(begins) - 1:
                yield spent, path
                continue
            out, later = slice(begins[at], begins[at + 1]), self.max_steps - len(path) - 1
            after, so_far = targets[out], spent + prices[out]
            totals = rounded(so_far + costs[later][after]).tolist()
            many = (lengths[later][after] + len(path) + 1).tolist()
            for number, (total, length, paid) in enumerate(zip(totals, many, so_far.tolist(), strict=True)):
                if total < inf:
                    pushed += 1
                    heappush(heap, (total, length, pushed, paid, (*path, out.start + number), int(after[number])))

    def _remaining(self, prices: NDArray[np.float64]) -> tuple[list[NDArray[np.float64]], list[NDArray[np.int64]]]:
        """For each number of steps from zero on, the least cost from every state to an end in at most these steps; and
        the fewest steps that take it. Costs that differ in the last digits only are equal.
        """
        _, targets, begins = self._numbered
        owners = np.repeat(np.arange(len(begins) - 1), np.diff(begins))
        costs = [np.append(np.full(len(begins) - 1, inf), [0.0, inf])]
        lengths = [np.zeros(len(begins) + 1, np.int64)]
        for _ in range(self.max_steps):
            totals, many = prices + costs[-1][targets], 1 + lengths[-1][targets]
            compared = rounded(totals)
            many[compared != np.minimum.reduceat(compared, begins[:-1])[owners]] = LONGEST + 1
            fewest = np.minimum.reduceat(many, begins[:-1])
            totals[many != fewest[owners]] = inf
            costs.append(np.append(np.minimum.reduceat(totals, begins[:-1]), [0.0, inf]))
            lengths.append(np.append(fewest, [0, 0]))
            if np.array_equal(costs[-1], costs[-2]) and np.array_equal(lengths[-1], lengths[-2]):
                more = self.max_steps + 1 - len(costs)  # another step changes nothing
                return costs + costs[-1:] * more, lengths + lengths[-1:] * more
        return costs, lengths


KEPT_BITS = 40
"""How many bits of a cost count where costs are compared: about twelve digits."""


def rounded(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """To about twelve digits, so that the same costs added up in another order compare as equal."""
    mantissa, exponent = np.frexp(costs)
    found: NDArray[np.float64] = np.ldexp(np.rint(np.ldexp(mantissa, KEPT_BITS)), exponent - KEPT_BITS)
    return found


def rounded_one(cost: float) -> float:
    """The same for a single cost."""
    mantissa, exponent = frexp(cost)
    return ldexp(round(ldexp(mantissa, KEPT_BITS)), exponent - KEPT_BITS)


def program_graph(
    levels: int,
    goal: Goal | str = Goal.ALL_REDUCE,
    max_steps: int = MAX_STEPS,
    collectives: Collection[Collective | str] = tuple(Collective),
) -> ProgramGraph:
    """The graph of all valid programs of at most `max_steps` steps over the given collectives.

    >>> program_graph(levels=2).count()
    93
    >>> cost, program = next(program_graph(levels=2).ranked(lambda state, step: 1.0))
    >>> cost, len(program.steps)
    (1.0, 1)
    """
    if type(max_steps) is not int or not 0 <= max_steps <= LONGEST:
        raise MeshwrightError(f"the number of steps must be zero or more, up to {LONGEST}, not {shown(max_steps)}")
    if type(levels) is not int or levels < 0:
        raise MeshwrightError(f"the number of levels must be zero or more, not {shown(levels)}")
    if levels > MAX_LEVELS:
        raise TooLargeError(
            f"a hierarchy of {levels} levels is too large to search: neither its programs nor their number nor the k "
            f"best can be found; at most {MAX_LEVELS} levels can be"
        )
    return _program_graph(levels, as_goal(goal), max_steps, as_collectives(collectives))


@lru_cache(maxsize=64)
def _program_graph(levels: int, goal: Goal, max_steps: int, collectives: frozenset[Collective]) -> ProgramGraph:
    start = state_of(goal.start, levels)
    ends = {start} if is_end(start, goal, levels) else set()
    edges: dict[State, tuple[tuple[Step, State], ...]] = {}
    depth = {start: 0}
    frontier = [start]
    for steps in range(1, max_steps + 1):
        reached = []
        for state in frontier:
            if state in ends:
                continue
            out = []
            for step, after in successors(state, levels, collectives):
                if after not in depth:
                    if is_end(after, goal, levels):
                        ends.add(after)
                    elif steps == max_steps or (levels <= HOPELESS_LEVELS and hopeless(after, levels)):
                        continue
                    depth[after] = steps
                    reached.append(after)
                out.append((step, after))
            edges[state] = tuple(out)
            if len(depth) << levels > MAX_ENTRIES:
                raise TooLargeError(
                    f"programs of at most {max_steps} steps on {levels} levels pass through too many states to search, "
                    f"even to count them or to find the k best; at most {steps} steps (--max-steps {steps}) can be"
                )
        frontier = reached
    return _trimmed(ProgramGraph(levels, goal, max_steps, start, frozenset(ends), edges), depth)


def _trimmed(graph: ProgramGraph, depth: dict[State, int]) -> ProgramGraph:
    """Without the states and steps from which the end cannot be reached in time."""
    shortest = {state: (bits & -bits).bit_length() - 1 for state, bits in graph.lengths.items()}
    edges = {
        state: tuple(
            (step, after)
            for step, after in out
            if after in shortest and depth[state] + 1 + shortest[after] <= graph.max_steps
        )
        for state, out in graph.edges.items()
    }
    return replace(graph, edges=MappingProxyType({state: out for state, out in edges.items() if out}))
