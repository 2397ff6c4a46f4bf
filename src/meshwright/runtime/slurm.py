"""Slurm: on which host rank 0 of a step is, where the ranks can meet."""

from collections.abc import Mapping
from pathlib import Path

from meshwright.errors import EngineError, SpecError
from meshwright.text.hostlist import parse_hostfile, parse_hosts

UNKNOWN = "the host of rank 0 is not known, where the ranks are to meet"


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
