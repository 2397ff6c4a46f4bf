from collections.abc import Iterator
from functools import reduce
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import (
    Goal,
    Hierarchy,
    InvalidProgramError,
    MeshwrightError,
    ProgramGraph,
    parse_hierarchy,
    parse_program,
    program_graph,
    run_program,
)
from meshwright.language import interpreter, semantics
from meshwright.language.goals import PROGRAM_GOALS
from meshwright.language.program import Program, Step, all_steps
from meshwright.language.symbolic import NOTHING, State
from tests.strategies import factorizations, hierarchies, named

Array = interpreter.Array


def inputs_and_truth(
    hierarchy: Hierarchy, goal: Goal, length: int, operation: interpreter.Operation = np.add
) -> tuple[list[Array | None], list[Array | None]]:
    """Random arrays that the goal starts from, and what every device must end with."""
    size = hierarchy.size
    random = np.random.default_rng(length * 1000 + size)
    arrays = [random.integers(-1000, 1000, length) for _ in range(size)]
    part = -(-length // size)
    total = reduce(operation, arrays)
    parts = [total[k * part : (k + 1) * part] for k in range(size)]
    nothing: list[Array | None] = [None] * (size - 1)
    cases: dict[Goal, tuple[list[Array | None], list[Array | None]]] = {
        Goal.ALL_REDUCE: ([*arrays], [total] * size),
        Goal.REDUCE_SCATTER: ([*arrays], [*parts]),
        Goal.ALL_GATHER: ([*parts], [total] * size),
        Goal.REDUCE: ([*arrays], [total, *nothing]),
        Goal.BROADCAST: ([total, *nothing], [total] * size),
    }
    return cases[goal]


def assert_right(program: Program, hierarchy: Hierarchy, goal: Goal, length: int) -> None:
    inputs, truth = inputs_and_truth(hierarchy, goal, length)
    results = run_program(program, hierarchy, inputs, goal)
    for result, expected in zip(results, truth, strict=True):
        if expected is None:
            assert result is None
        else:
            assert result is not None
            assert np.array_equal(result, expected), program.text(hierarchy)


@pytest.mark.parametrize("goal", PROGRAM_GOALS)
@pytest.mark.parametrize("radices", [r for devices in range(2, 13) for r in factorizations(devices)], ids=str)
def test_every_program_of_small_groups_gives_the_true_result(radices: tuple[int, ...], goal: Goal) -> None:
    for program in program_graph(len(radices), goal).programs():
        assert_right(program, named(radices), goal, length=prod(radices) + 3)


class Meaning:
    """What symbolic states mean in numbers: one random number per device and chunk at the start."""

    def __init__(self, radices: tuple[int, ...]) -> None:
        self.radices, self.levels, size = radices, len(radices), prod(radices)
        digits: Array = np.array(list(np.ndindex(*radices)))
        # Whole numbers as floats, which are multiplied fast: all sums are exact, being far below 2**53.
        self.arrays = np.random.default_rng(size).integers(0, 2**40, (size, size)).astype(float)
        self.classes = ((digits == 0) << np.arange(self.levels)).sum(axis=1)
        self.different = ((digits[:, None, :] != digits[None, :, :]) << np.arange(self.levels)).sum(axis=2)
        # What every device has when all have summed over the same levels, by these levels as bits.
        levels = range(1 << self.levels)
        self.sums = np.array([(self.different & ~every == 0) @ self.arrays for every in levels])
        self.known: dict[State, tuple[Array, Array]] = {}

    def numbers(self, state: State) -> tuple[Array, Array]:
        """What every device holds, as a mask and as numbers, both by device and chunk; nobody can write to them."""
        if state not in self.known:
            self.known[state] = self.computed(state)
            for array in self.known[state]:
                array.setflags(write=False)
        return self.known[state]

    def computed(self, state: State) -> tuple[Array, Array]:
        entries = np.array(state)[self.classes]
        holds = (self.different & entries[:, None] == 0) & (entries != NOTHING)[:, None]  # only a bit per level matters
        every = entries >> self.levels & len(self.sums) - 1
        return holds, np.where(holds, self.sums[every, np.arange(len(entries))], 0)


@pytest.mark.parametrize("devices", range(2, 65))
def test_every_step_of_every_program_up_to_64_devices_moves_the_right_numbers(devices: int) -> None:
    """Each edge of the program graphs on real numbers, from what its state means to what the next one means.

    Every program is a path of such edges, so this covers all programs of at most 5 steps on all hierarchies
    (4 steps on the one with six levels, to save time). Many edges serve several goals.
    """
    for radices in factorizations(devices):
        meaning = Meaning(radices)
        graphs = [program_graph(len(radices), goal, 5 if len(radices) < 6 else 4) for goal in PROGRAM_GOALS]
        edges = {edge: after for graph in graphs for edge, after in edges_of(graph)}
        for (state, step), after in edges.items():
            holds, numbers = meaning.numbers(state)
            buffers = interpreter._Buffers(numbers[..., None].copy(), holds.copy())
            interpreter._take(step, radices, buffers, np.add)
            expected_holds, expected = meaning.numbers(after)
            assert np.array_equal(buffers.holds, expected_holds), (radices, state, step)
            assert np.array_equal(np.where(buffers.holds, buffers.parts[..., 0], 0), expected), (radices, state, step)


def edges_of(graph: ProgramGraph) -> Iterator[tuple[tuple[State, Step], State]]:
    """Every step that a program may take in a state, and the state that it leads to."""
    for state, found in graph.edges.items():
        for step, after in found:
            yield (state, step), after


@given(hierarchies(max_devices=256, max_levels=5), st.sampled_from(PROGRAM_GOALS), st.integers(0, 600), st.data())
@settings(max_examples=200)
def test_long_programs_and_any_payload_give_the_true_result(
    hierarchy: Hierarchy, goal: Goal, length: int, data: st.DataObject
) -> None:
    graph = program_graph(len(hierarchy.radices), goal, 6)
    random = data.draw(st.randoms(use_true_random=False))
    _, program = next(graph.ranked(lambda _state, _step: random.random()))
    assert_right(program, hierarchy, goal, length)


@given(st.lists(st.integers(2, 4), min_size=1, max_size=3).map(tuple), st.data())
def test_every_device_holds_what_the_exact_semantics_says(radices: tuple[int, ...], data: st.DataObject) -> None:
    """Step by step along allowed walks, also those that never reach a goal: same parts, same contributions."""
    size = prod(radices)
    random = np.random.default_rng(size)
    arrays = random.integers(0, 2**40, (size, size))
    buffers = interpreter._load(list(arrays), Goal.ALL_REDUCE, 1, arrays.dtype)
    state = semantics.state_of(Goal.ALL_REDUCE.start, size)
    for _ in range(4):
        allowed: list[tuple[Step, semantics.State]] = []
        for step in all_steps(len(radices)):
            try:
                allowed.append((step, semantics.apply_step(state, step, radices)))
            except semantics.RuleBrokenError:
                continue
        if not allowed:
            break
        step, state = data.draw(st.sampled_from(allowed))
        interpreter._take(step, radices, buffers, np.add)
        for device, held in enumerate(state):
            for chunk, who in enumerate(held):
                assert buffers.holds[device, chunk] == bool(who)
                if who:
                    total = sum(int(arrays[d, chunk]) for d in range(size) if who >> d & 1)
                    assert buffers.parts[device, chunk, 0] == total


TWO = parse_hierarchy("node=2,gpu=2")
PROGRAM = parse_program("ReduceScatter inside node; AllReduce across node; AllGather inside node", TWO)


@pytest.mark.parametrize("dtype", [">i4", np.int8, np.uint64, np.float16, np.float32, np.float64, np.complex128])
def test_any_dtype(dtype: str | type) -> None:
    arrays: list[Array] = [(np.arange(7) % 2).astype(dtype).reshape(7, 1) for _ in range(4)]
    for result in run_program(PROGRAM, TWO, arrays):
        assert result is not None
        assert result.dtype == np.dtype(dtype)
        assert result.shape == (7, 1)
        np.testing.assert_array_equal(result, np.add.reduce(arrays))


@pytest.mark.parametrize("operation", [np.maximum, np.minimum, np.multiply])
def test_other_operations(operation: np.ufunc) -> None:
    arrays = [np.array([3, -1, 2]) * (k + 1) for k in range(4)]
    for result in run_program(PROGRAM, TWO, arrays, operation=operation):
        np.testing.assert_array_equal(result, operation.reduce(arrays))


def test_the_inputs_are_left_alone() -> None:
    arrays = [np.arange(4) for _ in range(4)]
    run_program(PROGRAM, TWO, arrays)
    for array in arrays:
        np.testing.assert_array_equal(array, np.arange(4))


def test_double_counting_shows_in_the_numbers() -> None:
    """The interpreter does not know the rules: it computes what a library would, here a wrong sum."""
    program = parse_program("AllReduce inside node; AllReduce all", TWO)
    results = run_program(program, TWO, [np.array([1])] * 4)
    np.testing.assert_array_equal(results, [[8]] * 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ReduceScatter inside node; AllReduce all", "step 2 .* hold different parts"),
        ("Reduce inside node; AllReduce inside node", "step 2 .* hold different parts"),
        ("Reduce all; AllGather inside node", "step 2 .* different numbers of parts, or none"),
        ("Reduce all; Broadcast inside node", "step 2 .* nothing to send"),
        ("Reduce all", "device 1 ends with other parts"),
        ("ReduceScatter all", "device 0 ends with other parts"),
    ],
)
def test_what_cannot_run_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidProgramError, match=message):
        run_program(parse_program(text, TWO), TWO, [np.arange(4)] * 4)


@pytest.mark.parametrize(
    ("inputs", "goal", "message"),
    [
        ([np.arange(4)] * 3, Goal.ALL_REDUCE, "3 arrays were given, one is needed for each of the 4"),
        ([np.arange(4)] * 3 + [np.arange(5)], Goal.ALL_REDUCE, "same shape"),
        ([np.arange(4)] * 3 + [np.arange(4.0)], Goal.ALL_REDUCE, "same dtype"),
        ([np.arange(4)] * 3 + [None], Goal.ALL_REDUCE, "needs an array from every device"),
        ([np.arange(4)] * 3 + [np.arange(9)], Goal.ALL_GATHER, "device 0 gave 4 elements, its part .* has 6"),
        ([np.arange(4)] * 4, Goal.BROADCAST, "from the first device only"),
        ([None] * 4, Goal.BROADCAST, "needs an array from the first device"),
        ([np.ma.masked_array([1], [True])] * 4, Goal.ALL_REDUCE, "masked"),
        ([np.arange(4)] * 4, "all-to-all", "unknown goal 'all-to-all'"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs: list[Array | None], goal: Goal, message: str) -> None:
    with pytest.raises(MeshwrightError, match=message):
        run_program(PROGRAM, TWO, inputs, goal)


def test_a_group_of_one_device() -> None:
    (result,) = run_program(Program(()), Hierarchy((), ()), [np.arange(3)])
    np.testing.assert_array_equal(result, np.arange(3))
