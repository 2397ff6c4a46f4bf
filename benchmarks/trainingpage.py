"""The page that benchmarks.training writes: what its runs gave, and docs/training.md."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from textwrap import wrap

from meshwright import parse_system

PLANNED = ("placement", "plan", "tuned")
WAYS = ("plain", *PLANNED)


@dataclass(frozen=True)
class Run:
    """What a run of a script on a system gave.

    way: `record`, or one of WAYS. losses, seconds, computing: of each step; the last is empty where the script did not
    say. payload, headers: the bytes of all TCP packets that devices sent. predicted: seconds of communication in a
    step. cores: those of the machine on which all ranks ran.
    """

    system: str
    script: str
    way: str
    losses: list[float]
    seconds: list[float]
    computing: list[float]
    payload: int
    headers: int
    predicted: float = 0.0
    cores: int = 2

    @property
    def step(self) -> float:
        """The seconds of a step; the first one makes connections, so it does not count."""
        return median(self.seconds[1:])

    @property
    def communication(self) -> float:
        """The seconds of communication in a step, which is what is left without computing, where that is known.

        All ranks compute the same at the same time, between the same collectives. So computing takes the processor time
        of a rank, times the ranks that share a core.
        """
        sharing = max(1.0, parse_system(self.system).devices / self.cores)
        computing = self.computing or [0.0] * len(self.seconds)
        return median(whole - sharing * alone for whole, alone in zip(self.seconds[1:], computing[1:], strict=True))

    @property
    def error(self) -> float:
        """How far the predicted time of communication is from the measured one."""
        return self.predicted / self.communication - 1


@dataclass(frozen=True)
class Case:
    """All runs of a script on a system, by way; and the bytes that the recorded workload lets expect on the wire."""

    name: str
    system: str
    script: str
    runs: dict[str, Run]
    expected: float

    @property
    def speedup(self) -> float:
        """How much faster steps are with the plan."""
        return self.runs["plain"].step / self.runs["plan"].step

    @property
    def wire(self) -> float:
        """The bytes of TCP's payloads in a step: what a run with more steps sent more than one with fewer."""
        more, fewer = self.runs["plain"], self.runs["record"]
        return (more.payload - fewer.payload) / (len(more.seconds) - len(fewer.seconds))

    @property
    def off(self) -> float:
        """How far the bytes of the workload are from those on the wire."""
        return self.expected / self.wire - 1

    @property
    def drift(self) -> float:
        """The largest relative difference between losses with and without the plan."""
        pairs = [pair for way in PLANNED if way in self.runs for pair in self._losses(way)]
        return max(abs(ours / plain - 1) for ours, plain in pairs)

    def _losses(self, way: str) -> Iterable[tuple[float, float]]:
        return zip(self.runs[way].losses, self.runs["plain"].losses, strict=True)


ABOUT = """Written by `make study-training` (`python -m benchmarks.training`). The scripts of
[examples/gpt](../examples/gpt) train a GPT with 4 MiB of parameters on [emulated clusters](measuring.md), without a
word about Meshwright in them. Each goes through the [loop](drop-in.md): `launch --record`, then `plan --workload`
with the configured rates and the library's profile, nothing calibrated, then `launch --plan`. *Placement* is `plan
--placement-only`, which only numbers the ranks; where it would leave them as they are, it is the plain run. *Plan*
has the programs too. *Tuned* is the plan after `meshwright tune` on the testbed; a dash: not measured. In the script
with tensor parallelism the tensor axis is the outer one, so that it crosses nodes where ranks are as the launcher
numbers them."""
MACHINES = """gloo: PyTorch 2.13 on a machine with two cores that had other work too, which makes steps longer, and
those with many small messages most. HSDP with its plan on 2x2x2 was measured twice: at first, when the machine was so
busy that an all-reduce of 48 bytes took 0.2 s, steps took 6.6 s. NCCL: PyTorch 2.11 on a machine with 16 cores; all
ranks share one H200, and keep the cores busy while they wait for it ([how](nccl.md)), so that payloads are planned
in at most four chunks there."""
STEPS = """Medians of the steps after the first one, each as long as its slowest rank takes. The gain of a step comes
from ranks that are numbered differently, and from programs in place of the library's own collectives."""
TIMES = """Communication is measured as what a step takes less computing: the processor time of the thread that
computes, times the ranks that share a core, as all ranks compute at the same time. What is predicted for the plain run
are the library's own collectives with ranks in the launcher's order; hidden shares are those that were recorded in the
plain run."""
BYTES = """What the workload lets expect on the wire: its bytes, times what the library sends for each by its profile
(a ring sends 2(n - 1)/n of an all-reduce from every rank, and gloo's own reduce-scatter moves as much as an
all-reduce). What was counted: the bytes that all devices sent, by the testbed's counters, without the 66 bytes of
headers of every packet (Ethernet, IP, and TCP with time stamps; acknowledgements are nothing else). It is the
difference between a run with more and one with fewer steps, divided by the steps between them, so that start and end
of a job do not count."""
LOSSES = """The mean loss of the last step, and the largest relative difference between losses with and without a
plan, over all steps. Programs add numbers up in another order than the library does, so losses may
differ by rounding; scripts print six digits after the point."""


def page(cases: Sequence[Case], missing: Sequence[str]) -> str:
    """The document; missing: the names of systems that are not measured yet."""
    lines = ["# Training, end to end", "", *_wrapped(ABOUT), "", *_wrapped(_summary(cases)), ""]
    lines += [*_wrapped(MACHINES + (f" Not measured yet: {', '.join(missing)}." if missing else "")), ""]
    systems = {one.name: one.system for one in cases}
    lines += _table(["name", "system"], [[name, f"`{system}`"] for name, system in systems.items()])
    lines += ["## Steps", "", *_wrapped(STEPS), ""]
    lines += _table(
        ["system", "script", "plain", "placement", "plan", "tuned", "faster", "by ranks", "by programs"],
        [[one.name, one.script, *_steps(one)] for one in cases],
    )
    lines += ["## Communication", "", *_wrapped(TIMES + _whole_steps(cases)), ""]
    lines += _table(
        ["system", "script", "run", "measured", "predicted", "off by"],
        [[one.name, one.script, *_times(one, way)] for one in cases for way in WAYS if way in one.runs],
    )
    lines += ["## Bytes", "", *_wrapped(BYTES), ""]
    sizes = [[f"{size / 2**20:.2f} MiB" for size in (one.expected, one.wire)] for one in cases]
    lines += _table(
        ["system", "script", "by the workload", "counted", "off by"],
        [[one.name, one.script, *both, f"{one.off:+.2%}"] for one, both in zip(cases, sizes, strict=True)],
    )
    lines += ["## Losses", "", *_wrapped(LOSSES), ""]
    lines += _table(
        ["system", "script", "plain", "plan", "largest difference"],
        [[one.name, one.script, *_losses(one)] for one in cases],
    )
    return "\n".join(lines)


def _summary(cases: Sequence[Case]) -> str:
    """The figures in a few sentences."""
    speedups = [one.speedup for one in cases]
    planned = [(one, way) for one in cases for way in PLANNED if way in one.runs]
    errors = [abs(one.runs[way].error) for one in cases for way in WAYS if way in one.runs]
    near = sum(error <= 0.15 for error in errors)
    ratios = [one.runs[way].step / one.runs["plain"].step for one, way in planned]
    return f"""With plans, steps are {min(speedups):.2f} to {max(speedups):.2f} times as fast as without, and
        {median(speedups):.2f} times in the median of {len(cases)} cases. Of {len(planned)} runs with a placement or
        a plan, the slowest took {max(ratios):.2f} of the plain run's time. The predicted time of communication is
        within 15% of the measured one in {near} of {len(errors)} runs, and off by {median(errors):.0%} in the median.
        Recorded workloads have the bytes on the wire within {max(abs(one.off) for one in cases):.2%}."""


def _whole_steps(cases: Sequence[Case]) -> str:
    """Where the time of computing is not known."""
    names = dict.fromkeys(one.name for one in cases if not all(run.computing for run in one.runs.values()))
    said = ", where the time of computing is not known, it is the whole step."
    return f" On {' and '.join(names)}{said}" if names else ""


def _losses(one: Case) -> list[str]:
    last = [f"{one.runs[way].losses[-1]:.6f}" for way in ("plain", "plan")]
    return [*last, f"{one.drift:.0e}" if one.drift else "none"]


def _times(one: Case, way: str) -> list[str]:
    return [way, _s(one.runs[way].communication), _s(one.runs[way].predicted), f"{one.runs[way].error:+.0%}"]


def _steps(one: Case) -> list[str]:
    """The times of steps, and where the gain comes from."""
    plain, plan = one.runs["plain"].step, one.runs["plan"].step
    placed = one.runs["placement"].step if "placement" in one.runs else plain
    middle = _s(placed) if "placement" in one.runs else "as plain"
    tuned = _s(one.runs["tuned"].step) if "tuned" in one.runs else "-"
    return [_s(plain), middle, _s(plan), tuned, f"{one.speedup:.2f}x", _s(plain - placed), _s(placed - plan)]


def _s(seconds: float) -> str:
    return f"{seconds:.2f} s"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)] + [""]


def _wrapped(text: str) -> list[str]:
    return wrap(" ".join(text.split()), 110, break_long_words=False, break_on_hyphens=False)
