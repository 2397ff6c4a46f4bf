"""`meshwright testbed`: an emulated cluster on this machine."""

import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from meshwright import testbed as beds
from meshwright.cli import options
from meshwright.cli.output import print_json, print_table, say
from meshwright.errors import SpecError
from meshwright.runtime.launch import safe_environment
from meshwright.system.model import System
from meshwright.system.read import load_system
from meshwright.testbed.gpu import shared_gpu
from meshwright.testbed.network import BURST
from meshwright.testbed.rates import measure_rates
from meshwright.text.units import format_amount, format_bandwidth, format_seconds, parse_bytes

name_option = click.option(
    "--name", default=beds.DEFAULT_NAME, help="Keeps several testbeds apart: letters and digits."
)

TOLERANCE = 0.05
"""How far an achieved rate may be from the configured one."""


@click.group()
def testbed() -> None:
    """A hierarchical cluster for real on this machine: a network namespace per device, shaped links between them.

    It needs root and touches nothing that it has not made. Keep the sum of the devices' rates under about 3 Gbit/s on
    two cores, or the processors become the bottleneck.
    """


@testbed.command()
@options.system
@name_option
@click.option(
    "--burst",
    default=f"{BURST // 1000}kB",
    help="What a device's link lets through at once after a pause. Less is truer for small payloads, and takes more "
    "processor time.",
)
def up(system_spec: str, name: str, burst: str) -> None:
    """Build the network of SYSTEM, like node=4@20Mbit/s+2ms,gpu=4@200Mbit/s: rates, and latency if there is to be some.

    One that is up already is kept or replaced.
    """
    bed = beds.up(load_system(system_spec), name, parse_bytes(burst))
    say(f"testbed {name!r} is up: {bed.system.devices} devices, {sum(1 for _ in bed.network.ports())} links")


@testbed.command()
@name_option
def down(name: str) -> None:
    """Remove the network, and end the processes inside it."""
    say(f"testbed {name!r} is down" if beds.down(name) else f"testbed {name!r} was not up")


@testbed.command()
@name_option
@options.json
def status(name: str, as_json: bool) -> None:
    """Show every link with its rate, the bytes that crossed it each way, and drops."""
    bed = beds.running(name)
    links: dict[tuple[int, int], dict[str, Any]] = {}
    for counter in bed.counters():
        port = counter.port
        row = links.setdefault(
            (port.level, port.instance),
            {"level": bed.system.levels[port.level].name, "instance": port.instance, "bandwidth": port.rate},
        )
        way = "outwards" if counter.outwards else "inwards"
        row[f"bytes_{way}"], row[f"drops_{way}"] = counter.bytes, counter.drops
    if as_json:
        print_json({"name": name, "devices": bed.system.devices, "links": list(links.values())})
        return
    rows, bits = [], _in_bits(bed.system)
    for row in links.values():
        sent = [format_amount(row[f"bytes_{way}"]) for way in ("outwards", "inwards")]
        drops = row["drops_outwards"] + row["drops_inwards"]
        rate = format_bandwidth(row["bandwidth"], bits[row["level"]])
        rows.append([f"{row['level']} {row['instance']}", rate, *sent, drops])
    print_table(["link of", "rate", "sent outwards", "sent inwards", "drops"], rows)


def _in_bits(system: System) -> dict[str, bool]:
    """Which levels were written in bits per second."""
    return {level.name: level.link.bits for level in system.levels}


@testbed.command()
@name_option
@options.json
@options.time("--seconds", "2s", "How long to measure: 0.1s to 60s.")
def check(name: str, as_json: bool, seconds: float) -> None:
    """Measure what the links carry, and how long a byte takes, against what is configured.

    Exit code 1: a rate is off by more than 5%, a byte arrived before its latency had passed, or packets were dropped.
    """
    if not 0.1 <= seconds <= 60:
        raise SpecError(f"--seconds {format_seconds(seconds)}: expected 0.1s to 60s")
    bed = beds.running(name)
    before = sum(counter.drops for counter in bed.counters())
    rates = measure_rates(bed, seconds)
    drops = sum(counter.drops for counter in bed.counters()) - before
    if as_json:
        print_json({"name": name, "rates": [asdict(rate) for rate in rates], "drops": drops})
    else:
        rows, bits = [], _in_bits(bed.system)
        for rate in rates:
            bandwidths = [format_bandwidth(one, bits[rate.level]) for one in (rate.configured, rate.achieved)]
            bandwidths.append(f"{rate.error:+.1%}")
            times = [format_seconds(rate.latency), format_seconds(rate.trip)]
            rows.append([rate.level, rate.senders, *bandwidths, *times])
        print_table(["link of a", "senders", "configured", "achieved", "error", "latency", "a byte takes"], rows)
        say(f"{drops} packets were dropped")
    if drops or any(abs(rate.error) > TOLERANCE or rate.trip < rate.latency for rate in rates):
        sys.exit(1)


@testbed.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@name_option
@click.option("--mpi", is_flag=True, help="Start the ranks through Open MPI's mpirun.")
@options.device
@click.option(
    "--hostfile",
    type=options.FILE,
    help="Number the ranks in this order of the devices, by their addresses, one per line; each counts as a host.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def exec(name: str, mpi: bool, device: str | None, hostfile: Path | None, command: tuple[str, ...]) -> None:  # noqa: A001
    """Run COMMAND on every device, as ranks of one job: meshwright testbed exec -- python train.py

    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set as torchrun does. When one
    rank fails it is named, the others are ended, and its exit code is this command's.
    """
    if not command:
        raise SpecError("expected a command, as in: meshwright testbed exec -- python train.py")
    bed = beds.running(name)
    order = None if hostfile is None else bed.order(options.given_hosts(None, hostfile))
    if mpi:
        if order is not None:
            raise SpecError("--hostfile numbers ranks as torchrun does: leave out --mpi")
        sys.exit(subprocess.run(bed.mpirun(command), check=False, env=safe_environment()).returncode)
    with shared_gpu(device) as added:
        sys.exit(bed.run(command, os.environ | added, order=order))


@testbed.command(hidden=True, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@name_option
@click.argument("address")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def shell(name: str, address: str, command: tuple[str, ...]) -> None:
    """Run COMMAND on the device with an address, as ssh would: what mpirun calls."""
    bed = beds.running(name)
    words = bed.command(bed.device(address), ["sh", "-c", " ".join(command)])
    os.execvpe(words[0], words, safe_environment())
