"""Tuning while a program runs: turns, times and decisions, on simulated ranks and times."""

from collections.abc import Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import Pipelined, Plan, Reduction, plan
from meshwright.planning.tuning import candidates
from meshwright.runtime.agreement import judge_start
from meshwright.runtime.role import Cut, role_of
from meshwright.runtime.tuning import BEST, CALLS, Race, Tuner, Turns, trimmed
from tests.engines import tunable_plan


def settle(ranks: list[Turns], seconds: Sequence[Sequence[float]], random: Random, noise: float) -> int:
    """Make calls on all ranks until it is settled; how many. seconds: by rank and candidate."""
    calls = 0
    while ranks[0].winner is None:
        (turn,) = {each.turn for each in ranks}
        calls += 1
        mine = [
            each.took(times[turn] * (1 + noise * random.random())) for each, times in zip(ranks, seconds, strict=True)
        ]
        assert len({len(each) for each in mine}) == 1
        if mine[0]:
            slowest = [max(each) for each in zip(*mine, strict=True)]
            for each in ranks:
                each.compared(slowest)
        assert len({each.winner for each in ranks}) == 1
    return calls


TIMES = st.floats(1e-4, 10)


@settings(max_examples=200)
@given(st.data(), st.integers(1, 6), st.integers(1, 5), st.floats(0, 3), st.integers(0, 9))
def test_all_ranks_decide_the_same_within_the_calls(
    data: st.DataObject, count: int, size: int, noise: float, seed: int
) -> None:
    seconds = [[data.draw(TIMES) for _ in range(count)] for _ in range(size)]
    ranks = [Turns(count) for _ in range(size)]
    calls = settle(ranks, seconds, Random(seed), noise)
    assert calls <= CALLS
    assert calls == 0 or calls >= 3 * count
    assert ranks[0].turn == ranks[0].winner
    assert all(each.times == ranks[0].times for each in ranks)


@given(st.integers(2, 6), st.integers(0, 5), st.integers(0, 99))
def test_a_win_is_found(count: int, best: int, seed: int) -> None:
    best %= count
    seconds = [[0.7 if k == best else 1.0 + 0.1 * k for k in range(count)] for _ in range(3)]
    ranks = [Turns(count) for _ in range(3)]
    settle(ranks, seconds, Random(seed), 0.05)
    assert ranks[0].winner == best


@given(st.integers(2, 6), st.integers(0, 99))
def test_the_slowest_rank_counts(count: int, seed: int) -> None:
    # On the first rank the last candidate is the fastest, but it makes the second rank wait.
    seconds = [[1.0] * (count - 1) + [0.1], [1.0] * (count - 1) + [1.6]]
    ranks = [Turns(count) for _ in range(2)]
    settle(ranks, seconds, Random(seed), 0.02)
    assert ranks[0].winner != count - 1


def test_noise_keeps_the_simpler_one_but_for_what_is_clearly_slower() -> None:
    kept = 0
    for seed in range(100):
        ranks = [Turns(4)]
        settle(ranks, [[1.0, 0.99, 1.0, 0.98]], Random(seed), 0.5)
        kept += ranks[0].winner == 0
    assert kept >= 70  # the others took one that is as fast
    steady = Turns(3)
    settle([steady], [[1.0, 0.9, 0.9]], Random(0), 0.0)
    assert steady.winner == 1


def test_what_is_clearly_slower_is_left_out_early() -> None:
    turns = Turns(5)
    assert settle([turns], [[1.0, 9.0, 9.0, 9.0, 9.0]], Random(0), 0.1) == 15
    assert turns.winner == 0
    assert [len(each) for each in turns.times] == [2] * 5


def test_one_long_call_does_not_decide() -> None:
    assert trimmed([1.0, 50.0, 1.1, 1.0, 1.0]) == [1.0, 1.0, 1.0, 1.1]
    assert trimmed([1.0, 50.0]) == [1.0, 50.0]
    turns, seconds = Turns(2), {0: 1.0, 1: 0.85}
    while turns.winner is None:
        late = 100.0 if (turns.turn, len(turns.times[1])) == (1, 3) else seconds[turns.turn]
        if mine := turns.took(late):
            turns.compared(mine)
    assert turns.winner == 1


def run_race(race: Race, given: Plan, length: int, taken: list[Pipelined], calls: int) -> int:
    """Make calls of 4-byte elements, and note the programs that they took; how often ranks talked."""
    role, talks = role_of(given, race.number, 0, tune=True), 0

    def largest(values: Sequence[float]) -> list[float]:
        nonlocal talks
        talks += 1
        return [1.0] * len(values)

    def run(cut: Sequence[Cut]) -> None:
        taken.append(next(one for one, flows in role.flows.items() if cut == role.cut(length, 4, one)))

    for _ in range(calls):
        race.call(role, length, 4, run, largest)
    return talks


def test_a_race_settles_and_then_costs_nothing() -> None:
    given = tunable_plan()
    tuner, taken = Tuner(given), list[Pipelined]()
    race = tuner.race(0, 65_536)
    assert tuner.race(0, 131_071) is race is not tuner.race(0, 131_072) is not tuner.race(1, 131_072)
    assert race.programs == candidates(given, given.reductions[0], 65_536, BEST)
    assert tuner.plan_with("torch") == given
    assert run_race(race, given, 20_000, taken, CALLS) > 0
    assert race.winner == race.programs[0]  # all took the same
    assert set(taken) == set(race.programs)
    assert run_race(race, given, 16_384, taken, 1) == 0
    assert taken[-1] == race.winner
    (tuned,) = tuner.plan_with("torch").reductions[0].tuned
    assert (tuned.bytes, tuned.least, tuned.most, tuned.engine) == (65_536, 65_536, 131_071, "torch")
    assert tuned.chosen.pipelined == race.winner
    assert len(tuned.compared) == len(race.programs) - 1


def test_ranks_that_do_not_all_tune_are_refused() -> None:
    said = {rank: {"plan": "p", "seat": None, "check": "first", "tune": rank < 2, "fault": ""} for rank in range(4)}
    assert judge_start(None, said) == "rank 2 has tune=False, but rank 0 True: give every process the same"


def test_where_there_is_nothing_to_choose_nothing_is_tuned() -> None:
    lone = plan("node=4@8GB/s", {"data": 4, "one": 1}, [Reduction(("one",), 2**20)]).candidates[0]
    race = Tuner(lone).race(0, 2**20)
    assert race.winner == lone.reductions[0].pipelined
    assert Tuner(lone).plan_with("mpi") == lone
