"""`meshwright hosts`: a plan's placement as a rank file or host order for mpirun and Slurm."""

from dataclasses import asdict
from pathlib import Path

import click

from meshwright.cli import options
from meshwright.cli.output import print_json, say
from meshwright.errors import SpecError
from meshwright.export.formats import FORMATS
from meshwright.export.hosts import gpu_wrapper, host_level, seatings
from meshwright.export.request import Request
from meshwright.planning.planfile import read_plan
from meshwright.text.files import write_file

FORMS = {"rankfile": "rankfile", "machinefile": "hostfile", "slurm": "slurm"}
"""The formats of this verb, by the names that `export` has for them."""


@click.command()
@options.plan
@options.hosts
@options.hostfile
@click.option("--format", "form", type=click.Choice(list(FORMS)), default="rankfile")
@options.bind
@options.order
@options.wrapper
@options.json
def hosts(
    plan_path: Path,
    names: str | None,
    hostfile: Path | None,
    form: str,
    bind: bool,
    order: str,
    wrapper: Path | None,
    as_json: bool,
) -> None:
    """Write where each rank is to run, so that mpirun or Slurm applies the placement of the plan file PLAN.

    \b
      meshwright hosts plan.json --hosts a,b,c,d > ranks && mpirun --rankfile ranks …
      meshwright hosts plan.json --hostfile nodes --format machinefile > ranks && mpiexec -f ranks …
      meshwright hosts plan.json --hosts "$SLURM_JOB_NODELIST" --format slurm > ranks
      SLURM_HOSTFILE=ranks srun --distribution=arbitrary …
    """
    plan = read_plan(plan_path)
    if names is None and hostfile is None:
        raise SpecError("say where the plan is to run: either --hosts a,b,… or --hostfile FILE")
    chosen = options.given_hosts(names, hostfile)
    if bind and form != "rankfile":
        raise SpecError(f"a {form} file cannot bind ranks to cores, only a rankfile can")
    seats = seatings(plan.placement, chosen, order)
    written = FORMATS[FORMS[form]].write(Request(plan, chosen, order, bind))
    each, system = len(seats) // len(chosen), plan.placement.system
    if wrapper is not None:
        write_file(wrapper, gpu_wrapper(system, seats))
    say(f"note: each host is taken for {host_level(system, len(chosen))}: {each} devices")
    if as_json:
        print_json([{**asdict(seat), "coordinates": plan.placement.coordinates(seat.device)} for seat in seats])
        return
    click.echo(written.text, nl=False)
    for note in written.notes:
        say(f"note: {note}")
