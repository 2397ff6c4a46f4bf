"""NCCL on emulated links: its own collectives by size, and the programs of an all-reduce, beside the predictions.

`make study-nccl` needs root and a GPU, which all ranks share. What is measured already is not measured again. With
`--report` nothing is measured. It writes docs/nccl.md.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from textwrap import wrap

from meshwright import Goal, Reduction, load_library, parse_system, placements
from meshwright.measure.accuracy import Outcome, Pair, join
from meshwright.measure.bench import Case, Patience, case_of, cases
from meshwright.measure.jobs import Job, measure_on
from meshwright.measure.records import read_measurements
from meshwright.testbed import temporary
from meshwright.text.units import format_bytes, format_seconds

RESULTS = Path(__file__).parent / "results"
DOCUMENT = Path(__file__).parent.parent / "docs" / "nccl.md"
LIBRARY = load_library("nccl-sockets")
PATIENCE = Patience(least=2, most=6, width=0.03, budget=2.0)

INSIDE = "ReduceScatter inside node; AllReduce across node; AllGather inside node"
SPLIT = "ReduceScatter inside node; ReduceScatter across node; AllGather across node; AllGather inside node"
SYSTEMS = {
    "2x4": ("node=2@200Mbit/s,gpu=4@1Gbit/s", (1 << 22, 1 << 25)),
    "4x4": ("node=4@200Mbit/s,gpu=4@1Gbit/s", (1 << 22, 1 << 24)),
}
"""Each with the payloads whose programs are measured."""
SIZES = tuple(1 << k for k in range(12, 27, 2))
GOALS = (Goal.REDUCE_SCATTER, Goal.ALL_GATHER, Goal.REDUCE, Goal.BROADCAST)


def wanted(spec: str, payloads: Sequence[int]) -> list[Case]:
    """What is measured on a system."""
    system = parse_system(spec)
    (at,) = placements(system, {"data": system.devices})
    found = [case_of(at, Reduction(("data",), size), LIBRARY, [INSIDE]) for size in SIZES]
    for payload in payloads:
        texts = [f"{program}, in {chunks} chunks" for program in (INSIDE, SPLIT) for chunks in (4, 8, 16)]
        found.append(case_of(at, Reduction(("data",), payload), LIBRARY, texts))
        found += cases([at], [Reduction(("data",), payload)], LIBRARY, every=3, best=5)
    for goal in GOALS:
        found += [
            case_of(at, Reduction(("data",), size, 1, goal), LIBRARY, [f"{goal.flat} all"])
            for size in (1 << 12, 1 << 16, 1 << 20, 1 << 24)
        ]
    return found


ABOUT = """Written by `make study-nccl` (`python -m benchmarks.nccl`). NCCL 2.28.9 with PyTorch 2.11; all
ranks share one H200, each is a host of its own to NCCL, and talks over TCP sockets through emulated links
(see [measuring](measuring.md)). Predictions are those of the profile `nccl-sockets`, from the configured
rates. Programs: for 4 MiB all of at most 3 steps and the best predicted, for the larger payloads as many as
there was time for."""
SPINNING = """With 16 ranks every call takes some 30 ms, whatever its size, so small payloads on 4x4 tell nothing
of NCCL. It is not the GPU: ranks that wait for it keep the machine's 16 cores busy, and the threads that send
get none. In a trial with ranks that sleep while they wait (cudaDeviceScheduleBlockingSync), NCCL's own
all-reduce on 4x4 took 1.35 ms for 4 KiB, 10.8 ms for 64 KiB and 80.2 ms for 1 MiB; predicted are 1.6, 10.8 and
79.6 ms."""
CHOICES = """What NCCL takes for an all-reduce, as it says itself (NCCL_DEBUG_SUBSYS=TUNING, payloads of
powers of two from 1 KiB to 64 MiB, ranks on links of 1 Gbit/s). By its tuning model, for each rank some 17.6 kB
are the most for which the protocol LL pays, which halves the bandwidth:"""
CHOSEN = """| ranks | tree, LL | tree, Simple | ring, LL | ring, Simple |
|---|---|---|---|---|
| 2 | | | up to 32 KiB | from 64 KiB |
| 3 | 1 KiB | | up to 32 KiB | from 64 KiB |
| 4 | 1 KiB | | up to 64 KiB | from 128 KiB |
| 8 | up to 4 KiB | | up to 128 KiB | from 256 KiB |
| 16 | up to 8 KiB | up to 64 KiB | up to 256 KiB | from 512 KiB |

Reduce-scatter and all-gather take rings with Simple from 64 KiB (2 and 3 ranks: 64 KiB, 4: 64 KiB, 8: 256 KiB,
16: 512 KiB) on, and below that PAT with 8 and 16 ranks; broadcast and reduce from 16 KiB on, whatever the ranks."""
ROOTED = """Broadcasts and reduces of some megabytes take longer than predicted: NCCL sends large pieces round
the ring, so that it takes long until the last rank has something to do; the model pipelines them
perfectly."""
TIMES = "measured | predicted | off by |"


def page(found: dict[str, list[Pair]]) -> str:
    """The document."""
    lines = ["# NCCL, measured on emulated links", "", *_wrapped(ABOUT), "", *_wrapped(SPINNING), ""]
    lines += [*_wrapped(CHOICES), "", CHOSEN, ""]
    for name, pairs in found.items():
        spec, payloads = SYSTEMS[name]
        mine = sorted((pair for pair in pairs if pair.goal == "all-reduce"), key=lambda pair: pair.bytes)
        lines += [f"## {spec}", "", "NCCL's own all-reduce:", "", f"| payload | {TIMES}", "|---|---|---|---|"]
        lines += [
            f"| {format_bytes(pair.bytes)} | {_cells(pair.default)} |" for pair in mine if pair.default is not None
        ]
        for pair in mine:
            lines += _programs(pair) if pair.bytes in payloads else []
        lines.append("")
        others = sorted((pair for pair in pairs if pair.goal != "all-reduce"), key=lambda pair: (pair.goal, pair.bytes))
        if others:
            lines += [
                "Other collectives over all ranks:",
                "",
                f"| collective | payload | {TIMES}",
                "|---|---|---|---|---|",
            ]
            own = [(pair, pair.default) for pair in others if pair.default is not None]
            lines += [f"| {pair.goal} | {format_bytes(pair.bytes)} | {_cells(one)} |" for pair, one in own]
            lines.append("")
    return "\n".join([*lines, *_wrapped(ROOTED)]) + "\n"


def _programs(pair: Pair) -> list[str]:
    """The programs of one payload."""
    assert pair.default is not None
    order = sorted(pair.outcomes, key=lambda one: one.predicted)
    fastest = min(pair.outcomes, key=lambda one: one.measured)
    errors = sorted(abs(one.error) for one in pair.outcomes)
    place = next(k for k, one in enumerate(order, 1) if one.measured <= 1.02 * fastest.measured)
    text = f"""{len(order)} programs were measured for {format_bytes(pair.bytes)}, some of them in 4, 8 and 16
        chunks. Predictions are off by {median(errors):.1%} in the median and {errors[int(0.9 * (len(errors) - 1))]:.1%}
        at the 90th percentile. The best, or one within 2% of it, is number {place} in the order of predictions. NCCL's
        own takes {pair.default.measured / fastest.measured:.2f} as long as the best. The eight fastest:"""
    few = sorted(pair.outcomes, key=lambda one: one.measured)[:8]
    table = [f"| `{one.program}` | {_cells(one)} |" for one in few]
    return ["", *_wrapped(text), "", f"| program | {TIMES}", "|---|---|---|---|", *table]


def _wrapped(text: str) -> list[str]:
    return wrap(" ".join(text.split()), 110, break_long_words=False, break_on_hyphens=False)


def _cells(one: Outcome) -> str:
    return f"{format_seconds(one.measured)} | {format_seconds(one.predicted)} | {one.error:+.1%}"


def pairs(name: str) -> list[Pair]:
    """What was measured on a system, beside the predictions."""
    return join(read_measurements(RESULTS / f"nccl-{name}.jsonl"), LIBRARY)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", action="store_true", help="measure nothing")
    options = parser.parse_args()
    found = {}
    for name, (spec, payloads) in SYSTEMS.items():
        out = RESULTS / f"nccl-{name}.jsonl"
        system = parse_system(spec)
        if not options.report:
            with temporary(system, f"nccl{os.getpid()}") as bed:
                job = Job(system, wanted(spec, payloads), out, PATIENCE, timeout=60.0, device="cuda")
                measure_on(bed, job)
        found[name] = pairs(name)
    DOCUMENT.write_text(page(found))


if __name__ == "__main__":
    main()
