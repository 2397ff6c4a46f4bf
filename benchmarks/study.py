"""The study: the whole evaluation on an emulated cluster, with real gloo process groups and a smaller set on MPI.

`make study` calibrates on systems and payloads of its own, then measures every placement, every reduction, and for each
every program of at most three steps, and of those with at most five the ten best predicted and ten of the others, drawn
at random, on three systems. What is measured already is not measured again. It needs root.
`python -m benchmarks.study --report` only writes the report.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from textwrap import wrap
from typing import Any

from benchmarks.mpibench import measure_mpi
from meshwright import Reduction, load_library, parse_axes, parse_system, placements
from meshwright.cost.library import Library
from meshwright.language.synthesis import MAX_STEPS
from meshwright.measure.accuracy import BEST, Pair, Report, join, report
from meshwright.measure.bench import SEED, Case, Patience, cases
from meshwright.measure.calibrate import Fit, fit
from meshwright.measure.jobs import Job, measure_on
from meshwright.measure.observations import microbenchmarks, observations
from meshwright.measure.records import Measurement, read_measurements
from meshwright.system.model import System
from meshwright.testbed import temporary

RESULTS = Path(__file__).parent / "results"
DOCUMENT = Path(__file__).parent.parent / "docs" / "study.md"


@dataclass(frozen=True)
class Setup:
    """A system that is studied, and the one that is calibrated on: other rates, other payloads."""

    system: str
    axes: str
    bytes: int
    calibration: str = ""
    sizes: tuple[int, ...] = ()
    engine: str = "torch"
    library: str = "gloo"

    @property
    def name(self) -> str:
        """What the report calls it."""
        return self.system if self.engine == "torch" else f"{self.system}, {self.engine}"

    def file(self, folder: Path, kind: str) -> Path:
        """Where its measurements are, of the study or of the calibration."""
        shape = "x".join(str(level.count) for level in parse_system(self.system).levels)
        return folder / f"{kind}-{shape}{'' if self.engine == 'torch' else f'-{self.engine}'}.jsonl"


SETUPS = (
    Setup(
        "node=2@20Mbit/s,gpu=8@200Mbit/s",
        "data=4,shard=4",
        1 << 19,
        "node=2@40Mbit/s,gpu=8@100Mbit/s",
        (3 << 18, 3 << 19),
    ),
    Setup(
        "node=4@20Mbit/s,gpu=4@200Mbit/s",
        "data=4,shard=4",
        1 << 19,
        "node=4@40Mbit/s,gpu=4@100Mbit/s",
        (3 << 18, 3 << 19),
    ),
    Setup(
        "rack=2@20Mbit/s,node=2@50Mbit/s,gpu=4@200Mbit/s",
        "data=2,shard=2,tensor=4",
        1 << 18,
        "rack=2@30Mbit/s,node=2@40Mbit/s,gpu=4@100Mbit/s",
        (3 << 18, 3 << 19),
    ),
)
MPI = Setup("node=2@10Mbit/s,gpu=4@100Mbit/s", "data=2,shard=4", 1 << 20, engine="mpi", library="openmpi")
SAMPLE = 10
"""How many programs of more than three steps are drawn for each placement and reduction, beside the best predicted."""

WIDTH = 110
"""Of the page's lines."""

PATIENCE = Patience(least=2, most=5, width=0.02, budget=1.0)
MINIATURE = Setup(
    "node=2@40Mbit/s,gpu=2@200Mbit/s", "data=2,shard=2", 1 << 21, "node=2@60Mbit/s,gpu=2@100Mbit/s", (3 << 16,)
)


def study_cases(setup: Setup, library: Library, every: int = 3, best: int = BEST, sample: int = SAMPLE) -> list[Case]:
    """All placements and reductions of a setup; those whose groups are the same are measured once."""
    system = parse_system(setup.system)
    axes = parse_axes(setup.axes)
    reductions = [
        Reduction(over, setup.bytes) for count in range(1, len(axes) + 1) for over in combinations(axes, count)
    ]
    found: dict[object, Case] = {}
    for placement in placements(system, axes):
        for case in cases([placement], reductions, library, every, best, sample=sample):
            groups = placement.groups(case.reduction.axes)
            hierarchy = case.plan.hierarchy(case.plan.reductions[0])
            found.setdefault((groups, hierarchy), case)
    return list(found.values())


def miniature_cases(library: Library) -> list[Case]:
    """What CI measures."""
    return study_cases(MINIATURE, library, every=2, best=3, sample=2)


def measure_setup(setup: Setup, wanted: list[Case], library: Library, folder: Path, patience: Patience) -> None:
    """Calibrate, then measure."""
    name = f"study{os.getpid()}"
    nominal = parse_system(setup.calibration)
    with temporary(nominal, name) as bed:
        calibration = microbenchmarks(nominal, library, setup.sizes)
        measure_on(bed, Job(nominal, calibration, setup.file(folder, "calibration"), patience, timeout=60.0))
    with temporary(parse_system(setup.system), name) as bed:
        measure_on(bed, Job(bed.system, wanted, setup.file(folder, "study"), patience, timeout=90.0))


def mpi_options(setup: Setup) -> list[str]:
    """The smaller set: every program of at most 2 steps, the 5 best predicted, and 5 others drawn at random."""
    axes = parse_axes(setup.axes)
    overs = (over for count in range(1, len(axes) + 1) for over in combinations(axes, count))
    reductions = [word for over in overs for word in ("--reduce", f"{'+'.join(over)}={setup.bytes}B")]
    return ["--every", "2", "--best", "5", "--sample", "5", *reductions]


def calibrated(setup: Setup, library: Library, folder: Path) -> tuple[System, Library, Fit]:
    """The system that is predicted with: configured rates, corrected as far as the calibration tells."""
    nominal, studied = parse_system(setup.calibration), parse_system(setup.system)
    found = fit(nominal, library, observations(read_measurements(setup.file(folder, "calibration"))))
    levels = []
    for level, before, after in zip(
        parse_system(setup.system).levels, nominal.levels, found.system.levels, strict=True
    ):
        share = (after.link.bandwidth or 1.0) / (before.link.bandwidth or 1.0)
        link = replace(level.link, bandwidth=(level.link.bandwidth or 1.0) * share, latency=after.link.latency)
        levels.append(replace(level, link=link))
    return replace(studied, levels=tuple(levels)), found.library, found


def joined(setup: Setup, library: Library, folder: Path, with_calibration: bool = True) -> list[Pair]:
    """Measurements and predictions of a setup."""
    measured = read_measurements(setup.file(folder, "study"))
    if not with_calibration or not setup.calibration:
        return join(measured, library)
    system, fitted, _ = calibrated(setup, library, folder)
    return join(measured, fitted, system)


def write_report(setups: tuple[Setup, ...], folder: Path, out: Path, document: Path) -> dict[str, Any]:
    """The figures as JSON and as a page."""
    rows: dict[str, Report] = {}
    everything: list[Pair] = []
    plain: list[Pair] = []
    for setup in setups:
        library = load_library(setup.library)
        pairs = joined(setup, library, folder)
        rows[setup.name] = report(pairs)
        if setup.calibration:
            everything += pairs
            plain += joined(setup, library, folder, with_calibration=False)
    total = {"all of gloo": report(everything), "all of gloo, not calibrated": report(plain)}
    failed = [
        one.failed
        for setup in setups
        for one in read_measurements(setup.file(folder, "study"))
        if isinstance(one, Measurement) and one.failed
    ]
    data = {"failed": failed, "systems": {name: _plain(each) for name, each in (rows | total).items()}}
    out.write_text(json.dumps(data, indent=1) + "\n")
    document.write_text(_page(rows | total, setups))
    return data


def _plain(each: Report) -> dict[str, Any]:
    by_name = {name: {str(k): value for k, value in getattr(each, name).items()} for name in ("top", "others")}
    return {**asdict(each), **by_name}


def _page(rows: dict[str, Report], setups: tuple[Setup, ...]) -> str:
    figures: list[tuple[str, Callable[[Report], str], str]] = [
        ("placements and reductions", lambda r: str(r.pairs), ""),
        ("programs measured", lambda r: str(r.programs), ""),
        ("slowest over fastest placement of a group, library's default", lambda r: f"{r.spread:.1f}x", "up to 448x"),
        ("cases where a program beats the default", lambda r: f"{r.share:.0%}", "69%"),
        ("mean speedup in those cases", lambda r: f"{r.mean_speedup:.2f}x", "1.27x"),
        ("best speedup", lambda r: f"{r.best_speedup:.2f}x", "2.04x"),
        ("fastest is the best predicted", lambda r: f"{r.top[1]:.0%}", ""),
        ("fastest is among the 3 best predicted", lambda r: f"{r.top[3]:.0%}", ""),
        ("fastest is among the 5 best predicted", lambda r: f"{r.top[5]:.0%}", ""),
        ("fastest is among the 10 best predicted", lambda r: f"{r.top[BEST]:.0%}", "above 90%"),
        ("programs beyond these 10, of at most 3 steps", lambda r: str(_others(r, 0, 3)), ""),
        ("programs beyond these 10, of more steps", lambda r: str(_others(r, 4, MAX_STEPS)), ""),
        ("error of predicted times, median", lambda r: f"{r.median_error:.1%}", ""),
        ("error of predicted times, 90th percentile", lambda r: f"{r.worst_tenth_error:.1%}", ""),
        ("rank correlation of predicted and measured", lambda r: f"{r.correlation:.3f}", ""),
        ("fastest program over the bound, median", lambda r: f"{r.over_bound:.2f}x", ""),
        ("noise, from the spread of repetitions", lambda r: f"{r.noise:.1%}", ""),
    ]
    lines = [
        "# The study: real process groups on an emulated cluster",
        "",
        "Written by `make study`; the measurements are in `benchmarks/results`. Each device is a network namespace of",
        "one Linux machine, and every link is shaped in both directions, so that the links and not the processors are",
        "the bottleneck; the collectives are those of PyTorch's gloo, through `meshwright.torch`. Times are medians of",
        "the slowest rank. Predictions are made with a calibration on other rates and payloads; those for Open MPI,",
        "through `meshwright.mpi`, from the configured rates alone.",
        "",
        *wrap(
            "What is measured: every placement, every reduction, every program of at most 3 steps; of those "
            f"with at most {MAX_STEPS} the {BEST} best predicted, and {SAMPLE} of the others, drawn at random "
            f"(seed {SEED}). On Open MPI: all of at most 2 steps, the 5 best predicted, and 5 others. The "
            "accuracy is computed from what was measured: for each placement and reduction, whether one of "
            "the k programs with the least predicted time was as fast as the fastest that was measured. A "
            "program that was not measured cannot be the fastest, so the figure says little about programs of "
            "a length of which only the best predicted were measured.",
            WIDTH,
        ),
        *_caveat([rows[setup.name] for setup in setups]),
        "",
        f"| figure | {' | '.join(rows)} | the paper |",
        f"|---|{'---|' * (len(rows) + 1)}",
    ]
    for name, show, paper in figures:
        lines.append(f"| {name} | {' | '.join(show(each) for each in rows.values())} | {paper} |")
    lines += [
        "",
        "A program within the noise of the fastest counts as fastest.",
        "",
        "| studied | payload | axes | calibrated on |",
        "|---|---|---|---|",
    ]
    for setup in setups:
        lines.append(f"| {setup.name} | {setup.bytes >> 10} KiB | {setup.axes} | {setup.calibration or 'nothing'} |")
    return "\n".join(lines) + "\n"


def _others(each: Report, least: int, most: int) -> int:
    """How many programs of some numbers of steps were measured that are not among the best predicted."""
    return sum(count for steps, count in each.others.items() if least <= steps <= most)


def _caveat(each: Sequence[Report]) -> list[str]:
    """What the accuracy does not tell, if fewer programs were drawn than a sample has."""
    longer = sum(_others(one, 4, MAX_STEPS) for one in each)
    if longer >= sum(one.pairs for one in each):
        return []
    text = (
        "**Of the longer programs, hardly any but the best predicted were measured here:** with more than 3 "
        f"steps, {longer} that are not among the {BEST} best predicted. The accuracy below is that among "
        "programs of at most 3 steps, all of which were measured, and the best predicted of the longer ones. "
        "Whether another of the longer ones is faster was not looked for: these measurements were made before "
        "there was a sample."
    )
    return ["", *wrap(text, WIDTH)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--miniature", type=Path, metavar="FOLDER", help="a small one, into another folder")
    parser.add_argument("--systems", type=int, default=len(SETUPS), help="only this many of the systems")
    chosen = parser.parse_args()
    library = load_library(MINIATURE.library)
    if chosen.miniature is not None:
        folder: Path = chosen.miniature
        measure_setup(MINIATURE, miniature_cases(library), library, folder, Patience(least=1, most=1))
        write_report((MINIATURE,), folder, folder / "study.json", folder / "study.md")
        return
    setups = SETUPS[: chosen.systems]
    started = time.monotonic()
    if not chosen.report:
        for setup in setups:
            measure_setup(setup, study_cases(setup, library), library, RESULTS, PATIENCE)
            print(f"{setup.system}: {time.monotonic() - started:.0f} s", file=sys.stderr)
        out = MPI.file(RESULTS, "study")
        measure_mpi(MPI.system, MPI.axes, MPI.library, out, PATIENCE, mpi_options(MPI))
        print(f"{MPI.name}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    write_report((*setups, MPI), RESULTS, RESULTS / "study.json", DOCUMENT)
    print(DOCUMENT.read_text())


if __name__ == "__main__":
    main()
