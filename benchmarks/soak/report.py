"""The figures of all trials so far: benchmarks/results/soak.json, and the soak's own part of docs/reliability.md."""

import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.soak.cell import FAULTS, ROOT

RESULTS = ROOT / "benchmarks" / "results" / "soak.json"
DOCUMENT = ROOT / "docs" / "reliability.md"
EXTRAS = {"tests": "tests", "kills": "kills", "crashes": "with a crash of mpirun"}
"""What the details of trials count too, with what the table calls it."""

BEGIN, END = "<!-- written by make soak -->", "<!-- end of what make soak writes -->"


def figures(journal: Path) -> dict[str, Any]:
    """How many trials of each kind there were, and how many ended badly, by fault."""
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()}
    machine |= {package: version(package) for package in ("torch", "jax", "mpi4py", "numpy")}
    kinds: dict[str, dict[str, Any]] = {}
    for line in journal.read_text().splitlines():
        trial = json.loads(line)
        nothing = {"part": trial["part"], "machine": machine, "trials": 0, "missed": 0, **dict.fromkeys(FAULTS, 0)}
        row = kinds.setdefault(trial["kind"], nothing)
        if trial["verdict"] == "missed":
            row["missed"] += 1
            continue
        row["trials"] += 1
        for extra in EXTRAS:
            row[extra] = row.get(extra, 0) + trial["details"].get(extra, 0)
        if trial["verdict"] != "ok":
            row[trial["verdict"]] += 1
    for row in kinds.values():
        for extra in EXTRAS:
            if not row.get(extra):
                row.pop(extra, None)
    total = {name: sum(row[name] for row in kinds.values()) for name in ("trials", *FAULTS)}
    return {"total": total, "kinds": kinds}


def joined(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The figures of earlier trials with those of a journal, which replace those of the same kinds."""
    kinds = before["kinds"] | {name: row for name, row in found["kinds"].items() if row["trials"]}
    total = {name: sum(row[name] for row in kinds.values()) for name in found["total"]}
    return {"total": total, "kinds": kinds}


def table(found: dict[str, Any]) -> str:
    """The figures as a table in Markdown."""
    head = ["what", "trials", "hangs", "aborts", "wrong results", "unclear errors", "leftovers", "failed tests"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for name, row in [*found["kinds"].items(), ("all", found["total"])]:
        trials = f"{row['trials']:,}"
        several = [f"{row[extra]:,} {what}" for extra, what in EXTRAS.items() if extra in row]
        trials += f" ({', '.join(several)})" if several else ""
        lines.append("| " + " | ".join([name, trials, *(f"{row[fault]:,}" for fault in FAULTS)]) + " |")
    return "\n".join(lines)


def write_report(journal: Path, keep: bool) -> int:
    """Write the figures, or only show them; 1 if any trial ended badly. Those of kinds without trials here stay."""
    if not journal.exists() or not journal.read_text():
        print("there are no trials yet", file=sys.stderr)
        return 0
    found = figures(journal)
    print(table(found))
    ended_badly = any(found["total"][fault] for fault in FAULTS)
    if keep:
        found = joined(json.loads(RESULTS.read_text()) if RESULTS.exists() else {"kinds": {}}, found)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        text = DOCUMENT.read_text()
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        DOCUMENT.write_text(f"{before}{BEGIN}\n\n{table(found)}\n\n{END}{after}")
    return int(ended_badly)
