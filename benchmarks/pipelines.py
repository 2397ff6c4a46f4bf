"""The second study: pipelined programs beside unpipelined ones and gloo's own all-reduce, and payloads of all sizes.

`python -m benchmarks.pipelines` needs root. What is measured already is not measured again; with `--report` nothing is.
It writes `benchmarks/results/pipelines.json`, `docs/pipelines.md` and `docs/pictures/payloads.svg`.
"""

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from meshwright import Reduction, load_library, parse_system, placements, plan
from meshwright.cli.measuring import Where, measure_cases
from meshwright.measure.accuracy import Pair, join
from meshwright.measure.bench import Case, Patience, case_of
from meshwright.measure.calibrate import message_rate, microbenchmarks, observations, shared_processors
from meshwright.measure.records import read_measurements
from meshwright.plan import Plan
from meshwright.system import System
from meshwright.testbed import temporary
from meshwright.units import format_bytes, format_seconds

RESULTS = Path(__file__).parent / "results"
DOCUMENT = Path(__file__).parent.parent / "docs" / "pipelines.md"
PICTURE = Path(__file__).parent.parent / "docs" / "pictures" / "payloads.svg"

LIBRARY = load_library("gloo")
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
    """A system with the payload that is measured on it, what it is calibrated on, and programs beside the chosen."""

    system: str
    calibration: str
    bytes: int
    programs: tuple[str, ...]
    goal: float | None = None

    @property
    def name(self) -> str:
        return "-".join(f"{level.count}" for level in parse_system(self.system).levels) + (
            "" if "@20" in self.system else "-50"
        )


TWO_LEVELS = (INSIDE, *(f"{program}, in {chunks} chunks" for program in (INSIDE, SPLIT) for chunks in (4, 8, 16)))
PARTS = (
    Part("node=4@20Mbit/s,gpu=4@200Mbit/s", "node=4@40Mbit/s,gpu=4@100Mbit/s", 1 << 22, TWO_LEVELS, 1.06),
    Part("node=4@50Mbit/s,gpu=4@100Mbit/s", "node=4@40Mbit/s,gpu=4@80Mbit/s", 1 << 22, TWO_LEVELS, 1.12),
    Part("node=2@20Mbit/s,gpu=8@200Mbit/s", "node=2@40Mbit/s,gpu=8@100Mbit/s", 1 << 22, TWO_LEVELS, 1.10),
    Part(
        "rack=2@20Mbit/s,node=2@50Mbit/s,gpu=4@200Mbit/s",
        "rack=2@30Mbit/s,node=2@40Mbit/s,gpu=4@100Mbit/s",
        1 << 22,
        (THREE, *(f"{program}, in {chunks} chunks" for program in (THREE, RACKS) for chunks in (4, 8, 16))),
    ),
)
SIZES = (1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
"""The payloads of the small-payload study, on the second system."""
SMALL = PARTS[1]
BESIDE = (
    "AllReduce all",
    INSIDE,
    SPLIT,
    FEW,
    f"{INSIDE}, in 4 chunks",
    f"{SPLIT}, in 4 chunks",
    f"{SPLIT}, in 8 chunks",
)
TINY = 1 << 12
"""Microbenchmarks of this size tell what starting a message costs."""

PATIENCE = Patience(least=3, most=5, width=0.02, budget=8.0)
MANY = Patience(least=15, most=40, width=0.02, budget=2.0)
"""For times of some milliseconds."""


def calibrated(part: Part) -> System:
    """The system with its configured rates, and what the smallest microbenchmarks tell of the processors.

    All devices share the processors of one machine, the same for all systems, and whatever else ran there could only
    slow them down: so the highest rate counts.
    """
    rates = []
    for each in PARTS:
        file = RESULTS / f"calibration-pipes-{each.name}.jsonl"
        if file.exists():
            seen = observations(read_measurements(file))
            rates.append(message_rate(parse_system(each.calibration), LIBRARY, seen))
    return shared_processors(parse_system(part.system), max(rates))


def chosen(part: Part, payload: int, chunks: int) -> Plan:
    """The plan for an all-reduce over all devices."""
    system = calibrated(part)
    (at,) = placements(system, {"data": system.devices})
    reduction = Reduction(("data",), payload)
    return plan(
        system, {"data": system.devices}, [reduction], library=LIBRARY, placement=at, top=1, max_chunks=chunks
    ).candidates[0]


def text(best: Plan) -> str:
    (planned,) = best.reductions
    return planned.pipelined.text(best.hierarchy(planned))


def case(part: Part, payload: int, texts: tuple[str, ...]) -> Case:
    """The programs of a part and a payload, with the plan's choices, pipelined and not."""
    system = parse_system(part.system)
    (at,) = placements(system, {"data": system.devices})
    both = tuple(text(chosen(part, payload, chunks)) for chunks in (1, CHUNKS))
    return case_of(at, Reduction(("data",), payload), LIBRARY, list(dict.fromkeys((*both, *texts))))


def measure(part: Part) -> None:
    """Calibrate, then measure."""
    name = f"pipes{os.getpid()}"
    nominal = parse_system(part.calibration)
    with temporary(nominal, name) as bed:
        measure_cases(
            bed.system,
            microbenchmarks(nominal, LIBRARY, (TINY, 3 << 18)),
            RESULTS / f"calibration-pipes-{part.name}.jsonl",
            Where("torch", name, False, MANY, 60.0),
        )
    out = RESULTS / f"pipelines-{part.name}.jsonl"
    with temporary(parse_system(part.system), name) as bed:
        wanted = [case(part, part.bytes, part.programs)]
        measure_cases(bed.system, wanted, out, Where("torch", name, False, PATIENCE, 90.0))
        if part is SMALL:
            for size in SIZES:
                patience = MANY if size < 1 << 20 else PATIENCE
                wanted = [case(part, size, BESIDE)]
                out = RESULTS / "payloads.jsonl"
                measure_cases(bed.system, wanted, out, Where("torch", name, False, patience, 120.0))


def joined(part: Part, file: str) -> list[Pair]:
    return join(read_measurements(RESULTS / file), LIBRARY, calibrated(part))


def rows() -> dict[str, Any]:
    """The figures of the report."""
    found: dict[str, Any] = {"systems": [], "payloads": []}
    errors: list[float] = []
    for part in PARTS:
        (pair,) = joined(part, f"pipelines-{part.name}.jsonl")
        by_program = {outcome.program: outcome for outcome in pair.outcomes}
        plain, piped = (by_program[text(chosen(part, part.bytes, chunks))] for chunks in (1, CHUNKS))
        errors += [abs(outcome.error) for outcome in pair.outcomes if "chunk" in outcome.program]
        assert pair.default is not None
        found["systems"].append(
            {
                "system": part.system,
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
    errors.sort()
    found["error"] = {"median": median(errors), "p90": errors[int(0.9 * (len(errors) - 1))], "programs": len(errors)}
    for pair in sorted(joined(SMALL, "payloads.jsonl"), key=lambda pair: pair.bytes):
        by_program = {outcome.program: outcome for outcome in pair.outcomes}
        ours = by_program[text(chosen(SMALL, pair.bytes, CHUNKS))]
        best = pair.outcomes[0]
        assert pair.default is not None
        found["payloads"].append(
            {
                "bytes": pair.bytes,
                "chosen": ours.program,
                "measured": ours.measured,
                "predicted": ours.predicted,
                "default": pair.default.measured,
                "best": best.measured,
                "best program": best.program,
                "over best": ours.measured / best.measured,
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
        "Written by `python -m benchmarks.pipelines`. All-reduces over all 16 devices of emulated clusters, with real",
        "gloo process groups: gloo's own, the best program step after step, and the best with the payload cut into",
        "chunks that flow through the steps. Both are chosen by the model, from the configured rates and the rate of",
        "messages that the machine handles, calibrated on other systems.",
        "The bound is what no schedule on these links can beat.",
        "",
        "| system | payload | bound | gloo's own | step after step | in chunks | over the bound | faster than gloo |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found["systems"]:
        lines.append(
            f"| {row['system']} | {format_bytes(row['bytes'])} | {format_seconds(row['bound'])} | "
            f"{format_seconds(row['default'])} | {format_seconds(row['unpipelined'])} | "
            f"{format_seconds(row['pipelined'])} | {row['pipelined'] / row['bound']:.3f}x | "
            f"{row['default'] / row['pipelined']:.2f}x |"
        )
    error = found["error"]
    lines += [
        "",
        f"The predicted times of {error['programs']} pipelined programs are off by {error['median']:.1%} in the median "
        f"and {error['p90']:.1%} at the 90th percentile. The programs that were chosen:",
        "",
    ]
    for row in found["systems"]:
        lines.append(f"- {row['system']}: {row['pipelined program']}")
    lines += [
        "",
        f"## Small and large payloads, on {SMALL.system}",
        "",
        "![Time over payload, predicted and measured](pictures/payloads.svg)",
        "",
        "| payload | chosen | measured | predicted | gloo's own | the best of all measured | over best | spread |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found["payloads"]:
        lines.append(
            f"| {format_bytes(row['bytes'])} | {row['chosen']} | {format_seconds(row['measured'])} | "
            f"{format_seconds(row['predicted'])} | {format_seconds(row['default'])} | {format_seconds(row['best'])}: "
            f"{row['best program']} | {row['over best']:.2f}x | {row['spread']:.0%} |"
        )
    lines += ["", "Where one program overtakes the other:", ""]
    for first, second in ((FEW, INSIDE), (INSIDE, "AllReduce all"), ("AllReduce all", f"{SPLIT}, in 8 chunks")):
        predicted, measured = (_crossing(found["payloads"], first, second, which) for which in (1, 0))
        lines.append(f"- `{second}` over `{first}`: predicted from {predicted}, measured from {measured}")
    lines += [
        "",
        "Spread is how far the slowest repetition is from the fastest, in the median over programs: 16 processes on",
        "two processors take turns, which is all of the time of a small payload here.",
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

    figure, axes = plt.subplots(figsize=(8, 4.5))
    sizes = [row["bytes"] for row in found["payloads"]]
    shown = {"AllReduce all": "AllReduce all", FEW: "Reduce, AllReduce of masters, Broadcast", INSIDE: "hierarchical"}
    shown |= {f"{SPLIT}, in 8 chunks": "hierarchical, 8 chunks"}
    for number, (program, label) in enumerate(shown.items()):
        color = f"C{number}"
        axes.plot(sizes, [row["all"][program][1] for row in found["payloads"]], color=color, label=label)
        axes.plot(sizes, [row["all"][program][0] for row in found["payloads"]], "o", color=color)
    axes.plot(sizes, [row["bound"] for row in found["payloads"]], "k:", label="bound")
    axes.plot(sizes, [row["measured"] for row in found["payloads"]], "kx", markersize=9, label="chosen, measured")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("payload in bytes")
    axes.set_ylabel("seconds (lines: predicted, dots: measured)")
    axes.legend(fontsize=8)
    axes.set_title(f"All-reduce over 16 devices, {SMALL.system}, gloo", fontsize=10)
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", action="store_true", help="measure nothing")
    options = parser.parse_args()
    started = time.monotonic()
    if not options.report:
        for part in PARTS:
            measure(part)
            print(f"{part.system}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    found = rows()
    (RESULTS / "pipelines.json").write_text(json.dumps(found, indent=1) + "\n")
    DOCUMENT.write_text(page(found))
    picture(found)
    print(DOCUMENT.read_text())


if __name__ == "__main__":
    main()
