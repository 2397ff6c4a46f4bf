"""Discovery by measurement on emulated clusters: is the hierarchy found, and how sure is it?

`python -m benchmarks.discovery` needs root. On every cluster a job is started whose hosts are shuffled; its ranks
measure, and what they find is compared with the truth. Each result is written as it comes, and what a pass has is not
measured again; with `--report` nothing is. It writes the table of docs/discovery.md.
"""

import argparse
import importlib
import json
import os
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from meshwright import parse_system
from meshwright.discovery.evidence import LOW
from meshwright.measure.jobs import fork_ranks, wait_for_forked
from meshwright.measure.probing import measure_job
from meshwright.system.model import System
from meshwright.testbed import Testbed, temporary
from meshwright.text.units import format_bandwidth

RESULTS = Path(__file__).parent / "results" / "discovery" / "clusters.jsonl"
DOCUMENT = Path(__file__).parent.parent / "docs" / "discovery.md"
BEGIN, END = "<!-- drawn by python -m benchmarks.discovery -->", "<!-- end of the table -->"
BURST = 18_000
"""Two packets: with more, small transfers would cross the links of devices in no time."""

CLUSTERS = (
    "node=2@20Mbit/s,gpu=2@40Mbit/s",
    "node=2@20Mbit/s,gpu=2@30Mbit/s",
    "node=2@30Mbit/s,gpu=2@30Mbit/s",
    "node=2@20Mbit/s,gpu=4@40Mbit/s",
    "node=2@20Mbit/s,gpu=4@30Mbit/s",
    "node=2@20Mbit/s+4ms,gpu=4@40Mbit/s+1ms",
    "node=4@20Mbit/s,gpu=2@40Mbit/s",
    "node=4@20Mbit/s,gpu=2@30Mbit/s",
    "node=3@15Mbit/s,gpu=3@45Mbit/s",
    "node=3@20Mbit/s,gpu=3@30Mbit/s",
    "node=3@30Mbit/s,gpu=4@30Mbit/s",
    "node=3@20Mbit/s+2ms,gpu=4@40Mbit/s+1ms",
    "node=4@20Mbit/s,gpu=4@40Mbit/s",
    "node=4@20Mbit/s,gpu=4@30Mbit/s",
    "node=4@10Mbit/s,gpu=4@50Mbit/s",
    "node=4@20Mbit/s+2ms,gpu=4@30Mbit/s+1ms",
    "node=2@20Mbit/s,gpu=8@40Mbit/s",
    "node=8@20Mbit/s,gpu=2@40Mbit/s",
    "node=5@20Mbit/s,gpu=3@30Mbit/s",
    "node=6@15Mbit/s,gpu=4@30Mbit/s",
    "node=6@20Mbit/s,gpu=4@30Mbit/s",
    "node=4@20Mbit/s,gpu=6@40Mbit/s",
    "node=3@20Mbit/s,gpu=8@30Mbit/s",
    "rack=2@10Mbit/s,node=2@20Mbit/s,gpu=2@40Mbit/s",
    "rack=2@15Mbit/s,node=2@22.5Mbit/s,gpu=2@33.75Mbit/s",
    "rack=2@20Mbit/s,node=2@20Mbit/s,gpu=2@20Mbit/s",
    "rack=2@10Mbit/s+4ms,node=2@20Mbit/s+2ms,gpu=2@40Mbit/s+1ms",
    "rack=2@10Mbit/s,node=2@20Mbit/s,gpu=3@40Mbit/s",
    "rack=2@10Mbit/s,node=3@20Mbit/s,gpu=2@40Mbit/s",
    "rack=2@15Mbit/s,node=3@22.5Mbit/s,gpu=2@33.75Mbit/s",
    "rack=3@10Mbit/s,node=2@20Mbit/s,gpu=2@40Mbit/s",
    "rack=2@10Mbit/s,node=2@20Mbit/s,gpu=4@40Mbit/s",
    "rack=2@15Mbit/s+4ms,node=2@22.5Mbit/s+2ms,gpu=4@33.75Mbit/s+1ms",
    "rack=2@15Mbit/s,node=4@22.5Mbit/s,gpu=2@33.75Mbit/s",
    "rack=3@10Mbit/s,node=2@20Mbit/s,gpu=3@40Mbit/s",
    "rack=2@10Mbit/s,node=4@20Mbit/s,gpu=3@40Mbit/s",
    "rack=2@15Mbit/s,node=3@22.5Mbit/s,gpu=4@33.75Mbit/s",
    "rack=2@16Mbit/s,node=2@24Mbit/s,gpu=6@36Mbit/s",
)


def ratio(system: System) -> float:
    """The smallest ratio of the rates of neighbouring levels."""
    rates = [level.link.bandwidth or 0.0 for level in system.levels]
    return min(inner / outer for outer, inner in pairwise(rates))


def groups(system: System, order: Sequence[int]) -> list[list[list[int]]]:
    """The true groups of ranks, level by level, outermost first."""
    found, inside = [], system.devices
    for count in system.counts:
        inside //= count
        by_place: dict[int, list[int]] = {}
        for rank, device in enumerate(order):
            by_place.setdefault(device // inside, []).append(rank)
        found.append(sorted(by_place.values()))
    return found


def measure_on(bed: Testbed, order: Sequence[int], port: int) -> dict[str, Any]:
    """What the ranks of a job find that runs on the devices in this order."""
    from meshwright.measure.peers.torch import TorchPeers

    with TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"

        def work(_: int) -> None:
            peers = TorchPeers(60.0)
            started = time.monotonic()
            found = measure_job(peers, ())
            if found is not None:
                levels = [
                    {
                        "groups": sorted(map(sorted, level.groups)),
                        "rate": level.rate,
                        "latency": level.latency,
                        "by": level.by,
                        "ratio": min(level.evidence.ratio, 1e9),
                        "confidence": level.evidence.confidence,
                    }
                    for level in found.levels
                ]
                about = {"levels": levels, "confidence": found.confidence, "rounds": found.rounds}
                path.write_text(json.dumps(about | {"seconds": time.monotonic() - started}))
            peers.close()

        reason = wait_for_forked(fork_ranks(bed, port, work, order))
        if reason:
            return {"failed": reason}
        document: dict[str, Any] = json.loads(path.read_text())
        return document


def one(spec: str, number: int) -> dict[str, Any]:
    """One cluster, with hosts in the order that its number draws."""
    system = parse_system(spec)
    order = Random(number).sample(range(system.devices), system.devices)
    with temporary(system, f"discovery{os.getpid()}", BURST) as bed:
        found = measure_on(bed, order, bed.port() + number)
    right = found.get("levels") is not None and [level["groups"] for level in found["levels"]] == groups(system, order)
    levels = found.get("levels", [])
    sizes, rates = [len(level["groups"]) for level in levels], [level["rate"] for level in levels]
    return {"system": spec, "order": order, "right": right, "sizes": sizes, "rates": rates, **found}


def read() -> list[dict[str, Any]]:
    """What was measured."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return [json.loads(line) for line in lines]


def row(entry: dict[str, Any]) -> str:
    """A line of the table."""
    said = "right" if entry["right"] else "WRONG"
    rates = ", ".join(map(format_bandwidth, entry["rates"]))
    sizes = " x ".join(map(str, entry["sizes"])) or entry["failed"]
    cells = [
        f"`{entry['system']}`",
        str(entry["pass"]),
        f"{ratio(parse_system(entry['system'])):.2g}",
        said,
        sizes,
        rates,
    ]
    cells += [f"{entry.get('confidence', 0.0):.3f}", str(entry.get("rounds", "")), f"{entry.get('seconds', 0.0):.0f} s"]
    return f"| {' | '.join(cells)} |"


def summary(number: int, entries: Sequence[dict[str, Any]]) -> str:
    """How many of a pass are right."""
    parts = []
    for name, wide in (("2x or more", True), ("less", False)):
        chosen = [entry for entry in entries if (ratio(parse_system(entry["system"])) >= 2) == wide]
        right = sum(entry["right"] for entry in chosen)
        parts.append(f"{right} of {len(chosen)} where rates of neighbouring levels differ by {name}")
    sure = sum(not entry["right"] and entry.get("confidence", 0.0) >= LOW for entry in entries)
    low = sum(entry["right"] and entry["confidence"] < LOW for entry in entries)
    return (
        f"- Pass {number}: right are {' and '.join(parts)}. Wrong with a high confidence: {sure}; right with "
        f"a low one, below {LOW}: {low}."
    )


def table(found: Sequence[dict[str, Any]]) -> str:
    """The table, with a summary of each pass."""
    passes = sorted({entry["pass"] for entry in found})
    lines = [summary(number, [entry for entry in found if entry["pass"] == number]) for number in passes]
    lines += [
        "",
        "| cluster | pass | least ratio | result | groups | rates found, outermost first | sure | rounds | time |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    ordered = sorted(found, key=lambda entry: (CLUSTERS.index(entry["system"]), entry["pass"]))
    return "\n".join([*lines, *map(row, ordered)])


def write(found: Sequence[dict[str, Any]]) -> None:
    """Put the table into the document."""
    before, begin, rest = DOCUMENT.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        DOCUMENT.write_text(f"{before}{BEGIN}\n\n{table(found)}\n\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", action="append", help="only this cluster")
    parser.add_argument("--pass", type=int, default=1, dest="number", help="what this pass has is not measured again")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    options = parser.parse_args()
    if not options.report:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        importlib.import_module("meshwright.measure.peers.torch")  # before ranks are forked
        for number, spec in enumerate(CLUSTERS):
            done = any(entry["system"] == spec and entry["pass"] == options.number for entry in read())
            if done or (options.system and spec not in options.system):
                continue
            entry = {"pass": options.number, **one(spec, number)}
            with RESULTS.open("a") as file:
                file.write(json.dumps(entry) + "\n")
            print(row(entry), flush=True)
    write(read())


if __name__ == "__main__":
    main()
