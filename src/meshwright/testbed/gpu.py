"""The GPU that all devices of a testbed share, so that programs run on CUDA tensors and NCCL over the emulated links.

NCCL refuses two ranks that have the same GPU of the same host. It takes the name of the host from NCCL_HOSTID, so every
device gets one of its own. Between hosts NCCL uses sockets, which are inside the device's namespace.
"""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from meshwright.errors import EngineError
from meshwright.runtime.launch import find_program, safe_environment
from meshwright.runtime.signals import die_with_parent
from meshwright.testbed.network import INTERFACE
from meshwright.text.files import scratch_folder

USUAL = Path("/tmp/nvidia-mps/control")
"""There if a daemon of MPS was started without saying where."""

STARTING = 10.0
"""How many seconds the daemon may take to start."""

BLOCKING = 4
"""CU_CTX_SCHED_BLOCKING_SYNC of CUDA's driver: threads that wait for the GPU sleep."""


def nccl_environment(device: int) -> dict[str, str]:
    """What makes NCCL take a device for a host of its own, and send everything through the device's interface."""
    return {
        "NCCL_HOSTID": f"device{device}",
        "NCCL_NET": "Socket",
        "NCCL_IB_DISABLE": "1",
        "NCCL_SOCKET_IFNAME": INTERFACE,
    }


@contextmanager
def shared_gpu(device: str | None) -> Iterator[dict[str, str]]:
    """While a with statement lasts, processes can use the GPU at the same time; what their environment needs for it.

    That is what NVIDIA's MPS is for. Without it the kernels of different processes take turns, and every call takes
    some 40 ms. A daemon that runs already is used as it is. Nothing is done unless the device is cuda.
    """
    if device != "cuda":
        yield {}
        return
    check_gpu()
    control = find_program("nvidia-cuda-mps-control")
    if control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ or USUAL.exists():
        yield {}
        return
    with scratch_folder() as folder:
        added = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = safe_environment() | added
        die = partial(die_with_parent, os.getpid(), signal.SIGTERM)
        nothing = subprocess.DEVNULL
        daemon = subprocess.Popen(
            [control, "-f"], env=environment, stdin=nothing, stdout=nothing, stderr=nothing, preexec_fn=die
        )
        try:
            deadline = time.monotonic() + STARTING
            while not (Path(folder) / "control").exists():
                if daemon.poll() is not None or time.monotonic() > deadline:
                    raise EngineError(f"MPS, which lets ranks share the GPU, does not start: {control} -f")
                time.sleep(0.05)
            yield added
        finally:
            if daemon.poll() is None:
                subprocess.run([control], input="quit\n", text=True, env=environment, check=False, timeout=STARTING)
            try:
                daemon.wait(STARTING)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def sleep_while_waiting(gpu: int) -> None:
    """Let this process sleep while it waits for a GPU; to be called before it uses it.

    Usually it would spin. Ranks of a whole cluster that spin on one machine keep its cores from the threads that send.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    if (code := driver.cuInit(0) or driver.cuDevicePrimaryCtxSetFlags_v2(gpu, BLOCKING)) != 0:
        raise EngineError(f"CUDA's driver refuses to let ranks sleep while they wait for GPU {gpu}: error {code}")


def check_gpu() -> None:
    """Refuse where there is no GPU. CUDA itself is not asked: ranks are forked later, which it does not survive."""
    tool = find_program("nvidia-smi")
    found = "" if tool is None else subprocess.run([tool, "-L"], capture_output=True, text=True, check=False).stdout
    if "GPU 0" not in found:
        raise EngineError("--device cuda needs an NVIDIA GPU on this machine, and nvidia-smi finds none")
