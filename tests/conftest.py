import os
import signal
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"  # before anything imports JAX
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # before anything imports PyTorch, which else compiles much more
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before anything imports NumPy: its threads cost every interpreter 60 ms
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"

from hypothesis import settings

# Times vary between machines, so no deadlines; on CI the same examples are drawn every time.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# Tests send signals to processes that they start; some shells start what is in the background to ignore them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Modules beside the tests have no doctests; to look for some would import all of PyTorch, in every worker."""
    beside = collection_path.suffix == ".py" and not collection_path.name.startswith(("test_", "__init__"))
    return True if beside else None
