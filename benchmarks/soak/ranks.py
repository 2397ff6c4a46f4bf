"""Ranks that are killed or stopped, or make another call, at random moments of random plans: how the others end.

A trial ends well when every survivor has right results, or one clear error (see `verdict`) within the timeout and ten
seconds more, and then ends by itself. A rank that makes another call survives it.
"""

import faulthandler
import json
import mmap
import os
import signal
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tests.engines import programs_of
from tests.ranks import start_ranks

from benchmarks.soak.cell import (
    MISSED,
    Outcome,
    descendants,
    end_descendants,
    ended,
    first_fault,
    guarded,
    python_end,
    start,
    text_of,
    wait_for,
)
from benchmarks.soak.verdict import WATCHDOG, aborted, unclear, without_crash
from meshwright import Placement, Plan, Planned, Reduction, load_library, parse_system, plan
from meshwright.errors import MeshwrightError
from meshwright.language.program import Pipelined
from meshwright.runtime.launch import mpirun_command

PATIENCE = 10.0
"""Seconds beyond the timeout within which survivors have their error."""

ENDING = 20.0
"""Seconds in which Python ends after that; it takes a few where many ranks share few cores."""

JOINED, MADE, CLOSING, DONE = 1, 2, 1 << 30, 1 << 31
"""How far a rank is: it has joined the process group, made its Reducer (plus the number of calls since), made all
calls, and closed it, if it does that.
"""

WRONG = 77


LINKS = ("10GB/s+1us", "1GB/s+5us")
"""Of the innermost level, and of those around it: tuning needs predicted times."""

LAYOUTS: tuple[tuple[str, dict[str, list[int]]], ...] = (
    ("gpu=3", {"data": [3]}),
    ("node=2,gpu=2", {"data": [2, 2]}),
    ("node=2,gpu=4", {"data": [2, 4]}),
    ("node=2,gpu=2", {"data": [2, 1], "tensor": [1, 2]}),
    ("node=2,gpu=4", {"data": [2, 2], "tensor": [1, 2]}),
)
"""Systems with the factors of the axes; those with two axes have several groups for most reductions."""

LENGTHS = (1, 64, 700, 701)


@dataclass(frozen=True)
class Scenario:
    """What the ranks do, and what happens to one of them, and when.

    over: the axes of each reduction. programs: `random` ones, random ones in `chunks`, or `tuned` while they run.
    calls: how many; after so many as `step` says, they begin again. otherwise: the number of the call that the victim
    makes differently; -1 if it is killed or stopped.
    """

    spec: str
    factors: dict[str, list[int]]
    over: list[list[str]]
    seed: int
    programs: str
    check: str
    timeout: float
    calls: int
    step: int
    closes: bool
    tidy: bool
    victim: int
    when: int
    delay: float
    otherwise: int = -1

    @property
    def placement(self) -> Placement:
        """Where the axes are."""
        names = self.spec.split(",")
        links = (*LINKS[1:] * (len(names) - 1), LINKS[0])
        system = parse_system(",".join(f"{name}@{link}" for name, link in zip(names, links, strict=True)))
        return Placement(system, tuple(self.factors), tuple(map(tuple, self.factors.values())))

    @property
    def devices(self) -> int:
        """How many ranks there are."""
        return self.placement.system.devices

    def plan(self) -> Plan:
        """The same on every rank."""
        random, placement = Random(self.seed), self.placement
        if self.programs == "tuned":
            what = [Reduction(tuple(axes), 4096) for axes in self.over]
            made = plan(placement.system, placement.sizes, what, library="gloo", placement=placement, top=1)
            return made.candidates[0]
        several = random.choice([1, 1, 2, 3]) if self.programs == "chunks" else 1
        reductions = []
        for axes in self.over:
            factors = [max(self.factors[axis][k] for axis in axes) for k in range(len(self.spec.split(",")))]
            known = programs_of(",".join(f"l{k}={factor}" for k, factor in enumerate(factors) if factor > 1))
            taken = random.sample(known, several)
            most = 4 if self.programs == "chunks" else 1
            shares = tuple([(program, random.randint(1, most)) for program in taken])
            size = random.choice([1, 200, 1000]) if most > 1 else 4096
            reductions.append(Planned(Reduction(tuple(axes), size), Pipelined(shares), 1, 1, 1))
        return Plan(placement, load_library("ring"), tuple(reductions))


def draw(random: Random, seed: int, otherwise: bool = False) -> Scenario:
    """A random scenario; rank 0, which has the store, is a victim more often than others."""
    spec, factors = random.choice(LAYOUTS)
    calls = random.choice([1, 5, 30, 150])
    stage = random.choice(["making", "calling", "calling", "calling", "closing"])
    when = {"making": JOINED, "calling": MADE + random.randrange(calls), "closing": CLOSING}[stage]
    programs = random.choice(["random", "random", "chunks", "chunks", "tuned"])
    axes = [list(factors), *([axis] for axis in factors)] if len(factors) > 1 else [list(factors)]
    found = Scenario(
        spec=spec,
        factors=factors,
        over=[random.choice(axes) for _ in range(3)],
        seed=seed,
        programs=programs,
        check=random.choice(["first", "always"]),
        timeout=random.choice([2.0, 3.0, 4.0]),
        calls=calls,
        step=random.choice([1, 2, 3]) if otherwise else random.choice([1, 3, 6, calls]),
        closes=random.random() < 0.7,
        tidy=random.random() < 0.5,
        victim=0,
        when=when,
        delay=random.random() * {"making": 0.3, "calling": 0.02, "closing": 0.005}[stage],
    )
    found = replace(found, victim=random.choice([0, random.randrange(found.devices)]))
    if otherwise:
        number = random.randrange(calls)
        return replace(found, otherwise=number, when=MADE + number, delay=0.0)
    return found


class Progress:
    """How far each rank is, in memory that all processes share."""

    def __init__(self, path: Path, ranks: int) -> None:
        """Open the file that is that memory, or make it."""
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.truncate(8 * ranks)
            self._memory = mmap.mmap(file.fileno(), 8 * ranks)
        self._ranks = ranks

    def set(self, rank: int, value: int) -> None:
        """A rank says how far it is."""
        struct.pack_into("q", self._memory, 8 * rank, value)

    def of(self, rank: int) -> int:
        """How far a rank is."""
        return int(struct.unpack_from("q", self._memory, 8 * rank)[0])

    def everyone(self) -> int:
        """How far all are."""
        return min(self.of(rank) for rank in range(self._ranks))


@dataclass(frozen=True)
class Call:
    """A call of one rank: which reduction, what the rank gives, what is right, and whether others call the same."""

    number: int
    given: "np.ndarray[tuple[int], np.dtype[np.int64]]"
    right: list[int]
    same: bool


def call_of(scenario: Scenario, groups: Sequence[Sequence[int]], call: int, rank: int) -> Call:
    """What a rank does in a call; whole numbers, so that sums are exact. Groups give different lengths.

    groups: for each reduction, the group of the rank.
    """
    number, length = kind_of(scenario, groups, call)
    ranks = groups[number]
    random = np.random.default_rng([scenario.seed, call, ranks[0]])
    every = random.integers(-1000, 1000, (len(ranks), length))
    given, right = every[ranks.index(rank)], every.sum(0).tolist()
    if call != scenario.otherwise or rank != scenario.victim:
        return Call(number, given, right, call != scenario.otherwise or scenario.victim not in ranks)
    return Call(number, np.resize(given, other_length(scenario, groups, call)), [], False)


def kind_of(scenario: Scenario, groups: Sequence[Sequence[int]], call: int) -> tuple[int, int]:
    """Which reduction a call is, and its length: the same in every step, as in training."""
    place = call % scenario.step
    number = Random(f"{scenario.seed} {place}").randrange(3)
    return number, Random(f"{scenario.seed} {place} {groups[number][0]}").choice(LENGTHS)


def other_length(scenario: Scenario, groups: Sequence[Sequence[int]], call: int) -> int:
    """A wrong length for a call that makes it one which has never come after the call before it: ranks notice that.

    One of the four lengths does that, as no step has more than three calls. Lengths that have come go before others,
    and larger ones before smaller, as gloo ends processes that get more than they expect.
    """
    number, right = kind_of(scenario, groups, call)
    kinds = [kind_of(scenario, groups, before) for before in range(call)]
    alike = [kind for kind in kinds if set(scenario.over[kind[0]]) == set(scenario.over[number])]
    known = set(pairwise([None, *alike]))
    last = alike[-1] if alike else None
    fitting = [length for length in LENGTHS if length != right and (last, (number, length)) not in known]
    return max(fitting, key=lambda length: ((number, length) in alike, length))


def groups_of(plan: Plan, rank: int) -> list[Sequence[int]]:
    """For each reduction of a plan, the group of a rank."""
    every = [plan.placement.groups(planned.communication.axes) for planned in plan.reductions]
    return [next(group for group in groups if rank in group) for groups in every]


def torch_rank(scenario: Scenario, plan: Plan, folder: Path, rank: int) -> int:
    """What a PyTorch rank does; its error is put down, and then ends it as it would any script."""
    import torch
    import torch.distributed as dist

    from meshwright.torch import Reducer

    faulthandler.register(signal.SIGUSR1, file=sys.stderr)
    progress = Progress(folder / "progress", scenario.devices)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    progress.set(rank, JOINED)
    wait_for(lambda: progress.everyone() >= JOINED, 60, 0.001)
    try:
        tune = scenario.programs == "tuned"
        reducer = Reducer(plan, timeout=scenario.timeout, check=scenario.check, tune=tune)
        groups = groups_of(plan, rank)
        for number in range(scenario.calls):
            progress.set(rank, MADE + number)
            call = call_of(scenario, groups, number, rank)
            tensor = torch.from_numpy(call.given.copy())
            if number % 3 == 1:
                reducer.all_reduce(tensor, over=call.number, async_op=True).wait()
            else:
                reducer.all_reduce(tensor, over=call.number)
            if not call.same or tensor.tolist() != call.right:
                return WRONG
        progress.set(rank, CLOSING)
        if scenario.closes:
            reducer.close()
    except BaseException as error:
        note(folder, rank, error)
        raise
    finally:
        if scenario.tidy:
            dist.destroy_process_group()
    return 0


def note(folder: Path, rank: int, error: BaseException) -> None:
    """Put down what a rank was told."""
    told = {"ours": isinstance(error, MeshwrightError), "kind": type(error).__name__, "text": str(error)}
    told |= {"at": time.monotonic()}
    partial = folder / f"partial{rank}"  # mpirun may end this process at any moment
    partial.write_text(json.dumps(told))
    partial.rename(folder / f"error{rank}")


def torch_trial(folder: Path, random: Random, number: signal.Signals | None) -> Outcome:
    """Kill or stop one of the ranks that PyTorch connects; with no signal, it makes another call than the others."""
    scenario = draw(random, random.randrange(1 << 30), number is None)
    progress = Progress(folder / "progress", scenario.devices)
    plan = scenario.plan()

    def work(rank: int) -> int:
        return guarded(lambda: torch_rank(scenario, plan, folder, rank), folder / f"rank{rank}")

    pids = start_ranks(scenario.devices, work, python_end)
    statuses: dict[int, int] = {}
    details: dict[str, Any] = asdict(scenario)
    if not _strike(scenario, progress, pids[scenario.victim], number, statuses):
        _end(pids, statuses)
        return Outcome(MISSED, details=details)
    struck = time.monotonic()
    survivors = [rank for rank in range(scenario.devices) if number is None or rank != scenario.victim]
    wait_for(
        lambda: all([ended(pids[rank], statuses) for rank in survivors]),  # noqa: C419 - all are asked
        scenario.timeout + PATIENCE + ENDING,
        0.02,
    )
    details["seconds"] = round(time.monotonic() - struck, 2)
    for rank in survivors:
        if pids[rank] not in statuses:
            os.kill(pids[rank], signal.SIGUSR1)  # to see where it hangs
            time.sleep(0.3)
    latest = struck + scenario.timeout + PATIENCE
    outcomes = [torch_survivor(folder, rank, statuses.get(pids[rank]), latest) for rank in survivors]
    _end(pids, statuses)
    return replace(first_fault(outcomes), details=details)


def torch_survivor(folder: Path, rank: int, status: int | None, latest: float) -> Outcome:
    """How a rank has ended that nobody had touched."""
    said = text_of(folder / f"rank{rank}")
    told = folder / f"error{rank}"
    error = json.loads(told.read_text()) if told.exists() else None
    if status is None:
        where = f", after: {error['text'][:200]}" if error else ""
        return Outcome("hang", f"rank {rank} still ran{where}")
    if status < 0 or aborted(said):
        return Outcome("abort", f"rank {rank} ended with {status}: {aborted(said)}")
    if status == WRONG:
        return Outcome("wrong result", f"rank {rank}")
    if status == 0:
        return Outcome()
    if status == 3 and (line := WATCHDOG.search(said)) and int(line[1]) == rank:
        return Outcome()
    if error is None:
        return Outcome("unclear error", f"rank {rank} ended with {status}: {said.strip()[-300:]}")
    if not error["ours"]:
        return Outcome("unclear error", f"rank {rank} got a {error['kind']}: {error['text'][:300]}")
    if error["at"] > latest:
        return Outcome("hang", f"rank {rank} heard {error['at'] - latest:.1f} s too late: {error['text'][:200]}")
    if why := unclear(error["text"]):
        return Outcome("unclear error", f"rank {rank}: {why}")
    return Outcome()


def mpi_trial(folder: Path, random: Random, number: signal.Signals | None) -> Outcome:
    """Kill or stop one of the ranks that Open MPI connects, or have it make another call; mpirun, which sees ranks die,
    may end the others."""
    scenario = draw(random, random.randrange(1 << 30), number is None)
    (folder / "scenario").write_text(json.dumps(asdict(scenario)))
    progress = Progress(folder / "progress", scenario.devices)
    command = [*mpirun_command(scenario.devices), sys.executable, "-m", "benchmarks.soak.mpirank", str(folder)]
    details: dict[str, Any] = asdict(scenario)
    pid = start(command, folder / "job")
    statuses: dict[int, int] = {}
    file = folder / f"pid{scenario.victim}"
    if not wait_for(lambda: file.exists() or ended(pid, statuses), 60) or not file.exists():
        said = text_of(folder / "job")
        if "comparing plans with all other ranks" in said:  # on a busy machine the victim came later than the timeout
            return Outcome(MISSED, details=details)
        return Outcome("failed", f"mpirun did not start: {said[-300:]}", details)
    if not _strike(scenario, progress, int(file.read_text()), number, statuses, pid):
        _end([pid], statuses)
        return Outcome(MISSED, details=details)
    struck = time.monotonic()
    in_time = wait_for(lambda: ended(pid, statuses), scenario.timeout + PATIENCE + ENDING, 0.02)
    details["seconds"] = round(time.monotonic() - struck, 2)
    said = text_of(folder / "job")
    others = [rank for rank in range(scenario.devices) if rank != scenario.victim]
    if not in_time and number is not None and all(progress.of(rank) == DONE for rank in others):
        end_descendants(os.getpid())
        return Outcome(MISSED, "all calls were over: MPI itself waits for the rank, to end", details)
    if not in_time:
        left = descendants(os.getpid())
        end_descendants(os.getpid())
        return Outcome("hang", f"mpirun and {len(left) - 1} processes still ran: {said[-300:]}", details)
    told = [json.loads(path.read_text()) for path in sorted(folder.glob("error*"))]
    ours = without_crash(said)
    details["crashes"] = int(ours != said)
    return replace(_mpi_outcome(scenario, ours, told, statuses[pid]), details=details)


def _mpi_outcome(scenario: Scenario, said: str, told: Sequence[dict[str, Any]], status: int) -> Outcome:
    """said: what mpirun and all ranks printed, which mpirun may mix up. told: the errors of ranks."""
    if aborted(said):
        return Outcome("abort", aborted(said))
    if "WRONG RESULT" in said:
        return Outcome("wrong result", said[said.index("WRONG RESULT") :][:100])
    if status == 0 and scenario.otherwise >= 0:
        return Outcome("wrong result", "a job in which a rank called otherwise ended well")
    if status == 0:
        return Outcome()
    why = [f"a {each['kind']}: {each['text']}" if not each["ours"] else unclear(each["text"]) for each in told]
    if any(why):
        return Outcome("unclear error", next(filter(None, why))[-300:])
    mpirun = scenario.otherwise < 0 and f"process rank {scenario.victim} " in said
    if told or mpirun or WATCHDOG.search(said):
        return Outcome()
    return Outcome("unclear error", said.strip()[-300:])


def _strike(
    scenario: Scenario,
    progress: Progress,
    victim: int,
    number: signal.Signals | None,
    statuses: dict[int, int],
    job: int | None = None,
) -> bool:
    """Send the signal, if there is one, when its moment has come; whether it came before the end."""
    over = job if job is not None else victim
    begun = wait_for(lambda: progress.everyone() >= JOINED or ended(over, statuses), 60, 0.001)
    there = wait_for(lambda: progress.of(scenario.victim) >= scenario.when or ended(over, statuses), 60, 0.0005)
    if number is None:
        return begun and progress.of(scenario.victim) >= scenario.when
    if not begun or not there or over in statuses:
        return False
    time.sleep(scenario.delay)
    if ended(over, statuses):
        return False
    try:
        os.kill(victim, number)
    except ProcessLookupError:
        return False
    return True


def _end(pids: Sequence[int], statuses: dict[int, int]) -> None:
    for pid in pids:
        if not ended(pid, statuses):
            os.kill(pid, signal.SIGKILL)
            statuses[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
