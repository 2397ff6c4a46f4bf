"""The page of `benchmarks.regret`: what the default plan loses, as text and tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from textwrap import wrap

from benchmarks.bursts import BURST, SMALL
from benchmarks.errors import off_by
from meshwright.text.units import format_bytes, format_seconds

CHUNKS = (2, 4, 8, 16)
"""The numbers of chunks that are measured."""

NEAR = 1.05
"""Plans are to be within this factor of the best."""


@dataclass(frozen=True)
class Row:
    """One system and payload: seconds of the library's own, of the plan's choice if that was measured, and of the best;
    the bound; and the relative errors of predictions: for the library's own, for programs in chunks, and for the choice
    if it is in chunks."""

    system: str
    bytes: int
    own: float
    chosen: float | None
    best: float
    bound: float
    own_error: float
    errors: tuple[float, ...]
    error: float | None


@dataclass(frozen=True)
class Heated:
    """A plan that was tuned: seconds of the library's own, of what `tune` takes, and of the fastest of all."""

    system: str
    bytes: int
    own: float
    taken: float
    best: float


@dataclass(frozen=True)
class Found:
    """All that was measured: slowly, at the usual rates by how, what `tune` made of it, and the errors of predictions
    for the programs in chunks of other studies."""

    rows: Sequence[Row]
    fast: Mapping[str, Sequence[Row]]
    heated: Sequence[Heated]
    elsewhere: Sequence[float]


ABOUT = f"""Written by `python -m benchmarks.regret`. All-reduces over all devices of emulated clusters with
gloo. Nothing was calibrated: plans are made from the configured rates and latencies and the library profile, as `plan`
does by default. Beside the library's own all-reduce and the plan's choice, the best program step after step and the
best in {", ".join(map(str, CHUNKS))} chunks were measured; `best` is the fastest of all these. The first three systems
are those of the [study](study.md)."""

SLOWLY = """They are emulated in slow motion: rates are an eighth of those of the study and of others like them, and
latencies eight times as long. So two processors have as much time for 16 ranks as 16 processors would have at the usual
rates. All was measured at one time on two cores (PyTorch 2.13), 100 KiB on one cluster at a time, larger payloads on
four. Links carry data at the rates that are given: they are faster by what packets add, 1% in packets of 9 kB and 7% in
packets of 1.5 kB."""

SETTLED = f"""Some parts of the model were settled with measurements at the usual rates: how unevenly flows share
a link, that links wait while calls are made, about one latency between two chunks ([cost.md](cost.md#chunks)), what
calls and messages take, and that no mixes of programs are planned for gloo. Three things were seen here: on four
systems at 100 KiB, that small ReduceScatters in chunks keep links busy all the time; on the first at 1 MiB, that of
programs which are predicted alike the one in fewer chunks is better; on the fifth, which of a program and its mirror
image is the faster, which the third and the ninth confirm. The bytes that go with each message were counted, not
fitted. Longer programs may be better still where links have latency: at the usual rates, on the last system, 4 MiB in
24 chunks once took 0.99 s in six steps, a ReduceScatter for each level and an AllGather for each, and 1.14 s in the
best program of five, which is the most that `plan` tries by default. Idle emulated links let {BURST // 1000} kB through
at once, which is much of 100 KiB; so for that payload they let little more than one packet of 1.5 kB through. That is
still much of messages of some kB: where each of these waits for latency, it takes less time than predicted."""

AFTER = """What `tune` made of plans that missed the best by more than 5%: it measures the library's own and five of
the programs that the plan holds, in turns. Beside them the fastest program of the table above was measured in the same
turns, whether `tune` had it or not."""

FASTER = """The same systems at the usual rates. There, 8 to 16 ranks with 100 KiB keep two processors busy, of which
nothing is known to a plan that nobody calibrated or tuned: then a plan that is predicted to gain little may lose some.
On 16 cores it was measured earlier: AllGathers were gloo's own, rates are those of packets with their headers, and for
100 KiB links let two packets through at once."""


def page(found: Found) -> str:
    """The document."""
    lines = ["# Regret: the default plan, measured", ""]
    lines += [line for text in (ABOUT, SLOWLY, _summary(found), SETTLED) for line in _paragraph(text)]
    lines += ["| system | payload | gloo's own | the plan | best | over own | over best | over the bound |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for one in found.rows:
        times = [format_seconds(one.own), format_seconds(one.chosen) if one.chosen else "?", format_seconds(one.best)]
        ratios = [f"{one.chosen / of:.2f}x" if one.chosen else "?" for of in (one.own, one.best, one.bound)]
        lines.append(f"| {' | '.join([one.system, format_bytes(one.bytes), *times, *ratios])} |")
    lines += [*_after(found.heated), "", "## Eight times as fast", "", *_paragraph(FASTER)]
    for name, rows in found.fast.items():
        lines += _paragraph(_at_speed(name, rows))
    return "\n".join(lines)


def _paragraph(text: str) -> list[str]:
    return [*wrap(" ".join(text.split()), 110, break_long_words=False, break_on_hyphens=False), ""]


def _ratios(rows: Sequence[Row]) -> list[float]:
    """How long the plans took that were measured, over the library's own."""
    return sorted(one.chosen / one.own for one in rows if one.chosen is not None)


def _summary(found: Found) -> str:
    largest = max(one.bytes for one in found.rows)
    known = [(one, one.chosen) for one in found.rows if one.chosen is not None]
    over_bound = [(one, chosen / one.bound) for one, chosen in known if one.bytes == largest]
    at_once = [ratio for one, ratio in over_bound if "+" not in one.system]
    by_size = {
        one.bytes: [error for same in found.rows if same.bytes == one.bytes for error in same.errors]
        for one in found.rows
    }
    here = [error for errors in by_size.values() for error in errors]
    taken = [one.error for one in found.rows if one.error is not None]
    older = [error for rows in found.fast.values() for one in rows for error in one.errors]
    slower = sum(ratio > 1.02 for ratio in _ratios(found.rows))
    near = sum(chosen <= NEAR * one.best for one, chosen in known)
    sizes = ", ".join(f"by {off_by(errors)} at {format_bytes(size)}" for size, errors in sorted(by_size.items()))
    return f"""Of {len(known)} plans, {slower} were slower than 1.02x the library's own, and {near} were within
        {NEAR}x of the best. At {format_bytes(largest)} they take {median(ratio for _, ratio in over_bound):.2f} the
        bound in the median, {median(at_once):.2f} where links have no latency, which the bound leaves out. The
        predicted times of gloo's own all-reduces are off by {off_by([one.own_error for one in found.rows])}, those of
        the {len(taken)} plans in chunks by {off_by(taken)}, and those of all {len(here)} programs in chunks that were
        measured by {off_by(here)}: {sizes}. Together with those on [NCCL](nccl.md) and those of the first table of
        [the study of chunks](pipelines.md), which is calibrated, {len(here) + len(found.elsewhere)} programs in chunks
        are off by {off_by([*here, *found.elsewhere])}; with the {len(older)} at the usual rates, too, by
        {off_by([*here, *found.elsewhere, *older])}."""


def _at_speed(name: str, rows: Sequence[Row]) -> str:
    small, large = [one for one in rows if one.bytes < SMALL], [one for one in rows if one.bytes >= SMALL]
    return f"{name}: of 100 KiB, {_took(small)}. From 1 MiB on, {_took(large)}."


def _took(rows: Sequence[Row]) -> str:
    ratios, off = _ratios(rows), off_by([error for one in rows for error in one.errors])
    over = sum(ratio > 1.02 for ratio in ratios)
    long = f" and took {ratios[0]:.2f} to {ratios[-1]:.2f} times as long as gloo's own" if ratios else ""
    return f"""{len(ratios)} of today's plans were measured{long}, {over} of them more than 1.02 times; programs in
        chunks are off by {off}"""


def _after(found: Sequence[Heated]) -> list[str]:
    if not found:
        return []
    lines = ["", "## After tuning", "", *_paragraph(AFTER)]
    lines += [
        "| system | payload | gloo's own | tuned | best | over own | over best |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found:
        cells = [one.system, format_bytes(one.bytes), *map(format_seconds, (one.own, one.taken, one.best))]
        lines.append(f"| {' | '.join(cells)} | {one.taken / one.own:.2f}x | {one.taken / one.best:.2f}x |")
    return lines
