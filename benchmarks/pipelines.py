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

from benchmarks.mpibench import measure_mpi
from meshwright import Reduction, load_library, parse_system, placements, plan
from meshwright.cost.library import Library
from meshwright.measure.accuracy import Pair, join
from meshwright.measure.bench import Case, Patience, case_of
from meshwright.measure.calibrate import fit, message_rate, shared_processors
from meshwright.measure.jobs import Job
from meshwright.measure.observations import microbenchmarks, observations
from meshwright.measure.records import DEFAULT_PROGRAM, read_measurements
from meshwright.measure.supervise import measure_on
from meshwright.planning.plan import Plan
from meshwright.system.model import System
from meshwright.testbed import temporary
from meshwright.testbed.network import BURST
from meshwright.text.units import format_bytes, format_seconds

RESULTS = Path(__file__).parent / "results"
DOCUMENT = Path(__file__).parent.parent / "docs" / "pipelines.md"
PICTURE = Path(__file__).parent.parent / "docs" / "pictures" / "payloads.svg"

GLOO = load_library("gloo")
CHUNKS = 16

INSIDE = "ReduceScatter inside node; AllReduce across node; AllGather inside node"
SPLIT = "ReduceScatter inside node; ReduceScatter across node; AllGather across node; AllGather inside node"
THREE = (
    "ReduceScatter inside node; ReduceScatter across node within rack; AllReduce across rack; "
    "AllGather across node within rack; AllGather inside node"
)
RACKS = "ReduceScatter inside rack; ReduceScatter across rack; AllGather across rack; AllGather inside rack"
FEW = "Reduce inside node; AllReduce masters of node; Broadcast inside node"


@dataclass(frozen=True)
class Part:
    """A system with the payload that is measured on it, what it is calibrated on, and programs beside the chosen.

    name: of the files with what was measured. goal: what the chosen program may take, over the bound. burst: what
    devices' links let through at once.
    """

    name: str
    system: str
    calibration: str
    bytes: int
    programs: tuple[str, ...]
    goal: float | None = None
    burst: int = BURST
    library: Library = GLOO


TWO_LEVELS = (INSIDE, *(f"{program}, in {chunks} chunks" for program in (INSIDE, SPLIT) for chunks in (4, 8, 16)))
PARTS = (
    Part("4-4", "node=4@20Mbit/s,gpu=4@200Mbit/s", "node=4@40Mbit/s,gpu=4@100Mbit/s", 1 << 22, TWO_LEVELS, 1.06),
    Part("4-4-50", "node=4@50Mbit/s,gpu=4@100Mbit/s", "node=4@40Mbit/s,gpu=4@80Mbit/s", 1 << 22, TWO_LEVELS, 1.12),
    Part("2-8", "node=2@20Mbit/s,gpu=8@200Mbit/s", "node=2@40Mbit/s,gpu=8@100Mbit/s", 1 << 22, TWO_LEVELS, 1.10),
    Part(
        "2-2-4",
        "rack=2@20Mbit/s,node=2@50Mbit/s,gpu=4@200Mbit/s",
        "rack=2@30Mbit/s,node=2@40Mbit/s,gpu=4@100Mbit/s",
        1 << 22,
        (THREE, *(f"{program}, in {chunks} chunks" for program in (THREE, RACKS) for chunks in (4, 8, 16))),
    ),
)
MPI = Part(
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
LATENT = Part(
    "4-4-50-latency",
    "node=4@50Mbit/s+20ms,gpu=4@100Mbit/s+5ms",
    "node=4@40Mbit/s+20ms,gpu=4@80Mbit/s+5ms",
    1 << 22,
    TWO_LEVELS,
    burst=FINE,
)
"""Latency is to the rates what 2.5 us are to 400 Gbit/s."""
SMALL = (LATENT, replace(PARTS[1], burst=FINE))
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
"""So many of the programs that are predicted best are measured beside the chosen one, where the links have latency."""
TINY = 1 << 12
"""Microbenchmarks of this size tell what starting a message costs."""

PATIENCE = Patience(least=3, most=5, width=0.02, budget=8.0)
FEWER = Patience(least=5, most=20, width=0.01, budget=4.0)
"""For small payloads where latency makes the time."""
MANY = Patience(least=15, most=40, width=0.02, budget=2.0)
MOST = Patience(least=60, most=150, width=0.01, budget=5.0)
"""For times of some milliseconds, which the processors make."""


def calibrated(part: Part) -> System:
    """The system with its configured rates, and what the smallest microbenchmarks tell of processors and latency.

    All devices share the processors of one machine, the same for all systems, and whatever else ran there could only
    slow them down: so the highest rate counts. A level that has latency has as much as its collectives showed where
    the links had other rates.
    """
    if part is MPI:
        return parse_system(part.system)
    rates = []
    for each in PARTS:
        file = RESULTS / f"calibration-pipes-{each.name}.jsonl"
        if file.exists():
            seen = observations(read_measurements(file))
            rates.append(message_rate(parse_system(each.calibration), GLOO, seen))
    nominal = parse_system(part.system)
    fitted = nominal
    if any(level.link.latency for level in nominal.levels):
        seen = observations(read_measurements(RESULTS / f"calibration-pipes-{part.name}.jsonl"))
        found = fit(parse_system(part.calibration), GLOO, seen).system
        levels = [
            replace(level, link=replace(level.link, latency=other.link.latency))
            for level, other in zip(nominal.levels, found.levels, strict=True)
        ]
        fitted = replace(nominal, levels=tuple(levels))
    return shared_processors(fitted, max(rates), nominal, GLOO)


def best(part: Part, payload: int, chunks: int, top: int) -> list[Plan]:
    """The best plans for an all-reduce over all devices."""
    system = calibrated(part)
    (at,) = placements(system, {"data": system.devices})
    reduction = Reduction(("data",), payload)
    found = plan(
        system, {"data": system.devices}, [reduction], library=part.library, placement=at, top=top, max_chunks=chunks
    )
    return list(found.candidates)


def chosen(part: Part, payload: int, chunks: int) -> Plan:
    """The one that is taken."""
    return best(part, payload, chunks, 1)[0]


def text(taken: Plan) -> str:
    (planned,) = taken.reductions
    return taken.program_text(planned)


def case(part: Part, payload: int, texts: tuple[str, ...]) -> Case:
    """The programs of a part and a payload, with the plan's choices, pipelined and not."""
    system = parse_system(part.system)
    (at,) = placements(system, {"data": system.devices})
    both = tuple(text(chosen(part, payload, chunks)) for chunks in (1, CHUNKS))
    return case_of(at, Reduction(("data",), payload), part.library, list(dict.fromkeys((*both, *texts))))


def measure(part: Part) -> None:
    """Calibrate, then measure."""
    name = f"pipes{os.getpid()}"
    nominal = parse_system(part.calibration)
    with temporary(nominal, name, part.burst) as bed:
        patience = FEWER if part is LATENT else MANY
        wanted = microbenchmarks(nominal, GLOO, (TINY, 3 << 18))
        measure_on(bed, Job(nominal, wanted, RESULTS / f"calibration-pipes-{part.name}.jsonl", patience, timeout=60.0))
    out = RESULTS / f"pipelines-{part.name}.jsonl"
    with temporary(parse_system(part.system), name, part.burst) as bed:
        wanted = [case(part, part.bytes, part.programs)]
        measure_on(bed, Job(bed.system, wanted, out, PATIENCE, timeout=90.0))


def mpi_options(part: Part) -> list[str]:
    """The same programs on Open MPI."""
    wanted = case(part, part.bytes, part.programs)
    texts = [one.program for one in wanted.measurements("mpi") if one.program != DEFAULT_PROGRAM]
    programs = [word for program in texts for word in ("--program", program)]
    return ["--reduce", f"data={part.bytes}B", *programs]


def measure_payloads(part: Part) -> None:
    """Measure small and large payloads."""
    name = f"sizes{os.getpid()}"
    with temporary(parse_system(part.system), name, part.burst) as bed:
        for size in SIZES:
            beside: tuple[str, ...] = BESIDE
            if part is LATENT and size < 1 << 22:
                for chunks in (1, CHUNKS):
                    beside += tuple(text(plan) for plan in best(part, size, chunks, BEST))
            patience = PATIENCE if size >= 1 << 20 else FEWER if part is LATENT else MOST
            out = RESULTS / f"payloads-{part.name}.jsonl"
            measure_on(bed, Job(bed.system, [case(part, size, beside)], out, patience, timeout=120.0))


def joined(part: Part, file: str) -> list[Pair]:
    return join(read_measurements(RESULTS / file), part.library, calibrated(part))


def rows() -> dict[str, Any]:
    """The figures of the report."""
    found: dict[str, Any] = {"systems": [], "payloads": {}}
    errors: dict[str, list[float]] = {"gloo": [], "openmpi": []}
    for part in (*PARTS, LATENT, MPI):
        (pair,) = joined(part, f"pipelines-{part.name}.jsonl")
        by_program = {outcome.program: outcome for outcome in pair.outcomes}
        plain, piped = (by_program[text(chosen(part, part.bytes, chunks))] for chunks in (1, CHUNKS))
        errors[part.library.name] += [abs(outcome.error) for outcome in pair.outcomes if "chunk" in outcome.program]
        assert pair.default is not None
        found["systems"].append(
            {
                "system": part.system,
                "library": part.library.name,
                "bytes": part.bytes,
                "bound": pair.bound,
                "default": pair.default.measured,
                "unpipelined": plain.measured,
                "unpipelined program": plain.program,
                "pipelined": piped.measured,
                "pipelined program": piped.program,
                "predicted": piped.predicted,
                "best measured": pair.outcomes[0].measured,
                "best program": pair.outcomes[0].program,
                "at most": part.goal,
            }
        )
    found["error"] = {
        name: {"median": median(each), "p90": sorted(each)[int(0.9 * (len(each) - 1))], "programs": len(each)}
        for name, each in errors.items()
    }
    for part in SMALL:
        found["payloads"][part.system] = payload_rows(part)
    return found


def payload_rows(part: Part) -> list[dict[str, Any]]:
    """The figures of small and large payloads."""
    found = []
    for pair in sorted(joined(part, f"payloads-{part.name}.jsonl"), key=lambda pair: pair.bytes):
        by_program = {outcome.program: outcome for outcome in pair.outcomes}
        ours = by_program[text(chosen(part, pair.bytes, CHUNKS))]
        fastest = pair.outcomes[0]
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


def page(found: dict[str, Any]) -> str:
    lines = [
        "# Pipelined programs, measured",
        "",
        "Written by `python -m benchmarks.pipelines`. All-reduces over all devices of emulated clusters, with real",
        "gloo process groups, and the last row with Open MPI: the library's own, the best program step after step, and",
        "the best with the payload cut into chunks that flow through the steps. Both are chosen by the model: for gloo",
        "from the configured rates, with the latency and the rate of messages that were calibrated on other systems,",
        "for Open MPI from the rates alone. The bound is what no schedule on these links can beat, if there were no",
        "latency.",
        "",
        "| system | payload | bound | the library's own | step after step | in chunks | over the bound | gain |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found["systems"]:
        library = ", Open MPI" if row["library"] == "openmpi" else ""
        lines.append(
            f"| {row['system']}{library} | {format_bytes(row['bytes'])} | {format_seconds(row['bound'])} | "
            f"{format_seconds(row['default'])} | {format_seconds(row['unpipelined'])} | "
            f"{format_seconds(row['pipelined'])} | {row['pipelined'] / row['bound']:.3f}x | "
            f"{row['default'] / row['pipelined']:.2f}x |"
        )
    error, mpi = found["error"]["gloo"], found["error"]["openmpi"]
    lines += [
        "",
        "Gain is over the library's own. "
        f"The predicted times of {error['programs']} pipelined programs on gloo are off by {error['median']:.1%} in "
        f"the median and {error['p90']:.1%} at the 90th percentile; of {mpi['programs']} on Open MPI by "
        f"{mpi['median']:.1%} and {mpi['p90']:.1%}. The programs that were chosen:",
        "",
    ]
    for row in found["systems"]:
        library = ", Open MPI" if row["library"] == "openmpi" else ""
        lines.append(f"- {row['system']}{library}: {row['pipelined program']}")
    lines += [
        "",
        "## Small and large payloads",
        "",
        "On the second system, with latency and without. Latency is what takes the time of small payloads on a real",
        "cluster: there the program with the fewest messages one after the other is to be chosen. Without it, small",
        "payloads measure how 16 processes take turns on two processors, and programs differ by how many messages all",
        "devices send together. 20 ms are to 50 Mbit/s what 2.5 us are to 400 Gbit/s.",
        "",
        "![Time over payload, predicted and measured](pictures/payloads.svg)",
    ]
    for system, payloads in found["payloads"].items():
        lines += [
            "",
            f"### {system}",
            "",
            "| payload | chosen | measured | predicted | gloo's own | best measured | of | over best | spread |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for row in payloads:
            same = row["chosen"] == row["best program"]
            lines.append(
                f"| {format_bytes(row['bytes'])} | {row['chosen']} | {format_seconds(row['measured'])} | "
                f"{format_seconds(row['predicted'])} | {format_seconds(row['default'])} | "
                f"{format_seconds(row['best'])}: {'the same' if same else row['best program']} | {row['programs']} | "
                f"{row['over best']:.2f}x | {row['spread']:.0%} |"
            )
        lines += ["", "Where one program overtakes the other:", ""]
        eight = f"{SPLIT}, in 8 chunks"
        for first, second in ((FEW, INSIDE), (INSIDE, "AllReduce all"), (INSIDE, eight)):
            predicted, measured = (_crossing(payloads, first, second, which) for which in (1, 0))
            lines.append(f"- `{second}` over `{first}`: predicted from {predicted}, measured from {measured}")
    lines += [
        "",
        "Of: how many programs were measured, gloo's own not among them. Spread is how far the slowest repetition is",
        "from the fastest, in the median over programs. With latency, the eight best predicted with and without chunks",
        "are among those below 4 MiB. Without, they are not: where they were tried, at 4 KiB one took 14.3 ms where",
        "the chosen took 16.0, and at 16 KiB one 15.9 where the chosen took 16.9, with repetitions as far apart.",
    ]
    return "\n".join(lines) + "\n"


def _crossing(payloads: list[dict[str, Any]], first: str, second: str, which: int) -> str:
    """The payload from which on the second program is the faster one, between the sizes that were measured."""
    gaps = [(row["bytes"], row["all"][first][which] - row["all"][second][which]) for row in payloads]
    last_behind = max((k for k, (_, gap) in enumerate(gaps) if gap < 0), default=-1)
    if last_behind + 1 == len(gaps):
        return "nowhere"
    if last_behind < 0:
        return f"{format_bytes(gaps[0][0])} on"
    (low, behind), (high, ahead) = gaps[last_behind], gaps[last_behind + 1]
    return f"about {round((low + (high - low) * behind / (behind - ahead)) / 1024)} KiB"


def picture(found: dict[str, Any]) -> None:
    """Time over payload for the programs that are best somewhere, predicted as lines and measured as dots."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "meshwright"
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(SMALL), figsize=(11, 4.5), sharey=True)
    shown = {"AllReduce all": "AllReduce all", FEW: "Reduce, AllReduce of masters, Broadcast"}
    shown |= {INSIDE: "ReduceScatter, AllReduce, AllGather", SPLIT: "two ReduceScatters, two AllGathers"}
    shown |= {f"{SPLIT}, in 8 chunks": "the same, in 8 chunks"}
    for axes, (system, payloads) in zip(panels, found["payloads"].items(), strict=True):
        sizes = [row["bytes"] for row in payloads]
        for number, (program, label) in enumerate(shown.items()):
            color = f"C{number}"
            axes.plot(sizes, [row["all"][program][1] for row in payloads], color=color, label=label)
            axes.plot(sizes, [row["all"][program][0] for row in payloads], "o", color=color)
        axes.plot(sizes, [row["bound"] for row in payloads], "k:", label="bound")
        axes.plot(sizes, [row["measured"] for row in payloads], "kx", markersize=9, label="chosen, measured")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("payload in bytes")
        axes.set_title(system, fontsize=10)
    panels[0].set_ylabel("seconds (lines: predicted, dots: measured)")
    panels[-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", action="store_true", help="measure nothing")
    options = parser.parse_args()
    started = time.monotonic()
    if not options.report:
        for part in (*PARTS, LATENT):
            measure(part)
            print(f"{part.system}: {time.monotonic() - started:.0f} s", file=sys.stderr)
        out, axes = RESULTS / f"pipelines-{MPI.name}.jsonl", f"data={parse_system(MPI.system).devices}"
        measure_mpi(MPI.system, axes, MPI.library.name, out, PATIENCE, mpi_options(MPI))
        for part in SMALL:
            measure_payloads(part)
            print(f"{part.system}, payloads: {time.monotonic() - started:.0f} s", file=sys.stderr)
    found = rows()
    (RESULTS / "pipelines.json").write_text(json.dumps(found, indent=1) + "\n")
    DOCUMENT.write_text(page(found))
    picture(found)
    print(DOCUMENT.read_text())


if __name__ == "__main__":
    main()
