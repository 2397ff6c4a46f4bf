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
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from textwrap import wrap

from benchmarks import nccl, pipelines
from benchmarks.bursts import BURST, SMALL_BURST, measure_by_size
from benchmarks.errors import off_by
from meshwright import Reduction, load_library, parse_pipelined, parse_system, placements, plan
from meshwright.measure.accuracy import Pair, join
from meshwright.measure.bench import Case, Patience, case_of, race
from meshwright.measure.jobs import Job
from meshwright.measure.records import read_measurements
from meshwright.planning.plan import DEFAULT_PROGRAM, Plan
from meshwright.planning.tuning import candidates, simplest
from meshwright.text.units import format_bytes, format_seconds

RESULTS = Path(__file__).parent / "results"
TWO_CORES = RESULTS / "regret-two-cores"
"""What was measured with more ranks than processors, and is not in the table."""
DOCUMENT = Path(__file__).parent.parent / "docs" / "regret.md"
LIBRARY = load_library("gloo")

STUDIED = (
    "node=2@20Mbit/s,gpu=8@200Mbit/s",
    "node=4@20Mbit/s,gpu=4@200Mbit/s",
    "rack=2@20Mbit/s,node=2@50Mbit/s,gpu=4@200Mbit/s",
)
OTHERS = (
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
PAYLOADS = (100 << 10, 1 << 20, 1 << 22)
MOST = 16
CHUNKS = (2, 4, 8, 16)
PATIENCE = Patience(least=3, most=15, width=0.02, budget=8.0)
MINIATURE, LITTLE = "node=2@20Mbit/s,gpu=2@100Mbit/s", 1 << 18
"""The system and the payload that the tests measure, once each."""


NEAR = 1.05
"""Plans are to be within this factor of the best."""


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
    measure_by_size(Job(parse_system(spec), wanted, file(spec, folder), patience, timeout=60.0))


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
            measure_by_size(Job(parse_system(spec), wanted, tuned_file(spec), PATIENCE, timeout=60.0))


@dataclass(frozen=True)
class Heated:
    """A plan that was tuned: seconds of the library's own, of what `tune` takes, and of the fastest of all."""

    system: str
    bytes: int
    own: float
    taken: float
    best: float


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


@dataclass(frozen=True)
class Row:
    """One system and payload: seconds of the library's own, of the plan's choice if that was measured, and of the best;
    the bound; and the relative errors of predictions for programs in chunks, and for the choice if it is in chunks."""

    system: str
    bytes: int
    own: float
    chosen: float | None
    best: float
    bound: float
    errors: tuple[float, ...]
    error: float | None


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
    return Row(spec, pair.bytes, own, chosen, best, pair.bound, tuple(errors.values()), errors.get(text))


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


ABOUT = f"""Written by `python -m benchmarks.regret`. All-reduces over all devices of emulated clusters with
gloo. Nothing was calibrated: plans are made from the configured rates and latencies and the library profile, as `plan`
does by default. Beside the library's own all-reduce and the plan's choice, the best program step after step and the
best in {", ".join(map(str, CHUNKS))} chunks were measured; `best` is the fastest of all these. The first three systems
are those of the [study](study.md)."""


def where() -> str:
    """Where which part was measured, and what two cores make of the rest."""
    specs = [spec for spec in (*STUDIED, *OTHERS) if file(spec, TWO_CORES).exists()]
    busy = [(one, one.chosen) for one in rows(specs, TWO_CORES) if one.chosen is not None]
    small, large = (
        sorted(chosen / one.own for one, chosen in busy if (one.bytes < 1 << 20) is few) for few in (True, False)
    )
    over = sum(ratio > 1.02 for ratio in small)
    return f"""Where links have latency, it was measured on two cores, one cluster at a time (PyTorch 2.13), and so
        was 1 MiB on the first system. The rest, with 100 KiB where latency is 2 ms, is from a machine with
        16 cores, four or five clusters at a time (PyTorch 2.11). When the rest was measured, small
        ReduceScatters between two ranks were one all_to_all, AllGathers were gloo's own, and the rings of
        ReduceScatter posted no receive ahead. Without latency, that makes a difference of 1 to 2%
        ([cost.md](cost.md#what-a-group-sends-algorithms)). It was measured on two cores, too
        (`benchmarks/results/regret-two-cores`). With 8 to 16 ranks, 100 KiB keep these busy, of which
        nothing is known to a plan that nobody calibrated or tuned: {len(small)} such plans took
        {small[0]:.2f} to {small[-1]:.2f} times as long as gloo's own, {over} of them more than 1.02
        times. From 1 MiB on, {len(large)} plans took {large[0]:.2f} to {large[-1]:.2f} times as long."""


SETTLED = f"""Some parts of the model were settled with these measurements, so they are no test of it: how
unevenly flows share a link, that links wait while calls are made, and for about one latency between two chunks
([cost.md](cost.md#chunks)), how much of the library's own time for a message shows, and that no mixes of
programs are planned for gloo. Longer programs may be better still where links have latency: on the last system, 4 MiB
in 24 chunks once took 0.99 s in six steps, a ReduceScatter for each level and an AllGather for each, and 1.14 s in the
best program of five, which is the most that `plan` tries by default; with `--max-steps 6` it tries those of six, but
predicts no gain. Idle
emulated links let {BURST // 1000} kB through at once, which is much of 100 KiB; so for that payload they let
{SMALL_BURST / 1000:g} kB through, in packets of 1.5 kB, whose headers take 4% of the rate. A question mark: the choice
has changed since, and was not measured."""


def page(found: Sequence[Row]) -> str:
    """The document."""
    known = [(one, one.chosen) for one in found if one.chosen is not None]
    large = [chosen / one.bound for one, chosen in known if one.bytes == PAYLOADS[-1]]
    errors = [error for one in found if one.bytes >= 1 << 20 for error in one.errors]
    small = [error for one in found if one.bytes < 1 << 20 for error in one.errors]
    taken = [one.error for one in found if one.error is not None]
    every = [*errors, *small, *elsewhere()]
    slower = sum(chosen > 1.02 * one.own for one, chosen in known)
    near = sum(chosen <= NEAR * one.best for one, chosen in known)
    at_once = [chosen / one.bound for one, chosen in known if one.bytes == PAYLOADS[-1] and "+" not in one.system]
    text = f"""Of {len(known)} plans, {slower} were slower than 1.02x the library's own, and {near} were within 1.05x
        of the best. At {format_bytes(PAYLOADS[-1])} they take {median(large):.2f} the bound in the median,
        {median(at_once):.2f} where links have no latency, which the bound leaves out. The predicted times of the
        {len(taken)} plans in chunks are off by {off_by(taken)}; those of all programs in chunks that were measured by
        {off_by(errors)} from 1 MiB on, and by {off_by(small)} at 100 KiB, most of which no plan would take: there the
        profile's cost of calls counts most. Together with those on [NCCL](nccl.md) and those of the first table of
        [the study of chunks](pipelines.md), which is calibrated, {len(every)} programs in chunks are off by
        {off_by(every)}."""
    lines = ["# Regret: the default plan, measured", ""]
    for paragraph in (ABOUT, where(), text, SETTLED):
        lines += [*wrap(" ".join(paragraph.split()), 110, break_long_words=False, break_on_hyphens=False), ""]
    lines += ["| system | payload | gloo's own | the plan | best | over own | over best | over the bound |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for one in found:
        times = [format_seconds(one.own), format_seconds(one.chosen) if one.chosen else "?", format_seconds(one.best)]
        ratios = [f"{one.chosen / of:.2f}x" if one.chosen else "?" for of in (one.own, one.best, one.bound)]
        lines.append(f"| {' | '.join([one.system, format_bytes(one.bytes), *times, *ratios])} |")
    return "\n".join([*lines, *_after(heated())]) + "\n"


AFTER = """What `tune` made of plans that missed the best by more than 5%: it measures the library's own and five of
the programs that the plan holds, in turns. Beside them the fastest program of the table above was measured in the same
turns, whether `tune` had it or not. Plans with a question mark were tuned too (PyTorch 2.13, two cores)."""


def _after(found: Sequence[Heated]) -> list[str]:
    if not found:
        return []
    lines = ["", "## After tuning", ""]
    lines += [*wrap(" ".join(AFTER.split()), 110, break_long_words=False, break_on_hyphens=False), ""]
    lines += [
        "| system | payload | gloo's own | tuned | best | over own | over best |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found:
        cells = [one.system, format_bytes(one.bytes), *map(format_seconds, (one.own, one.taken, one.best))]
        lines.append(f"| {' | '.join(cells)} | {one.taken / one.own:.2f}x | {one.taken / one.best:.2f}x |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="how many systems are measured at a time")
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
        DOCUMENT.write_text(page(rows()))
        print(DOCUMENT.read_text())
        return
    specs = options.system or [*STUDIED, *OTHERS]
    if len(specs) == 1:
        measure(specs[0])
        return
    waiting, running = list(specs), list[subprocess.Popen[bytes]]()
    while waiting or running:
        while waiting and len(running) < options.jobs:
            running.append(subprocess.Popen([sys.executable, "-m", "benchmarks.regret", "--system", waiting.pop(0)]))
        running.pop(0).wait()
    DOCUMENT.write_text(page(rows()))


if __name__ == "__main__":
    main()
