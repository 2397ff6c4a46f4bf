"""Plans on PyTorch process groups: meshes, an executor for the plan's programs, a hook for DDP, comms for FSDP2."""

try:
    import torch.distributed as _distributed  # noqa: F401
except ImportError as error:
    raise ImportError(f"meshwright.torch needs PyTorch ({error}): pip install 'meshwright[torch]'") from error

from meshwright.torch.groups import device_mesh, factor_mesh
from meshwright.torch.hook import ddp_hook
from meshwright.torch.queue import Work
from meshwright.torch.reducer import Reducer
from meshwright.torch.sharding import fsdp

__all__ = ["Reducer", "Work", "ddp_hook", "device_mesh", "factor_mesh", "fsdp"]
