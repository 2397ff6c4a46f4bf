"""All kinds of trials, and how many of each."""

from dataclasses import replace
from functools import partial
from signal import SIGKILL, SIGSTOP

from benchmarks.soak.benches import killed_bench
from benchmarks.soak.cell import Kind
from benchmarks.soak.disks import bench_on_a_bad_disk, files_on_a_bad_disk, testbed_on_a_bad_disk
from benchmarks.soak.interrupts import (
    interrupted_bench,
    interrupted_calibrate,
    interrupted_plan,
    interrupted_testbed,
)
from benchmarks.soak.ranks import mpi_trial, torch_trial
from benchmarks.soak.repeated import ddp_forked, ddp_torchrun, fault_tests, jax_step

PARTS = ("repeated", "ranks", "benches", "interrupts", "disks")

TORCH_FAULTS = ("tests/torch/test_faults.py",)
CHUNK_FAULTS = ("tests/torch/test_pipelines.py", "-k", "dies or failing or order")
MPI_FAULTS = ("tests/mpi/test_reducer.py", "-k", "refused or order or hangs or dies")
JAX_FAULTS = ("tests/jax/test_distributed.py",)


def all_kinds(share: float) -> list[Kind]:
    """The kinds of trials, each with a share of its usual number."""
    kinds = [
        Kind("repeated", "ddp.py under torchrun", ddp_torchrun, 100, 240, alone=True),
        Kind("repeated", "ddp.py in forked ranks", ddp_forked, 300, 240),
        Kind("repeated", "jax_step.py", jax_step, 100, 240),
        Kind("repeated", "fault tests of torch", partial(fault_tests, TORCH_FAULTS), 100, 900),
        Kind("repeated", "fault tests of chunks", partial(fault_tests, CHUNK_FAULTS), 100, 600),
        Kind("repeated", "fault tests of MPI", partial(fault_tests, MPI_FAULTS), 100, 600),
        Kind("repeated", "tests of JAX on two processes", partial(fault_tests, JAX_FAULTS), 100, 600),
        Kind("ranks", "torch rank killed", partial(torch_trial, number=SIGKILL), 150, 180),
        Kind("ranks", "torch rank stopped", partial(torch_trial, number=SIGSTOP), 150, 180),
        Kind("ranks", "torch rank calls otherwise", partial(torch_trial, number=None), 150, 180),
        Kind("ranks", "MPI rank killed", partial(mpi_trial, number=SIGKILL), 60, 180),
        Kind("ranks", "MPI rank stopped", partial(mpi_trial, number=SIGSTOP), 60, 180),
        Kind("ranks", "MPI rank calls otherwise", partial(mpi_trial, number=None), 60, 180),
        Kind("benches", "bench on a testbed killed", partial(killed_bench, "torch", True), 40, 600),
        Kind("benches", "bench with NumPy killed", partial(killed_bench, "numpy", False), 20, 300),
        Kind("benches", "bench with mpirun killed", partial(killed_bench, "mpi", False), 10, 600),
        Kind("benches", "bench with torchrun killed", partial(killed_bench, "torch", False), 6, 600),
        Kind("interrupts", "plan interrupted", interrupted_plan, 60, 120),
        Kind("interrupts", "calibrate interrupted", interrupted_calibrate, 60, 120),
        Kind("interrupts", "bench interrupted", partial(interrupted_bench, False), 40, 300),
        Kind("interrupts", "bench on a testbed interrupted", partial(interrupted_bench, True), 30, 300),
        Kind("interrupts", "testbed up interrupted", partial(interrupted_testbed, False), 60, 120),
        Kind("interrupts", "testbed up with latency interrupted", partial(interrupted_testbed, True), 40, 120),
        Kind("disks", "plan on a full disk", partial(files_on_a_bad_disk, "plan", False), 20, 120),
        Kind("disks", "plan on a read-only disk", partial(files_on_a_bad_disk, "plan", True), 10, 120),
        Kind("disks", "calibrate on a full disk", partial(files_on_a_bad_disk, "calibrate", False), 20, 120),
        Kind("disks", "calibrate on a read-only disk", partial(files_on_a_bad_disk, "calibrate", True), 10, 120),
        Kind("disks", "bench on a full disk", partial(bench_on_a_bad_disk, False), 30, 120),
        Kind("disks", "bench on a read-only disk", partial(bench_on_a_bad_disk, True), 10, 120),
        Kind("disks", "testbed up on a full disk", partial(testbed_on_a_bad_disk, False), 10, 120),
        Kind("disks", "testbed up on a read-only disk", partial(testbed_on_a_bad_disk, True), 10, 120),
    ]
    return [replace(kind, count=max(1, round(kind.count * share))) for kind in kinds]
