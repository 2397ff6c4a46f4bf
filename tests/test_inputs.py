"""Whatever text, file or value is given, the answer is a result or a MeshwrightError, at little cost."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright.cost.library import parse_library_yaml
from meshwright.errors import InvalidProgramError, MeshwrightError, SpecError, TooLargeError
from meshwright.language.program import Pipelined, all_steps
from meshwright.language.symbolic import is_valid
from meshwright.measure.bench import cases
from meshwright.measure.calibrate import fit
from meshwright.measure.logs import read_log
from meshwright.measure.observations import Observation, microbenchmarks, observations
from meshwright.measure.records import Records, read_measurements
from meshwright.measure.trials.numpy import NumpyRunner
from meshwright.measure.trials.trial import payloads
from meshwright.planning.constraints import ConstraintRule
from meshwright.system.read import parse_system_yaml
from meshwright.text.spec import shown
from meshwright.workload.read import parse_workload_yaml
from tests.cli.test_verbs import run
from tests.measure.test_logs import NCCL
from tests.strategies import A100, AXES

DATA = mw.Reduction(("data",), 2**20)
HUGE = 10**5000  # which Python refuses to print
LONG = f"{{name: {'x' * 5000}, count: 2}}"


def small_plan(system: str = "node=2@1GB/s,gpu=2@8GB/s", size: int = 1000) -> mw.Plan:
    counts = mw.load_system(system).counts
    axes = {"data": counts[0], "tensor": counts[1]}
    return mw.plan(system, axes, [mw.Reduction(("data",), size)], top=1).candidates[0]


def test_systems_libraries_and_paths_may_be_given_as_text(tmp_path: Path) -> None:
    named = mw.plan("gcp-a100:4", AXES, [DATA], library="nccl", top=1)
    assert named == mw.plan(A100, AXES, [DATA], library=mw.load_library("nccl"), top=1)
    assert mw.count_placements("gcp-a100:4", AXES) == len(list(mw.placements("gcp-a100:4", AXES))) == 3
    path = tmp_path / "plan.json"
    mw.write_plan(named.candidates[0], str(path))
    assert mw.read_plan(str(path)) == mw.read_plan(path) == named.candidates[0]
    (tmp_path / "s.yaml").write_text("levels: [{name: gpu, count: 4}]")
    assert mw.load_system(tmp_path / "s.yaml") == mw.load_system(str(tmp_path / "s.yaml"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mw.load_system("x" * 5000), "unknown preset 'xxx"),
        (lambda: mw.load_system("x\0y"), "unknown preset"),
        (lambda: mw.load_system(None), "expected a System, a preset, a description like .* not None"),  # type: ignore[arg-type]
        (lambda: parse_system_yaml(f"levels: [{LONG}, {LONG}]", "x.yaml"), "there is already a level 'xxx"),
        (lambda: mw.load_library("x" * 5000 + ".yaml"), "cannot read the library file .*File name too long"),
        (lambda: mw.plan(A100, AXES, DATA), r"expected a list of communications, as in \[Reduction"),  # type: ignore[arg-type]
        (lambda: mw.plan(A100, AXES, "data=1MiB"), "expected a list of communications"),  # type: ignore[arg-type]
        (lambda: mw.plan(A100, AXES, ["data=1MiB"]), "expected a Reduction or a Transfer.*parse_reduction"),  # type: ignore[list-item]
        (lambda: mw.plan(A100, "data=64", [DATA]), "expected axes with their sizes.*parse_axes"),  # type: ignore[arg-type]
        (lambda: mw.plan(A100, AXES, [DATA], constraints=mw.inside("data", "node")), "a list of constraints"),  # type: ignore[arg-type]
        (lambda: mw.plan(A100, AXES, [DATA], max_steps=10**9), "zero or more, up to 64"),
        (lambda: mw.plan(A100, AXES, [DATA], top=10**30), "and at most 1,000,000"),
        (lambda: mw.inside("data", np.ones(2)), "in the constraint is not a name"),  # type: ignore[arg-type]
        (lambda: mw.Placement("gcp-a100", ("a",), ((4,),)), "expected a System; load_system makes one"),  # type: ignore[arg-type]
        (lambda: mw.Placement(A100, ("a",), ((HUGE, 16),)), "must|multiply"),
        (lambda: mw.Reduction(("data",), HUGE), "bytes=a int that is too long to show"),
        (lambda: mw.Reduction(("data",), 8, hidden=float("nan")), "hidden=nan"),
        (lambda: mw.Reduction(("data",), 8, name="\x1b[31mred"), "characters that can be printed"),
        (lambda: mw.Link(10**400), "bandwidth must be bytes per second"),
        (lambda: mw.Link(1e9, latency=1e300), "latency must be"),
        (lambda: mw.System("s", tuple(mw.Level(f"l{k}", 10**12) for k in range(16))), "1.0e.192 devices; at most"),
        (lambda: mw.System("s", mw.Level("x", 2)), "expected a list of levels"),  # type: ignore[arg-type]
        (lambda: mw.Hierarchy(5, (2,)), "expected a list of names"),  # type: ignore[arg-type]
        (lambda: mw.parse_axes(5), "expected axes as text"),  # type: ignore[arg-type]
        (lambda: mw.parse_program(None, mw.parse_hierarchy("a=2")), "a program as text"),  # type: ignore[arg-type]
        (lambda: mw.parse_program("AllReduce all", "a=2"), "a Hierarchy; parse_hierarchy"),  # type: ignore[arg-type]
        (lambda: mw.Program("AllReduce all"), "expected a list of steps"),  # type: ignore[arg-type]
        (lambda: mw.Grouping("a", "b"), "0 <= first <= last"),  # type: ignore[arg-type]
        (lambda: mw.read_plan(5), "expected the path of a plan file, not 5"),  # type: ignore[arg-type]
        (lambda: mw.read_plan("x" * 5000), "cannot read the plan file .*File name too long"),
        (lambda: mw.read_plan("x\0"), "cannot read the plan file .*null"),
        (lambda: mw.write_plan(None, "x.json"), "expected a Plan"),  # type: ignore[arg-type]
        (lambda: mw.Constraint(ConstraintRule.INSIDE, "a b", "node"), "'a b' in the constraint is not a name"),
        (lambda: mw.fixed_row("a", 4), "expected a list of factors"),  # type: ignore[arg-type]
        (lambda: mw.Library("l", False, ()), "has no rules for AllReduce"),
        (lambda: mw.Line("data=8"), "expected a Reduction or a Transfer"),  # type: ignore[arg-type]
        (lambda: mw.Workload("w", (mw.Line(DATA),), {"data": "8"}), "axis 'data' has the count '8'"),  # type: ignore[dict-item]
        (lambda: mw.run_program(Pipelined, None, []), "expected a Program"),  # type: ignore[arg-type]
        (lambda: mw.parse_program("Reduce " + "x" * 10**5, mw.parse_hierarchy("a=2")), r"(?s)^.{0,400}$"),
    ],
)
def test_wrong_types_and_sizes_are_refused_clearly(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(MeshwrightError, match=message) as caught:
        call()
    assert len(str(caught.value)) < 1000


def test_run_program_wants_arrays_and_an_operation() -> None:
    h = mw.parse_hierarchy("a=2")
    with pytest.raises(MeshwrightError, match="expected an array from each device"):
        mw.run_program(mw.parse_program("AllReduce all", h), h, [[[1], [1, 2]]] * 2)  # type: ignore[list-item]
    with pytest.raises(MeshwrightError, match="expected an operation on two arrays"):
        mw.run_program(mw.parse_program("AllReduce all", h), h, [np.ones(2)] * 2, operation=None)  # type: ignore[arg-type]


def test_values_in_messages_are_short() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    assert shown(HUGE) == "a int that is too long to show"
    assert shown(Odd()) == "a Odd that is too long to show"
    assert shown("x" * 100) == "'" + "x" * 78 + "…"


DEEP = ["[" * 3000, "{" * 3000, "{a: " * 1000 + "}" * 1000, "- " * 3000, "levels: " + "[{" * 1500]


@pytest.mark.parametrize("text", DEEP)
@pytest.mark.parametrize("read", [parse_system_yaml, parse_library_yaml, parse_workload_yaml])
def test_deep_nesting_is_refused_at_once(read: Callable[[str, str], Any], text: str) -> None:
    with pytest.raises(SpecError, match=r"x.yaml line 1: malformed YAML: nested far too deeply: more than 20"):
        read(text, "x.yaml")


def test_yaml_has_a_size_and_names_can_be_printed(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="at most 262,144 are read"):
        parse_system_yaml("#" * 300_000, "x.yaml")
    path = tmp_path / "x.yaml"
    path.write_bytes(b"#" * 300_000)
    with pytest.raises(SpecError, match="has more than 262,144 bytes"):
        mw.load_system(path)
    with pytest.raises(SpecError, match="holds what cannot be printed"):
        parse_system_yaml('name: "\\e[31mred"\nlevels: [{name: a, count: 2}]', "x.yaml")
    with pytest.raises(SpecError, match="holds what cannot be printed"):
        parse_system_yaml('name: "\\ud800"\nlevels: [{name: a, count: 2}]', "x.yaml")
    with pytest.raises(SpecError, match="the algorithm 'ring' is named twice"):
        parse_library_yaml("collectives: {AllReduce: [{algorithms: [ring, ring]}]}", "x.yaml")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda text: text.replace('"seconds": ', '"seconds": NaN, "x": ', 1), "NaN is not a number of JSON"),
        (lambda _: "[" * 100_000, "maximum recursion|nested|not a whole JSON"),
        (lambda text: text.replace('"node"', "[" * 100 + "]" * 100, 1), "system: nested far too deeply"),
        (lambda _: "{" + ",".join('"a": 1' for _ in range(50_000)) + "}", "'a' appears 50000 times"),
        (lambda text: text + " " * 2**22, "has more than 4,194,304 bytes"),
        (lambda text: text.replace("1GB/s", "1e400B/s"), "system: '1e400B/s' is not a bandwidth"),
    ],
)
def test_damaged_plan_files(tmp_path: Path, edit: Callable[[str], str], message: str) -> None:
    path = tmp_path / "plan.json"
    mw.write_plan(small_plan(), path)
    path.write_text(edit(path.read_text()))
    with pytest.raises(SpecError, match=message):
        mw.read_plan(path)


def test_a_plan_file_that_names_five_million_nodes_costs_little(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    mw.write_plan(small_plan("node=5000000@1GB/s,gpu=8@9GB/s"), path)
    assert path.stat().st_size < 4000
    assert mw.read_plan(path).placement.system.devices == 40_000_000
    assert run("explain", str(path)).exit_code == 0
    local = "40,000,000 ranks are too many for this machine: --local starts at most 1,024"
    for arguments, message in (
        (["hosts", str(path), "--hosts", "a"], "40,000,000 devices are too many for a line each; at most 1,048,576"),
        (["export", str(path), "--to", "slurm", "--hosts", "a"], "40,000,000 devices are too many for a line each"),
        (["export", str(path), "--to", "replica-groups"], "40,000,000 devices are too many to list in groups"),
        (["export", str(path), "--to", "msccl"], "a group has 5000000 devices; at most 512 are written"),
        (["export", str(path), "--to", "mscclpp"], "a group over data spans 625000 hosts"),
        (["run", str(path), "--engine", "numpy"], "40,000,000 devices in this process would hold up to"),
        (["run", str(path), "--engine", "numpy", "--bytes", "4B"], "run it where the devices are"),
        (["run", str(path), "--engine", "torch", "--local"], local),
        (["run", str(path), "--engine", "mpi", "--local"], local),
        (["run", str(path), "--engine", "jax", "--local"], "40,000,000 devices in this process"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2
        assert message in result.stderr


def test_the_interpreter_counts_the_chunks_of_a_group() -> None:
    plan = small_plan("node=20000@1GB/s,gpu=1", size=4)
    runner = NumpyRunner()
    runner.load(plan)
    with pytest.raises(TooLargeError, match=r"20,000 devices in this process would hold up to .*, more than the 1GiB"):
        runner.prepare(payloads(plan, "float32")[0])


def test_long_rings_are_refused_and_shorter_ones_routed() -> None:
    def seconds(count: int) -> float:
        system = mw.System("r", (mw.Level("x", count, mw.Link(1e9, fabric=mw.Fabric.RING)),))
        kind = mw.TransferKind.ALL_TO_ALL
        return mw.plan(system, {"a": count}, [mw.Transfer(("a",), 8 * count, kind)], top=1).candidates[0].seconds

    for count in (8, 512):  # what goes d links far takes up d links; nobody is further away than half of the ring
        assert seconds(count) == pytest.approx(sum(range(1, count // 2 + 1)) * 8 / 1e9)
    with pytest.raises(TooLargeError, match="a ring of 513 children is too long to route; at most 512 can be"):
        seconds(513)


@pytest.mark.parametrize("goal", [goal for goal in mw.Goal if goal.has_programs])
def test_fast_and_exact_checks_agree(goal: mw.Goal) -> None:
    h = mw.parse_hierarchy("a=2,b=3")
    found = set()
    for length in range(4):
        for steps in product(all_steps(2), repeat=length):
            if length == 3 and hash(steps) % 7:
                continue
            program = mw.Program(steps)
            try:
                mw.check_program(program, h, goal)
                valid = True
            except InvalidProgramError:
                valid = False
            assert is_valid(program, 2, goal) == valid
            found.add(valid)
    assert found == {True, False}


def test_a_bench_of_too_many_programs_is_refused_before_it_lists_them() -> None:
    levels = ",".join(f"l{k}=2@1GB/s" for k in range(4))
    placement = mw.Placement(mw.parse_system(levels), ("a",), ((2, 2, 2, 2),))
    with pytest.raises(TooLargeError, match=r"there are 13,677,876 programs and placements .* at most 20,000 can be"):
        cases([placement], [mw.Reduction(("a",), 1000)], mw.load_library("ring"), every=20)
    result = run(
        "bench", "--system", levels, "--axes", "a=16", "--reduce", "a=1kB", "--every", "20", "--out", "x.jsonl"
    )
    assert result.exit_code == 2
    assert "ask for shorter programs with --every" in result.stderr
    with pytest.raises(TooLargeError, match="1,000,000 devices are too many to measure with"):
        microbenchmarks(mw.parse_system("a=1000000@1GB/s"), mw.load_library("ring"), [1000])


SYSTEM = {"name": "s", "levels": [{"name": "node", "count": 2, "bandwidth": "1MB/s"}]}
GOOD = {
    "system": SYSTEM,
    "axes": ["node"],
    "matrix": [[2]],
    "over": ["node"],
    "goal": "all-reduce",
    "bytes": 4096,
    "program": "AllReduce all",
    "engine": "torch",
    "seconds": [0.01, 0.02],
}


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"seconds": [float("inf")]}, "line 2: expected a JSON object"),
        ({"seconds": [float("nan")]}, "line 2: expected a JSON object"),
        ({"seconds": ["fast"]}, "line 2: not a measurement: 'fast' is no time that was measured"),
        ({"seconds": [0.0]}, "0.0 is no time that was measured"),
        ({"seconds": [1e-300]}, "1e-300 is no time that was measured"),
        ({"seconds": 3}, "expected a list of seconds, not 3"),
        ({"system": {}}, "its system: a system needs 'levels'"),
        ({"system": 5}, "its system: a system must be a mapping"),
        ({"axes": None}, "expected a list of axes, not None"),
        ({"over": ["gpu"]}, "unknown axis 'gpu'"),
        ({"over": []}, "needs at least one axis"),
        ({"matrix": [[3]]}, "multiply to 3, but the level has 2"),
        ({"matrix": [["x"]]}, "expected a list of factors"),
        ({"bytes": "4096"}, "bytes='4096'"),
        ({"bytes": 10**400}, "bytes=1000"),
        ({"goal": []}, r"unknown goal \[\]"),
        ({"program": 5}, "expected a text for 'program', not 5"),
        ({"alone": "no"}, "true or false for 'alone'"),
        ({"links": {"node": "x"}}, "the bytes that crossed 'node'"),
        ({"failed": 5}, "why it failed"),
        ({"more": 5}, "unknown key 'more'"),
    ],
)
def test_damaged_results_are_refused_with_their_line(tmp_path: Path, edit: dict[str, Any], message: str) -> None:
    path = tmp_path / "results.jsonl"
    head = json.dumps({"format": "meshwright-measurements", "version": 1})
    path.write_text(f"{head}\n{json.dumps(GOOD | edit)}\n")
    for read in (read_measurements, Records):
        with pytest.raises(SpecError, match=message):
            read(path)
    result = run("calibrate", "--system", "node=2@1MB/s", "--fit-only", "--measurements", str(path))
    assert result.exit_code == 2
    assert "line 2" in result.stderr


def test_fits_that_tell_nothing_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    head = json.dumps({"format": "meshwright-measurements", "version": 1})
    sends = [GOOD | {"program": "send", "bytes": size, "seconds": [0.01 / size]} for size in (1, 1000)]
    path.write_text("\n".join([head, *map(json.dumps, sends), ""]))
    system, library = mw.parse_system("node=2@1MB/s"), mw.load_library("ring")
    with pytest.raises(SpecError, match="the times of sends over 'node' do not grow with their bytes"):
        fit(system, library, observations(read_measurements(path)))
    with pytest.raises(SpecError, match="does not fit the system 's': unknown level of several 'gpu'"):
        fit(mw.System("s", system.levels), library, [Observation("gpu", mw.Collective.REDUCE, 1000, 0.1)])
    for seconds in ("inf", "nan", "1e300"):
        with pytest.raises(SpecError, match="no time that was measured"):
            Observation("node", None, 1000, float(seconds))


def test_odd_numbers_in_logs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    for given, message in (("inf", "inf is no time"), ("nan", "was the run cut off"), ("1e400", "inf is no time")):
        path.write_text(NCCL.replace("55.37", given).replace("92.50", given))
        with pytest.raises(SpecError, match=message):
            read_log(path, "gpu", 8)
    path.write_text(NCCL.replace("     1048576 ", "     1048576² "))
    assert len(read_log(path, "gpu", 8)) == 1
