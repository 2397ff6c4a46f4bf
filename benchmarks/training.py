"""Training: the scripts of examples/gpt on emulated clusters: recorded, planned, and run with and without their plans.

`make study-training` needs root. Where there is a GPU, NCCL is measured too, with all ranks on that GPU. What is
measured already is not measured again, but with `--again`; with `--report` nothing is. It writes docs/training.md.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.trainingpage import PLANNED, WAYS, Case, Run, page
from meshwright import Plan, load_library, load_workload, parse_system, read_plan
from meshwright.cost.algorithms import phases
from meshwright.cost.forecasts import Seen
from meshwright.cost.library import Library
from meshwright.language.goals import Goal
from meshwright.planning.orders import row_major
from meshwright.planning.plan import default_seconds
from meshwright.runtime.dropin import device_ranks
from meshwright.runtime.signals import interrupting
from meshwright.testbed import Testbed, temporary
from meshwright.workload.workload import Workload

RESULTS = Path(__file__).parent / "results" / "training"
ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "training.md"
EXAMPLES = ROOT / "examples" / "gpt"
WORK = ROOT / "build" / "training"
"""Where plans and the output of runs are kept."""
STEPS, RECORDED = 6, 3
"""Steps of a measured and of a recorded run; the first one of a run does not count."""
HEADERS = 66
"""The bytes of a packet that are no data: 14 of Ethernet, 20 of IP, 20 of TCP, and 12 of TCP's time stamps."""
FEW = 4
"""The most chunks of a payload where all ranks share one GPU: with many, times vary, as ranks that wait for the GPU
keep the cores from the threads that send (docs/nccl.md)."""
LIMIT = 900.0
"""The most seconds that a run may take."""


@dataclass(frozen=True)
class Setup:
    """A system, and how many replicas HSDP has and how many ranks share a layer in tensor parallelism on it."""

    system: str
    replicas: int
    tensor: int
    device: str = "cpu"

    @property
    def library(self) -> Library:
        """Whose collectives run."""
        return load_library("nccl-sockets" if self.device == "cuda" else "gloo")

    @property
    def name(self) -> str:
        """What it is called in tables, and its files."""
        shape = "x".join(str(count) for count in parse_system(self.system).counts)
        return f"{shape}-nccl" if self.device == "cuda" else shape

    def arguments(self, script: str) -> list[str]:
        """The arguments of a script: next to no computing, and a tensor axis that crosses nodes in the plain order."""
        device = ["--device", self.device]
        if script == "tensor":
            return [*device, "--tensor", str(self.tensor), "--outer", "--batch", "8"]
        replicas = ["--replicas", str(self.replicas)] if script == "hsdp" else []
        return [*device, *replicas, "--batch", "1", "--context", "16"]


SETUPS = (
    Setup("node=2@20Mbit/s,gpu=8@200Mbit/s", 2, 2),
    Setup("rack=2@20Mbit/s,node=2@50Mbit/s,gpu=2@200Mbit/s", 2, 2),
    Setup("node=4@20Mbit/s,gpu=4@200Mbit/s", 4, 4),
    Setup("node=2@100Mbit/s,gpu=4@500Mbit/s", 2, 2, "cuda"),
)
SCRIPTS = ("ddp", "tensor", "fsdp", "hsdp")


def runs() -> list[Run]:
    """All that was measured."""
    path = RESULTS / "runs.jsonl"
    return [Run(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def workload_file(setup: Setup, script: str) -> Path:
    return RESULTS / f"{setup.name}-{script}.yaml"


def measure(setup: Setup, script: str, bed: Testbed, way: str) -> Run:
    """Run a script on every device of a testbed in one way, and keep what it gave."""
    arguments = [str(EXAMPLES / f"train_{script}.py"), *setup.arguments(script)]
    file = workload_file(setup, script)
    steps, predicted, launch = STEPS, 0.0, list[str]()
    if way == "record":
        steps = RECORDED
        axes = ["--axes", f"data={bed.system.devices}"] if script in ("ddp", "fsdp") else []
        launch = ["-m", "meshwright", "launch", "--record", str(file), *axes]
    elif way in PLANNED:
        path, predicted = made(setup, script, way, bed.network.name)
        launch = ["-m", "meshwright", "launch", "--plan", str(path)]
    elif way == "plain":
        predicted = plain_seconds(setup, script)
    inside = [sys.executable, *launch, *arguments, "--steps", str(steps)]
    command = [sys.executable, "-m", "meshwright", "testbed", "exec", "--name", bed.network.name]
    command += ["--device", setup.device, "--", *inside]
    before = sent(bed)
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(inside)} on {setup.system}:\n{done.stderr}")
    payload, headers = (after - start for after, start in zip(sent(bed), before, strict=True))
    found = re.findall(r"^step \d+: loss (\S+), (\S+) s, of which processor (\S+) s$", done.stdout, re.MULTILINE)
    losses, seconds, computing = ([float(each[k]) for each in found] for k in range(3))
    computing = [] if setup.device == "cuda" else computing  # there the processor only waits
    cores = len(os.sched_getaffinity(0))
    run = Run(setup.system, script, way, losses, seconds, computing, payload, headers, predicted, cores)
    with (RESULTS / "runs.jsonl").open("a") as file_of_runs:
        file_of_runs.write(json.dumps(asdict(run)) + "\n")
    (WORK / f"{setup.name}-{script}-{way}.txt").write_text(done.stdout + done.stderr)
    return run


def sent(bed: Testbed) -> tuple[int, int]:
    """The bytes that all devices have sent: those of TCP's payloads, and headers."""
    innermost = len(bed.system.levels) - 1
    mine = [one for one in bed.counters() if one.port.level == innermost and one.outwards]
    headers = sum(HEADERS * one.packets for one in mine)
    return sum(one.bytes for one in mine) - headers, headers


def made(setup: Setup, script: str, way: str, testbed: str) -> tuple[Path, float]:
    """The plan file for a recorded workload, made with the command line; and the seconds that it predicts."""
    path = WORK / f"{setup.name}-{script}-{way}.json"
    command = [sys.executable, "-m", "meshwright", "plan", "--system", setup.system, "--library", setup.library.name]
    command += ["--workload", str(workload_file(setup, script)), "--out", str(path)]
    command += ["--placement-only"] if way == "placement" else ["--chunks", str(FEW)] if setup.device == "cuda" else []
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT)
    if way == "tuned":
        tune = [sys.executable, "-m", "meshwright", "tune", str(path), "--testbed", testbed, "--device", setup.device]
        subprocess.run(tune, check=True, capture_output=True, timeout=LIMIT)
    plan = read_plan(path)
    return path, plan.default_seconds if way == "placement" else plan.seconds


def plain_seconds(setup: Setup, script: str) -> float:
    """The predicted time of the library's own collectives, with ranks as the launcher numbers them."""
    plan = read_plan(made(setup, script, "plan", "")[0])
    axes = recorded(setup, script).axes
    placement = row_major(plan.placement.system, axes, list(axes))
    assert placement is not None
    return default_seconds(plan, placement)


def recorded(setup: Setup, script: str) -> Workload:
    return load_workload(workload_file(setup, script)).workload()


def stays(plan: Plan) -> bool:
    """Whether all ranks stay where they are."""
    ranks = device_ranks(plan.placement)
    return ranks == sorted(ranks)


def expected(setup: Setup, workload: Workload) -> float:
    """The bytes that all devices send in a step with the library's own collectives, by its profile."""
    library, total = setup.library.alone, 0.0
    for one in workload.communications:
        size = 1
        for axis in one.axes:
            size *= workload.axes[axis]
        assert one.goal.flat is not None
        held = one.bytes / size if one.goal is Goal.ALL_GATHER else one.bytes
        rule = library.rule(one.goal.flat, held, Seen(size))
        found = phases(rule.algorithms[0], one.goal.flat, (size,), library.rotates)
        assert found is not None
        total += one.count * held * sum(phase.levels[0].port for phase in found) / rule.efficiency
    return total * parse_system(setup.system).devices


def wanted(setup: Setup, tuned: bool, again: bool, scripts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The scripts and ways that are not measured yet, in the order of the loop: record, plan, launch."""
    known = set() if again else {(run.system, run.script, run.way) for run in runs()}
    for script in scripts:
        for way in ("record", *WAYS):
            if (setup.system, script, way) not in known and (tuned or way != "tuned"):
                yield script, way


def measure_setup(setup: Setup, tuned: bool, again: bool, scripts: Sequence[str]) -> None:
    """Measure scripts on one system."""
    name = f"training{os.getpid()}"
    with temporary(parse_system(setup.system), name) as bed:
        for script, way in wanted(setup, tuned, again, scripts):
            if way == "placement" and stays(read_plan(made(setup, script, way, name)[0])):
                continue
            show(measure(setup, script, bed, way))


def cases() -> Iterator[Case]:
    """What was measured completely; of what was measured again, the last time."""
    found = {(run.system, run.script, run.way): run for run in runs()}
    for setup in SETUPS:
        for script in SCRIPTS:
            mine = {way: run for (system, of, way), run in found.items() if (system, of) == (setup.system, script)}
            if {"record", "plain", "plan"} <= mine.keys():
                yield Case(setup.name, setup.system, script, mine, expected(setup, recorded(setup, script)))


def show(run: Run) -> None:
    print(f"{run.system} {run.script} {run.way}: {run.step:.3f} s, {run.predicted:.3f} predicted", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--only", metavar="SHAPE", help="only one system, like 2x8 or 2x4-nccl")
    parser.add_argument("--tuned", action="store_true", help="also with plans that are tuned on the testbed first")
    parser.add_argument("--again", action="store_true", help="also what is measured already")
    parser.add_argument("--script", action="append", choices=SCRIPTS, help="only this one; may be given several times")
    options = parser.parse_args()
    for folder in (RESULTS, WORK):
        folder.mkdir(parents=True, exist_ok=True)
    here = {"cpu", "cuda"} if Path("/dev/nvidia0").exists() else {"cpu"}
    setups = [setup for setup in SETUPS if options.only in (None, setup.name) and setup.device in here]
    if not options.report:
        with interrupting():  # so that no testbed is left
            for setup in setups:
                measure_setup(setup, options.tuned, options.again, options.script or SCRIPTS)
    found = list(cases())
    complete = {one.name for one in found}
    DOCUMENT.write_text(page(found, [setup.name for setup in SETUPS if setup.name not in complete]))


if __name__ == "__main__":
    main()
