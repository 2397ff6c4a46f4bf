"""`python -m benchmarks.soak`: run trials until all are done or the time is over; a second start goes on."""

import argparse
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.soak.cell import OK, ROOT, Kind, Outcome, descendants, end_descendants, read_outcome, start_cell
from benchmarks.soak.kinds import PARTS, all_kinds
from benchmarks.soak.load import busy
from benchmarks.soak.report import write_report

FOLDER = ROOT / "build" / "soak"
POLL = 0.05
ROUNDS = 5

MOST_PROCESSES = 1000
"""Of all trials together: far more than they need, far fewer than a machine can bear."""


@dataclass
class _Running:
    kind: Kind
    number: int
    folder: Path
    since: float


def arguments() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=90.0, help="stop starting trials after so long (default 90)")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"which, of {','.join(PARTS)} (default all)")
    parser.add_argument("--kinds", default="", help="only kinds whose name has one of these texts, with commas")
    parser.add_argument("--number", type=int, help="only this trial of each kind, again: to look at one that failed")
    parser.add_argument("--share", type=float, default=1.0, help="of the usual number of trials (default 1)")
    parser.add_argument("--at-once", type=int, default=6, help="trials at the same time (default 6)")
    parser.add_argument("--load", type=int, default=os.cpu_count() or 1, help="processes that keep cores busy")
    parser.add_argument("--fresh", action="store_true", help="forget the trials of earlier starts")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where trials are put down (default build/soak)")
    parser.add_argument("--report", action="store_true", help="only write the report")
    given = parser.parse_args()
    unknown = set(given.parts.split(",")) - set(PARTS)
    if unknown:
        parser.error(f"--parts: there is no {', '.join(sorted(unknown))}, but {', '.join(PARTS)}")
    return given


def main() -> int:
    """Run what is missing; 1 if any trial ended badly."""
    given = arguments()
    journal = given.folder / "trials.jsonl"
    if given.fresh:
        shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True, exist_ok=True)
    if not given.report:
        _preload()
        mend(journal)
        chosen = [kind for kind in all_kinds(given.share) if kind.part in given.parts.split(",")]
        if given.kinds:
            chosen = [kind for kind in chosen if any(text in kind.name for text in given.kinds.split(","))]
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _stop)
        try:
            with busy(given.load):
                deadline = time.monotonic() + 60 * given.minutes
                if given.number is not None:
                    _run([(kind, given.number) for kind in chosen], journal, given.folder, given.at_once, deadline)
                    chosen = []
                for _ in range(ROUNDS):  # those that missed their moment are made up for
                    todo = missing_trials(chosen, journal)
                    if not todo or time.monotonic() > deadline:
                        break
                    _run(todo, journal, given.folder, given.at_once, deadline)
        finally:
            end_descendants(os.getpid())
    return write_report(journal, given.folder == FOLDER)


def _preload() -> None:
    """Import once what trials need: they are forked from this process, which therefore must not have threads."""
    for module in ("meshwright.measure.trials.torch", "torch._dynamo", "tests.torch.failures", "tests.torch.pipelines"):
        importlib.import_module(module)
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    if threads > 1:
        sys.exit(f"this process has {threads} threads, so trials cannot be forked from it")
    gc.collect()
    gc.freeze()  # or every rank would walk over all of this when it ends


def _stop(*_: object) -> None:
    raise SystemExit(130)


def _run(trials: Sequence[tuple[Kind, int]], journal: Path, folder: Path, at_once: int, deadline: float) -> None:
    """Run trials side by side until none is left, or the time is over."""
    todo = iter(trials)
    running: dict[int, _Running] = {}
    waiting: list[tuple[Kind, int]] = []
    more = True
    while running or more:
        while more and len(running) < at_once:
            alone = {each.kind.name for each in running.values() if each.kind.alone}
            free = next((k for k, (kind, _) in enumerate(waiting) if kind.name not in alone), None)
            drawn = waiting.pop(free) if free is not None else next(todo, None)
            if drawn is None or time.monotonic() > deadline:
                more = bool(waiting) and time.monotonic() <= deadline
                break
            if drawn[0].name in alone:
                waiting.append(drawn)
                continue
            kind, number = drawn
            place = folder / "running" / f"{kind.name.replace('/', '-').replace(' ', '-')}-{number}"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            running[start_cell(kind, place, f"{kind.name} {number}")] = _Running(kind, number, place, time.monotonic())
        time.sleep(POLL)
        if len(descendants(os.getpid())) > MOST_PROCESSES:
            sys.exit(
                f"the trials have more than {MOST_PROCESSES} processes: {[each.kind.name for each in running.values()]}"
            )
        for pid, trial in list(running.items()):
            over = time.monotonic() - trial.since > trial.kind.limit
            if os.waitpid(pid, os.WNOHANG)[0] or over:
                del running[pid]
                _settle(pid, trial, over, journal, folder)


def _settle(pid: int, trial: _Running, over: bool, journal: Path, folder: Path) -> None:
    """Put down the outcome of a trial, and keep what it said if it ended badly."""
    outcome = read_outcome(trial.folder)
    if over:
        end_descendants(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        outcome = Outcome("hang", f"the trial took over {trial.kind.limit:g} s")
    line = {"part": trial.kind.part, "kind": trial.kind.name, "number": trial.number}
    line |= asdict(outcome) | {"took": round(time.monotonic() - trial.since, 1)}
    with journal.open("a") as file:
        file.write(json.dumps(line) + "\n")
    if outcome.verdict in (OK, "missed"):
        shutil.rmtree(trial.folder, ignore_errors=True)
    else:
        print(f"{trial.kind.name} {trial.number}: {outcome.verdict}: {outcome.about}", file=sys.stderr, flush=True)
        kept = folder / "failed" / trial.folder.name
        shutil.rmtree(kept, ignore_errors=True)
        kept.parent.mkdir(exist_ok=True)
        shutil.move(trial.folder, kept)


def mend(journal: Path) -> None:
    """Cut off a line that a start before this one was killed in."""
    text = journal.read_bytes() if journal.exists() else b""
    if not text.endswith(b"\n"):
        journal.write_bytes(text[: text.rfind(b"\n") + 1])


def missing_trials(kinds: list[Kind], journal: Path) -> list[tuple[Kind, int]]:
    """The trials that are missing, all kinds at the same pace; one that missed its moment is made up for."""
    done: dict[str, int] = {}
    used: dict[str, int] = {}
    for line in journal.read_text().splitlines():
        trial = json.loads(line)
        used[trial["kind"]] = max(used.get(trial["kind"], 0), trial["number"] + 1)
        done[trial["kind"]] = done.get(trial["kind"], 0) + (trial["verdict"] != "missed")
    left = {kind.name: max(0, kind.count - done.get(kind.name, 0)) for kind in kinds}
    given = dict.fromkeys(left, 0)
    found = []
    for _ in range(sum(left.values())):
        name = min((name for name in left if given[name] < left[name]), key=lambda name: (given[name] + 1) / left[name])
        kind = next(kind for kind in kinds if kind.name == name)
        found.append((kind, used.get(name, 0) + given[name]))
        given[name] += 1
    return found


if __name__ == "__main__":
    sys.exit(main())
