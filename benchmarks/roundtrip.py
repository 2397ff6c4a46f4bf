"""The round trip: a job whose hosts are shuffled discovers its hierarchy, calibrates, plans and runs the plan.

`python -m benchmarks.roundtrip FOLDER` needs root. It emulates a cluster, and starts the verbs of the command line in
ranks on it, at first in a shuffled order of hosts and then in the order that was discovered. What they write is in the
folder: shuffled, hosts, system.yaml, calibrated.yaml, library.yaml, plan.json, run.json, and a summary, roundtrip.json.
"""

import argparse
import importlib
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from meshwright import parse_system
from meshwright.measure.jobs import fork_ranks, wait_for_forked
from meshwright.system.read import load_system
from meshwright.testbed import Testbed, temporary

SYSTEM = "node=2@20Mbit/s,gpu=4@60Mbit/s"
BURST = 18_000


def run_verb(bed: Testbed, port: int, hosts: Sequence[str], words: Sequence[str], out: Path) -> None:
    """Run a verb in ranks on the devices, in this order; what rank 0 writes to stdout goes to a file."""

    def work(rank: int) -> None:
        os.environ["SLURMD_NODENAME"] = hosts[rank]  # forked ranks share the name of the machine
        if rank == 0:
            os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), 1)
        sys.argv[1:] = words
        try:
            runpy.run_module("meshwright", run_name="__main__")  # as python -m does, but PyTorch is loaded already
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(f"meshwright {words[0]} ended with exit code {ended.code}") from None

    if reason := wait_for_forked(fork_ranks(bed, port, work, bed.order(hosts))):
        sys.exit(f"meshwright {words[0]}: {reason}")


def round_trip(spec: str, payload: str, folder: Path, quick: bool) -> dict[str, Any]:
    """Do all of it; the summary."""
    system = parse_system(spec)
    at = {name: str(folder / name) for name in ("hosts", "system.yaml", "calibrated.yaml", "library.yaml", "plan.json")}
    patience = ["--least", "3", "--most", "3", "--sizes", "32KiB,512KiB"] if quick else []
    with temporary(system, f"roundtrip{os.getpid()}", BURST) as bed:
        addresses = [bed.network.address(device) for device in range(system.devices)]
        shuffled = Random(7).sample(addresses, len(addresses))
        (folder / "shuffled").write_text("\n".join(shuffled) + "\n")
        port = bed.port()
        words = ["discover", "--measure", "--out", at["system.yaml"], "--hosts-out", at["hosts"], "--json"]
        run_verb(bed, port, shuffled, words, folder / "discover.json")
        hosts = (folder / "hosts").read_text().split()
        words = ["calibrate", "--system", at["system.yaml"], "--library", "gloo"]
        words += ["--measurements", str(folder / "measurements.jsonl"), *patience]
        words += ["--out", at["calibrated.yaml"], "--library-out", at["library.yaml"], "--json"]
        run_verb(bed, port + 1, hosts, words, folder / "calibrate.json")
        words = ["plan", "--system", at["calibrated.yaml"], "--library", at["library.yaml"]]
        words += ["--axes", f"data={system.devices}", "--reduce", f"data={payload}", "--out", at["plan.json"]]
        subprocess.run([sys.executable, "-m", "meshwright", *words], check=True, stdout=subprocess.DEVNULL)
        run_verb(bed, port + 2, hosts, ["run", at["plan.json"], "--engine", "torch", "--json"], folder / "run.json")
    found = load_system(at["system.yaml"])
    (reduction,) = json.loads((folder / "run.json").read_text())["reductions"]
    summary = {
        "system": spec,
        "counts": list(found.counts),
        "right": list(found.counts) == list(system.counts) and _together(system.counts, addresses, hosts),
        "hosts": hosts,
        "confidence": json.loads((folder / "discover.json").read_text())["measured"]["confidence"],
        **{key: reduction[key] for key in ("program", "correct", "seconds", "predicted_seconds", "default_seconds")},
    }
    (folder / "roundtrip.json").write_text(json.dumps(summary, indent=1) + "\n")
    return summary


def _together(counts: Sequence[int], addresses: Sequence[str], hosts: Sequence[str]) -> bool:
    """Whether the devices of every instance of a level follow each other in the order of hosts."""
    inside = len(hosts)
    places = [addresses.index(host) for host in hosts]
    for count in counts:
        inside //= count
        for start in range(0, len(places), inside):
            if len({place // inside for place in places[start : start + inside]}) != 1:
                return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--system", default=SYSTEM)
    parser.add_argument("--payload", default="4MiB")
    parser.add_argument("--quick", action="store_true", help="calibrate with few measurements")
    options = parser.parse_args()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    for module in ("meshwright.measure.peers.torch", "meshwright.measure.trials.torch"):  # before ranks are forked
        importlib.import_module(module)
    print(json.dumps(round_trip(options.system, options.payload, options.folder, options.quick)))


if __name__ == "__main__":
    main()
