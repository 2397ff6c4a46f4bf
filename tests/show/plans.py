"""Plans for the tests of what is shown of them."""

from functools import cache

from meshwright import Plan, Ranking, parse_reduction, plan
from meshwright.measure.records import Measurement
from meshwright.system.read import system_document

FORMS = {
    "two levels": ("gcp-a100:4", {"data": 4, "shard": 16}, ("data=2GiB", "shard=64MiB*80"), "ring"),
    "in chunks": (
        "rack=2@1GB/s+5us,node=4@4GB/s,gpu=8@100GB/s",
        {"data": 8, "tensor": 8},
        ("data=1GiB", "reduce-scatter:data+tensor=64MiB"),
        "nccl",
    ),
    "a mix": ("node=4@1GB/s,gpu=4@3GB/s", {"data": 16}, ("data=64MiB",), "ideal"),
    "rings": ("tpu-v4:1", {"data": 16, "model": 16}, ("data=256MiB", "all-gather:model=64MiB*4"), "ideal"),
    "a thousand": ("dgx-h100:128", {"data": 128, "tensor": 8}, ("data=1GiB", "tensor=64MiB*80"), "nccl"),
    "one device": ("node=1@1GB/s,gpu=1@8GB/s", {"data": 1}, ("data=1MiB",), "ring"),
}
"""System, axes, reductions and library."""


@cache
def ranking(form: str) -> Ranking:
    """The ranking of one of the forms."""
    system, axes, reductions, library = FORMS[form]
    return plan(system, axes, [parse_reduction(text) for text in reductions], library=library)


def best(form: str) -> Plan:
    """The best plan of one of the forms."""
    return ranking(form).candidates[0]


def measurement(plan: Plan, program: str, seconds: list[float]) -> Measurement:
    """What `bench` would have written of a plan's first reduction."""
    at, one = plan.placement, plan.reductions[0].communication
    return Measurement(
        system_document(at.system),
        list(at.axes),
        [list(row) for row in at.matrix],
        list(one.axes),
        str(one.goal),
        one.bytes,
        program,
        "torch",
        seconds=seconds,
    )
