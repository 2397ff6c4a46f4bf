"""Before a script starts that knows nothing of its plan: whether the plan fits, and which ranks the processes get."""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from importlib import metadata
from math import prod
from pathlib import Path

from meshwright.errors import EngineError, SpecError
from meshwright.placement.placement import Placement, parse_axes
from meshwright.planning.planfile import read_plan
from meshwright.planning.tuning import check_tunable
from meshwright.runtime.seats import Seat, check_devices, layout_fault, seat
from meshwright.text.spec import format_counts, shown

PLAN = "MESHWRIGHT_PLAN"
"""The variable with the path of the plan that carries out the collectives of a script."""
RERANK = "MESHWRIGHT_RERANK"
"""Set to 0, it leaves the ranks as the launcher numbers them."""
DEVICE = "MESHWRIGHT_DEVICE"
"""Set where ranks were renumbered: the rank that the launcher gave, which is the number of the device."""

TUNE = "MESHWRIGHT_TUNE"
"""The file to which the plan is written after the first calls of the script have tuned it."""

RECORD, AXES, STEPS = "MESHWRIGHT_RECORD", "MESHWRIGHT_AXES", "MESHWRIGHT_STEPS"
"""The file to which a workload is recorded, the axes of the script, and how many steps it makes."""

LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
"""The variables in which launchers tell a process its rank and the number of ranks: torchrun, Open MPI and Slurm."""

HOSTS = "GROUP_WORLD_SIZE"
"""The variable in which torchrun tells how many of its agents there are: one on each host."""

OLDEST = (2, 11)
"""The oldest PyTorch whose process groups Meshwright can stand in for."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What to record: the file to write, the script's axes if they are given, and its number of steps if it is."""

    path: Path
    axes: dict[str, int] | None = None
    steps: int | None = None


def wish(environment: Mapping[str, str]) -> Wish | None:
    """What the environment says is to be recorded; None if nothing is."""
    path, axes, steps = (environment.get(name) for name in (RECORD, AXES, STEPS))
    if not path:
        return None
    if steps and (not steps.isdecimal() or not int(steps)):
        raise SpecError(f"{STEPS}={shown(steps)}: expected a number of steps")
    return Wish(Path(path), parse_axes(axes) if axes else None, int(steps) if steps else None)


def launched(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """The rank of this process and the number of ranks, as a launcher says; None if none does.

    A batch script of Slurm has a rank too, but the ranks of its job are those that it starts with srun.
    """
    batch = "SLURM_JOB_ID" in environment and "SLURM_STEP_ID" not in environment
    for rank, size in LAUNCHERS[:-1] if batch else LAUNCHERS:
        if environment.get(rank, "").isdecimal() and environment.get(size, "").isdecimal():
            return int(environment[rank]), int(environment[size])
    return None


def prepare(environment: MutableMapping[str, str]) -> None:
    """Check what the environment asks for, and that its plan fits the processes that a launcher has started; renumber.

    The ranks are changed in the environment, so that row-major order over the plan's axes is its placement. The rank
    inside a host stays: it says which of the host's devices is this process's. Ranks that are changed already stay.
    """
    _check_pytorch()
    recorded, found = wish(environment), launched(environment)
    if recorded and recorded.axes and found and prod(recorded.axes.values()) != found[1]:
        raise SpecError(f"the axes {format_counts(recorded.axes)} do not multiply to {found[1]}, the number of ranks")
    if not environment.get(PLAN):
        if environment.get(TUNE):
            raise SpecError("there is no plan to tune: give --plan too")
        return
    plan = read_plan(environment[PLAN])
    if environment.get(TUNE):
        check_tunable(plan)
    if found is None or DEVICE in environment:
        return
    rank, world = found
    system, at = plan.placement.system, seat(environment)
    check_devices(system, world, tuned=plan.is_tuned)
    # Only what all ranks see alike is refused here; who sits in a wrong seat is found out when ranks can talk.
    if _hosts_alike(environment, at, world) and (fault := layout_fault(system, {0: at and Seat(0, at.local_size)})):
        raise EngineError(fault)
    if environment.get(RERANK) == "0":
        return
    environment[DEVICE] = str(rank)
    for name, _ in LAUNCHERS:
        if environment.get(name) == str(rank):
            environment[name] = str(device_ranks(plan.placement)[rank])


def _hosts_alike(environment: Mapping[str, str], at: Seat | None, world: int) -> bool:
    """Whether all hosts may have as many processes as this one; torchrun tells the number of hosts."""
    hosts = environment.get(HOSTS, "")
    if at is None:
        return False
    return at.local_size * int(hosts) == world if hosts.isdecimal() else not world % max(at.local_size, 1)


def device_ranks(placement: Placement) -> list[int]:
    """The rank of each device when ranks are numbered in row-major order over the axes.

    >>> from meshwright import parse_system
    >>> device_ranks(Placement(parse_system("node=2,gpu=2"), ("data", "tensor"), ((1, 2), (2, 1))))
    [0, 2, 1, 3]
    """
    ranks = [0] * placement.system.devices
    for rank, device in enumerate(placement.mesh().reshape(-1).tolist()):
        ranks[device] = rank
    return ranks


def _check_pytorch() -> None:
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise EngineError("a plan for a script needs PyTorch, which is not installed here") from None
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise EngineError(f"a plan for a script needs PyTorch {OLDEST[0]}.{OLDEST[1]} or newer, but this is {version}")
