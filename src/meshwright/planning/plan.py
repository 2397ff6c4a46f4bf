"""Plans: a placement, and for each communication the programs that carry it out. What engines run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.cost.library import Library
from meshwright.cost.model import CostModel
from meshwright.cost.pipeline import Pipeline
from meshwright.errors import MeshwrightError, SpecError
from meshwright.language.goals import flat_program
from meshwright.language.program import Pipelined, Program
from meshwright.placement.hierarchy import Hierarchy
from meshwright.placement.layout import layout_of, reduction_hierarchy
from meshwright.placement.notation import format_placement
from meshwright.placement.placement import Placement
from meshwright.text.spec import as_tuple, check_type, is_number, screenful, shown
from meshwright.text.units import format_seconds, format_size
from meshwright.workload.communication import Communication, exposed

TIMES = ("seconds", "default_seconds", "bound_seconds")

DEFAULT_PROGRAM = "default"
"""In place of a program: the library's own collective over the whole group, called without an engine."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Programs with their chunks, and their predicted time for a payload of `bytes` bytes."""

    bytes: int
    pipelined: Pipelined
    seconds: float

    def __post_init__(self) -> None:
        """Refuse what is no time of a program."""
        if type(self.bytes) is not int or self.bytes < 1:
            raise SpecError(f"expected the bytes of a payload, at least 1, not {shown(self.bytes)}")
        check_type(self.pipelined, Pipelined, "a Pipelined; Pipelined.of makes one from a Program")
        _check_seconds("seconds", self.seconds)


@dataclass(frozen=True, slots=True)
class Measured:
    """Programs with their measured time: the median of some runs, and half of the 95% confidence interval as noise.

    pipelined: None for the library's own collective, called without an engine.
    """

    pipelined: Pipelined | None
    seconds: float
    noise: float

    def __post_init__(self) -> None:
        """Refuse what no measurement gives."""
        if self.pipelined is not None:
            check_type(self.pipelined, Pipelined, "a Pipelined; Pipelined.of makes one from a Program")
        _check_seconds("seconds", self.seconds)
        _check_seconds("noise", self.noise)


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was chosen by measuring a payload of `bytes` bytes; it counts for payloads from `least` to `most` bytes.

    engine: what ran it. where: the digest of the system and the placement that it ran on. chosen: the programs that are
    taken. compared: what else was measured.
    """

    bytes: int
    least: int
    most: int
    engine: str
    where: str
    chosen: Measured
    compared: tuple[Measured, ...]

    def __post_init__(self) -> None:
        """Refuse what no tuning gives."""
        sizes = (self.least, self.bytes, self.most)
        if not all(type(size) is int for size in sizes) or not 1 <= self.least <= self.bytes <= self.most:
            raise SpecError(f"expected bytes between least and most, at least 1, not {shown(sizes)}")
        for name in ("engine", "where"):
            check_type(getattr(self, name), str, f"a text for {name!r}")
        check_type(self.chosen, Measured, "a Measured")
        check_type(self.chosen.pipelined, Pipelined, "a Pipelined; Pipelined.of makes one from a Program")
        object.__setattr__(self, "compared", as_tuple(self.compared, Measured, "compared"))


@dataclass(frozen=True, slots=True)
class Planned:
    """A communication, the programs that carry it out, and its predicted times, each for one run.

    pipelined: the programs with their chunks; None where the goal has no programs. seconds: the time of these;
    default_seconds: that of the library's own collective over the whole group, on the same placement; bound_seconds:
    no algorithm can be faster.
    ranges: the best programs for other payloads too. Each counts from its own bytes on, up to those of the next; the
    first also for less. Where there are none, `pipelined` is for every payload.
    alternatives: other programs for the same payload, the fastest first; the library's own collective is among them.
    tuned: what was chosen by measuring, for some payloads; the ranges have the same programs for them.
    """

    communication: Communication
    pipelined: Pipelined | None
    seconds: float
    default_seconds: float
    bound_seconds: float
    ranges: tuple[Timed, ...] = ()
    alternatives: tuple[Timed, ...] = ()
    tuned: tuple[Tuned, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is no plan for a communication."""
        check_type(self.communication, Communication, "a Reduction or a Transfer")
        for name in TIMES:
            _check_seconds(name, getattr(self, name))
        if self.communication.goal.has_programs:
            check_type(self.pipelined, Pipelined, "a Pipelined; Pipelined.of makes one from a Program")
        elif self.pipelined is not None or self.default_seconds != self.seconds:
            raise SpecError(
                f"{self.communication.goal} has no programs: expected None, and default_seconds equal to seconds"
            )
        for name in ("ranges", "alternatives"):
            object.__setattr__(self, name, as_tuple(getattr(self, name), Timed, name))
        starts = [each.bytes for each in self.ranges]
        if starts != sorted(set(starts)):
            raise SpecError(f"expected ranges from growing payloads on, not {shown(starts)}")
        if self.ranges and self.at(self.communication.bytes) != self.pipelined:
            raise SpecError(
                "the range of the planned payload has another program than the reduction: give ranges=() to run that "
                "program for every payload"
            )
        object.__setattr__(self, "tuned", as_tuple(self.tuned, Tuned, "tuned"))
        for each in self.tuned:
            if self.at(each.bytes) != each.chosen.pipelined:
                raise SpecError(f"it was tuned for {each.bytes} bytes to other programs than it has: give tuned=()")

    def at(self, payload: int) -> Pipelined | None:
        """The programs for a payload of another size; None where the goal has no programs."""
        fitting = [each.pipelined for each in self.ranges if each.bytes <= payload]
        return fitting[-1] if fitting else self.ranges[0].pipelined if self.ranges else self.pipelined

    def tuned_at(self, payload: int) -> Tuned | None:
        """What was measured for a payload of this size; None where nothing was."""
        return next((each for each in self.tuned if each.least <= payload <= each.most), None)

    @property
    def shares(self) -> tuple[tuple[Program, int], ...]:
        """The programs, each with how many chunks take it; none where the goal has no programs."""
        return self.pipelined.shares if self.pipelined else ()

    @property
    def program(self) -> Program:
        """The program, or the first of several."""
        if self.pipelined is None:
            raise MeshwrightError(f"{self.communication.goal} has no programs: a library has one way to do it")
        return self.pipelined.program

    @property
    def chunks(self) -> int:
        """How many chunks the payload is cut into."""
        return self.pipelined.chunks if self.pipelined else 1


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """A placement, and what was planned for each communication on it.

    Those with programs come first: engines number them from 0. The times are sums over the communications times their
    counts, without what is hidden.
    """

    placement: Placement
    library: Library
    communications: tuple[Planned, ...]

    def __post_init__(self) -> None:
        """Put what has programs first."""
        check_type(self.placement, Placement, "a Placement")
        check_type(self.library, Library, "a Library")
        communications = as_tuple(self.communications, Planned, "communications of a plan")
        ordered = sorted(communications, key=lambda planned: planned.pipelined is None)
        object.__setattr__(self, "communications", tuple(ordered))

    def __repr__(self) -> str:
        """Where the axes are, the time, and for the first communications what carries them out."""
        at, lines = self.placement, []
        for one in self.communications:
            what, program = one.communication, self.program_text(one)
            name = what.name or f"{what.goal} over {'+'.join(what.axes)}"
            each = f"{name}, {format_size(what.bytes)} x {what.count}: {format_seconds(one.seconds)}"
            lines.append(f"{each}, {program}" if program else each)
        times = f"{format_seconds(self.seconds)}, {self.speedup:.2f}x as fast as {self.library.name}'s own"
        return screenful(f"Plan {format_placement(at.axes, at.matrix)}, {times}, on {at.system.name}", lines)

    @property
    def reductions(self) -> tuple[Planned, ...]:
        """The communications with programs: what engines run, by these numbers."""
        return tuple(planned for planned in self.communications if planned.pipelined is not None)

    @property
    def transfers(self) -> tuple[Planned, ...]:
        """The communications without programs: they only count in the times."""
        return tuple(planned for planned in self.communications if planned.pipelined is None)

    @property
    def is_tuned(self) -> bool:
        """Whether programs were chosen by measuring."""
        return any(planned.tuned for planned in self.communications)

    @property
    def seconds(self) -> float:
        """The predicted time of all communications that is not hidden."""
        return self._total("seconds")

    @property
    def default_seconds(self) -> float:
        """The predicted time with the library's own collectives on the same placement."""
        return self._total("default_seconds")

    @property
    def bound_seconds(self) -> float:
        """No algorithms can be faster on this placement."""
        return self._total("bound_seconds")

    def _total(self, which: str) -> float:
        return sum((getattr(one, which) * exposed(one.communication) for one in self.communications), 0.0)

    @property
    def speedup(self) -> float:
        """How much faster than the default."""
        return ratio(self.default_seconds, self.seconds)

    def hierarchy(self, planned: Planned) -> Hierarchy:
        """The hierarchy of one of the communications: what its programs speak of."""
        return reduction_hierarchy(self.placement, planned.communication.axes)

    def program_text(self, planned: Planned) -> str:
        """The programs of one of the communications as text, with their chunks; empty where there are none."""
        return planned.pipelined.text(self.hierarchy(planned)) if planned.pipelined else ""

    def _timed(self, planned: Planned, timed: Sequence[Timed]) -> list[dict[str, Any]]:
        hierarchy = self.hierarchy(planned)
        return [{"bytes": t.bytes, "program": t.pipelined.text(hierarchy), "seconds": t.seconds} for t in timed]

    def _tuned(self, planned: Planned) -> dict[str, Any]:
        """What was measured; nothing where nothing was."""
        hierarchy = self.hierarchy(planned)

        def written(one: Measured) -> dict[str, Any]:
            text = one.pipelined.text(hierarchy) if one.pipelined else DEFAULT_PROGRAM
            return {"program": text, "seconds": one.seconds, "noise": one.noise}

        found = [
            {
                **{name: getattr(each, name) for name in ("bytes", "least", "most", "engine", "where")},
                **written(each.chosen),
                "compared": [written(one) for one in each.compared],
            }
            for each in planned.tuned
        ]
        return {"tuned": found} if found else {}

    def document(self) -> dict[str, Any]:
        """The plan as plain data."""
        return {
            "placement": self.placement.document(),
            **times_of(self),
            "speedup": self.speedup,
            "reductions": [
                {
                    "axes": list(r.communication.axes),
                    "bytes": r.communication.bytes,
                    "count": r.communication.count,
                    "goal": str(r.communication.goal),
                    "name": r.communication.name,
                    "hidden": r.communication.hidden,
                    "program": self.program_text(r),
                    **times_of(r),
                    "ranges": self._timed(r, r.ranges),
                    "alternatives": self._timed(r, r.alternatives),
                    **self._tuned(r),
                }
                for r in self.reductions
            ],
            "transfers": [
                {
                    "axes": list(t.communication.axes),
                    "bytes": t.communication.bytes,
                    "kind": str(t.communication.goal),
                    "count": t.communication.count,
                    "name": t.communication.name,
                    "hidden": t.communication.hidden,
                    "seconds": t.seconds,
                    "bound_seconds": t.bound_seconds,
                }
                for t in self.transfers
            ],
        }


def _check_seconds(name: str, value: Any) -> None:
    if not is_number(value) or value < 0:
        raise SpecError(f"expected {name} of zero or more, not {shown(value)}")


def cost_model(plan: Plan, planned: Planned) -> CostModel:
    """The cost model of one of a plan's communications."""
    layout = layout_of(plan.placement, planned.communication.axes)
    return CostModel(layout, plan.library, planned.communication.bytes)


def ratio(a: float, b: float) -> float:
    """How many times b fits into a; 1 where there is nothing to do."""
    return a / b if b else 1.0


def times_of(plan: Plan | Planned) -> dict[str, float]:
    """What was predicted: the time, that of the library's own, and the bound."""
    return {name: getattr(plan, name) for name in TIMES}


def predict(model: CostModel, communication: Communication, pipelined: Pipelined | None = None) -> Planned:
    """A communication with its times under a model; pipelined: the programs for it, where its goal has programs."""
    goal = communication.goal
    seconds = default = predict_seconds(model, communication, pipelined)
    if pipelined is not None:
        alone = CostModel(model.layout, model.library.alone, model.payload) if model.library.own else model
        default = alone.seconds(flat_program(goal, len(model.layout.levels)), goal)
    return Planned(communication, pipelined, seconds, default, model.bound(goal))


def default_seconds(plan: Plan, placement: Placement) -> float:
    """The time of a plan's communications on another placement, with the library's own collectives."""
    total = 0.0
    for planned in plan.communications:
        one = planned.communication
        model = CostModel(layout_of(placement, one.axes), plan.library, one.bytes)
        own = Pipelined.of(flat_program(one.goal, len(model.layout.levels))) if one.goal.has_programs else None
        total += exposed(one) * predict(model, one, own).default_seconds
    return total


def predict_seconds(model: CostModel, communication: Communication, pipelined: Pipelined | None) -> float:
    """The time of a communication under a model."""
    if pipelined is None:
        return model.transfer(communication.goal).seconds
    return Pipeline(model, communication.goal).seconds(pipelined)
