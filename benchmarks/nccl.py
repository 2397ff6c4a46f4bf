"""NCCL on emulated links: its own collectives by size, and the programs of an all-reduce, beside the predictions.

`make study-nccl` needs root and a GPU, which all ranks share. What is measured already is not measured again. With
`--report` nothing is measured. It writes docs/nccl.md.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

from benchmarks.bursts import BURST, PLAIN, SMALL, measure_by_size
from benchmarks.errors import off_by
from meshwright import Goal, Reduction, load_library, parse_system, placements, plan
from meshwright.measure.accuracy import Outcome, Pair, join
from meshwright.measure.bench import Case, Patience, case_of, cases
from meshwright.measure.jobs import Job
from meshwright.measure.records import read_measurements
from meshwright.text.units import format_bytes, format_seconds

RESULTS = Path(__file__).parent / "results"
DOCUMENT = Path(__file__).parent.parent / "docs" / "nccl.md"
LIBRARY = load_library("nccl-sockets")
PATIENCE = Patience(least=3, most=40, width=0.03, budget=2.0)

INSIDE = "ReduceScatter inside node; AllReduce across node; AllGather inside node"
SPLIT = "ReduceScatter inside node; ReduceScatter across node; AllGather across node; AllGather inside node"
SYSTEMS = {
    "2x4": ("node=2@200Mbit/s,gpu=4@1Gbit/s", (1 << 22, 1 << 24)),
    "4x4": ("node=4@200Mbit/s,gpu=4@1Gbit/s", (1 << 22, 1 << 24)),
}
"""Each with the payloads whose programs are measured."""
SIZES = tuple(1 << k for k in range(12, 27, 2))
"""All are measured of NCCL's own all-reduce, and all but the last of its other collectives."""
GOALS = (Goal.REDUCE_SCATTER, Goal.ALL_GATHER, Goal.REDUCE, Goal.BROADCAST)


def default_choice(spec: str, payload: int) -> str:
    """The program that `plan` takes by default for an all-reduce over all devices."""
    system = parse_system(spec)
    what = [Reduction(("data",), payload)]
    best = plan(system, {"data": system.devices}, what, library=LIBRARY, top=1, ranges=False).candidates[0]
    return best.program_text(best.reductions[0])


def wanted(spec: str, payloads: Sequence[int]) -> list[Case]:
    """What is measured on a system."""
    system = parse_system(spec)
    (at,) = placements(system, {"data": system.devices})
    found = [case_of(at, Reduction(("data",), size), LIBRARY, [INSIDE]) for size in SIZES]
    for goal in GOALS:
        found += [
            case_of(at, Reduction(("data",), size, 1, goal), LIBRARY, [f"{goal.flat} all"]) for size in SIZES[:-1]
        ]
    for payload in payloads:
        texts = [f"{program}, in {chunks} chunks" for program in (INSIDE, SPLIT) for chunks in (4, 8, 16)]
        every = dict.fromkeys([*texts, default_choice(spec, payload)])
        found.append(case_of(at, Reduction(("data",), payload), LIBRARY, list(every)))
        found += cases([at], [Reduction(("data",), payload)], LIBRARY, every=3, best=5)
    return found


ABOUT = """Written by `make study-nccl` (`python -m benchmarks.nccl`). NCCL 2.28.9 with PyTorch 2.11; all
ranks share one H200, each is a host of its own to NCCL, and talks over TCP sockets through emulated links
(see [measuring](measuring.md)). Predictions are those of the profile `nccl-sockets`, from the configured
rates; what the profile says of calls and messages was fitted to these measurements. Programs: all of at most 3
steps, the best predicted, two in chunks, and what `plan` takes by default."""
SLEEPING = """While they wait for the GPU the ranks sleep. Usually they would spin, and 16 ranks would keep the
machine's 16 cores from the threads that send: every call took some 30 ms then."""
LITTLE = f"""Idle emulated links let {BURST // 1000} kB through at once. Payloads below {format_bytes(SMALL)}, of which
that is much, were measured on links that let {PLAIN.small_burst / 1000:g} kB through, in packets of 1.5 kB, whose
headers take 4% of the rate."""
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

Reduce-scatter and all-gather take rings with Simple from 64 KiB on with 2, 3 and 4 ranks, from 256 KiB on with 8
and from 512 KiB on with 16, and below that PAT with 8 and 16 ranks; broadcast and reduce from 16 KiB on, whatever
the ranks."""
ROOTED = """Broadcasts and reduces are handed on in pieces of 512 KiB, half of the payload at most: two channels
share it, each in steps of an eighth of its buffer of 4 MiB. The model knows that. It takes a reduce for the mirror
image of a broadcast; NCCL's goes on round the ring to the root, so that one hop more is between nodes."""
TIMES = "measured | predicted | off by |"


def page(found: dict[str, list[Pair]]) -> str:
    """The document."""
    lines = ["# NCCL, measured on emulated links", ""]
    for text in (ABOUT, SLEEPING, LITTLE, _summary(found)):
        lines += [*_wrapped(text), ""]
    lines += [*_wrapped(CHOICES), "", CHOSEN, ""]
    for name, pairs in found.items():
        spec, payloads = SYSTEMS[name]
        mine = sorted((pair for pair in pairs if pair.goal == "all-reduce"), key=lambda pair: pair.bytes)
        lines += [f"## {spec}", "", "NCCL's own all-reduce:", ""]
        lines += [f"| payload | {TIMES}", "|---|---|---|---|"]
        sizes = [(pair.bytes, pair.default) for pair in mine if pair.default is not None]
        lines += [f"| {format_bytes(size)} | {_cells(one)} |" for size, one in sizes]
        for pair in mine:
            lines += _programs(spec, pair) if pair.bytes in payloads else []
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


def _summary(found: dict[str, list[Pair]]) -> str:
    """How good the predictions are, of all payloads."""
    every = [pair for pairs in found.values() for pair in pairs]
    cases = [_with_own(pair) for pair in every if pair.goal == "all-reduce"]
    ours = [one.error for case in cases for one in case]
    others = [pair for pair in every if pair.goal != "all-reduce"]
    large, little = (
        [one.error for pair in others if (pair.bytes < SMALL) == small for one in _with_own(pair)]
        for small in (False, True)
    )
    hits = [_place(case) for case in cases]
    return f"""In {len(cases)} cases, payloads on systems, the best program that was measured, or one within
        5% of it, is the best predicted in {hits.count(1) / len(cases):.0%}, and among the best three in
        {sum(place <= 3 for place in hits) / len(cases):.0%}. Predictions for all-reduces of any size, NCCL's own among
        them, are off by {off_by(ours)}, other collectives from {format_bytes(SMALL)} on by {off_by(large)}, and
        smaller ones, where calls and messages count most, by {off_by(little)}."""


def _with_own(pair: Pair) -> list[Outcome]:
    """All that was measured for a payload, NCCL's own among it."""
    return [*pair.outcomes, *([pair.default] if pair.default is not None else [])]


def _place(case: Sequence[Outcome], noise: float = 0.05) -> int:
    """The number, in the order of predictions, of the first that is as fast as the fastest within the noise."""
    order = sorted(case, key=lambda one: one.predicted)
    limit = (1 + noise) * min(one.measured for one in case)
    return next(place for place, one in enumerate(order, 1) if one.measured <= limit)


def _programs(spec: str, pair: Pair) -> list[str]:
    """The programs of one payload."""
    assert pair.default is not None
    fastest = min(pair.outcomes, key=lambda one: one.measured)
    errors = [one.error for one in pair.outcomes]
    text = f"""{len(pair.outcomes)} programs were measured for {format_bytes(pair.bytes)}, some of them in 4, 8 and 16
        chunks. Predictions are off by {off_by(errors)}. The best, or one within 2% of it, is number
        {_place(pair.outcomes, 0.02)} in the order of predictions. NCCL's own takes
        {pair.default.measured / fastest.measured:.2f} as long as the best. {_chosen(spec, pair)} The eight fastest:"""
    few = sorted(pair.outcomes, key=lambda one: one.measured)[:8]
    table = [f"| `{one.program}` | {_cells(one)} |" for one in few]
    return ["", *_wrapped(text), "", f"| program | {TIMES}", "|---|---|---|---|", *table]


def _chosen(spec: str, pair: Pair) -> str:
    """How good what `plan` takes by default is."""
    assert pair.default is not None
    text = default_choice(spec, pair.bytes)
    took = next((one.measured for one in pair.outcomes if one.program == text), None)
    if took is None:
        return f"By default `plan` takes `{text}`, which was not measured."
    return f"""By default `plan` takes `{text}`: {format_seconds(took)}, {pair.default.measured / took:.2f} times as
        fast as NCCL's own, {took / pair.bound:.2f} times the bound."""


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
    parser.add_argument("--only", choices=SYSTEMS, help="measure on one of the systems")
    options = parser.parse_args()
    for name, (spec, payloads) in SYSTEMS.items():
        out = RESULTS / f"nccl-{name}.jsonl"
        system = parse_system(spec)
        if not options.report and options.only in (None, name):
            measure_by_size(Job(system, wanted(spec, payloads), out, PATIENCE, timeout=60.0, device="cuda"), PLAIN)
    DOCUMENT.write_text(page({name: pairs(name) for name in SYSTEMS if (RESULTS / f"nccl-{name}.jsonl").exists()}))


if __name__ == "__main__":
    main()
