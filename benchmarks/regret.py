"""Regret: what a user loses who takes the plan that `plan` gives by default, on systems that nobody calibrated.

`python -m benchmarks.regret` needs root. For every system and payload it measures the library's own all-reduce, the
best program step after step, the plan's choice, and the best program in several numbers of chunks, with gloo on
emulated clusters. With `--tuned` it measures what `tune` would, for plans that missed the best, beside the best. What
is measured already is not measured again; with `--report` nothing is. It writes docs/regret.md.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks import nccl, pipelines
from benchmarks.bursts import LEAN, SMALL, measure_by_size
from benchmarks.regretpage import CHUNKS, NEAR, Found, Heated, Row, page
from meshwright import Reduction, load_library, parse_pipelined, parse_system, placements, plan
from meshwright.measure.accuracy import Pair, join
from meshwright.measure.bench import Case, Patience, case_of, race
from meshwright.measure.jobs import Job
from meshwright.measure.records import read_measurements
from meshwright.planning.plan import DEFAULT_PROGRAM, Plan
from meshwright.planning.tuning import candidates, simplest

RESULTS = Path(__file__).parent / "results"
OLDER = {
    "On 16 cores, four or five clusters at a time, and with latency on two": RESULTS / "regret-fast",
    "On two cores, one cluster at a time": RESULTS / "regret-two-cores",
}
"""What was measured at the usual rates, by how."""
DOCUMENT = Path(__file__).parent.parent / "docs" / "regret.md"
LIBRARY = load_library("gloo")

STUDIED = (
    "node=2@2.5Mbit/s,gpu=8@25Mbit/s",
    "node=4@2.5Mbit/s,gpu=4@25Mbit/s",
    "rack=2@2.5Mbit/s,node=2@6.25Mbit/s,gpu=4@25Mbit/s",
)
OTHERS = (
    "node=3@3.75Mbit/s,gpu=4@15Mbit/s",
    "rack=2@3.125Mbit/s,node=2@7.5Mbit/s,gpu=3@18.75Mbit/s",
    "node=5@5Mbit/s,gpu=2@7.5Mbit/s",
    "node=4@6.25Mbit/s,gpu=2@7.5Mbit/s",
    "node=2@3.75Mbit/s,gpu=5@37.5Mbit/s",
    "rack=2@2.5Mbit/s,node=3@3.75Mbit/s,gpu=2@11.25Mbit/s",
    "node=3@5Mbit/s+40ms,gpu=4@10Mbit/s+8ms",
    "node=2@6.25Mbit/s+16ms,gpu=6@12.5Mbit/s+8ms",
    "rack=2@5Mbit/s+32ms,node=2@7.5Mbit/s+16ms,gpu=2@12.5Mbit/s+8ms",
)
"""In slow motion: rates an eighth of those of the study and of others like them, and latencies eight times as long, so
that two processors have as much time for 16 ranks as 16 would have."""
FAST = (
    "node=2@20Mbit/s,gpu=8@200Mbit/s",
    "node=4@20Mbit/s,gpu=4@200Mbit/s",
    "rack=2@20Mbit/s,node=2@50Mbit/s,gpu=4@200Mbit/s",
    "node=3@30Mbit/s,gpu=4@120Mbit/s",
    "rack=2@25Mbit/s,node=2@60Mbit/s,gpu=3@150Mbit/s",
    "node=5@40Mbit/s,gpu=2@60Mbit/s",
    "node=4@50Mbit/s,gpu=2@60Mbit/s",
    "node=2@30Mbit/s,gpu=5@300Mbit/s",
    "rack=2@20Mbit/s,node=3@30Mbit/s,gpu=2@90Mbit/s",
    "node=3@40Mbit/s+5ms,gpu=4@80Mbit/s+1ms",
    "node=2@50Mbit/s+2ms,gpu=6@100Mbit/s+1ms",
    "rack=2@40Mbit/s+4ms,node=2@60Mbit/s+2ms,gpu=2@100Mbit/s+1ms",
)
"""The same at the usual rates."""
PAYLOADS = (100 << 10, 1 << 20, 1 << 22)
MOST = 16
PATIENCE = Patience(least=3, most=15, width=0.02, budget=8.0)
MINIATURE, LITTLE = "node=2@20Mbit/s,gpu=2@100Mbit/s", 1 << 18
"""The system and the payload that the tests measure, once each."""


def planned(spec: str, payload: int, chunks: int, ranges: bool = False) -> Plan:
    """The best plan for an all-reduce over all devices in at most `chunks` chunks."""
    system = parse_system(spec)
    (at,) = placements(system, {"data": system.devices})
    found = plan(
        system,
        {"data": system.devices},
        [Reduction(("data",), payload)],
        library=LIBRARY,
        placement=at,
        top=1,
        max_chunks=chunks,
        ranges=ranges,
    )
    return found.candidates[0]


def case(spec: str, payload: int) -> Case:
    """What is measured."""
    steps, chosen = planned(spec, payload, 1), planned(spec, payload, MOST)
    many = planned(spec, 1 << 24, MOST)  # a payload so large that chunks are worth it
    (one,) = many.reductions
    text = many.program_text(one).split(", in ")[0].split(" chunks ")[-1]
    texts = [plan.program_text(plan.reductions[0]) for plan in (steps, chosen)]
    texts += [f"{text}, in {chunks} chunks" for chunks in CHUNKS]
    return case_of(steps.placement, Reduction(("data",), payload), LIBRARY, list(dict.fromkeys(texts)))


def file(spec: str, folder: Path = RESULTS) -> Path:
    """The measurements of a system."""
    return folder / f"regret-{spec.replace('=', '-').replace(',', '-').replace('/', '').replace('@', '-')}.jsonl"


def measure(
    spec: str, payloads: Sequence[int] = PAYLOADS, folder: Path = RESULTS, patience: Patience = PATIENCE
) -> None:
    """Measure one system."""
    wanted = [case(spec, payload) for payload in payloads]
    measure_by_size(Job(parse_system(spec), wanted, file(spec, folder), patience, timeout=60.0), LEAN)


def tuned_file(spec: str) -> Path:
    """The measurements of what `tune` would measure on a system."""
    return file(spec, RESULTS / "regret-tuned")


def heat(spec: str, payload: int, fastest: str) -> Case:
    """What `tune` measures for a payload, in turns, and beside it the fastest program that was measured before."""
    made = planned(spec, payload, MOST, ranges=True)
    _, *some = candidates(made, made.reductions[0], payload, 5)
    best = parse_pipelined(fastest, made.hierarchy(made.reductions[0]))
    return race(made.placement, Reduction(("data",), payload), LIBRARY, dict.fromkeys([*some, best]))


def measure_tuned() -> None:
    """Measure the heats of all plans that missed the best."""
    for spec in (*STUDIED, *OTHERS):
        pairs = {pair.bytes: pair for pair in join(read_measurements(file(spec)), LIBRARY)}
        missed = [one for one in rows([spec]) if one.chosen is None or one.chosen > NEAR * one.best]
        wanted = [
            heat(spec, one.bytes, min(pairs[one.bytes].outcomes, key=lambda outcome: outcome.measured).program)
            for one in missed
        ]
        if wanted:
            tuned_file(spec).parent.mkdir(exist_ok=True)
            measure_by_size(Job(parse_system(spec), wanted, tuned_file(spec), PATIENCE, timeout=60.0), LEAN)


def heated() -> list[Heated]:
    """All plans that were tuned."""
    found = []
    for spec in (*STUDIED, *OTHERS):
        every = read_measurements(tuned_file(spec)) if tuned_file(spec).exists() else []
        for payload in sorted({one.bytes for one in every}):
            times = {one.program: one.seconds for one in every if one.bytes == payload and one.seconds}
            made = planned(spec, payload, MOST, ranges=True)
            hierarchy = made.hierarchy(made.reductions[0])
            _, *some = (one.text(hierarchy) for one in candidates(made, made.reductions[0], payload, 5))
            names = [DEFAULT_PROGRAM, *(name for name in some if name in times)]
            medians = {name: median(each) for name, each in times.items()}
            taken = names[simplest([times[name] for name in names])]
            found.append(Heated(spec, payload, medians[DEFAULT_PROGRAM], medians[taken], min(medians.values())))
    return found


def row(spec: str, pair: Pair) -> Row:
    """What the measurements of one payload say."""
    assert pair.default is not None
    choice = planned(spec, pair.bytes, MOST)
    text = choice.program_text(choice.reductions[0])
    by_program = {outcome.program: outcome.measured for outcome in pair.outcomes}
    own = pair.default.measured
    chosen = by_program.get(text, own if text == "AllReduce all" else None)
    errors = {one.program: abs(one.error) for one in pair.outcomes if "chunk" in one.program and "|" not in one.program}
    best = min(own, *by_program.values())
    return Row(
        spec, pair.bytes, own, chosen, best, pair.bound, pair.default.error, tuple(errors.values()), errors.get(text)
    )


def rows(specs: Sequence[str] = (*STUDIED, *OTHERS), folder: Path = RESULTS) -> list[Row]:
    """All that was measured."""
    found = []
    for spec in specs:
        pairs = join(read_measurements(file(spec, folder)), LIBRARY)
        found += [row(spec, pair) for pair in sorted(pairs, key=lambda pair: pair.bytes)]
    return found


def elsewhere() -> list[float]:
    """The errors of predictions for the programs in chunks of other studies, without those for all sizes."""
    pairs = [pair for name in nccl.SYSTEMS for pair in nccl.pairs(name)]
    for setup in (*pipelines.SETUPS, pipelines.LATENT, pipelines.MPI):
        pairs += pipelines.joined(setup, f"pipelines-{setup.name}.jsonl")
    return [error for pair in pairs for error in pipelines.in_chunks(pair)]


def document() -> str:
    """The page."""
    fast = {
        name: rows([spec for spec in FAST if file(spec, folder).exists()], folder) for name, folder in OLDER.items()
    }
    return page(Found(rows(), fast, heated(), elsewhere()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="how many systems are measured at a time, from 1 MiB on")
    parser.add_argument("--system", action="append", help="only this one")
    parser.add_argument("--tuned", action="store_true", help="measure what tune would, for plans that missed the best")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--miniature", type=Path, metavar="FOLDER", help="only a small system, into another folder")
    options = parser.parse_args()
    if options.miniature:
        measure(MINIATURE, [LITTLE], options.miniature, Patience(least=1, most=1))
        return
    if options.tuned:
        measure_tuned()
    if options.report or options.tuned:
        DOCUMENT.write_text(document())
        print(DOCUMENT.read_text())
        return
    specs = options.system or [*STUDIED, *OTHERS]
    if len(specs) == 1:
        measure(specs[0])
        return
    for spec in specs:  # one at a time, as small payloads keep the processors busy
        measure(spec, [payload for payload in PAYLOADS if payload < SMALL])
    waiting, running = list(specs), list[subprocess.Popen[bytes]]()
    while waiting or running:
        while waiting and len(running) < options.jobs:
            running.append(subprocess.Popen([sys.executable, "-m", "benchmarks.regret", "--system", waiting.pop(0)]))
        running.pop(0).wait()
    DOCUMENT.write_text(document())


if __name__ == "__main__":
    main()
