"""Ranks that are killed or stopped at random moments of random plans: how the others end.

A trial ends well when every survivor has right results, or one clear error (see `verdict`) within the timeout and ten
seconds more, and then ends by itself.
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
from pathlib import Path
from random import Random

import numpy as np
from tests.engines import plan_of, programs_of, random_pipelines
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
from benchmarks.soak.verdict import WATCHDOG, aborted, unclear
from meshwright import Plan
from meshwright.errors import MeshwrightError
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


@dataclass(frozen=True)
class Scenario:
    """What the ranks do, and what happens to one of them, and when."""

    spec: str
    devices: int
    seed: int
    chunks: bool
    check: str
    timeout: float
    calls: int
    closes: bool
    tidy: bool
    victim: int
    when: int
    delay: float

    def plan(self) -> Plan:
        """Random programs, all in chunks or none; the same on every rank."""
        random = Random(self.seed)
        if self.chunks:
            plan = random_pipelines(self.spec)
            return replace(plan, communications=tuple(random.sample(plan.reductions, 3)))
        return plan_of(self.spec, random.sample(programs_of(self.spec), 3), size=4096)


def draw(random: Random, seed: int) -> Scenario:
    """A random scenario; rank 0, which has the store, is a victim more often than others."""
    spec, devices = random.choice([("node=2,gpu=2", 4), ("node=2,gpu=2", 4), ("gpu=3", 3), ("node=2,gpu=4", 8)])
    calls = random.choice([1, 5, 30, 150])
    stage = random.choice(["making", "calling", "calling", "calling", "closing"])
    when = {"making": JOINED, "calling": MADE + random.randrange(calls), "closing": CLOSING}[stage]
    return Scenario(
        spec=spec,
        devices=devices,
        seed=seed,
        chunks=random.random() < 0.5,
        check=random.choice(["first", "always"]),
        timeout=random.choice([2.0, 3.0, 4.0]),
        calls=calls,
        closes=random.random() < 0.7,
        tidy=random.random() < 0.5,
        victim=random.choice([0, random.randrange(devices)]),
        when=when,
        delay=random.random() * {"making": 0.3, "calling": 0.02, "closing": 0.005}[stage],
    )


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


def payload(scenario: Scenario, call: int) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
    """What every rank gives to a call: whole numbers, so that sums are exact."""
    random = np.random.default_rng([scenario.seed, call])
    return random.integers(-1000, 1000, (scenario.devices, int(random.choice([1, 64, 700, 701]))))


def calls_of(scenario: Scenario) -> list[int]:
    """Which reduction of the plan each call is."""
    random = Random(scenario.seed)
    return [random.randrange(3) for _ in range(scenario.calls)]


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
        reducer = Reducer(plan, timeout=scenario.timeout, check=scenario.check)
        for call, number in enumerate(calls_of(scenario)):
            progress.set(rank, MADE + call)
            given = payload(scenario, call)
            tensor = torch.from_numpy(given[rank].copy())
            if call % 3 == 1:
                reducer.all_reduce(tensor, over=number, async_op=True).wait()
            else:
                reducer.all_reduce(tensor, over=number)
            if tensor.tolist() != given.sum(0).tolist():
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
    (folder / f"error{rank}").write_text(json.dumps(told))


def torch_trial(folder: Path, random: Random, number: signal.Signals) -> Outcome:
    """Kill or stop one of the ranks that PyTorch connects."""
    scenario = draw(random, random.randrange(1 << 30))
    progress = Progress(folder / "progress", scenario.devices)
    plan = scenario.plan()

    def work(rank: int) -> int:
        return guarded(lambda: torch_rank(scenario, plan, folder, rank), folder / f"rank{rank}")

    pids = start_ranks(scenario.devices, work, python_end)
    statuses: dict[int, int] = {}
    details = asdict(scenario)
    if not _strike(scenario, progress, pids[scenario.victim], number, statuses):
        _end(pids, statuses)
        return Outcome(MISSED, details=details)
    struck = time.monotonic()
    survivors = [rank for rank in range(scenario.devices) if rank != scenario.victim]
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


def mpi_trial(folder: Path, random: Random, number: signal.Signals) -> Outcome:
    """Kill or stop one of the ranks that Open MPI connects; mpirun, which sees ranks die, may end the others."""
    scenario = draw(random, random.randrange(1 << 30))
    if scenario.devices == 8:
        scenario = replace(scenario, spec="node=2,gpu=2", devices=4, victim=scenario.victim % 4)
    (folder / "scenario").write_text(json.dumps(asdict(scenario)))
    progress = Progress(folder / "progress", scenario.devices)
    command = [*mpirun_command(scenario.devices), sys.executable, "-m", "benchmarks.soak.mpirank", str(folder)]
    details = asdict(scenario)

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
    if not in_time and all(progress.of(rank) == DONE for rank in range(scenario.devices) if rank != scenario.victim):
        end_descendants(os.getpid())
        return Outcome(MISSED, "all calls were over: MPI itself waits for the rank, to end", details)
    if not in_time:
        left = descendants(os.getpid())
        end_descendants(os.getpid())
        return Outcome("hang", f"mpirun and {len(left) - 1} processes still ran: {said[-300:]}", details)
    return replace(_mpi_outcome(scenario, said, statuses[pid]), details=details)


def _mpi_outcome(scenario: Scenario, said: str, status: int) -> Outcome:
    if aborted(said):
        return Outcome("abort", aborted(said))
    if "WRONG RESULT" in said:
        return Outcome("wrong result", said[said.index("WRONG RESULT") :][:100])
    if status == 0:
        return Outcome()
    victim = f"process rank {scenario.victim} "
    if victim in said or WATCHDOG.search(said):
        return Outcome()
    errors = [line.partition(": ")[2] for line in said.splitlines() if line.startswith("meshwright.errors.")]
    if errors and not any(unclear(error) for error in errors):
        return Outcome()
    return Outcome("unclear error", (unclear(errors[0]) if errors else said.strip())[-300:])


def _strike(
    scenario: Scenario,
    progress: Progress,
    victim: int,
    number: signal.Signals,
    statuses: dict[int, int],
    job: int | None = None,
) -> bool:
    """Send the signal when its moment has come; whether it came before the end."""
    over = job if job is not None else victim
    begun = wait_for(lambda: progress.everyone() >= JOINED or ended(over, statuses), 60, 0.001)
    there = wait_for(lambda: progress.of(scenario.victim) >= scenario.when or ended(over, statuses), 60, 0.0005)
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
