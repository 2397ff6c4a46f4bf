"""Slurm: what srun tells a rank, as torchrun would; and on which host rank 0 of a step is, where ranks can meet."""

import re
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from meshwright.errors import EngineError, SpecError
from meshwright.runtime.dropin import launched
from meshwright.text.hostlist import parse_hostfile, parse_hosts

PORTS = range(20_000, 30_000)
"""Where ranks that Slurm has started meet, unless MASTER_PORT says another port."""

UNKNOWN = "the host of rank 0 is not known, where the ranks are to meet"


def with_slurm(environment: MutableMapping[str, str]) -> None:
    """Where srun started this process, add what PyTorch needs to know: its rank, here and in all, and where ranks meet.

    >>> step = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "2", "SLURM_STEP_NODELIST": "n[07-10]"}
    >>> found = step | {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_GTIDS": "2,3"}
    >>> with_slurm(found)
    >>> found["RANK"], found["WORLD_SIZE"], found["MASTER_ADDR"], found["MASTER_PORT"]
    ('3', '8', 'n07', '20019')
    >>> found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"]
    ('1', '2')
    """
    found = launched(environment)
    if not step_hosts(environment) or found is None or "RANK" in environment:
        return
    if "MASTER_ADDR" not in environment:
        try:
            environment["MASTER_ADDR"] = first_host(environment)
        except EngineError as error:
            raise EngineError(f"{error}; set MASTER_ADDR") from None
    environment.setdefault("MASTER_PORT", str(meeting_port(environment)))
    environment.update(RANK=str(found[0]), WORLD_SIZE=str(found[1]))
    if _number(environment, "SLURM_LOCALID") and "SLURM_GTIDS" in environment:
        here = len(environment["SLURM_GTIDS"].split(","))  # the ranks on this host
        environment.update(LOCAL_RANK=environment["SLURM_LOCALID"], LOCAL_WORLD_SIZE=str(here))


def meeting_port(environment: Mapping[str, str]) -> int:
    """The port at which the ranks of a step meet, unless something else says one: each step has its own."""
    number = sum(int(environment[name]) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID") if _number(environment, name))
    return PORTS[number % len(PORTS)]


def _number(environment: Mapping[str, str], name: str) -> bool:
    return re.fullmatch("[0-9]{1,12}", environment.get(name, "")) is not None


def step_hosts(environment: Mapping[str, str]) -> str:
    """The hosts of the step that this process belongs to, as Slurm writes them; empty if there is none."""
    return environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")


def spread_by_file(environment: Mapping[str, str]) -> bool:
    """Whether a host file says where each rank of the step is, as `meshwright export --to slurm` writes them."""
    return environment.get("SLURM_DISTRIBUTION", "").startswith("arbitrary")


def first_host(environment: Mapping[str, str]) -> str:
    """The host of rank 0: the first of Slurm's list, which is sorted, unless a host file spreads the ranks.

    >>> first_host({"SLURM_STEP_NODELIST": "n[07-10]"})
    'n07'
    """
    if spread_by_file(environment):
        return _in_file(environment.get("SLURM_HOSTFILE", ""))
    try:
        return parse_hosts(step_hosts(environment))[0]
    except SpecError as error:
        raise EngineError(f"{UNKNOWN}: cannot read the hosts that Slurm names: {error}") from None


def _in_file(path: str) -> str:
    if not path:
        raise EngineError(f"{UNKNOWN}: with --distribution=arbitrary, SLURM_HOSTFILE would say it")
    try:
        names = parse_hostfile(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, SpecError) as error:
        raise EngineError(f"{UNKNOWN}: cannot read SLURM_HOSTFILE={path}: {error}") from None
    if not names:
        raise EngineError(f"{UNKNOWN}: SLURM_HOSTFILE={path} is empty")
    return names[0].partition("*")[0]  # n1*4 is n1 for four ranks
