"""Megatron's order string, and the sizes that go with it; or the reason why no order string gives the placement."""

from math import prod

from meshwright.errors import SpecError
from meshwright.export.request import Exported, Request
from meshwright.placement.placement import Placement
from meshwright.planning.orders import MEGATRON, megatron_string, order_giving

SIZES = {
    "tp": "tensor_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
}
"""What initialize_model_parallel calls the sizes; that of dp follows from the others."""

OTHERS = "; rankfile, hostfile and slurm apply any placement to a program that numbers ranks by its axes"


def megatron(request: Request) -> Exported:
    """The call that makes Megatron's groups, for ranks that are numbered like the devices."""
    placement = request.plan.placement
    sizes = placement.sizes
    text = order_string(placement)
    known = {name: prod(sizes.get(axis, 1) for axis in axes) for name, axes in MEGATRON.items()}
    given = "".join(f"    {SIZES[name]}={known[name]},\n" for name in SIZES if known[name] > 1)
    order_line = f'    order="{text or "tp-cp-ep-dp-pp"}",\n'
    notes = ["ranks must be numbered like the devices: host by host, as torchrun and mpirun do it"]
    if known["ep"] > 1:
        notes.append("Megatron takes ep out of dp: compare its expert groups with the plan's before training")
    return Exported(f"parallel_state.initialize_model_parallel(\n{given}{order_line})\n", tuple(notes))


def order_string(placement: Placement) -> str:
    """Megatron's order string for a placement, empty if all axes have size 1; the error says why there is none."""
    sizes = {axis: size for axis, size in placement.sizes.items() if size > 1}
    for axis in sizes:
        if not any(axis in known for known in MEGATRON.values()):
            names = "; ".join(f"{name}: {', '.join(known)}" for name, known in MEGATRON.items())
            raise SpecError(f"Megatron has no name for the axis {axis!r} (it knows {names}){OTHERS}")
    order = order_giving(placement)
    if order is None:
        raise SpecError(f"no order of the axes gives this placement: other axes lie between the factors of one{OTHERS}")
    text = megatron_string([axis for axis in order if axis in sizes])
    if text is None:
        raise SpecError(
            f"Megatron has no order string for the axes {', '.join(axis for axis in order if axis in sizes)} (slowest "
            f"first): it keeps shard inside data, and dp beside ep{OTHERS}"
        )
    return text
