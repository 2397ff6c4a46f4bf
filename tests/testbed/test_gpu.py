"""Ranks that share a GPU: what NCCL and MPS need. The tools of NVIDIA are stand-ins here."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from meshwright.errors import EngineError
from meshwright.testbed.gpu import nccl_environment, shared_gpu, sleep_while_waiting

SMI = "#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-1)'\n"

MPS = """#!/bin/sh
if [ "$1" = -f ]; then
    echo $$ > "$CUDA_MPS_PIPE_DIRECTORY/new" && mv "$CUDA_MPS_PIPE_DIRECTORY/new" "$CUDA_MPS_PIPE_DIRECTORY/control"
    while [ ! -e "$CUDA_MPS_PIPE_DIRECTORY/quit" ]; do sleep 0.02; done
else
    read word && [ "$word" = quit ] && touch "$CUDA_MPS_PIPE_DIRECTORY/quit"
fi
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for stand-ins, before everything else on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr("meshwright.testbed.gpu.USUAL", tmp_path / "none")
    return tmp_path


def add(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_every_device_is_a_host_of_its_own_for_nccl() -> None:
    found = [nccl_environment(device) for device in range(8)]
    assert len({each["NCCL_HOSTID"] for each in found}) == 8
    assert {each["NCCL_NET"] for each in found} == {"Socket"}
    assert {each["NCCL_SOCKET_IFNAME"] for each in found} == {"eth0"}


def test_mps_runs_while_the_gpu_is_shared(tools: Path) -> None:
    add(tools, "nvidia-smi", SMI)
    add(tools, "nvidia-cuda-mps-control", MPS)
    with shared_gpu("cuda") as added:
        folder = Path(added["CUDA_MPS_PIPE_DIRECTORY"])
        daemon = int((folder / "control").read_text())
        os.kill(daemon, 0)
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(daemon, 0)


def test_mps_that_does_not_start_is_an_error(tools: Path) -> None:
    add(tools, "nvidia-smi", SMI)
    add(tools, "nvidia-cuda-mps-control", "#!/bin/sh\nexit 1\n")
    with pytest.raises(EngineError, match="MPS, which lets ranks share the GPU, does not start"), shared_gpu("cuda"):
        pytest.fail("it is not there")


def test_a_daemon_that_is_there_already_is_used(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tools, "nvidia-smi", SMI)
    add(tools, "nvidia-cuda-mps-control", "#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/somewhere")
    with shared_gpu("cuda") as added:
        assert added == {}


def test_nothing_is_needed_on_the_cpu(tools: Path) -> None:
    add(tools, "nvidia-smi", "#!/bin/sh\nexit 1\n")
    for device in (None, "cpu"):
        with shared_gpu(device) as added:
            assert added == {}


def test_a_machine_without_a_gpu_is_told(tools: Path) -> None:
    add(tools, "nvidia-smi", "#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    message = "needs an NVIDIA GPU on this machine, and nvidia-smi finds none"
    with pytest.raises(EngineError, match=message), shared_gpu("cuda"):
        pytest.fail("there is none")


@pytest.mark.parametrize("refused", ["", "cuInit", "cuDevicePrimaryCtxSetFlags_v2"])
def test_ranks_sleep_while_they_wait_for_the_gpu(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, tuple[int, ...]]] = []

    class Driver:
        def __init__(self, name: str) -> None:
            assert name == "libcuda.so.1"

        def __getattr__(self, name: str) -> Callable[..., int]:
            return lambda *given: calls.append((name, given)) or (100 if name == refused else 0)  # type: ignore[func-returns-value]

    monkeypatch.setattr("ctypes.CDLL", Driver)
    if refused:
        with pytest.raises(EngineError, match="wait for GPU 1: error 100"):
            sleep_while_waiting(1)
    else:
        sleep_while_waiting(1)
        assert calls == [("cuInit", (0,)), ("cuDevicePrimaryCtxSetFlags_v2", (1, 4))]
