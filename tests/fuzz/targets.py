"""What is fuzzed: for each target how a case is made, and what is done with it, also with what was accepted."""

import gzip
import json
import pickle
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import islice
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from click.testing import CliRunner

import meshwright as mw
from meshwright.cli import main
from meshwright.cost.library import library_document, library_of, parse_library_yaml
from meshwright.cost.model import CostModel
from meshwright.cost.pipeline import Pipeline
from meshwright.discovery.assemble import assemble
from meshwright.discovery.read import FORMATS, read_topology
from meshwright.errors import InvalidProgramError, MeshwrightError, SpecError
from meshwright.export.formats import FORMATS as EXPORTS
from meshwright.export.hosts import seatings
from meshwright.language.goals import PROGRAM_GOALS
from meshwright.language.parse import parse_pipelined
from meshwright.measure.accuracy import join, report
from meshwright.measure.calibrate import fit, message_rate, shared_processors
from meshwright.measure.logs import read_log
from meshwright.measure.observations import observations
from meshwright.measure.records import Records, read_measurements
from meshwright.placement.layout import layout_of
from meshwright.planning.constraints import ConstraintRule, parse_constraint
from meshwright.show.asked import answer
from meshwright.show.report import report_text
from meshwright.system.read import parse_system_yaml, system_document, system_of
from meshwright.text.hostlist import format_hosts, parse_hosts
from meshwright.text.spec import format_counts
from meshwright.text.units import format_bytes, parse_bandwidth, parse_bytes, parse_rate, parse_seconds
from meshwright.workload.read import parse_flops, parse_params, parse_workload_yaml, write_workload
from meshwright.workload.recorded import to_workload
from meshwright.workload.traces.hlo import hlo_calls
from meshwright.workload.traces.read import merged, trace_of
from tests.fuzz import mutate
from tests.measure.test_logs import BANDWIDTH, NCCL, OSU
from tests.traces.test_traces import DUMPED, FILES, PROFILED


@dataclass(frozen=True)
class Target:
    """How a case is made, and what is done with it in a folder for its files; share: of all cases."""

    make: Callable[[Random], Any]
    use: Callable[[Any, Path], None]
    share: float


def _pick(random: Random, valid: list[str]) -> str:
    """A valid text, mostly broken."""
    whole = random.choice(valid)
    return whole if random.random() < 0.1 else mutate.text(random, whole, valid)


_PLANNED: set[int] = set()


def _once(use: Callable[..., None], *given: Any) -> None:
    """Use what was accepted, but not again what is the same: most damage changes nothing of what is planned."""
    key = hash((use, repr(given)))
    if key not in _PLANNED:
        use(*given)
        _PLANNED.add(key)


# Programs

HIERARCHIES = [
    mw.parse_hierarchy(text) for text in ("node=2,gpu=2", "a=2,b=3,c=2", "gpu=4", "x=1", "rack=8,node=4,gpu=16")
]
HIERARCHIES += [mw.Hierarchy(tuple(f"l{k}" for k in range(9)), (2,) * 9)]


@cache
def _programs() -> list[tuple[mw.Hierarchy, list[str]]]:
    found = []
    for hierarchy in HIERARCHIES:
        levels = min(len(hierarchy.names), 3)
        shape = mw.Hierarchy(hierarchy.names[:levels], hierarchy.radices[:levels])
        texts = [
            program.text(shape)
            for goal in PROGRAM_GOALS
            for program in islice(mw.program_graph(levels, goal, 4).programs(), 0, 400, 9)
        ]
        texts += [f"{text}, in {k} chunks" for k, text in enumerate(texts[:20], 1)]
        found.append((hierarchy, [*texts, " | ".join(texts[-3:])]))
    return found


def _make_program(random: Random) -> Any:
    hierarchy, texts = random.choice(_programs())
    words = [*mutate.WORDS[:20], *hierarchy.names, ";"]
    text = " ".join(random.choices(words, k=random.randint(1, 12))) if random.random() < 0.2 else _pick(random, texts)
    return hierarchy, text, random.choice(PROGRAM_GOALS)


def _use_program(case: Any, _: Path) -> None:
    hierarchy, text, goal = case
    found = parse_pipelined(text, hierarchy)
    assert parse_pipelined(found.text(hierarchy), hierarchy) == found
    for program, _count in found.shares:
        assert mw.parse_program(program.text(hierarchy), hierarchy) == program
        try:
            mw.check_program(program, hierarchy, goal)
        except InvalidProgramError:
            return
    if hierarchy.size > 64:
        return
    whole = np.arange(6)
    gathered = goal is mw.Goal.ALL_GATHER
    inputs = [whole[rank : rank + 1] if gathered else whole for rank in range(hierarchy.size)]
    mw.run_program(
        found.program,
        hierarchy,
        [*inputs[:1], *([None] * (len(inputs) - 1))] if goal is mw.Goal.BROADCAST else inputs,
        goal,
    ) if not gathered or hierarchy.size <= 6 else None
    text = ",".join(f"{name}={radix}@1GB/s+1us" for name, radix in zip(hierarchy.names, hierarchy.radices, strict=True))
    if text:
        placement = mw.Placement(mw.parse_system(text), ("a",), (hierarchy.radices,))
        seconds = Pipeline(CostModel(layout_of(placement, ["a"]), mw.load_library("gloo"), 1000), goal).seconds(found)
        assert 0 <= seconds < 1e9


# Inline specs

SYSTEMS = [
    "node=4@8GB/s,gpu=16@270GB/s",
    "node=2@100Gbit/s+20us,gpu=8",
    "rack=2@1GB/s+5us,node=2@10GB/s,gpu=4@100GB/s+1us",
    "gpu=1000000000000",
    "gcp-a100:4",
    "dgx-h100",
    "a=1e3@1B/s",
]
AXES = ["data=4,shard=16", "data=8", "a=2,b=2,c=4", "data=64", "data=16,shard=1"]
REDUCTIONS = ["data=2GiB", "data+shard=64MiB*80", "reduce-scatter:shard=1GiB", "all-gather:a=1.5kB*2"]
CONSTRAINTS = ["tensor=node", "tensor=1,8", "data=[2,2]", "data=4"]
UNITS = [
    "8GB/s",
    "25Gbit/s",
    "400Gbps",
    "2GiB",
    "1.5 kB",
    "20us",
    "0.2s",
    "1e3ns",
    "6000/s",
    "2M/s",
    "70B",
    "1.5T",
    "400TFLOP/s",
]
TEXTS: dict[str, tuple[list[str], Callable[[str], Any]]] = {
    "system": (SYSTEMS, mw.load_system),
    "axes": (AXES, mw.parse_axes),
    "reduction": (REDUCTIONS, mw.parse_reduction),
    "hierarchy": (AXES, mw.parse_hierarchy),
    "row": (CONSTRAINTS, lambda text: parse_constraint(ConstraintRule.ROW, text)),
    "inside": (CONSTRAINTS, lambda text: parse_constraint(ConstraintRule.INSIDE, text)),
    "preset": (SYSTEMS, mw.preset),
    "library": (["ring", "nccl", "gloo.yaml"], mw.load_library),
    "workload": (["dense-70b", "x.yaml"], mw.load_workload),
    "bytes": (UNITS, parse_bytes),
    "bandwidth": (UNITS, parse_bandwidth),
    "seconds": (UNITS, parse_seconds),
    "rate": (UNITS, parse_rate),
    "params": (UNITS, parse_params),
    "flops": (UNITS, parse_flops),
}


def _make_spec(random: Random) -> Any:
    kind = random.choice(list(TEXTS))
    return kind, _pick(random, TEXTS[kind][0])


def _use_spec(case: Any, _: Path) -> None:
    kind, text = case
    found = TEXTS[kind][1](text)
    if isinstance(found, mw.System):
        _use_system(found)
    elif kind == "axes":
        assert mw.parse_axes(format_counts(found)) == found
        mw.count_placements(mw.System("s", (mw.Level("x", prod(found.values())),)), found)
    elif kind == "hierarchy":
        assert mw.parse_hierarchy(str(found)) == found or not found.names
    elif kind == "reduction":
        system = mw.parse_system("x=16@1GB/s")
        mw.plan(system, dict.fromkeys(found.axes, 1) | {found.axes[0]: 16}, [found], top=1)
    elif kind in ("row", "inside"):
        axes = {"data": 4, "shard": 4, "tensor": 4}
        mw.plan(mw.preset("gcp-a100"), axes, [mw.Reduction(("data",), 2**20)], constraints=[found], top=1)
    elif kind == "bytes":
        assert parse_bytes(format_bytes(found)) == found


def _use_system(system: mw.System) -> None:
    """Written and read back, it is the same; and if it is small, it can be planned for."""
    assert system_of(json.loads(json.dumps(system_document(system))), "again") == system
    if system.devices <= 64 and len(system.levels) <= 3:
        _once(_plan_system, system)
    else:
        mw.count_placements(system, {"data": 1, "rest": system.devices})


def _plan_system(system: mw.System) -> None:
    best = mw.plan(system, {"data": system.devices}, [mw.Reduction(("data",), 2**20)], top=1, max_steps=3)
    assert 0 <= best.candidates[0].seconds < float("inf")


# YAML


_FOLDERS = {
    "systems": ("meshwright.system", "presets"),
    "libraries": ("meshwright.cost", "libraries"),
    "workloads": ("meshwright.workload", "examples"),
}


def _shipped(folder: str) -> list[str]:
    package, inside = _FOLDERS[folder]
    entries = files(package).joinpath(inside).iterdir()
    return sorted(entry.read_text(encoding="utf-8") for entry in entries if entry.name.endswith(".yaml"))


@cache
def _texts(folder: str) -> list[str]:
    """The files that are shipped, without their long comments, and some that have what those lack."""
    texts = [
        "\n".join(line for line in text.splitlines() if not line.startswith("#")) + "\n" for text in _shipped(folder)
    ]
    return texts + _MORE[folder]


FULL_SYSTEM = {
    "name": "full",
    "levels": [
        {"name": "rack", "count": 2, "bandwidth": "1GB/s", "latency": "5us", "fabric": "ring", "bypass": True},
        {"name": "node", "count": 4, "bandwidth": "10GB/s", "per_device": "2GB/s", "reduces": True},
        {"name": "gpu", "count": 2, "bandwidth": "50GB/s", "fabric": "bus"},
    ],
    "message_rate": "6000/s",
}
FULL_LIBRARY = library_document(mw.load_library("nccl")) | {
    "handshake": True,
    "adapts": True,
    "in_chunks": {"AllReduce": [{"algorithms": ["ring"], "efficiency": 0.5, "posted": True}]},
}
FULL_WORKLOAD = {
    "name": "step",
    "axes": "data=4,tensor=8",
    "overlap": {"backward": 0.9},
    "memory": "2GB",
    "device_memory": "80GB",
    "compute": "0.5s",
    "communications": [
        {"name": "gradients", "kind": "all-reduce", "axes": "data", "bytes": "2GiB", "overlap": "backward"},
        {"kind": "all-to-all", "axes": ["tensor", "data"], "bytes": "64MiB", "count": 320, "hidden": 0.5},
        {"kind": "point-to-point", "axes": "data", "bytes": "1kB", "formula": "b x s", "source": "x"},
    ],
}
FULL_MODEL = {
    "axes": "data=2,tensor=2,pipeline=2,expert=2,context=2,shard=2",
    "overlap": {"gradients": 0.5},
    "model": {
        "params": "1.5B",
        "layers": 8,
        "hidden": 1024,
        "seq": 2048,
        "micro_batch": 1,
        "global_batch": 64,
        "heads": 16,
        "kv_heads": 4,
        "experts": 4,
        "top_k": 2,
        "expert_params": "1B",
        "dtype": "bf16",
        "gradients": "fp32",
        "recompute": "full",
        "sequence_parallel": True,
        "device_memory": "80GB",
        "flops": "400TFLOP/s",
    },
}
_MORE = {
    "systems": ["levels:\n- {name: node, count: 4, bandwidth: 8GB/s, latency: 20us}\n- &a {name: gpu, count: 16}\n"],
    "libraries": [],
    "workloads": [
        "communications:\n- &a {kind: all-reduce, axes: &b [data], bytes: 2GiB}\n- {<<: *a, axes: *b}\n- *a\n"
    ],
}
_DOCUMENTS: dict[str, list[Any]] = {
    "systems": [FULL_SYSTEM],
    "libraries": [FULL_LIBRARY],
    "workloads": [FULL_WORKLOAD, FULL_MODEL],
}


def _make_yaml(folder: str) -> Callable[[Random], str]:
    def make(random: Random) -> str:
        if random.random() < 0.5:
            return _pick(random, _texts(folder))
        return mutate.as_json(random, mutate.document(random, random.choice(_DOCUMENTS[folder])))

    return make


def _use_library(text: str, _: Path) -> None:
    library = parse_library_yaml(text, "library.yaml")
    assert library_of(json.loads(json.dumps(library_document(library))), "again") == library
    _once(_plan_small, library)


def _plan_small(library: mw.Library) -> None:
    best = mw.plan(
        "node=2@1GB/s+1us,gpu=4@8GB/s", {"data": 8}, [mw.Reduction(("data",), 2**20)], library=library, top=1
    )
    assert 0 <= best.candidates[0].seconds < float("inf")


def _use_workload(text: str, folder: Path) -> None:
    found = parse_workload_yaml(text, "workload.yaml")
    if not found.axes:
        return
    workload = found.workload()
    write_workload(workload, folder / "w.yaml")
    again = mw.load_workload(str(folder / "w.yaml")).workload()
    assert again.communications == workload.communications
    size = prod(found.axes.values())
    if size <= 256 and len(found.axes) <= 4 and len(workload.lines) <= 20:
        best = mw.plan(f"node=1@8GB/s,gpu={size}@100GB/s", found.axes, workload, top=1)
        assert 0 <= best.candidates[0].seconds < float("inf")


# Plan files


@cache
def _plans() -> list[Any]:
    found = []
    for system, axes, communications, library, chunks in (
        ("gcp-a100:2", "data=2,shard=16", ["data=2GiB", "reduce-scatter:data+shard=64MiB*80"], "nccl", 1),
        (
            "rack=2@1GB/s+5us,node=2@10GB/s,gpu=4@100GB/s",
            "data=8,tensor=2",
            ["data=2GiB", "broadcast:tensor=1kB"],
            "gloo",
            64,
        ),
        ("node=5000000@1GB/s,gpu=8@9GB/s", "data=5000000,tensor=8", ["data=2GiB", "tensor=1GiB"], "ring", 1),
    ):
        reductions: list[Any] = [mw.parse_reduction(text) for text in communications]
        reductions.append(mw.Transfer(("data",), 2**20, mw.TransferKind.ALL_TO_ALL, name="t", hidden=0.5))
        best = mw.plan(system, mw.parse_axes(axes), reductions, library=library, max_chunks=chunks, top=1).candidates[0]
        found.append(_plan_document(best))
    found.append(
        _plan_document(
            mw.plan(
                parse_system_yaml(json.dumps(FULL_SYSTEM), "full"),
                {"data": 16},
                [mw.Reduction(("data",), 2**20)],
                top=1,
            ).candidates[0]
        )
    )
    return found


def _plan_document(plan: mw.Plan) -> Any:
    return {
        "format": "meshwright-plan",
        "version": 4,
        "system": system_document(plan.placement.system),
        "library": library_document(plan.library),
        **plan.document(),
    }


def _make_plan(random: Random) -> str:
    document = random.choice(_plans())
    if random.random() < 0.5:
        return mutate.as_json(random, mutate.document(random, document))
    if random.random() < 0.3:
        return mutate.as_json(random, _retimed(random, document))
    return _pick(random, [json.dumps(document, indent=1)])


def _retimed(random: Random, document: Any) -> Any:
    """Another system, with times that still fit: what a stranger would write."""
    document = deepcopy(document)
    levels = document["system"]["levels"]
    level = random.choice(levels)
    level.update(
        random.choice(
            [{"latency": "0.5s"}, {"fabric": "ring"}, {"fabric": "bus"}, {"bypass": True}, {"per_device": "1B/s"}]
        )
    )
    factor = random.choice([2, 3, 1000, 5_000_000])
    level["count"] *= factor
    document["placement"]["matrix"][0][levels.index(level)] *= factor
    document["placement"]["axes"][next(iter(document["placement"]["axes"]))] *= factor
    try:
        system = parse_system_yaml(json.dumps(document["system"]), "stranger")
        placement = mw.Placement(system, tuple(document["placement"]["axes"]), document["placement"]["matrix"])
        library = parse_library_yaml(json.dumps(document["library"]), "stranger")
        keys = ("axes", "bytes", "count", "goal", "name", "hidden")
        ones = [mw.Reduction(**{key: one[key] for key in keys}) for one in document["reductions"]]
        retimed = mw.plan(system, placement.sizes, ones, library=library, placement=placement, top=1, max_steps=2)
    except MeshwrightError:
        return document
    return _plan_document(retimed.candidates[0])


def _use_plan(text: str, folder: Path) -> None:
    path = folder / "plan.json"
    path.write_text(text, encoding="utf-8", errors="replace")
    plan = mw.read_plan(path)
    mw.write_plan(plan, folder / "again.json")
    assert mw.read_plan(str(folder / "again.json")) == plan
    if plan.placement.system.devices <= 256:
        seatings(plan.placement, ["a"])


# Results and logs

SYSTEM = {
    "name": "s",
    "levels": [
        {"name": "node", "count": 2, "bandwidth": "5000000.0B/s"},
        {"name": "gpu", "count": 4, "bandwidth": "12500000.0B/s"},
    ],
}


def _measurement(**more: Any) -> dict[str, Any]:
    return {
        "system": SYSTEM,
        "axes": ["node", "gpu"],
        "matrix": [[2, 1], [1, 4]],
        "over": ["node"],
        "goal": "all-reduce",
        "bytes": 4096,
        "program": "AllReduce all",
        "engine": "torch",
        "alone": False,
        "seconds": [0.01, 0.011, 0.0105],
        "links": {"node": 9, "gpu": 8},
        "failed": None,
    } | more


@cache
def _results() -> list[Any]:
    head = {"format": "meshwright-measurements", "version": 1}
    entries: list[Any] = [head]
    for over in ("node", "gpu"):
        for size in (4096, 65536, 2**20):
            seconds = [0.001 + size / 5e6, 0.0011 + size / 5e6]
            entries.append(_measurement(over=[over], bytes=size, seconds=seconds))
            entries.append(_measurement(over=[over], bytes=size, seconds=seconds, program="default"))
            entries.append(_measurement(over=[over], bytes=size, seconds=seconds, program="send", alone=True))
            entries.append(
                _measurement(over=[over], bytes=size, seconds=seconds, goal="all-gather", program="AllGather all")
            )
    entries.append({"started": "[1, 2]"})
    entries.append(_measurement(failed="wrong result: x", seconds=[]))
    study = [
        head,
        *(
            _measurement(over=["node", "gpu"], program=text)
            for text in ("default", "AllReduce all", "AllReduce inside node; AllReduce across node")
        ),
    ]
    return [entries, study, entries[:3]]


def _make_results(random: Random) -> Any:
    whole = random.choice(_results())
    if random.random() < 0.7:
        broken = mutate.document(random, whole)
        lines = broken if isinstance(broken, list) else [broken]
        text = "".join(json.dumps(line) + "\n" for line in lines)
    else:
        text = _pick(random, ["".join(json.dumps(line) + "\n" for line in whole)])
    return text, random.choice(["fit", "fit", "join", "resume"]), random.choice(["gloo", "ring", "openmpi"])


def _use_results(case: Any, folder: Path) -> None:
    text, what, name = case
    path = folder / "results.jsonl"
    path.write_text(text, encoding="utf-8", errors="replace")
    library = mw.load_library(name)
    if what == "resume":
        with Records(path) as records:
            list(records.done)
        read_measurements(path)
        return
    measurements = read_measurements(path)
    if what == "join":
        report(join(measurements, library))
        return
    system = parse_system_yaml(json.dumps(SYSTEM), "s")
    seen = observations(measurements)
    found = fit(system, library, seen)
    _use_system(found.system)
    _once(_plan_small, found.library)
    _use_system(shared_processors(found.system, message_rate(system, library, seen), system, library))


def _make_log(random: Random) -> str:
    return _pick(
        random, [NCCL, OSU, BANDWIDTH, NCCL.replace("all_reduce", "sendrecv"), OSU.replace("Allreduce", "Allgather")]
    )


def _use_log(text: str, folder: Path) -> None:
    path = folder / "all_reduce.log"
    path.write_text(text, encoding="utf-8", errors="replace")
    seen = read_log(path, "gpu", 4)
    found = fit(parse_system_yaml(json.dumps(SYSTEM), "s"), mw.load_library("gloo"), seen)
    _use_system(found.system)


# The command line, with files that are broken


def _make_verb(random: Random) -> Any:
    verb = random.choice(
        [
            "hosts",
            "export",
            "explain",
            "run",
            "accuracy",
            "calibrate",
            "plan",
            "check",
            "placements",
            "programs",
            "systems",
            "workload",
            "bench",
            "discover",
            "show",
        ]
    )
    small = ["--top", "1", "--max-steps", "2"]
    plan, results = _make_plan(random), _make_results(random)[0]
    system, axes, reduction = _pick(random, SYSTEMS), _pick(random, AXES), _pick(random, REDUCTIONS)
    arguments = {
        "hosts": [
            "hosts",
            "@0",
            "--hosts",
            _pick(random, ["a,b", "n[1-2]", "a"]),
            "--order",
            random.choice(["axes", "devices"]),
        ],
        "export": [
            "export",
            "@0",
            "--to",
            _pick(random, list(EXPORTS)),
            *random.choice(
                [[], ["--hosts", _pick(random, ["a,b", "n[1-2]"])], ["--reduction", _pick(random, ["0", "1"])]]
            ),
            *random.choice([[], ["--order", "devices"], ["--instances", "2"], ["--label", _pick(random, ["rack=x"])]]),
        ],
        "explain": ["explain", "@0", *random.choice([[], ["--json"]])],
        "show": [
            "show",
            "@0",
            *random.choice([["--json"], ["--out", "/dev/null"], ["--trace", "/dev/null"]]),
            *random.choice([[], ["--measurements", "@1"]]),
        ],
        "discover": [
            "discover",
            "@2",
            "--hosts",
            _pick(random, ["n[1-8]", "n01,n02"]),
            *random.choice([[], ["--json"], ["--node-type", "dgx-h100"]]),
        ],
        "run": ["run", "@0", "--engine", "numpy", "--bytes", _pick(random, ["1kB", "64B"]), "--repeat", "1"],
        "accuracy": ["accuracy", "@1", *random.choice([[], ["--json"]])],
        "calibrate": [
            "calibrate",
            "--system",
            "node=2@5MB/s,gpu=4@10MB/s",
            "--fit-only",
            "--measurements",
            "@1",
            *random.choice([[], ["--json", "--shared-processors"]]),
        ],
        "plan": ["plan", "--system", system, "--axes", axes, "--reduce", reduction, *small],
        "check": ["check", _pick(random, _programs()[0][1]), "--hierarchy", _pick(random, ["node=2,gpu=2"])],
        "placements": ["placements", "--system", system, "--axes", axes, "--first", "3"],
        "programs": ["programs", "--hierarchy", axes, "--max-steps", "2"],
        "systems": ["systems", _pick(random, SYSTEMS)],
        "workload": ["workload", "show", _pick(random, ["dense-70b", "moe-141b"])],
        "bench": [
            "bench",
            "--system",
            system,
            "--axes",
            axes,
            "--reduce",
            reduction,
            "--out",
            "/nowhere/x",
            "--engine",
            "numpy",
        ],
    }[verb]
    return arguments, plan, results, _pick(random, _topologies())


def _use_verb(case: Any, folder: Path) -> None:
    arguments, plan, results, topology = case
    places = {"@0": str(folder / "plan.json"), "@1": str(folder / "results.jsonl"), "@2": str(folder / "topology")}
    (folder / "topology").write_text(topology, encoding="utf-8", errors="replace")
    (folder / "plan.json").write_text(plan, encoding="utf-8", errors="replace")
    (folder / "results.jsonl").write_text(results, encoding="utf-8", errors="replace")
    result = CliRunner().invoke(main, [places.get(argument, argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in (0, 1, 2, 3), result.exit_code


# What the page of explore may ask

FIELDS = {
    "system": ["node=2@1GB/s,gpu=4@8GB/s", "dgx-h100:1", "node=2@1GB/s+5us,gpu=4@8GB/s"],
    "axes": ["data=2,shard=4", "data=8", "shard=4,data=2"],
    "reductions": ["data=1MiB", "data=1MiB\nshard=64KiB*2", "broadcast:data=1kB"],
    "workload": ["", "dense-70b", "moe-141b"],
    "library": ["", "nccl", "gloo"],
    "constraints": ["", "inside shard=node", "row data=2,1\nnot-across shard=node"],
    "choose": ["", "data,tensor"],
    "engine": ["", "jax", "torch"],
    "chunks": ["", "1", "4"],
    "max_steps": ["2", "1"],
    "no_rooted": ["", "yes"],
    "placement_only": ["", "yes"],
}


def _make_question(random: Random) -> Any:
    """Fields that fit, but for some."""
    asked: dict[str, Any] = {name: random.choice(valid) for name, valid in FIELDS.items()}
    if random.random() < 0.7:
        asked |= {"workload": "", "choose": ""}
    for name in random.sample(list(FIELDS), random.choice([0, 1, 1, 2])):
        asked[name] = mutate.junk(random) if random.random() < 0.1 else _pick(random, FIELDS[name])
    return asked


def _use_question(case: Any, _: Path) -> None:
    found = answer(case)
    json.dumps(found, allow_nan=False)
    ((what, value),) = found.items()
    if what == "errors":
        ((field, message),) = value.items()
        assert field in (*FIELDS, "")
        raise SpecError(message)
    report_text(value)


# Python, with values of any type

H = mw.parse_hierarchy("node=2,gpu=2")
S = mw.parse_system("node=2@1GB/s,gpu=4@8GB/s")
P = mw.Placement(S, ("data", "shard"), ((2, 1), (1, 4)))
R = mw.Reduction(("data",), 2**20)
PROGRAM = mw.parse_program("AllReduce all", H)
BEST = mw.plan(S, {"data": 2, "shard": 4}, [R], top=1).candidates[0]

CALLS: list[tuple[Callable[..., Any], list[Any]]] = [
    (mw.plan, [S, {"data": 2, "shard": 4}, [R]]),
    (lambda library: mw.plan(S, {"data": 8}, [R], library=library), ["ring"]),
    (lambda constraints: mw.plan(S, {"data": 8}, [R], constraints=constraints, top=1), [[mw.inside("data", "node")]]),
    (lambda placement, top: mw.plan(S, P.sizes, [R], placement=placement, top=top), [P, 1]),
    (lambda steps, some: mw.plan(S, {"data": 8}, [R], max_steps=steps, collectives=some), [2, list(mw.Collective)]),
    (lambda chunks: mw.plan(S, {"data": 8}, [R], max_chunks=chunks, top=1), [4]),
    (lambda *given: list(islice(mw.placements(*given), 3)), [S, {"data": 2, "shard": 4}]),
    (mw.count_placements, [S, {"data": 2, "shard": 4}]),
    (mw.Placement, [S, ("data", "shard"), ((2, 1), (1, 4))]),
    (P.coordinates, [3]),
    (P.rank, [{"data": 1, "shard": 2}]),
    (P.groups, [["data"]]),
    (P.factors, [["data"]]),
    (mw.System, ["s", S.levels, 1000.0]),
    (mw.Level, ["node", 2, mw.Link(1e9)]),
    (mw.Link, [1e9, 1e-6, 1e9, "ring", False, False]),
    (mw.load_system, ["gcp-a100"]),
    (mw.parse_system, ["node=2"]),
    (mw.preset, ["gcp-a100"]),
    (mw.load_library, ["ring"]),
    (mw.load_workload, ["dense-70b"]),
    (lambda axes: mw.load_workload("dense-70b").workload(axes), [{"data": 8, "shard": 128}]),
    (mw.parse_axes, ["data=2"]),
    (mw.parse_hierarchy, ["node=2"]),
    (mw.parse_reduction, ["data=2GiB"]),
    (mw.Reduction, [("data",), 2**20, 1, "all-reduce", "name", 0.5]),
    (mw.Transfer, [("data",), 2**20, "all-to-all", 1, "name", 0.5]),
    (mw.Hierarchy, [("node", "gpu"), (2, 2)]),
    (mw.reduction_hierarchy, [P, ["data"]]),
    (mw.parse_program, ["AllReduce all", H]),
    (mw.check_program, [PROGRAM, H, "all-reduce"]),
    (mw.run_program, [PROGRAM, H, [np.ones(3)] * 4, "all-reduce"]),
    (lambda *given: mw.Program(*given).text(H), [PROGRAM.steps]),
    (PROGRAM.text, [H]),
    (mw.Step, [mw.Collective.REDUCE, mw.Grouping(0, 1)]),
    (mw.Grouping, [0, 1, False]),
    (mw.program_graph, [2, "all-reduce", 3, list(mw.Collective)]),
    (mw.Constraint, ["inside", "data", "node"]),
    (mw.fixed_row, ["data", (2, 1)]),
    (mw.inside, ["data", "node"]),
    (mw.not_across, ["data", "node"]),
    (mw.Line, [R, "", "", ""]),
    (lambda *given: mw.Workload(*given).document(), ["w", (mw.Line(R),), {"data": 8}, {}, 1e9, 1e9, 1.0]),
    (lambda *given: mw.Workload(*given).communications, ["w", (mw.Line(R, "g"),), {}, {"g": 0.5}]),
    (mw.read_plan, ["/nowhere/plan.json"]),
    (mw.write_plan, [BEST, "nowhere/plan.json"]),
    (mw.Plan, [P, mw.load_library("ring"), BEST.communications]),
    (mw.Planned, [R, mw.Pipelined.of(PROGRAM), 1.0, 1.0, 1.0]),
    (mw.Pipelined, [((PROGRAM, 2), (PROGRAM, 1))]),
    (mw.Pipelined.of, [PROGRAM, 2]),
    (mw.Planned, [mw.Transfer(("data",), 1, mw.Goal.ALL_TO_ALL), None, 1.0, 1.0, 1.0]),
    (mw.Library, ["l", False, mw.load_library("ring").rules, (), False]),
    (mw.Ranking, [(), 1, 1]),
]


def _make_call(random: Random) -> Any:
    number = random.randrange(len(CALLS))
    given = list(CALLS[number][1])
    for _ in range(random.randint(1, 2)):
        at = random.randrange(len(given))
        if isinstance(given[at], dict | list) and random.random() < 0.5 and not isinstance(given[at], list):
            given[at] = mutate.document(random, given[at])
        else:
            given[at] = strange(random)
    return number, given


def strange(random: Random) -> Any:
    """A value of any type."""
    if random.random() < 0.6:
        return mutate.junk(random)
    return random.choice(
        [
            object(),
            b"bytes",
            Path("x" * 300),
            Path("/"),
            np.int64(3),
            np.float64("nan"),
            np.ones(3),
            np.array([1, "x"], dtype=object),
            {1: 2},
            {None: None},
            {"data": "8"},
            {"data": 8.0},
            {"data": True},
            {1, 2},
            (),
            ("data",),
            (1, (2, (3,))),
            range(3),
            len,
            int,
            1 + 2j,
            S,
            P,
            R,
            H,
            PROGRAM,
            BEST,
            [R],
            mw.Goal.REDUCE,
            mw.load_library("ring"),
            [None, None, None, None],
            [np.ones(3), np.ones(4), np.ones(3), np.ones(3)],
            [np.array(["x"])] * 4,
            ["x", "y", "z", "w"],
            [[1], [2], [3], [4]],
        ]
    )


def _use_call(case: Any, _: Path) -> None:
    number, given = case
    found = CALLS[number][0](*given)
    hash(found) if isinstance(found, mw.System | mw.Placement | mw.Reduction | mw.Hierarchy | mw.Constraint) else None
    if isinstance(found, mw.System):
        _use_system(found)


# Topology files

TOPOLOGIES = Path(__file__).parents[1] / "discovery" / "files"


@cache
def _topologies() -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted(TOPOLOGIES.iterdir()) if path.stat().st_size < 12_000]


def _make_topologies(random: Random) -> Any:
    """A broken file, sometimes beside a whole one, sometimes taken for another format."""
    texts = [_pick(random, _topologies())]
    if random.random() < 0.3:
        texts.insert(random.randint(0, 1), random.choice(_topologies()))
    return texts, random.choice(list(FORMATS)) if random.random() < 0.1 else None


def _use_topologies(case: Any, folder: Path) -> None:
    texts, form = case
    paths = [folder / f"topology{k}" for k in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8", errors="replace", newline="")
    found = assemble([read_topology(path, form) for path in paths])
    assert len(set(found.hosts)) == len(found.hosts) > 0
    assert not set(found.hosts) & set(found.left_out)
    assert found.system.devices % len(found.hosts) == 0
    assert system_of(json.loads(json.dumps(system_document(found.system))), "again") == found.system
    assert parse_hosts(format_hosts(found.hosts), 10**6) == list(found.hosts)


# Traces


SPLIT = FILES / "split.hlo"


@cache
def _traces() -> list[Any]:
    """Traces of the profiler and dumps of Flight Recorder, with a few calls each."""
    found = []
    for path in (*PROFILED, *DUMPED):
        data = path.read_bytes()
        document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
        for key in ("traceEvents", "entries"):
            if key in document:
                document[key] = [one for k, one in enumerate(document[key]) if k < 20 or k % 10 == 0][:40]
        found.append(document)
    return found


def _make_traces(random: Random) -> Any:
    steps, axes = random.choice([1, 2, 3]), random.choice([None, {"data": 2, "tensor": 2}, {"a": 4}, {"a": 4, "b": 2}])
    if random.random() < 0.3:
        return _pick(random, [SPLIT.read_text()]).encode(errors="replace"), axes, 1
    document = random.choice(_traces())
    if random.random() < 0.7:
        document = mutate.document(random, document)
    if "entries" in document and random.random() < 0.5:
        data = pickle.dumps(document, 2)
        if random.random() < 0.5:
            data = mutate.text(random, data.decode("latin-1")).encode("latin-1", "replace")
    else:
        data = mutate.as_json(random, document).encode(errors="replace")
    return data, axes, steps


def _use_traces(case: Any, _: Path) -> None:
    data, axes, steps = case
    compiled = data.startswith(b"HloModule")
    text = data.decode(errors="replace")
    recording = hlo_calls(text, "t") if compiled else merged([trace_of(data, "rank_0")], 4)
    found = to_workload(recording.calls, recording.world, steps, axes)
    assert sum(one.bytes for one in found.left_out) <= sum(call.bytes * call.count for call in recording.calls)
    size = prod(found.workload.axes.values())
    if size <= 64 and len(found.workload.lines) <= 20:
        _once(_plan_workload, size, found.workload)


def _plan_workload(size: int, workload: mw.Workload) -> None:
    mw.plan(f"gpu={size}@100GB/s", workload.axes, workload, top=1)


TARGETS: dict[str, Target] = {
    "programs": Target(_make_program, _use_program, 0.4),
    "specs": Target(_make_spec, _use_spec, 0.25),
    "systems": Target(_make_yaml("systems"), lambda text, _: _use_system(parse_system_yaml(text, "system.yaml")), 0.05),
    "libraries": Target(_make_yaml("libraries"), _use_library, 0.03),
    "workloads": Target(_make_yaml("workloads"), _use_workload, 0.04),
    "plans": Target(_make_plan, _use_plan, 0.04),
    "results": Target(_make_results, _use_results, 0.04),
    "logs": Target(_make_log, _use_log, 0.05),
    "topologies": Target(_make_topologies, _use_topologies, 0.05),
    "traces": Target(_make_traces, _use_traces, 0.04),
    "calls": Target(_make_call, _use_call, 0.04),
    "verbs": Target(_make_verb, _use_verb, 0.01),
    "questions": Target(_make_question, _use_question, 0.01),
}
"""By name."""
