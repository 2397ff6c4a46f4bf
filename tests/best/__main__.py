"""Problems by their numbers, from the command line."""

import argparse
import sys
from collections import Counter

from tests import best
from tests.best.aims import AIMS, draw
from tests.best.listed import fault


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m tests.best", description=best.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=2_000, help="how many problems (default: 2,000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first problem")
    parser.add_argument("--aim", choices=list(AIMS), action="append", help="only this one; may be repeated")
    chosen = parser.parse_args()
    aims = chosen.aim or list(AIMS)
    faults: Counter[str] = Counter()
    for number in range(chosen.first, chosen.first + chosen.cases):
        aim = aims[number % len(aims)]
        problem = draw(aim, chosen.seed, number)
        if wrong := fault(problem):
            faults[aim] += 1
            print(f"{aim}, case {number} of seed {chosen.seed}: {wrong}: {problem}", flush=True)
        if (number + 1) % 1000 == 0:
            print(f"{number + 1 - chosen.first:,} cases, {faults.total()} faults", file=sys.stderr, flush=True)
    print(f"{chosen.cases:,} cases, faults: {dict(faults) or 'none'}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
