"""Pipelined programs: the payload in chunks that flow through the steps, so that links of all levels work at once.

The first chunk takes the time of all steps. Then one chunk comes out per period. A rank takes the next chunk in a step
when it is done with the last one; other ranks need not be. All steps that are under way share the links, and the
processors where devices share those; while the messages of one group wait, those of others are in flight. So the
period is at least each of three times: that of the slowest step, in which the links work for other groups while the
messages of one are waited for; that of the link with the most to carry over all groups and steps; and that of the
processors (a rank's own for the calls of a chunk, and those that devices share for its messages). While the call for a
step's next chunk is made, the links that limit this step carry nothing for it, and the other steps seldom fill the gap:
so making the call counts as work of these links too.

For example, 4 chunks through three steps that take 2, 3 and 2 ms per chunk. The first chunk takes 7 ms. If the steps
use different links, the period is 3 ms, and all is done after 7 + 3 x 3 = 16 ms; without chunks it takes about 28 ms.
If the first and the third step use the same link, that link is busy for 4 ms per chunk: 7 + 3 x 4 = 19 ms.

The period is longer where steps that different links limit meet on a link. While the steps are under way that this link
limits, the others get only a part of it, and the link that limits them is idle. For example, a step across nodes keeps
the nodes' ports busy for 30 ms, and those of the devices for 12.5 ms; two steps inside nodes need these for 8.3 ms
each. Three flows share a device's port, but not evenly: what has to queue elsewhere too gets 0.73 of what the others
get. That is 0.27 of the port, where it needs 12.5 / 30 = 0.42. So the steps inside take 16.7 / (1 - 0.27) = 22.8 ms. In
this time the step across does what takes 22.8 x 0.27 / 0.42 = 14.6 ms when it is alone, and the period is
30 + 22.8 - 14.6 = 38.2 ms.

A library that `adapts` chooses the algorithms of all steps together, so that the whole is fastest: what is fastest for
a step alone may load a link that another step needs. It also lets every step have what it needs of a link. Other
libraries take the fastest for each step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.contention import Families, Family, StepKind, step_family
from meshwright.cost.library import LibraryRule
from meshwright.cost.model import CostModel, StepCost
from meshwright.cost.prices import Numbers, Prices
from meshwright.language.goals import Goal
from meshwright.language.program import Pipelined, Program
from meshwright.language.symbolic import run_symbolically

CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""The numbers of chunks that are tried."""

NEARLY = 0.005
"""Of numbers of chunks whose times differ by less than this share the smallest is taken, and of programs the one in the
fewest chunks."""

ROUNDS = 10
"""How often the programs of a mix choose their algorithms anew, at most."""

UNEVEN = 0.73
"""What a flow that has to queue elsewhere too gets of a link, over what a flow gets that this link limits: so that the
times fit which gloo took on node=5@40Mbit/s,gpu=2@60Mbit/s and node=4@50Mbit/s,gpu=2@60Mbit/s in 8 and 16 chunks."""

SAME = 1e-9
"""Links limit a step if they are busy as long as its busiest ones; times that differ by this share are the same."""

NEVER = 1e200
"""The seconds of what cannot be used."""

Table = NDArray[np.float64]


@dataclass(frozen=True)
class Options:
    """The algorithms for a step, with what they take for one chunk, for each of some numbers of chunks.

    algorithms: their names. picked: for each number of chunks, the numbers of those that may be taken. table: by the
    number of chunks and the algorithm that may be taken, the seconds of the step, which are added up over the steps;
    those that it takes where chunks flow, of which the slowest counts; the seconds of the processors; and the seconds
    of each level's links, with those of making the call where they limit the step.
    """

    algorithms: tuple[str, ...]
    picked: Numbers
    table: Table


class Pipeline:
    """The times of programs in chunks, for one reduction."""

    def __init__(self, model: CostModel, goal: Goal, most: int = 1) -> None:
        """`most` is the largest number of chunks that a search tries."""
        self.model, self.goal = model, goal
        self.counts = tuple([chunks for chunks in CHUNKS if chunks <= most])
        chunked = model.library.chunked
        self._models = {1: model}
        self._cut = model if chunked is model.library else CostModel(model.layout, chunked, model.payload)
        self._options: dict[tuple[int, ...], dict[StepKind, Options]] = {}
        self._chosen: dict[tuple[Program, tuple[int, ...]], Chosen] = {}

    def at(self, payload: int) -> "Pipeline":
        """The times for another payload. What either computes of the algorithms serves both."""
        found = Pipeline(self.model.at(self.model.layout, payload), self.goal, self.counts[-1])
        found._cut = self._cut
        return found

    def seconds(self, pipelined: Pipelined) -> float:
        """The time of all chunks: that of the first chunk, then a period for each of the others."""
        times, _ = self._fastest(pipelined.shares, (pipelined.chunks,))
        return float(times[0])

    def costs(self, pipelined: Pipelined) -> list[StepCost]:
        """The steps of one chunk that takes the first of the programs."""
        chunks = pipelined.chunks
        _, chosen = self._fastest(pipelined.shares, (chunks,))
        model, found = self._model(chunks), []
        for kind, option in zip(self._kinds(pipelined.program), chosen[0], strict=False):
            options = self.options([kind], (chunks,))[0]
            name = options.algorithms[options.picked[0, option]]
            found += [cost for cost in model.options(kind.kind, model.rule(kind.kind)) if cost.algorithm == name]
        return found

    def best(self, program: Program) -> tuple[float, Pipelined]:
        """A program with the best number of chunks; the fewest of those that are nearly as good."""
        times, _ = self._fastest(((program, 1),), self.counts)
        return fewest([(float(time), Pipelined.of(program, n)) for time, n in zip(times, self.counts, strict=True)])

    def all_best(self, table: Table, programs: Sequence[Sequence[int]]) -> list[tuple[float, int]]:
        """The time of some programs, each with the best number of chunks as in `best`, and that number.

        `table` has a row for each number of chunks and kind of step, as in `Options`; programs are numbers of kinds.
        """
        longest = max(len(program) for program in programs)
        nothing = table.shape[1]
        steps = np.array([[*program, *[nothing] * (longest - len(program))] for program in programs])
        padded = np.concatenate([table, np.zeros((len(table), 1, table.shape[2]))], axis=1)
        found = padded[:, steps[:, 0]]
        for step in steps.T[1:]:
            found = _followed(found, padded[:, step])
        waiting = _waiting(padded[:, steps.T, 3:])
        times = _all_chunks(found, np.array(self.counts)[:, None] - 1, waiting)
        first = (times <= times.min(axis=0) * (1 + NEARLY)).argmax(axis=0)
        return [(float(times[at, k]), self.counts[at]) for k, at in enumerate(first.tolist())]

    def options(self, kinds: Sequence[Family], counts: tuple[int, ...]) -> list[Options]:
        """What steps of some kinds may take. Where chunks are smaller, other rules of the library may apply."""
        known = self._options.setdefault(counts, {})
        if not known:
            families = kinds if isinstance(kinds, Families) else Families(kinds)
        else:
            families = Families(kind for kind in dict.fromkeys(kinds) if kind.kind not in known)
        if families:
            known.update(zip([kind.kind for kind in families], self._computed(families, counts), strict=True))
        return [known[kind.kind] for kind in kinds]

    def _computed(self, kinds: Families, counts: tuple[int, ...]) -> list[Options]:
        """What `options` gives, for kinds of which nothing is known yet."""
        models = [self._model(chunks) for chunks in counts]
        held = np.array([model.all_held(kinds) for model in models])
        rules = [model.rules(kinds, each) for model, each in zip(models, held, strict=True)]
        same = {tuple(map(id, each)): each for each in rules}
        prices = {key: self.model.prices(kinds, each) for key, each in same.items()}
        # Of each number of chunks, the prices under the rules that it meets.
        met = [prices[tuple(map(id, each))] for each in rules]
        tables = [_table(each, bytes_held) for each, bytes_held in zip(met, held, strict=True)]
        if self.model.library.adapts:
            return [_adapted(k, each, met, tables) for k, each in enumerate(zip(*rules, strict=True))]
        picked = [each.fastest(table[:, 0]) for each, table in zip(met, tables, strict=True)]
        table = np.array([each[numbers] for each, numbers in zip(tables, picked, strict=True)])
        names = dict.fromkeys(name for each in met for name in each.algorithms)
        numbers = {name: number for number, name in enumerate(names)}
        taken = np.array(
            [[numbers[each.algorithms[at]] for at in one.tolist()] for each, one in zip(met, picked, strict=True)]
        )
        every = tuple(names)
        return [Options(every, taken[:, k : k + 1], table[:, k : k + 1]) for k in range(len(kinds))]

    def _model(self, chunks: int) -> CostModel:
        """The model of one of `chunks` chunks."""
        if chunks not in self._models:
            payload = -(-self.model.payload // chunks)
            self._models[chunks] = self._cut.at(self.model.layout, payload)
        return self._models[chunks]

    def _kinds(self, program: Program) -> list[Family]:
        levels = len(self.model.layout.levels)
        states = run_symbolically(program, levels, self.goal)
        return [step_family(levels, state, step) for state, step in zip(states, program.steps, strict=False)]

    def _fastest(
        self, shares: Sequence[tuple[Program, int]], counts: tuple[int, ...]
    ) -> tuple[Table, NDArray[np.int64]]:
        """For each number of chunks, the time of programs that share them, and the options of the first one's steps.

        A program takes the best of all choices, given those of the others. Several programs begin with what is fastest
        for each step alone, and choose anew one after the other until none changes its choice.
        """
        choices = [self.chosen(program, counts) for program, _ in shares]
        tables = [each.table.copy() for each in choices]
        for table, (_, count) in zip(tables, shares, strict=True):
            table[:, :, 1:] *= count / sum(many for _, many in shares)
        every, later = np.arange(len(counts)), np.array(counts)[:, None] - 1
        picked = np.array([table[:, :, 0].argmin(axis=1) for table in tables])
        taken = np.array([table[every, one] for table, one in zip(tables, picked, strict=True)])
        waiting = self._waiting(shares, counts)
        for _ in range(ROUNDS):
            before = picked.copy()
            for k, table in enumerate(tables):
                others = np.delete(taken, k, axis=0)
                together = table + others.sum(axis=0)[:, None]
                largest = others[:, :, :2].max(axis=0, initial=0.0)
                together[:, :, :2] = np.maximum(table[:, :, :2], largest[:, None])
                times = _all_chunks(together, later, waiting)
                picked[k] = times.argmin(axis=1)
                taken[k] = table[every, picked[k]]
            if len(tables) == 1 or (picked == before).all():
                break
        return times[every, picked[-1]], choices[0].picked[picked[0]]

    def _waiting(self, shares: Sequence[tuple[Program, int]], counts: tuple[int, ...]) -> Table:
        """The period of steps that wait for others, for each number of chunks of programs that share them."""
        if counts == (1,) or self.model.library.adapts:
            return np.zeros((len(counts), 1))
        chunks = sum([count for _, count in shares])
        tables = [
            options.table[:, :, 3:] * (count / chunks)
            for program, count in shares
            for options in self.options(self._kinds(program), counts)
        ]
        return _waiting(np.stack(tables, axis=1)) if tables else np.zeros((len(counts), 1))

    def chosen(self, program: Program, counts: tuple[int, ...]) -> "Chosen":
        """All choices of algorithms for the steps of a program that may be best in something."""
        key = program, counts
        if key not in self._chosen:
            width = 3 + len(self.model.layout.system.levels)
            found = Chosen(np.zeros((len(counts), 1, width)), np.zeros((1, 0), dtype=np.int64))
            for options in self.options(self._kinds(program), counts):
                found = found.followed(options.table)
            self._chosen[key] = found
        return self._chosen[key]


@dataclass(frozen=True)
class Chosen:
    """Choices of algorithms for the first steps of a program: a table as in `Options`, and the options picked."""

    table: Table
    picked: NDArray[np.int64]

    def followed(self, step: Table) -> "Chosen":
        """Every choice with every option of the next step, without those that are nowhere better than another."""
        table = _followed(self.table[:, :, None], step[:, None])
        many, more = self.table.shape[1], step.shape[1]
        table = table.reshape(len(table), many * more, -1)
        picked = np.column_stack([np.repeat(self.picked, more, axis=0), np.tile(np.arange(more), many)])
        kept = _undominated(table)
        return Chosen(table[:, kept], picked[kept])


def _followed(one: Table, step: Table) -> Table:
    """What some steps take with one more: rows of a table as in `Options`."""
    table = one + step
    table[..., 1] = np.maximum(one[..., 1], step[..., 1])
    return table


def _all_chunks(table: Table, later: Table, waiting: Table) -> Table:
    """The time of all chunks, from the rows of all steps: that of the first chunk, then a period for each other.

    waiting: the period where steps wait for others on links, as `_waiting` gives it.
    """
    found: Table = table[..., 0] + later * np.maximum(table[..., 1:].max(axis=-1), waiting)
    return found


def _waiting(loads: Table) -> Table:
    """The period of steps that wait for others on links which do not limit them, by number of chunks and program.

    loads: the seconds of each level's links, by number of chunks, step, program and level.
    """
    levels = loads.shape[-1]
    limited = (loads.argmax(axis=3)[..., None] == np.arange(levels)) & (loads > 0)  # by which level each step is
    many = limited.sum(axis=1)
    busy = np.einsum("nkpa,nkpb->npab", limited, loads)  # how long the steps that level a limits keep level b busy
    own = np.diagonal(busy, axis1=2, axis2=3)
    meet = (many[..., None, :] > 0) & (busy > 0) & ~np.eye(levels, dtype=np.bool_)
    gets = np.where(meet, UNEVEN / (UNEVEN + many[..., None, :]), 0.0)
    needs = np.where(meet, busy, 1.0) / np.where(meet, own[..., None], 1.0)
    late = own[..., None, :] / (1 - gets) * np.maximum(0.0, 1 - gets / needs)
    found: Table = np.where(meet, own[..., None] + late, 0.0).max(axis=(2, 3))
    return found


def _undominated(table: Table) -> NDArray[np.int64]:
    """The numbers of the choices that are better than each other one in something; of equal ones, the first."""
    many = table.shape[1]
    if many == 1:
        return np.zeros(1, dtype=np.int64)
    # Whether one is nowhere worse than another; some at a time, which needs less memory.
    some = [(table[:, k : k + 64, None] <= table[:, None]).all(axis=(0, 3)) for k in range(0, many, 64)]
    covers = np.vstack(some)
    before = np.triu(np.ones((many, many), dtype=bool), 1)
    found: NDArray[np.int64] = np.flatnonzero(~(covers & (~covers.T | before)).any(axis=0))
    return found


def fewest(timed: Sequence[tuple[float, Pipelined]]) -> tuple[float, Pipelined]:
    """The first of those that are nearly as good as the best; they come with few chunks first."""
    good = min(seconds for seconds, _ in timed) * (1 + NEARLY)
    return next(found for found in timed if found[0] <= good)


def _table(prices: Prices, held: Table) -> Table:
    """The rows of `Options.table` for each option, when a device holds these bytes before a step of each kind."""
    found = np.empty((len(prices.owner), 3 + prices.busy.shape[1]))
    found[:, 0], found[:, 1] = prices.seconds(held), prices.seconds(held, flowing=True)
    found[:, 2] = prices.processing
    busy = (held[prices.owner] / prices.held)[:, None] * prices.busy + prices.header_seconds
    limits = busy > (1 - SAME) * busy.max(axis=1)[:, None]
    found[:, 3:] = busy + np.where(limits, prices.calling[:, None], 0.0)
    return found


def _adapted(kind: int, rules: Sequence[LibraryRule], met: Sequence[Prices], tables: Sequence[Table]) -> Options:
    """The options of the kind with a number, for a library that chooses the algorithms of all steps together.

    For each number of chunks: rules, the rule that the kind meets; met, tables: the prices of all kinds under the rules
    that these meet, and the rows of the table.
    """
    spans = [slice(each.begins[kind], each.ends[kind]) for each in met]
    names = {rule: each.algorithms[span] for rule, each, span in zip(rules, met, spans, strict=True)}
    table = np.full((len(rules), sum(map(len, names.values())), tables[0].shape[1]), NEVER)
    begin = 0
    for rule, each in names.items():
        for chunks, (mine, span) in enumerate(zip(rules, spans, strict=True)):
            if mine == rule:
                table[chunks, begin : begin + len(each)] = tables[chunks][span]
        begin += len(each)
    kept = _undominated(table)
    every = tuple([name for each in names.values() for name in each])
    return Options(every, np.tile(kept, (len(rules), 1)), table[:, kept])
