"""`make fuzz`: runs cases of every target; what fails is written down with its case."""

import argparse
import json
import sys
from pathlib import Path

from tests.fuzz.driver import fuzz
from tests.fuzz.targets import TARGETS


def main() -> None:
    """Fuzz as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="over all targets (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3600, help="stop after so long (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=TARGETS, action="append", help="only this one; may be repeated")
    parser.add_argument("--out", type=Path, help="where to write the outcome")
    given = parser.parse_args()
    outcome = fuzz(given.target or list(TARGETS), given.cases, given.seed, given.seconds, progress=sys.stderr)
    text = json.dumps(outcome, indent=1) + "\n"
    if given.out is not None:
        given.out.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    sys.exit(1 if any(target["failures"] for target in outcome["targets"].values()) else 0)


if __name__ == "__main__":
    main()
