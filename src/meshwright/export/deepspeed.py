"""A host file for DeepSpeed's launcher: the hosts in the order of their ranks, with the number of GPUs."""

from meshwright.errors import SpecError
from meshwright.export.hosts import filled_in_turn, seats_of
from meshwright.export.request import Exported, Request


def deepspeed(request: Request) -> Exported:
    """A line for each host; DeepSpeed numbers ranks host by host, and on a host by the GPUs."""
    hosts = filled_in_turn(seats_of(request), "DeepSpeed")
    for host, positions in hosts.items():
        if positions != sorted(positions):
            raise SpecError(
                f"DeepSpeed sorts the GPUs of a host, but by the axes the ranks on {host} are on its GPUs "
                f"{', '.join(map(str, positions))}; torchrun can say that; or say --order devices, and make the "
                "mesh in the program"
            )
    return Exported("".join(f"{host} slots={len(positions)}\n" for host, positions in hosts.items()))
