"""Plans on MPI communicators, with mpi4py over Open MPI or MPICH."""

try:
    from mpi4py import MPI as _MPI  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"meshwright.mpi needs mpi4py and an MPI library ({error}): pip install 'meshwright[mpi]'"
    ) from error

from meshwright.mpi.reducer import Reducer

__all__ = ["Reducer"]
