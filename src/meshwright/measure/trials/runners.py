"""The runners, by the names of their engines."""

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from meshwright.errors import EngineError
from meshwright.measure.trials.trial import Runner
from meshwright.runtime.launch import run_locally

ENGINES = ("torch", "mpi", "jax", "numpy")  # numpy is the interpreter, for trials: it has no module for users


def require(engine: str) -> None:
    """Load an engine; where its library is missing, refuse with what the import says: how to install it.

    What PyTorch makes while it loads stays: to look through it for garbage again and again takes a fifth of the time.
    """
    name, collects = f"meshwright.{engine}", gc.isenabled()
    if name in sys.modules:
        return
    gc.disable()
    try:
        import_module(name)
        gc.freeze()
    except ImportError as error:
        raise EngineError(str(error)) from None
    finally:
        if collects:
            gc.enable()


def start_locally(engine: str, ranks: int, arguments: Sequence[str]) -> int:
    """Run Meshwright with arguments in `ranks` processes on this machine; returns the launcher's exit code."""
    if find_spec({"torch": "torch", "mpi": "mpi4py"}[engine]) is None:  # it must be there, but only the ranks load it
        require(engine)
    return run_locally(engine, ranks, arguments)


def measured_as(engine: str, device: str | None) -> str:
    """The name of an engine in measurements: on CUDA, if that was asked for, it is another than on the CPU.

    >>> measured_as("torch", None), measured_as("torch", "cuda")
    ('torch', 'torch-cuda')
    """
    return f"{engine}-cuda" if device == "cuda" else engine


def make_runner(engine: str, timeout: float, device: str | None = None, host_devices: int | None = None) -> Runner:
    """The runner of an engine, whose library is loaded only now; JAX makes `host_devices` devices of this host."""
    if engine == "numpy":
        from meshwright.measure.trials.numpy import NumpyRunner

        return NumpyRunner()
    if engine == "jax" and host_devices is not None:  # before JAX looks for devices
        flag = f"--xla_force_host_platform_device_count={host_devices}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
        os.environ["JAX_PLATFORMS"] = "cpu"
    require(engine)
    if engine == "torch":
        from meshwright.measure.trials.torch import TorchRunner

        return TorchRunner(timeout, device, measured_as(engine, device))
    if engine == "mpi":
        from meshwright.measure.trials.mpi import MpiRunner

        return MpiRunner(timeout)
    from meshwright.measure.trials.jax import JaxRunner

    return JaxRunner(timeout, local=host_devices is not None)
