"""`meshwright calibrate`: what the links and the library really reach."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import yaml

from meshwright.cli import options
from meshwright.cli.measuring import measure_cases, measuring_options
from meshwright.cli.output import print_json, print_table, say
from meshwright.cli.progress import progress
from meshwright.cost.library import library_document
from meshwright.errors import SpecError
from meshwright.language.program import Collective
from meshwright.measure.calibrate import Fit, fit, message_rate
from meshwright.measure.calibrate import shared_processors as with_shared
from meshwright.measure.logs import read_log
from meshwright.measure.observations import Observation, microbenchmarks, observations
from meshwright.measure.records import read_measurements
from meshwright.planning.planner import library_for
from meshwright.system.model import System
from meshwright.system.read import load_system, system_document
from meshwright.text.files import write_file
from meshwright.text.spec import one_of
from meshwright.text.units import format_bandwidth, format_seconds, parse_bytes


@click.command()
@options.system
@options.system_library
@options.out("The file that measurements are added to; those in it are not made again.", "--measurements")
@click.option(
    "--log", "logs", multiple=True, metavar="LEVEL=FILE", help="Output of nccl-tests or OSU; may be repeated."
)
@click.option("--sizes", default="64KiB,512KiB,2MiB", help="The payloads to measure with.")
@options.no_rooted
@click.option(
    "--shared-processors",
    is_flag=True,
    help="All devices are on one machine, as on a testbed: fit the rate of messages, from the smallest payload.",
)
@click.option("--fit-only", is_flag=True, help="Measure nothing: fit what the file and the logs have.")
@options.out("Write the calibrated system to this file.")
@options.out("Write the calibrated library to this file.", "--library-out")
@measuring_options
@options.json
def calibrate(
    system_spec: str,
    library: str | None,
    measurements: Path | None,
    logs: tuple[str, ...],
    sizes: str,
    no_rooted: bool,
    shared_processors: bool,
    fit_only: bool,
    out: Path | None,
    library_out: Path | None,
    as_json: bool,
    **measuring: Any,
) -> None:
    """Measure sends and collectives inside each level of SYSTEM, and fit bandwidth, latency and the library's
    efficiency.

    The bandwidths of SYSTEM are a first guess. Start it like `bench`. With --log it fits logs of nccl-tests and of OSU
    microbenchmarks instead, each of which ran inside one level; with --measurements and --fit-only what was measured
    before.
    """
    system = load_system(system_spec)
    profile = library_for(system, library)
    seen: list[Observation] = []
    for entry in logs:
        seen += _log(system, entry)
    if measurements is not None and not fit_only:
        chosen = [parse_bytes(size) for size in sizes.split(",")]
        wanted = microbenchmarks(system, profile, chosen, not no_rooted)
        if not measure_cases(system, wanted, measurements, measuring):
            return  # rank 0 goes on
    if measurements is not None:
        seen += observations(read_measurements(measurements))
    elif not logs:
        raise SpecError("say what to calibrate from: --measurements FILE to measure, or --log LEVEL=FILE")
    with progress(f"fitting {len(seen):,} observations"):
        found = fit(system, profile, seen)
        if shared_processors:
            rate = message_rate(system, profile, seen)
            found = replace(found, system=with_shared(found.system, rate, system, profile))
    _write(found, out, library_out)
    _show(found, as_json)


def _log(system: System, entry: str) -> list[Observation]:
    level, equals, name = entry.partition("=")
    if not equals:
        raise SpecError(f"--log {entry}: expected LEVEL=FILE, like gpu=all_reduce.log")
    known = {each.name: each.count for each in system.levels}
    return read_log(Path(name), level, known[one_of(known, "level", level)])


def _write(found: Fit, out: Path | None, library_out: Path | None) -> None:
    about = f"# Calibrated from {found.observations} observations; relative errors are left of {found.residual:.1%}.\n"
    for path, document in ((out, system_document(found.system)), (library_out, library_document(found.library))):
        if path is None:
            continue
        write_file(path, about + yaml.safe_dump(document, sort_keys=False))
        say(f"wrote {path}")


def _show(found: Fit, as_json: bool) -> None:
    rules = dict(found.library.rules)
    if as_json:
        fitted = {"system": system_document(found.system), "library": library_document(found.library)}
        links = {"bandwidth": found.bandwidth_error, "latency": found.latency_error}
        about = {"observations": found.observations, "residual": found.residual}
        print_json({**about, **fitted, "errors": {**links, "efficiency": found.efficiency_error}})
        return
    rows = []
    for level in found.system.levels:
        bandwidth = format_bandwidth(level.link.bandwidth or 0.0, level.link.bits)
        latency = format_seconds(level.link.latency)
        errors = [_share(known.get(level.name)) for known in (found.bandwidth_error, found.latency_error)]
        rows.append([level.name, bandwidth, errors[0], latency, errors[1]])
    print_table(["level", "bandwidth", "±", "latency", "±"], rows)
    if found.system.message_rate is not None:
        say(f"all devices together handle {found.system.message_rate:,.0f} messages per second")
    rows = [
        [kind, f"{max(rule.efficiency for rule in rules[kind]):.3f}", _share(found.efficiency_error.get(kind))]
        for kind in Collective
    ]
    print_table(["collective", "efficiency", "±"], rows)
    say(f"{found.observations} observations, off by {found.residual:.1%} (root mean square)")


def _share(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.1%}"
