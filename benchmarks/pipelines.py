"""The second study: pipelined programs beside unpipelined ones and the library's own all-reduce, on gloo and Open MPI,
and payloads of all sizes.

`python -m benchmarks.pipelines` needs root. What is measured already is not measured again; with `--report` nothing is.
It writes `benchmarks/results/pipelines.json`, `docs/pipelines.md` and `docs/pictures/payloads.svg`.
"""

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.errors import middle_and_tenth
from benchmarks.mpibench import measure_mpi
from benchmarks.pipelinepage import FEW, INSIDE, SPLIT, page, picture
from meshwright import Reduction, load_library, parse_system, placements, plan
from meshwright.cost.library import Library
from meshwright.measure.accuracy import Outcome, Pair, join
from meshwright.measure.bench import Case, Patience, case_of
from meshwright.measure.calibrate import fit, message_rate, shared_processors
from meshwright.measure.jobs import Job, measure_on
from meshwright.measure.observations import microbenchmarks, observations
from meshwright.measure.records import read_measurements
from meshwright.planning.plan import DEFAULT_PROGRAM, Plan
from meshwright.system.model import System
from meshwright.testbed import temporary
from meshwright.testbed.network import BURST

RESULTS = Path(__file__).parent / "results"
DOCUMENT = Path(__file__).parent.parent / "docs" / "pipelines.md"

GLOO = load_library("gloo")
CHUNKS = 16

THREE = (
    "ReduceScatter inside node; ReduceScatter across node within rack; AllReduce across rack; "
    "AllGather across node within rack; AllGather inside node"
)
RACKS = "ReduceScatter inside rack; ReduceScatter across rack; AllGather across rack; AllGather inside rack"


@dataclass(frozen=True)
class Setup:
    """A system with the payload that is measured on it, what it is calibrated on, and programs beside the chosen.

    name: of the files with what was measured. at_most: what the chosen program may take, over the bound. burst: what
    devices' links let through at once.
    """

    name: str
    system: str
    calibration: str
    bytes: int
    programs: tuple[str, ...]
    at_most: float | None = None
    burst: int = BURST
    library: Library = GLOO


TWO_LEVELS = (INSIDE, *(f"{program}, in {chunks} chunks" for program in (INSIDE, SPLIT) for chunks in (4, 8, 16)))
SETUPS = (
    Setup("4-4", "node=4@20Mbit/s,gpu=4@200Mbit/s", "node=4@40Mbit/s,gpu=4@100Mbit/s", 1 << 22, TWO_LEVELS, 1.06),
    Setup("4-4-50", "node=4@50Mbit/s,gpu=4@100Mbit/s", "node=4@40Mbit/s,gpu=4@80Mbit/s", 1 << 22, TWO_LEVELS, 1.12),
    Setup("2-8", "node=2@20Mbit/s,gpu=8@200Mbit/s", "node=2@40Mbit/s,gpu=8@100Mbit/s", 1 << 22, TWO_LEVELS, 1.10),
    Setup(
        "2-2-4",
        "rack=2@20Mbit/s,node=2@50Mbit/s,gpu=4@200Mbit/s",
        "rack=2@30Mbit/s,node=2@40Mbit/s,gpu=4@100Mbit/s",
        1 << 22,
        (THREE, *(f"{program}, in {chunks} chunks" for program in (THREE, RACKS) for chunks in (4, 8, 16))),
    ),
)
MPI = Setup(
    "2-4-mpi",
    "node=2@10Mbit/s,gpu=4@100Mbit/s",
    "",
    1 << 21,
    (SPLIT, *(f"{program}, in {chunks} chunks" for program in (INSIDE, SPLIT) for chunks in (4, 8, 16))),
    library=load_library("openmpi"),
)
"""The smaller system that runs on Open MPI; it is not calibrated."""
SIZES = (1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
"""The payloads from small to large, on the second system with latency and without."""
FINE = 18_000
"""Two packets: with the usual burst, small payloads would cross the links of devices in no time."""
LATENT = Setup(
    "4-4-50-latency",
    "node=4@50Mbit/s+20ms,gpu=4@100Mbit/s+5ms",
    "node=4@40Mbit/s+20ms,gpu=4@80Mbit/s+5ms",
    1 << 22,
    TWO_LEVELS,
    burst=FINE,
)
"""Latency is to the rates what 2.5 us are to 400 Gbit/s."""
SMALL = (LATENT, replace(SETUPS[1], burst=FINE))
BESIDE = (
    "AllReduce all",
    INSIDE,
    SPLIT,
    FEW,
    f"{INSIDE}, in 4 chunks",
    f"{SPLIT}, in 4 chunks",
    f"{SPLIT}, in 8 chunks",
)
BEST = 8
"""How many of the best predicted programs are measured beside the chosen one, where the links have latency."""
TINY = 1 << 12
"""Microbenchmarks of this size tell what starting a message costs."""

PATIENCE = Patience(least=3, most=5, width=0.02, budget=8.0)
FEWER = Patience(least=5, most=20, width=0.01, budget=4.0)
"""For small payloads where latency makes the time."""
MANY = Patience(least=15, most=40, width=0.02, budget=2.0)
MOST = Patience(least=60, most=150, width=0.01, budget=5.0)
"""For times of some milliseconds, which the processors make."""


def calibrated(setup: Setup) -> System:
    """The system with its configured rates, and what the smallest microbenchmarks tell of processors and latency.

    All devices share the processors of one machine, the same for all systems, and whatever else ran there could only
    slow them down: so the highest rate counts. A level that has latency has as much as its collectives showed where
    the links had other rates.
    """
    if setup is MPI:
        return parse_system(setup.system)
    rates = []
    for each in SETUPS:
        file = RESULTS / f"calibration-pipes-{each.name}.jsonl"
        if file.exists():
            seen = observations(read_measurements(file))
            rates.append(message_rate(parse_system(each.calibration), GLOO, seen))
    nominal = parse_system(setup.system)
    fitted = nominal
    if any(level.link.latency for level in nominal.levels):
        seen = observations(read_measurements(RESULTS / f"calibration-pipes-{setup.name}.jsonl"))
        found = fit(parse_system(setup.calibration), GLOO, seen).system
        levels = [
            replace(level, link=replace(level.link, latency=other.link.latency))
            for level, other in zip(nominal.levels, found.levels, strict=True)
        ]
        fitted = replace(nominal, levels=tuple(levels))
    return shared_processors(fitted, max(rates), nominal, GLOO)


def best(setup: Setup, payload: int, chunks: int, top: int) -> list[Plan]:
    """The best plans for an all-reduce over all devices."""
    system = calibrated(setup)
    (at,) = placements(system, {"data": system.devices})
    reduction = Reduction(("data",), payload)
    found = plan(
        system, {"data": system.devices}, [reduction], library=setup.library, placement=at, top=top, max_chunks=chunks
    )
    return list(found.candidates)


def chosen(setup: Setup, payload: int, chunks: int) -> Plan:
    """The one that is taken."""
    return best(setup, payload, chunks, 1)[0]


def text(taken: Plan) -> str:
    (planned,) = taken.reductions
    return taken.program_text(planned)


def case(setup: Setup, payload: int, texts: tuple[str, ...]) -> Case:
    """The programs of a setup and a payload, with the plan's choices, pipelined and not."""
    system = parse_system(setup.system)
    (at,) = placements(system, {"data": system.devices})
    both = tuple(text(chosen(setup, payload, chunks)) for chunks in (1, CHUNKS))
    return case_of(at, Reduction(("data",), payload), setup.library, list(dict.fromkeys((*both, *texts))))


def measure(setup: Setup) -> None:
    """Calibrate, then measure."""
    name = f"pipes{os.getpid()}"
    nominal = parse_system(setup.calibration)
    with temporary(nominal, name, setup.burst) as bed:
        patience = FEWER if setup is LATENT else MANY
        wanted = microbenchmarks(nominal, GLOO, (TINY, 3 << 18))
        measure_on(bed, Job(nominal, wanted, RESULTS / f"calibration-pipes-{setup.name}.jsonl", patience, timeout=60.0))
    out = RESULTS / f"pipelines-{setup.name}.jsonl"
    with temporary(parse_system(setup.system), name, setup.burst) as bed:
        wanted = [case(setup, setup.bytes, setup.programs)]
        measure_on(bed, Job(bed.system, wanted, out, PATIENCE, timeout=90.0))


def mpi_options(setup: Setup) -> list[str]:
    """The same programs on Open MPI."""
    wanted = case(setup, setup.bytes, setup.programs)
    texts = [one.program for one in wanted.measurements("mpi") if one.program != DEFAULT_PROGRAM]
    programs = [word for program in texts for word in ("--program", program)]
    return ["--reduce", f"data={setup.bytes}B", *programs]


def measure_payloads(setup: Setup) -> None:
    """Measure small and large payloads."""
    name = f"sizes{os.getpid()}"
    with temporary(parse_system(setup.system), name, setup.burst) as bed:
        for size in SIZES:
            beside: tuple[str, ...] = BESIDE
            if setup is LATENT and size < 1 << 22:
                for chunks in (1, CHUNKS):
                    beside += tuple(text(plan) for plan in best(setup, size, chunks, BEST))
            patience = PATIENCE if size >= 1 << 20 else FEWER if setup is LATENT else MOST
            out = RESULTS / f"payloads-{setup.name}.jsonl"
            measure_on(bed, Job(bed.system, [case(setup, size, beside)], out, patience, timeout=120.0))


def joined(setup: Setup, file: str) -> list[Pair]:
    return join(read_measurements(RESULTS / file), setup.library, calibrated(setup))


def in_chunks(pair: Pair) -> list[float]:
    """The errors of predictions for programs in chunks."""
    return [outcome.error for outcome in pair.outcomes if "chunk" in outcome.program]


def measured(pair: Pair, choice: Plan) -> Outcome:
    """What a plan took."""
    found = {outcome.program: outcome for outcome in pair.outcomes}
    if text(choice) not in found:
        sys.exit(f"{pair.system}: the choice has changed since, and was not measured: {text(choice)}; measure it first")
    return found[text(choice)]


def rows() -> dict[str, Any]:
    """The figures of the report."""
    found: dict[str, Any] = {"systems": [], "payloads": {}}
    errors: dict[str, list[float]] = {"gloo": [], "openmpi": []}
    for setup in (*SETUPS, LATENT, MPI):
        (pair,) = joined(setup, f"pipelines-{setup.name}.jsonl")
        plain, piped = (measured(pair, chosen(setup, setup.bytes, chunks)) for chunks in (1, CHUNKS))
        errors[setup.library.name] += in_chunks(pair)
        assert pair.default is not None
        found["systems"].append(
            {
                "system": setup.system,
                "library": setup.library.name,
                "bytes": setup.bytes,
                "bound": pair.bound,
                "default": pair.default.measured,
                "unpipelined": plain.measured,
                "unpipelined program": plain.program,
                "pipelined": piped.measured,
                "pipelined program": piped.program,
                "predicted": piped.predicted,
                "best measured": pair.fastest.measured,
                "best program": pair.fastest.program,
                "at most": setup.at_most,
            }
        )
    found["error"] = {
        name: dict(zip(("median", "p90"), middle_and_tenth(each), strict=True)) | {"programs": len(each)}
        for name, each in errors.items()
    }
    for setup in SMALL:
        found["payloads"][setup.system] = payload_rows(setup)
    return found


def payload_rows(setup: Setup) -> list[dict[str, Any]]:
    """The figures of small and large payloads."""
    found = []
    for pair in sorted(joined(setup, f"payloads-{setup.name}.jsonl"), key=lambda pair: pair.bytes):
        ours = measured(pair, chosen(setup, pair.bytes, CHUNKS))
        fastest = pair.fastest
        assert pair.default is not None
        found.append(
            {
                "bytes": pair.bytes,
                "programs": len(pair.outcomes),
                "chosen": ours.program,
                "measured": ours.measured,
                "predicted": ours.predicted,
                "default": pair.default.measured,
                "best": fastest.measured,
                "best program": fastest.program,
                "over best": ours.measured / fastest.measured,
                "spread": median(outcome.spread for outcome in pair.outcomes),
                "bound": pair.bound,
                "all": {one.program: [one.measured, one.predicted] for one in pair.outcomes},
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", action="store_true", help="measure nothing")
    options = parser.parse_args()
    started = time.monotonic()
    if not options.report:
        for setup in (*SETUPS, LATENT):
            measure(setup)
            print(f"{setup.system}: {time.monotonic() - started:.0f} s", file=sys.stderr)
        out, axes = RESULTS / f"pipelines-{MPI.name}.jsonl", f"data={parse_system(MPI.system).devices}"
        measure_mpi(MPI.system, axes, MPI.library.name, out, PATIENCE, mpi_options(MPI))
        for setup in SMALL:
            measure_payloads(setup)
            print(f"{setup.system}, payloads: {time.monotonic() - started:.0f} s", file=sys.stderr)
    found = rows()
    (RESULTS / "pipelines.json").write_text(json.dumps(found, indent=1) + "\n")
    DOCUMENT.write_text(page(found))
    picture(found)
    print(DOCUMENT.read_text())


if __name__ == "__main__":
    main()
