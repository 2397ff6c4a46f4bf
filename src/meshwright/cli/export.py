"""`meshwright export`: a plan in the formats of launchers, schedulers and communication libraries."""

from pathlib import Path

import click

from meshwright.cli import options
from meshwright.cli.output import print_json, say
from meshwright.errors import SpecError
from meshwright.export.formats import FORMATS
from meshwright.export.formats import export as written
from meshwright.export.hosts import gpu_wrapper, host_level, seats_of
from meshwright.export.request import Request
from meshwright.planning.planfile import read_plan
from meshwright.text.files import write_file
from meshwright.text.units import parse_bytes


@click.command()
@options.plan
@click.option(
    "--to",
    "form",
    required=True,
    metavar="FORMAT",
    shell_complete=options.offering(lambda: FORMATS),
    help=f"One of: {', '.join(FORMATS)}.",
)
@options.hosts
@options.hostfile
@options.order
@options.bind
@options.wrapper
@click.option(
    "--reduction", type=click.IntRange(0), metavar="N", help="The plan's reduction of this number, counted from 0."
)
@options.number("--instances", 1, "For msccl and mscclpp: how many copies of the program share the payload.", most=32)
@click.option("--min-bytes", metavar="BYTES", help="For msccl and mscclpp: the least size, instead of half the plan's.")
@click.option(
    "--max-bytes", metavar="BYTES", help="For msccl and mscclpp: the largest size, instead of twice the plan's."
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="LEVEL=LABEL",
    help="For kubernetes: which label of a node says where it is at a level above hosts; may be repeated.",
)
@options.out("Write to this file, instead of stdout.")
@options.json
def export(
    plan_path: Path,
    form: str,
    names: str | None,
    hostfile: Path | None,
    order: str,
    bind: bool,
    wrapper: Path | None,
    reduction: int | None,
    instances: int,
    min_bytes: str | None,
    max_bytes: str | None,
    labels: tuple[str, ...],
    out: Path | None,
    as_json: bool,
) -> None:
    """Write the plan file PLAN in the format of another tool; notes say what of the plan the format cannot carry.

    \b
      meshwright export plan.json --to torchrun --hosts a,b
      meshwright export plan.json --to kubernetes --hostfile nodes
      meshwright export plan.json --to msccl --reduction 0 --out allreduce.xml
    """
    least, most = (None if text is None else parse_bytes(text) for text in (min_bytes, max_bytes))
    plan, hosts = read_plan(plan_path), options.given_hosts(names, hostfile)
    if names is not None or hostfile is not None:
        host_level(plan.placement.system, len(hosts))
    request = Request(
        plan,
        hosts,
        order,
        bind,
        reduction,
        instances,
        least,
        most,
        dict(map(_label, labels)),
    )
    found = written(form, request)
    if wrapper is not None:
        write_file(wrapper, gpu_wrapper(plan.placement.system, seats_of(request)))
    if out is not None:
        write_file(out, found.text)
    if as_json:
        print_json({"format": form, "text": found.text, "notes": list(found.notes)})
        return
    if out is None:
        click.echo(found.text, nl=False)
    for note in found.notes:
        say(f"note: {note}")
    for path in (out, wrapper):
        if path is not None:
            say(f"wrote {path}")


def _label(text: str) -> tuple[str, str]:
    level, equals, label = text.partition("=")
    if not equals or not level or not label:
        raise SpecError(f"--label {text}: expected a level and a label, like rack=cloud.provider.com/topology-rack")
    return level, label
