"""What the tests of scripts that nobody changed share: the script, its cases, and what it computes with a plan."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("script.py")
CASES = (
    "ddp",
    "accumulation",
    "fsdp",
    "mixed_precision",
    "hsdp",
    "tensor_parallel",
    "functional_collectives",
    "aot_eager",
    "state_dict",
    "collectives",
)
"""All but `inductor`, which ends with the same as `aot_eager`, and needs a compiler."""
EVERY = (*CASES, *(["inductor"] if shutil.which("g++") else []))

ON_ONE_HOST = ("0", "2", "1", "3")
"""By rank, its number on its host, where all four are on one: ranks 1 and 2 have changed places."""
ON_TWO_HOSTS = ("0", "0", "1", "1")


def say_what_was_left_out() -> None:
    """At the end of a test of every case: what could not be tested here."""
    if "inductor" not in EVERY:
        pytest.skip("all passed but torch.compile with inductor, which needs a g++ that is not here")


def assert_alike(plain: Path, planned: Path, seats: tuple[str, ...] = ON_ONE_HOST) -> None:
    """On every rank: floats within tolerance, integers exactly; and ranks 1 and 2 have changed places."""
    for rank, seat in enumerate(seats):
        _, wanted = json.loads((plain / f"{rank}.json").read_text())
        local, found = json.loads((planned / f"{rank}.json").read_text())
        assert local == seat
        for case in found:
            for one, other in zip(wanted[case if case != "inductor" else "aot_eager"], found[case], strict=True):
                if np.asarray(one).dtype.kind == "f":
                    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=case)
                else:
                    assert one == other, case
        for exact in {"tensor_parallel", "collectives"} & found.keys():  # one collective of the library's, or integers
            assert wanted[exact] == found[exact]


def assert_planned(table: str) -> None:
    found = {(*line.split()[:2], by) for line in table.splitlines() for by in ("plan", "library") if f" {by} " in line}
    for collective in ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce"):
        assert ("data+tensor", collective, "plan") in found
    assert ("tensor", "all-gather", "library") in found
    assert ("data", "all-reduce", "plan") in found
