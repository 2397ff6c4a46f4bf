"""Pipelined programs: the payload in chunks that flow through the steps, so that links of all levels work at once.

The first chunk takes the time of all steps. Then one chunk comes out per period. A step takes its next chunk when it is
done with the last one. All steps that are under way share the links, and the processors where devices share those;
while the messages of one step wait, those of others are in flight. So the period is the longest of three times: of the
slowest step, of the link with the most to carry over all steps, and of the processors for all messages of a chunk.

For example, 4 chunks through three steps that take 2, 3 and 2 ms per chunk. The first chunk takes 7 ms. If the steps
use different links, the period is 3 ms, and all is done after 7 + 3 x 3 = 16 ms; without chunks it takes about 28 ms.
If the first and the third step use the same link, that link is busy for 4 ms per chunk: 7 + 3 x 4 = 19 ms.

A library that `adapts` chooses the algorithms of all steps together, so that the whole is fastest: what is fastest for
a step alone may load a link that another step needs. Other libraries take the fastest for each step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.contention import Family, StepKind, family_of, step_kind
from meshwright.cost.library import LibraryRule
from meshwright.cost.model import CostModel, Price, StepCost
from meshwright.language.goals import Goal
from meshwright.language.program import Pipelined, Program
from meshwright.language.symbolic import run_symbolically

CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""The numbers of chunks that are tried."""

NEARLY = 0.02
"""Of numbers of chunks whose times differ by less than this share, the smallest is taken: every chunk costs a little
more than the model knows."""

ROUNDS = 10
"""How often the programs of a mix choose their algorithms anew, at most."""

NEVER = 1e200
"""The seconds of what cannot be used."""

Table = NDArray[np.float64]


@dataclass(frozen=True)
class Options:
    """The algorithms for a step, with what they take for one chunk, for each of some numbers of chunks.

    algorithms: their names, by the number of chunks. table: by the number of chunks and the algorithm, the seconds of
    the step, the same again (the first are added up over the steps, of the second the slowest counts), the seconds of
    the processors, and the seconds of each level's links.
    """

    algorithms: tuple[tuple[str, ...], ...]
    table: Table


class Pipeline:
    """The times of programs in chunks, for one reduction."""

    def __init__(self, model: CostModel, goal: Goal, most: int = 1) -> None:
        """`most` is the largest number of chunks that a search tries."""
        self.model, self.goal = model, goal
        self.counts = tuple([chunks for chunks in CHUNKS if chunks <= most])
        self._models = {1: model}
        self._options: dict[tuple[StepKind, tuple[int, ...]], Options] = {}
        self._priced: dict[tuple[int, LibraryRule], list[_Priced]] = {}
        self._chosen: dict[tuple[Program, tuple[int, ...]], Chosen] = {}

    def at(self, payload: int) -> "Pipeline":
        """The times for another payload. What either computes of the algorithms serves both."""
        other = Pipeline(self.model.at(self.model.layout, payload), self.goal, self.counts[-1])
        other._priced = self._priced
        return other

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
            name = self.options(kind, (chunks,)).algorithms[0][option]
            found += [cost for cost in model.options(kind, model.rule(kind)) if cost.algorithm == name]
        return found

    def best(self, program: Program) -> tuple[float, Pipelined]:
        """A program with the best number of chunks; the fewest of those that are nearly as good."""
        times, _ = self._fastest(((program, 1),), self.counts)
        return fewest([(float(time), Pipelined.of(program, n)) for time, n in zip(times, self.counts, strict=True)])

    def options(self, kind: StepKind, counts: tuple[int, ...]) -> Options:
        """What a step of this kind may take. Where chunks are smaller, another rule of the library may apply."""
        key = kind, counts
        if key not in self._options:
            family = family_of(kind)
            held = np.array([self._model(chunks).held(family.along) for chunks in counts])
            rules = [self._model(chunks).rule(kind) for chunks in counts]
            found = [(rule, price) for rule in dict.fromkeys(rules) for price in self._prices(family, rule)]
            table = np.stack([price.table(held) for _, price in found], axis=1)
            if len(set(rules)) > 1:
                table[np.array([[rule != met for rule, _ in found] for met in rules])] = NEVER
            if self.model.library.adapts:
                kept = np.tile(_undominated(table), (len(counts), 1))
            else:
                kept = table[:, :, 0].argmin(axis=1)[:, None]
            names = tuple([tuple([found[option][1].algorithm for option in each]) for each in kept])
            self._options[key] = Options(names, np.take_along_axis(table, kept[:, :, None], axis=1))
        return self._options[key]

    def _prices(self, family: Family, rule: LibraryRule) -> list["_Priced"]:
        """What the algorithms of a rule take for the steps of a family."""
        key = family.number, rule
        if key not in self._priced:
            self._priced[key] = [_priced(cost, self.model) for cost in self.model.options(family.kind, rule)]
        return self._priced[key]

    def _model(self, chunks: int) -> CostModel:
        """The model of one of `chunks` chunks."""
        if chunks not in self._models:
            payload = -(-self.model.payload // chunks)
            self._models[chunks] = CostModel(self.model.layout, self.model.library.chunked, payload)
        return self._models[chunks]

    def _kinds(self, program: Program) -> list[StepKind]:
        levels = len(self.model.layout.levels)
        states = run_symbolically(program, levels, self.goal)
        return [step_kind(levels, state, step) for state, step in zip(states, program.steps, strict=False)]

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
        for _ in range(ROUNDS):
            before = picked.copy()
            for k, table in enumerate(tables):
                others = np.delete(taken, k, axis=0)
                together = table + others.sum(axis=0)[:, None]
                largest = others[:, :, :2].max(axis=0, initial=0.0)
                together[:, :, :2] = np.maximum(table[:, :, :2], largest[:, None])
                times = together[:, :, 0] + later * together[:, :, 1:].max(axis=2)
                picked[k] = times.argmin(axis=1)
                taken[k] = table[every, picked[k]]
            if len(tables) == 1 or (picked == before).all():
                break
        return times[every, picked[-1]], choices[0].picked[picked[0]]

    def chosen(self, program: Program, counts: tuple[int, ...]) -> "Chosen":
        """All choices of algorithms for the steps of a program that may be best in something."""
        key = program, counts
        if key not in self._chosen:
            width = 3 + len(self.model.layout.system.levels)
            found = Chosen(np.zeros((len(counts), 1, width)), np.zeros((1, 0), dtype=np.int64))
            for kind in self._kinds(program):
                found = found.followed(self.options(kind, counts).table)
            self._chosen[key] = found
        return self._chosen[key]


@dataclass(frozen=True)
class Chosen:
    """Choices of algorithms for the first steps of a program: a table as in `Options`, and the options picked."""

    table: Table
    picked: NDArray[np.int64]

    def followed(self, step: Table) -> "Chosen":
        """Every choice with every option of the next step, without those that are nowhere better than another."""
        mine, next_one = self.table[:, :, None], step[:, None]
        table = mine + next_one
        table[..., 1] = np.maximum(mine[..., 1], next_one[..., 1])
        many, more = self.table.shape[1], step.shape[1]
        table = table.reshape(len(table), many * more, -1)
        picked = np.column_stack([np.repeat(self.picked, more, axis=0), np.tile(np.arange(more), many)])
        kept = _undominated(table)
        return Chosen(table[:, kept], picked[kept])


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


@dataclass(frozen=True)
class _Priced:
    """An algorithm for the steps of a family: its time, the seconds of the processors, and those of each level's links
    for every byte that a device holds."""

    algorithm: str
    price: Price
    processing: float
    busy: Table

    def table(self, held: Table) -> Table:
        """What a step takes when a device holds some bytes, for several numbers of bytes: rows as in `Options`."""
        seconds = self.price.seconds(held)
        found = np.empty((len(held), 3 + len(self.busy)))
        found[:, 0] = found[:, 1] = seconds
        found[:, 2] = self.processing
        np.multiply(held[:, None], self.busy, out=found[:, 3:])
        return found


def _priced(cost: StepCost, model: CostModel) -> _Priced:
    names = {level.name: number for number, level in enumerate(model.layout.system.levels)}
    busy = np.zeros(len(names))
    for phase in cost.phases:
        for load in phase.loads:
            busy[names[load.level]] += load.seconds
    return _Priced(cost.algorithm, cost.price, sum(phase.processing for phase in cost.phases), busy / cost.held)
