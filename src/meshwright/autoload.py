"""What PyTorch calls when it is imported: with MESHWRIGHT_PLAN set, that plan carries out the collectives of a script.

With MESHWRIGHT_RECORD they are recorded. Without either nothing is done, and nothing is imported.
"""

import os
import sys
from functools import wraps
from typing import Any


def start() -> None:
    """The entry point in PyTorch's group `torch.backends`."""
    if not (os.environ.get("MESHWRIGHT_PLAN") or os.environ.get("MESHWRIGHT_RECORD")):
        return
    from meshwright.errors import EngineError, MeshwrightError
    from meshwright.runtime.dropin import launched, prepare

    rank, _ = launched(os.environ) or (0, 1)
    try:
        prepare(os.environ)
    except MeshwrightError as error:  # to PyTorch, an exception would be a broken backend
        if rank == 0:
            print(f"Error: {error}", file=sys.stderr, flush=True)
        sys.exit(3 if isinstance(error, EngineError) else 2)
    install()


def install() -> None:
    """Have process groups made by Meshwright. What that needs is imported when the first one is made."""
    import torch.distributed.distributed_c10d as c10d

    make = c10d._new_process_group_helper

    @wraps(make)
    def planned(*args: Any, **named: Any) -> Any:
        from meshwright.torch.dropin import make_group

        return make_group(make, *args, **named)

    c10d._new_process_group_helper = planned
