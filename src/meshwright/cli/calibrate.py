"""`meshwright calibrate`: what the links and the library really reach."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import yaml

from meshwright.cli.common import (
    json_option,
    library_option,
    new_table,
    no_rooted_option,
    out_option,
    print_json,
    print_table,
    say,
    system_option,
)
from meshwright.cli.measuring import measure_cases, measuring_options
from meshwright.cost.library import library_document, load_library
from meshwright.errors import SpecError
from meshwright.language.program import Collective
from meshwright.measure.calibrate import Fit, fit, message_rate
from meshwright.measure.calibrate import shared_processors as with_shared
from meshwright.measure.logs import read_log
from meshwright.measure.observations import Observation, microbenchmarks, observations
from meshwright.measure.records import read_measurements
from meshwright.system.model import System
from meshwright.system.read import load_system, system_document
from meshwright.text.files import write_file
from meshwright.text.spec import unknown
from meshwright.text.units import format_bandwidth, format_seconds, parse_bytes


@click.command()
@system_option
@library_option
@out_option("The file that measurements are added to; those in it are not made again.", "--measurements")
@click.option(
    "--log", "logs", multiple=True, metavar="LEVEL=FILE", help="Output of nccl-tests or OSU; may be repeated."
)
@click.option("--sizes", default="64KiB,512KiB,2MiB", show_default=True, help="The payloads to measure with.")
@no_rooted_option
@click.option(
    "--shared-processors",
    is_flag=True,
    help="All devices are on one machine, as on a testbed: fit the rate of messages, from the smallest payload.",
)
@click.option("--fit-only", is_flag=True, help="Measure nothing: fit what the file and the logs have.")
@out_option("Write the calibrated system to this file.")
@out_option("Write the calibrated library to this file.", "--library-out")
@measuring_options
@json_option
def calibrate(
    system_spec: str,
    library: str,
    measurements: Path | None,
    logs: tuple[str, ...],
    sizes: str,
    no_rooted: bool,
    shared_processors: bool,
    fit_only: bool,
    out: Path | None,
    library_out: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure sends and collectives inside each level of SYSTEM, and fit bandwidth, latency and the library's
    efficiency.

    The bandwidths of SYSTEM are a first guess. Start it like `bench`. With --log it fits logs of nccl-tests and of OSU
    microbenchmarks instead, each of which ran inside one level; with --measurements and --fit-only what was measured
    before.
    """
    system, profile = load_system(system_spec), load_library(library)
    seen: list[Observation] = []
    for entry in logs:
        seen += _log(system, entry)
    if measurements is not None and not fit_only:
        chosen = [parse_bytes(size) for size in sizes.split(",")]
        measure_cases(system, microbenchmarks(system, profile, chosen, not no_rooted), measurements, options)
    if measurements is not None:
        seen += observations(read_measurements(measurements))
    elif not logs:
        raise SpecError("say what to calibrate from: --measurements FILE to measure, or --log LEVEL=FILE")
    found = fit(system, profile, seen)
    if shared_processors:
        found = replace(found, system=with_shared(found.system, message_rate(system, profile, seen), system, profile))
    _write(found, out, library_out)
    _show(found, as_json)


def _log(system: System, entry: str) -> list[Observation]:
    level, equals, name = entry.partition("=")
    if not equals:
        raise SpecError(f"--log {entry}: expected LEVEL=FILE, like gpu=all_reduce.log")
    known = {each.name: each.count for each in system.levels}
    if level not in known:
        raise SpecError(unknown("level", level, list(known)))
    return read_log(Path(name), level, known[level])


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
        print_json(
            {
                "observations": found.observations,
                "residual": found.residual,
                "system": system_document(found.system),
                "library": library_document(found.library),
                "errors": {
                    "bandwidth": found.bandwidth_error,
                    "latency": found.latency_error,
                    "efficiency": {str(kind): error for kind, error in found.efficiency_error.items()},
                },
            }
        )
        return
    table = new_table("level", "bandwidth", "±", "latency", "±")
    for level in found.system.levels:
        table.add_row(
            level.name,
            format_bandwidth(level.link.bandwidth or 0.0),
            _share(found.bandwidth_error.get(level.name)),
            format_seconds(level.link.latency),
            _share(found.latency_error.get(level.name)),
        )
    print_table(table)
    if found.system.message_rate is not None:
        say(f"all devices together handle {found.system.message_rate:,.0f} messages per second")
    table = new_table("collective", "efficiency", "±")
    for kind in Collective:
        table.add_row(str(kind), f"{rules[kind][-1].efficiency:.3f}", _share(found.efficiency_error.get(kind)))
    print_table(table)
    say(f"{found.observations} observations, off by {found.residual:.1%} (root mean square)")


def _share(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.1%}"
