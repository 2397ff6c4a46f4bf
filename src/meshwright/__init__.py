"""Meshwright places parallelism axes on hierarchical clusters and synthesizes the collectives that reduce over them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright import jax as jax
    from meshwright import mpi as mpi
    from meshwright import torch as torch
    from meshwright.names import *  # noqa: F403
    from meshwright.names import __all__ as __all__
else:
    # Everything is imported when it is first used: an engine needs its own library, and the names need NumPy, which a
    # command such as `meshwright --help` does without.
    def __getattr__(name: str) -> Any:
        if name in ("torch", "jax", "mpi"):
            return import_module(f"meshwright.{name}")
        names = import_module("meshwright.names")
        if name in names.__all__ or name == "__all__":
            return globals().setdefault(name, getattr(names, name))
        raise AttributeError(f"module 'meshwright' has no attribute {name!r}")

    def __dir__() -> list[str]:  # without the engines: tools look at all that is listed, and importing mpi starts MPI
        return list(import_module("meshwright.names").__all__)
