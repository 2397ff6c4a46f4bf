"""`meshwright hosts`: a plan's placement as a rank file or host order for mpirun and Slurm."""

from pathlib import Path

import click

from meshwright.cli.common import json_option, print_json, say
from meshwright.errors import SpecError
from meshwright.hosts import FORMATS, ORDERS, host_file, in_order, seatings
from meshwright.planfile import read_plan


@click.command()
@click.argument("plan_path", metavar="PLAN", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--hosts", "names", metavar="HOST,…", help="The hosts, in the order of the plan's system.")
@click.option(
    "--hostfile", type=click.Path(path_type=Path, dir_okay=False), help="The hosts from a file, one per line."
)
@click.option("--format", "form", type=click.Choice(FORMATS), default="rankfile", show_default=True)
@click.option(
    "--order",
    type=click.Choice(ORDERS),
    default="axes",
    show_default=True,
    help="How the program numbers its ranks: row by row over the axes, or like the devices, as `meshwright run` does.",
)
@json_option
def hosts(plan_path: Path, names: str | None, hostfile: Path | None, form: str, order: str, as_json: bool) -> None:
    """Write where each rank is to run, so that mpirun or Slurm applies the placement of the plan file PLAN.

    \b
      meshwright hosts plan.json --hosts a,b,c,d > ranks && mpirun --rankfile ranks …
      meshwright hosts plan.json --hostfile nodes --format machinefile > ranks && mpiexec -f ranks …
      meshwright hosts plan.json --hostfile nodes --format slurm > ranks
      SLURM_HOSTFILE=ranks srun --distribution=arbitrary …
    """
    plan = read_plan(plan_path)
    seats = seatings(plan.placement, _names(names, hostfile), order)
    if as_json:
        print_json(
            [
                {
                    "rank": seat.rank,
                    "host": seat.host,
                    "position": seat.position,
                    "device": seat.device,
                    "coordinates": plan.placement.coordinates(seat.device),
                }
                for seat in seats
            ]
        )
    else:
        click.echo(host_file(seats, form), nl=False)
        if form != "rankfile" and not in_order(seats):
            say(
                "note: on some hosts the ranks are not in the order of the devices, which this format cannot say; "
                "--json lists the position of each, to bind it to its device"
            )


def _names(names: str | None, hostfile: Path | None) -> list[str]:
    if (names is None) == (hostfile is None):
        raise SpecError("say where the plan is to run: either --hosts a,b,… or --hostfile FILE")
    if names is not None:
        return [name.strip() for name in names.split(",")]
    assert hostfile is not None
    try:
        lines = hostfile.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read the host file {str(hostfile)!r}: {error}") from None
    return [line.split()[0] for line in lines if line.strip() and not line.lstrip().startswith("#")]
