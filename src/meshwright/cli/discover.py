"""`meshwright discover`: a system file from what the cluster says about itself."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from meshwright.cli import options
from meshwright.cli.injob import ask_ranks
from meshwright.cli.output import print_json, print_table, print_text, say
from meshwright.cli.progress import progress
from meshwright.discovery.assemble import Discovery, assemble
from meshwright.discovery.explore import Measured
from meshwright.discovery.job import JOB, Told, job_topology, ranks_in_order
from meshwright.discovery.measured import doubts, said
from meshwright.discovery.read import FORMATS, read_topology
from meshwright.errors import SpecError
from meshwright.measure.peers.peers import ENGINES, job_engine
from meshwright.system.read import system_document
from meshwright.text.files import write_file
from meshwright.text.hostlist import format_hosts, parse_hosts
from meshwright.text.units import format_bandwidth, format_seconds

SHOWN_LETTERS, SHOWN_LINES = 2000, 30
"""How much of a list of hosts is shown, and how many irregularities."""


@click.command()
@click.argument("files", nargs=-1, type=options.FILE, metavar="FILE…")
@click.option(
    "--format", "form", type=click.Choice(list(FORMATS)), help="The format of all files, if it is not recognised."
)
@click.option(
    "--hosts", "names", metavar="HOST,…", help="Only these hosts, like n[001-004],m7; or the hosts, if no file has any."
)
@click.option("--node-type", metavar="TYPE", help="What every host is, like dgx-h100 or p5.48xlarge.")
@click.option("--name", default="discovered", help="The name of the system.")
@click.option(
    "--measure",
    is_flag=True,
    help="In a job: measure between its ranks, to find levels that nothing tells, and what links carry.",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    help="In a job: what its ranks talk through [default: what fits the launcher].",
)
@options.time("--timeout", "60s", "In a job: how long a rank waits for the others.")
@options.out("Write the system to this file.")
@options.out("Write the hosts to this file, one per line, in the order of the system's devices.", "--hosts-out")
@options.json
def discover(
    files: tuple[Path, ...],
    form: str | None,
    names: str | None,
    node_type: str | None,
    name: str,
    measure: bool,
    engine: str | None,
    timeout: float,
    out: Path | None,
    hosts_out: Path | None,
    as_json: bool,
) -> None:
    """Work out the hierarchy of a cluster: from topology FILEs, which together describe it, or without any from what
    the ranks of a job tell.

    Files of NCCL, `nvidia-smi topo -m` and hwloc tell about the inside of a host; those of Slurm, ibnetdiscover, AWS,
    Google Cloud and Kubernetes, and CSV lists of hosts and racks, about the network between hosts.

    \b
      meshwright discover topology.conf nccl.xml --hosts "$SLURM_JOB_NODELIST" --out system.yaml
      meshwright discover nodes.csv --node-type dgx-h100 --out system.yaml --hosts-out hosts

    In a job, every rank tells its host, its place in Slurm's topology, its GPUs and how they are linked, and its NUMA
    node. That needs no rights.

    \b
      torchrun --nnodes=4 --nproc-per-node=8 … -m meshwright discover --out system.yaml --hosts-out hosts
      srun python -m meshwright discover --out system.yaml --hosts-out hosts
      mpirun -n 32 python -m meshwright discover --out system.yaml --hosts-out hosts

    With --measure the ranks also send to each other, for up to a minute, with nothing else on the links: round trips,
    and many transfers at once. That shows the levels, and what their links carry, with the confidence of each level
    and the pairs of ranks that decided.
    """
    only = parse_hosts(names) if names is not None else None
    told: list[Told] = []
    measured: Measured | None = None
    if measure or (not files and (only is None or node_type is None)):
        if engine is None and job_engine(os.environ) is None:
            raise SpecError("name topology files, or say --hosts and --node-type, or start this in every rank of a job")
        told, measured = ask_ranks(engine, timeout, measure)
    with progress("reading the topology"):
        topologies = [read_topology(path, form) for path in files] + ([job_topology(told, measured)] if told else [])
        found = assemble(topologies, only, node_type, name)
    if out is not None:
        write_file(out, _file(found, [*map(str, files), *([JOB] if told else [])], measured))
    if hosts_out is not None:
        write_file(hosts_out, "".join(f"{host}\n" for host in found.hosts))
    if as_json:
        print_json(_document(found, told, measured))
    else:
        _show(found, out, measured)
    for path in (out, hosts_out):
        if path is not None:
            say(f"wrote {path}")


def _document(found: Discovery, told: Sequence[Told], measured: Measured | None) -> dict[str, Any]:
    """The result for JSON."""
    document: dict[str, Any] = {
        "system": system_document(found.system),
        "sources": dict(found.sources),
        "hosts": list(found.hosts),
        "left_out": list(found.left_out),
        "irregular": list(found.irregular),
        "notes": list(found.notes),
    }
    if told:
        document["ranks"] = ranks_in_order(told, found.hosts)
    if measured is not None:
        document["measured"] = _measured_document(measured)
    return document


def _show(found: Discovery, out: Path | None, measured: Measured | None) -> None:
    rows = []
    for level in found.system.levels:
        link = level.link
        rates = [link.bandwidth, link.per_device]
        bandwidth, each = ("" if rate is None else format_bandwidth(rate, link.bits) for rate in rates)
        latency = format_seconds(link.latency) if link.latency else ""
        extras = [str(link.fabric)] + [word for word in ("bypass", "reduces") if getattr(link, word)]
        source = found.sources[level.name] or "no figure"
        rows.append((level.name, level.count, bandwidth or "?", each, latency, ", ".join(extras), source))
    source = "source" if measured else "source, nominal"
    print_table(("level", "count", "bandwidth", "per device", "latency", "fabric", source), rows)
    each_host = found.system.devices // len(found.hosts)
    hosts, devices = (
        f"{count} {word}{'s' * (count != 1)}" for count, word in ((len(found.hosts), "host"), (each_host, "device"))
    )
    print_text(f"{hosts} of {devices}: {_cut(format_hosts(found.hosts))}")
    for line in _some(found.irregular):
        print_text(f"irregular: {line}")
    if found.left_out:
        print_text(f"left out, so that the rest is regular: {_cut(format_hosts(found.left_out))}")
    for note in [*found.notes, *(doubts(measured) if measured else [])]:
        say(f"note: {note}")
    if missing := [level.name for level in found.system.levels if level.link.bandwidth is None]:
        say(f"note: no bandwidth is known of {', '.join(missing)}: write one into the file before planning")
    system = out or "system.yaml"
    say(f"next: meshwright plan --system {system} …")
    say(f"or, to measure the figures: meshwright calibrate --system {system} …")


def _some(lines: Sequence[str]) -> list[str]:
    more = len(lines) - SHOWN_LINES
    return [*lines[:SHOWN_LINES], f"{more} more of this kind (--json has all)"] if more > 0 else list(lines)


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_LETTERS else f"{text[:SHOWN_LETTERS]}… (--hosts-out and --json have all)"


def _measured_document(measured: Measured) -> dict[str, Any]:
    """What was measured, for JSON: the confidence of each level, and the pairs of ranks that decided."""
    levels = [
        {
            "groups": [list(group) for group in level.groups],
            "by": level.by,
            "confidence": level.evidence.confidence,
            "said": said(level),
        }
        for level in measured.levels
    ]
    return {"confidence": measured.confidence, "rounds": measured.rounds, "levels": levels, "doubts": doubts(measured)}


def _file(found: Discovery, sources: Sequence[str], measured: Measured | None) -> str:
    """The text of the system file: comments say where each figure comes from and what is not in the system."""
    about = [f"Discovered from {', '.join(sources) or 'the type of the hosts'}."]
    nominal = "All figures are nominal: `meshwright calibrate` measures what the links really reach."
    about += [f"Measured in {measured.rounds} rounds, confidence {measured.confidence:.3f}." if measured else nominal]
    about += [f"Doubtful: {doubt}." for doubt in doubts(measured)] if measured else []
    about += [
        f"{level}: {source or 'no figure; write a bandwidth before planning'}"
        for level, source in found.sources.items()
    ]
    about += [f"Irregular: {line}." for line in _some(found.irregular)]
    about += [f"Left out: {_cut(format_hosts(found.left_out))}."] if found.left_out else []
    about += [f"Hosts, in the order of the devices: {_cut(format_hosts(found.hosts))}."]
    document: dict[str, Any] = system_document(found.system)
    comments = "".join(f"# {''.join(letter if letter.isprintable() else '?' for letter in line)}\n" for line in about)
    return comments + yaml.safe_dump(document, sort_keys=False)
