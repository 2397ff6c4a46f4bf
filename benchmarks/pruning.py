"""Confirms, by exhaustive search, the rule that synthesis prunes with: a hopeless state never reaches a goal.

Explores every symbolic state that can be reached at all, by steps of any number, and checks that every successor of a
hopeless state is hopeless too, and that no such step reaches a goal. Up to five levels the tests do the same; six
levels take about eight minutes and 2 GiB:

    python -m benchmarks.pruning 6
"""

import json
import sys
import time
from array import array
from pathlib import Path

from meshwright.language.goals import PROGRAM_GOALS, Goal
from meshwright.language.symbolic import State, hopeless, is_end, state_of, successors

RESULTS = Path(__file__).parent / "results" / "pruning.json"


def explore(levels: int, start: State, goals: list[Goal]) -> dict[str, int]:
    """Counts of the states that can be reached; raises if a hopeless one has a way out or to one of the goals."""

    def pack(state: State) -> bytes:
        return array("h", state).tobytes()

    seen = {pack(start)}
    todo = [pack(start)]
    counts = {"states": 0, "hopeless": 0}
    while todo:
        state = tuple(array("h", todo.pop()))
        lost = hopeless(state, levels)
        counts["states"] += 1
        counts["hopeless"] += lost
        for _, after in successors(state, levels):
            if lost and not hopeless(after, levels):
                raise AssertionError(f"a hopeless state has a way out: {state} -> {after}")
            if lost and any(is_end(after, goal, levels) and not is_end(state, goal, levels) for goal in goals):
                raise AssertionError(f"a hopeless state has a way to a goal: {state} -> {after}")
            packed = pack(after)
            if packed not in seen:
                seen.add(packed)
                todo.append(packed)
        if counts["states"] % 100_000 == 0:
            print(f"{levels} levels: {counts['states']:,} states, {len(todo):,} to go", file=sys.stderr, flush=True)
    return counts


def main() -> None:
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for levels in map(int, sys.argv[1:] or ["1", "2", "3", "4", "5"]):
        begin = time.perf_counter()
        # Goals with the same start reach the same states.
        starts: dict[State, list[Goal]] = {}
        for goal in PROGRAM_GOALS:
            starts.setdefault(state_of(goal.start, levels), []).append(goal)
        results[str(levels)] = {str(goals[0]): explore(levels, start, goals) for start, goals in starts.items()}
        results[str(levels)]["seconds"] = round(time.perf_counter() - begin, 1)
        print(levels, results[str(levels)], flush=True)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
