"""What plans say to communication libraries: replica groups, NCCL's tuner plugin, Open MPI's rules."""

import csv
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from meshwright import (
    Goal,
    Pipelined,
    Plan,
    SpecError,
    parse_hierarchy,
    parse_pipelined,
    parse_program,
    parse_reduction,
    parse_system,
    plan,
)
from meshwright.export.formats import export
from meshwright.export.request import Exported, Request
from meshwright.runtime.launch import mpirun_command
from tests.export.plans import SIZE, plan_of
from tests.jax.test_reducer import hlo_collectives, shards

HYBRID = "ReduceScatter inside node; AllReduce across node; AllGather inside node"


def exported(form: str, text: str, library: str, spec: str = "node=2,gpu=4", goal: Goal = Goal.ALL_REDUCE) -> Exported:
    hierarchy = parse_hierarchy(spec)
    return export(form, Request(plan_of(parse_pipelined(text, hierarchy), hierarchy, goal, library)))


# Replica groups


def test_replica_groups_are_those_of_the_steps() -> None:
    lines = exported("replica-groups", HYBRID, "ring").text.splitlines()
    assert lines[0] == "// reduction 0: all-reduce over data, 1MiB"
    assert [line.split(", use_global")[0] for line in lines[1:]] == [
        "reduce-scatter, replica_groups={{0,1,2,3},{4,5,6,7}}",
        "all-reduce, replica_groups={{0,4},{1,5},{2,6},{3,7}}",
        "all-gather, replica_groups={{0,1,2,3},{4,5,6,7}}",
    ]


def test_devices_outside_a_step_are_alone_in_it() -> None:
    found = exported("replica-groups", "Reduce inside node; AllReduce masters of node; Broadcast inside node", "ring")
    assert [line.split(", use_global")[0] for line in found.text.splitlines()[1:]] == [
        "all-reduce, replica_groups={{0,1,2,3},{4,5,6,7}}",
        "all-reduce, replica_groups={{0,4},{1},{2},{3},{5},{6},{7}}",
        "collective-broadcast, replica_groups={{0,1,2,3},{4,5,6,7}}",
    ]
    assert any("HLO has no reduce to one device" in note for note in found.notes)


def test_groups_of_different_sizes_are_refused() -> None:
    text = "Reduce inside node; ReduceScatter masters of node; AllGather masters of node; Broadcast inside node"
    with pytest.raises(SpecError, match="'ReduceScatter masters of node', in which only some devices take part"):
        exported("replica-groups", text, "ring")


def test_xla_compiles_programs_to_these_groups() -> None:
    found = plan_of(Pipelined.of(parse_program(HYBRID, h := parse_hierarchy("node=2,gpu=4"))), h)
    from meshwright.jax import Reducer

    reducer = Reducer(found)
    reduced = shards(found, reducer.axes("data"), reducer.all_reduce)
    text = export("replica-groups", Request(found)).text
    ours = [
        (name, frozenset(tuple(map(int, group.split(","))) for group in re.findall(r"\{([\d,]+)\}", groups)))
        for name, groups in re.findall(r"^(\S+), replica_groups=(\S+), use", text, re.MULTILINE)
    ]
    assert list(hlo_collectives(reduced, np.zeros((8, 64), np.float32))) == ours


# NCCL's example tuner plugin


def rows(found: Exported) -> list[list[str]]:
    return list(csv.reader(line for line in found.text.splitlines() if not line.startswith("#")))


def test_the_tuner_plugin_gets_a_line_for_each_kind_of_call() -> None:
    assert rows(exported("nccl-tuner", HYBRID, "nccl")) == [
        ["allgather", str(SIZE // 2), str(2 * SIZE), "ring", "simple", "-1", "1", "4", "-1", "-1"],
        ["allreduce", str(SIZE // 8), str(SIZE // 2), "ring", "simple", "-1", "2", "2", "-1", "-1"],
        ["reducescatter", str(SIZE // 2), str(2 * SIZE), "ring", "simple", "-1", "1", "4", "-1", "-1"],
    ]


def test_lines_of_the_tuner_plugin_are_short_enough_for_it() -> None:
    text = exported("nccl-tuner", HYBRID, "nccl").text
    assert max(map(len, text.splitlines())) < 256
    assert {len(row) for row in rows(exported("nccl-tuner", HYBRID, "nccl"))} == {10}


def test_sizes_with_different_algorithms_meet_in_the_middle() -> None:
    system = parse_system("node=8@10GB/s+20us,gpu=8@400GB/s+2us")
    sizes = [parse_reduction(f"data={size}") for size in ("1MiB", "4MiB", "64MiB")]
    found = plan(system, {"data": 64}, sizes, library="nccl", max_steps=1).candidates[0]
    assert [(row[1], row[2], row[3]) for row in rows(export("nccl-tuner", Request(found)))] == [
        (str(2**19), str(5 * 2**19), "tree"),
        (str(5 * 2**19 + 1), str(128 * 2**20), "ring"),
    ]


def test_what_nccl_does_not_have() -> None:
    with pytest.raises(SpecError, match="counts on the algorithm 'recursive', and NCCL has only ring, tree, switch"):
        exported("nccl-tuner", "AllReduce all", "openmpi")


def test_hosts_are_left_open_where_no_level_is_called_node() -> None:
    found = exported("nccl-tuner", "AllReduce all", "nccl", "a=2,b=2")
    assert rows(found)[0][6:8] == ["-1", "4"]
    assert any("the number of hosts is left open" in note for note in found.notes)


# Open MPI's rules


def test_rules_for_open_mpi() -> None:
    text = exported("ompi-rules", HYBRID, "openmpi").text
    assert [line.partition(" #")[0] for line in text.splitlines()] == [
        *["3", "0", "3", "0", "1", "0 0 0 0", "4", "3", "0 0 0 0", f"{SIZE // 2} 3 0 0", f"{2 * SIZE + 1} 0 0 0"],
        *["5", "1", "0 0 0 0"],
        *["2", "3", "0", "1", "0 0 0 0", "2", "3", "0 0 0 0", f"{SIZE // 8} 6 0 0", f"{SIZE // 2 + 1} 0 0 0"],
        *["3", "1", "0 0 0 0"],
        *["13", "3", "0", "1", "0 0 0 0", "4", "3", "0 0 0 0", f"{SIZE // 2} 3 0 0", f"{2 * SIZE + 1} 0 0 0"],
        *["5", "1", "0 0 0 0"],
    ]


def test_what_open_mpi_does_not_have() -> None:
    with pytest.raises(
        SpecError, match="counts on the algorithm 'ring' for ReduceScatter, and Open MPI has only reduce-"
    ):
        exported("ompi-rules", HYBRID, "ring")
    with pytest.raises(SpecError, match="the rules are for blocking collectives"):
        exported("ompi-rules", f"{HYBRID}, in 4 chunks", "openmpi")


MPI = """
import sys
import numpy as np
from mpi4py import MPI
world = MPI.COMM_WORLD
given = np.random.default_rng(world.rank).standard_normal(4096)
result = np.empty_like(given)
world.Allreduce(given, result)
open(f"{sys.argv[1]}{world.rank}", "wb").write(result.tobytes())
"""


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
def test_open_mpi_follows_the_rules(tmp_path: Path) -> None:
    """Algorithms add up in different orders, so the last bits of a sum tell which of them it was."""
    if "Open MPI" not in subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout:
        pytest.skip("this mpirun is not Open MPI's")
    best = plan(parse_system("gpu=4@1GB/s"), {"data": 4}, [parse_reduction("data=32KiB")], library="ring").candidates[0]
    (tmp_path / "rules").write_text(export("ompi-rules", Request(best)).text)
    (tmp_path / "sum.py").write_text(MPI)
    dynamic = ["--mca", "coll_tuned_use_dynamic_rules", "1"]
    ways = {
        "default": [],
        "rules": [*dynamic, "--mca", "coll_tuned_dynamic_rules_filename", str(tmp_path / "rules")],
        "forced": [*dynamic, "--mca", "coll_tuned_allreduce_algorithm", "4"],
    }
    sums = {}
    for name, options in ways.items():
        command = [*mpirun_command(4), *options, sys.executable, "sum.py", name]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        sums[name] = hashlib.sha256((tmp_path / f"{name}0").read_bytes()).hexdigest()
    assert sums["rules"] == sums["forced"] != sums["default"]


# All of them


def test_one_of_several_reductions() -> None:
    reductions = [parse_reduction("data=1MiB"), parse_reduction("tensor=2MiB")]
    found: Plan = plan(parse_system("node=2@1GB/s,gpu=4@8GB/s"), {"data": 2, "tensor": 4}, reductions).candidates[0]
    for form in ("msccl", "mscclpp"):
        with pytest.raises(SpecError, match=r"carries one reduction, and the plan has 2: say --reduction N \(0: all-"):
            export(form, Request(found))
    assert 'ngpus="4"' in export("msccl", Request(found, reduction=1)).text
    assert "reduction 0" not in export("replica-groups", Request(found, reduction=1)).text
    for form in ("replica-groups", "nccl-tuner", "msccl"):
        with pytest.raises(SpecError, match=r"(no|such) .*reduction"):
            export(form, Request(found, reduction=2))


@pytest.mark.parametrize(
    ("form", "request_", "message"),
    [
        ("msccl", {"hosts": ("a",)}, "--hosts means nothing in the format msccl; it is for rankfile, hostfile"),
        ("rankfile", {"instances": 2}, "--instances means nothing in the format rankfile; it is for msccl, mscclpp"),
        ("slurm", {"labels": {"a": "b"}}, "--label means nothing in the format slurm; it is for kubernetes"),
        ("torchrun", {"least": 2}, "--min-bytes means nothing in the format torchrun"),
    ],
)
def test_options_that_mean_nothing_are_refused(form: str, request_: dict[str, object], message: str) -> None:
    h = parse_hierarchy("gpu=2")
    request = Request(plan_of(parse_pipelined("AllReduce all", h), h), **request_)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=message):
        export(form, request)
