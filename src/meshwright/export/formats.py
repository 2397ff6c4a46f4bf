"""The formats that plans are exported to: who writes each, what it takes, and what of a plan it cannot carry."""

from collections.abc import Callable
from dataclasses import dataclass, fields

from meshwright.errors import SpecError
from meshwright.export.deepspeed import deepspeed
from meshwright.export.hostfile import hostfile
from meshwright.export.kubernetes import kubernetes
from meshwright.export.megatron import megatron
from meshwright.export.msccl import msccl
from meshwright.export.mscclpp import mscclpp
from meshwright.export.nccl_tuner import nccl_tuner
from meshwright.export.ompi_rules import ompi_rules
from meshwright.export.rankfile import rankfile
from meshwright.export.replicas import replica_groups
from meshwright.export.request import Exported, Request
from meshwright.export.slurm import slurm
from meshwright.export.torchrun import torchrun
from meshwright.text.spec import one_of

OPTIONS = {"hosts": "--hosts", "least": "--min-bytes", "most": "--max-bytes", "labels": "--label"}
"""The options of a request's fields, where they have other names."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format. loses: what of a plan it cannot carry; takes: what of a request it looks at, besides the plan."""

    write: Callable[[Request], Exported]
    loses: str
    takes: tuple[str, ...]


_SEATS = ("hosts", "order")
_PROGRAM = ("reduction", "instances", "least", "most")
_NO_PROGRAMS = "programs, as it only applies the placement"

FORMATS = {
    "rankfile": Format(rankfile, _NO_PROGRAMS, (*_SEATS, "bind")),
    "hostfile": Format(hostfile, _NO_PROGRAMS, _SEATS),
    "slurm": Format(slurm, _NO_PROGRAMS, _SEATS),
    "torchrun": Format(torchrun, f"{_NO_PROGRAMS}; ranks that do not fill one host after the other", _SEATS),
    "deepspeed": Format(deepspeed, f"{_NO_PROGRAMS}; ranks that do not fill host after host and GPU after GPU", _SEATS),
    "kubernetes": Format(kubernetes, "programs; the order of hosts inside a level", (*_SEATS, "labels")),
    "megatron": Format(megatron, "programs; placements that no order of whole axes gives", ()),
    "replica-groups": Format(
        replica_groups, "how chunks flow; the sizes of payloads; where the devices are", ("reduction",)
    ),
    "nccl-tuner": Format(
        nccl_tuner,
        "the placement; the order of steps; chunks. Protocols are no part of a plan: it asks for simple",
        ("hosts", "reduction"),
    ),
    "ompi-rules": Format(ompi_rules, "the placement; the order of steps; reductions in chunks", ("reduction",)),
    "msccl": Format(msccl, "the placement; other reductions; algorithms other than rings and chains", _PROGRAM),
    "mscclpp": Format(mscclpp, "the placement; other reductions; groups over several hosts", ("hosts", *_PROGRAM)),
}


def export(form: str, request: Request) -> Exported:
    """A plan in one of the formats; refuses what the format cannot carry, and what it would not look at."""
    found = FORMATS[one_of(FORMATS, "format", form)]
    plain = Request(request.plan)
    for each in fields(request):
        if each.name not in ("plan", *found.takes) and getattr(request, each.name) != getattr(plain, each.name):
            option = OPTIONS.get(each.name, f"--{each.name}")
            takers = ", ".join(name for name, other in FORMATS.items() if each.name in other.takes)
            raise SpecError(f"{option} means nothing in the format {form}; it is for {takers}")
    exported = found.write(request)
    return Exported(exported.text, (f"not in this file: {found.loses}", *exported.notes))
