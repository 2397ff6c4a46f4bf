"""`meshwright reproduce`: the paper's evaluation, with our figures beside the paper's."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from meshwright.cli import options
from meshwright.cli.output import print_json, say
from meshwright.cli.progress import counted, progress
from meshwright.planning.reproduce import MACHINES, WIN, PaperCase, Summary, cases, search_costs, summary
from meshwright.text.files import write_file


@click.command()
@options.library
@options.out("Write the page to this file too.")
@options.json
def reproduce(library: str, out: Path | None, as_json: bool) -> None:
    """Repeat the evaluation of the P2 paper with the model, and set the figures beside the paper's."""
    found: dict[str, list[PaperCase]] = {}
    for machine in MACHINES:
        say(f"{machine}: all placements of one to three axes, every reduction …")
        found[machine] = list(counted(cases(machine, library), "cases"))
    with progress("looking for all programs, with each technique"):
        costs = [cost for levels in (2, 3, 4) for cost in search_costs(levels)]
    everything = [case for listed in found.values() for case in listed]
    sums = {machine: summary(listed) for machine, listed in found.items()} | {"all": summary(everything)}
    page = _page(library, sums, everything, [asdict(cost) for cost in costs])
    if out is not None:
        write_file(out, page)
        say(f"wrote {out}")
    if as_json:
        print_json(
            {
                "library": library,
                "summaries": {machine: asdict(entry) for machine, entry in sums.items()},
                "search": [asdict(cost) for cost in costs],
                "cases": [_case(case) for case in everything],
            }
        )
    else:
        click.echo(page, nl=False)


def _case(case: PaperCase) -> dict[str, Any]:
    """A case as plain data; the paper's axes have no names but their numbers."""
    entry = asdict(case)
    axes = {str(number): size for number, size in enumerate(entry.pop("axes"))}
    placement = {"axes": axes, "matrix": [list(row) for row in entry.pop("matrix")]}
    return {**entry, "placement": placement, "reduced": [str(number) for number in entry["reduced"]]}


def _page(library: str, sums: dict[str, Summary], everything: list[PaperCase], costs: list[dict[str, object]]) -> str:
    total = sums["all"]
    setting = (
        "Machines: the paper's two, with 2 and 4 nodes; one to three axes whose sizes multiply to the devices, all "
        "placements, every reduction, 2^29 float32 per device times the number of nodes, no latency, programs of at "
        "most 5 steps."
    )
    top = max(everything, key=lambda case: case.speedup)
    programs = " or ".join(map(str, sorted({case.programs for case in everything})))
    compared = [
        "| | the paper, measured | this model |",
        "|---|---|---|",
        f"| slowest over fastest placement of a reduction | up to 448x | up to {total.spread:.0f}x |",
        f"| cases where a synthesized program beats the default | 69% | {total.wins:.0%} |",
        f"| mean speedup in those cases | 1.27x | {total.mean_of_wins:.2f}x |",
        f"| best speedup | 2.04x | {total.best:.2f}x |",
    ]
    machines = [
        "| machine | cases | spread | beat the default | mean there | mean of all | best | over the bound |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for machine, entry in sums.items():
        machines.append(
            f"| {machine} | {entry.cases} | {entry.spread:.0f}x | {entry.wins:.0%} | {entry.mean_of_wins:.2f}x | "
            f"{entry.mean:.2f}x | {entry.best:.2f}x | {entry.best_over_bound:.3f}x |"
        )
    searches = ["| levels | technique | states | seconds |", "|---|---|---|---|"]
    for cost in costs:
        searches.append(f"| {cost['levels']} | {cost['technique']} | {cost['states']} | {cost['seconds']:.4f} |")
    paragraphs = [
        "# The paper's evaluation, repeated with the model",
        f"`meshwright reproduce --library {library} --out FILE` writes this page. {setting}",
        "\n".join(compared),
        f"A case is a placement and a reduction; a program beats the default if it is at least {WIN - 1:.0%} faster.",
        "\n".join(machines),
        f"The best case: {top.machine}, axes {list(top.axes)}, placement {[list(row) for row in top.matrix]}, "
        f"reduction over axis {', '.join(str(k) for k in top.reduced)}: `{top.program}`.",
        *(_DIFFERENCES if library == "ring" else []),
        "## What the search costs",
        "States that a search for all programs of at most 5 steps looks at, and seconds in one run. Exact states are "
        "those of groups of two at each level: with larger groups their size grows, that of symbolic states does not.",
        "\n".join(searches),
        f"The cases have {programs} valid programs each: their hierarchies have one or two levels.",
    ]
    return "\n\n".join(paragraphs) + "\n"


_DIFFERENCES = [
    "## Where the figures differ, and why",
    "These are a model's figures beside measured ones. The spread is larger than measured because the model has "
    "no latency, no protocol overhead and no CPU: a reduction inside a node runs at the full speed of its links, "
    "which no library reaches, while one that crowds the network card is as slow as predicted. The gain where "
    "programs win is larger on average because further steps cost nothing beyond their bytes; the best gain is "
    "smaller because the default is a perfect ring, and the measured one had overheads of its own. Fewer cases win "
    "because groups inside one node, or with one device per node, are a tie here, where the flat AllReduce is "
    "recommended, as in the paper; measured times scatter around a tie. With `--library ideal` the default is the "
    "best of all known algorithms, among them a tree between nodes that already moves the least, and nothing beats "
    "it.",
]
"""Where and why the model's figures differ from measured ones: said of plain rings, which the paper measured."""
