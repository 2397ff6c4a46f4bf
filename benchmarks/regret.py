"""Regret: what a user loses who takes the plan that `plan` gives, on systems that the model was never fitted to.

`python -m benchmarks.regret` needs root. For every system and payload it measures the library's own all-reduce, the
best program step after step, the plan's choice, and the best program in several numbers of chunks, with gloo on
emulated clusters. What is measured already is not measured again; with `--report` nothing is.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from meshwright import Reduction, load_library, parse_system, placements, plan
from meshwright.measure.bench import Case, Patience, case_of
from meshwright.measure.jobs import Job, measure_on
from meshwright.planning.plan import Plan
from meshwright.testbed import temporary

RESULTS = Path(__file__).parent / "results"
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
BURST = 18_000
"""Two packets: with more, small payloads would cross the links of devices in no time."""
CHUNKS = (2, 4, 8, 16)
PATIENCE = Patience(least=3, most=15, width=0.02, budget=8.0)


def planned(spec: str, payload: int, chunks: int) -> Plan:
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


def file(spec: str) -> Path:
    return RESULTS / f"regret-{spec.replace('=', '-').replace(',', '-').replace('/', '').replace('@', '-')}.jsonl"


def measure(spec: str, payloads: Sequence[int]) -> None:
    """Measure one system."""
    system = parse_system(spec)
    with temporary(system, f"regret{os.getpid()}", BURST) as bed:
        measure_on(bed, Job(system, [case(spec, payload) for payload in payloads], file(spec), PATIENCE, timeout=60.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="how many systems are measured at a time")
    parser.add_argument("--system", action="append", help="only this one")
    options = parser.parse_args()
    specs = options.system or [*STUDIED, *OTHERS]
    if len(specs) == 1:
        measure(specs[0], PAYLOADS)
        return
    waiting, running = list(specs), list[subprocess.Popen[bytes]]()
    while waiting or running:
        while waiting and len(running) < options.jobs:
            running.append(subprocess.Popen([sys.executable, "-m", "benchmarks.regret", "--system", waiting.pop(0)]))
        running.pop(0).wait()


if __name__ == "__main__":
    main()
