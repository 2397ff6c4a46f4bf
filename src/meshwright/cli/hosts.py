"""`meshwright hosts`: a plan's placement as a rank file or host order for mpirun and Slurm."""

from dataclasses import asdict
from pathlib import Path

import click

from meshwright.cli import options
from meshwright.cli.output import print_json, say
from meshwright.errors import SpecError
from meshwright.export.hosts import FORMATS, ORDERS, host_file, host_level, in_order, seatings
from meshwright.planning.planfile import read_plan
from meshwright.text.hostlist import parse_hostfile, parse_hosts


@click.command()
@options.plan
@click.option(
    "--hosts",
    "names",
    metavar="HOST,…",
    help="The hosts, in the order of the plan's system; also as Slurm and PBS write them, like n[001-004],m7 or "
    "n1/0*8+n2/0*8.",
)
@click.option("--hostfile", type=options.FILE, help="The hosts from a file, one per line, as mpirun and PBS have them.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="rankfile")
@click.option(
    "--bind", is_flag=True, help="In a rankfile: devices are cores, so bind each rank to the core of its number."
)
@click.option(
    "--order",
    type=click.Choice(ORDERS),
    default="axes",
    help="How the program numbers its ranks: row by row over the axes, or like the devices, as `meshwright run` does.",
)
@options.json
def hosts(
    plan_path: Path, names: str | None, hostfile: Path | None, form: str, bind: bool, order: str, as_json: bool
) -> None:
    """Write where each rank is to run, so that mpirun or Slurm applies the placement of the plan file PLAN.

    \b
      meshwright hosts plan.json --hosts a,b,c,d > ranks && mpirun --rankfile ranks …
      meshwright hosts plan.json --hostfile nodes --format machinefile > ranks && mpiexec -f ranks …
      meshwright hosts plan.json --hosts "$SLURM_JOB_NODELIST" --format slurm > ranks
      SLURM_HOSTFILE=ranks srun --distribution=arbitrary …
    """
    plan = read_plan(plan_path)
    chosen = _names(names, hostfile)
    seats = seatings(plan.placement, chosen, order)
    each, system = len(seats) // len(chosen), plan.placement.system
    say(f"note: each host is taken for {host_level(system, len(chosen))}: {each} devices")
    if as_json:
        print_json([{**asdict(seat), "coordinates": plan.placement.coordinates(seat.device)} for seat in seats])
    else:
        click.echo(host_file(seats, form, bind), nl=False)
        if form == "slurm":
            say(
                "note: Slurm sorts SLURM_NODELIST whatever the order of this file; programs that take its first host "
                "for that of rank 0, like Lightning, need MASTER_ADDR set"
            )
        if not bind and not in_order(seats):
            say(
                "note: on some hosts the ranks are not in the order of the devices, which this file cannot say; "
                "--json lists the position of each, to bind it to its device"
            )


def _names(names: str | None, hostfile: Path | None) -> list[str]:
    if (names is None) == (hostfile is None):
        raise SpecError("say where the plan is to run: either --hosts a,b,… or --hostfile FILE")
    if names is not None:
        return parse_hosts(names)
    assert hostfile is not None
    try:
        text = hostfile.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read the host file {str(hostfile)!r}: {error}") from None
    return parse_hostfile(text)
