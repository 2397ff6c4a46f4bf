"""A placement as code: the line that makes its mesh in PyTorch or JAX, and Megatron's order string."""

from contextlib import suppress

from meshwright.errors import SpecError
from meshwright.export.megatron import order_string
from meshwright.placement.placement import Placement


def mesh_code(placement: Placement) -> dict[str, str]:
    """For PyTorch and JAX the line of code that makes the mesh, for Megatron the order string, if there is one.

    The code does what `Placement.mesh` does: it cuts the ranks by the factors, level by level, and puts the factors of
    each axis together.

    >>> from meshwright import parse_system
    >>> mesh_code(Placement(parse_system("node=2,gpu=4"), ("data", "shard"), ((1, 2), (2, 2))))["jax"]
    "Mesh(np.array(jax.devices()).reshape(2, 2, 2).transpose(1, 0, 2).reshape(2, 4), ('data', 'shard'))"
    """
    system = placement.system
    shape = [factor for column in zip(*placement.matrix, strict=True) for factor in column]
    rows, levels = len(placement.axes), len(system.levels)
    turn = [level * rows + row for row in range(rows) for level in range(levels)]
    kept = [k for k in range(len(shape)) if shape[k] > 1]
    shape_text = ", ".join(str(shape[k]) for k in kept) or "1"
    order = [kept.index(k) for k in turn if k in kept]
    turn_text = ", ".join(map(str, order)) or "0"
    sizes = ", ".join(map(str, placement.sizes.values()))
    names = ", ".join(repr(axis) for axis in placement.axes) + ("," if rows == 1 else "")
    turned = "" if order == sorted(order) else f".reshape({shape_text}).permute({turn_text})"
    ranks = f"torch.arange({system.devices}){turned}.reshape({sizes})"
    devices = f"np.array(jax.devices()){turned.replace('permute', 'transpose')}.reshape({sizes})"
    text = ""
    with suppress(SpecError):
        text = order_string(placement)
    return {
        "torch": f'DeviceMesh("cuda", {ranks}, mesh_dim_names=({names}))',
        "jax": f"Mesh({devices}, ({names}))",
        "megatron": f"order {text}" if text else "no order string gives this",
    }
