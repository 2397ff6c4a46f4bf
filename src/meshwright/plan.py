"""Plans: a placement, and for each reduction the program that carries it out. What engines run; a versioned file."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from meshwright.cost import CostModel
from meshwright.errors import InvalidProgramError, MeshwrightError, SpecError
from meshwright.hierarchy import Hierarchy, reduction_hierarchy
from meshwright.layout import layout_of
from meshwright.placement import Placement
from meshwright.profiles import Library, library_document, read_library_text
from meshwright.program import Collective, Goal, Grouping, Program, Step, as_goal, parse_program
from meshwright.semantics import check_program
from meshwright.spec import MAX_COUNT, parse_count, unknown
from meshwright.systemfile import read_system_text, system_document
from meshwright.units import parse_bytes

FORMAT, VERSION = "meshwright-plan", 1

MAX_BYTES = 2**50  # more than a pebibyte for one tensor is a mistake

REDUCTION_EXAMPLE = "data=2GiB, data+shard=64MiB*80 or reduce-scatter:shard=1GiB"


@dataclass(frozen=True, slots=True)
class Reduction:
    """What is to be reduced: over which axes, how many bytes each device holds, how often, and to what goal.

    For reduce-scatter, all-gather and broadcast, `bytes` is the size of the whole tensor too, not of a part.
    """

    axes: tuple[str, ...]
    bytes: int
    count: int = 1
    goal: Goal = Goal.ALL_REDUCE

    def __post_init__(self) -> None:
        """Refuse what cannot be reduced."""
        if isinstance(self.axes, str):
            raise SpecError(f"expected the axes as a list, as in [{self.axes!r}]")
        object.__setattr__(self, "axes", tuple(self.axes))
        object.__setattr__(self, "goal", as_goal(self.goal))
        if not self.axes:
            raise SpecError(f"a reduction needs at least one axis, like {REDUCTION_EXAMPLE}")
        if not all(isinstance(axis, str) for axis in self.axes):
            raise SpecError(f"a reduction names its axes, not {self.axes!r}")
        if len(set(self.axes)) < len(self.axes):
            raise SpecError(f"a reduction names each of its axes once, not {'+'.join(self.axes)}")
        for name, value, most in (("bytes", self.bytes, MAX_BYTES), ("count", self.count, MAX_COUNT)):
            if type(value) is not int or not 1 <= value <= most:
                raise SpecError(f"a reduction has {name}={value!r:.40}; expected a whole number from 1 to {most:,}")


def parse_reduction(text: str) -> Reduction:
    """A reduction from `[GOAL:]AXIS[+AXIS…]=BYTES[*COUNT]`.

    >>> parse_reduction("data+shard=64MiB*80")
    Reduction(axes=('data', 'shard'), bytes=67108864, count=80, goal=<Goal.ALL_REDUCE: 'all-reduce'>)
    """
    goal, colon, rest = text.rpartition(":")
    axes, equals, amount = rest.partition("=")
    size, star, count = amount.partition("*")
    if not equals or not all(axis.strip() for axis in axes.split("+")):
        raise SpecError(f"{text!r} is not [GOAL:]AXIS[+AXIS…]=BYTES[*COUNT], like {REDUCTION_EXAMPLE}")
    return Reduction(
        tuple(axis.strip() for axis in axes.split("+")),
        parse_bytes(size),
        parse_count(count.strip(), text, "reductions", REDUCTION_EXAMPLE) if star else 1,
        as_goal(goal.strip()) if colon else Goal.ALL_REDUCE,
    )


@dataclass(frozen=True, slots=True)
class PlannedReduction:
    """A reduction with its program and predicted times, each for one run.

    seconds: of the program; default_seconds: of the library's own collective over the whole group, on the same
    placement; bound_seconds: no algorithm can be faster.
    """

    reduction: Reduction
    program: Program
    seconds: float
    default_seconds: float
    bound_seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A placement, and the program for each reduction. The times are sums over the reductions times their counts."""

    placement: Placement
    library: Library
    reductions: tuple[PlannedReduction, ...]

    def __post_init__(self) -> None:
        """Keep the reductions as a tuple."""
        object.__setattr__(self, "reductions", tuple(self.reductions))

    @property
    def seconds(self) -> float:
        """The predicted time of all reductions."""
        return sum((r.seconds * r.reduction.count for r in self.reductions), 0.0)

    @property
    def default_seconds(self) -> float:
        """The predicted time with the library's own collectives on the same placement."""
        return sum((r.default_seconds * r.reduction.count for r in self.reductions), 0.0)

    @property
    def bound_seconds(self) -> float:
        """No algorithms can be faster on this placement."""
        return sum((r.bound_seconds * r.reduction.count for r in self.reductions), 0.0)

    @property
    def speedup(self) -> float:
        """How much faster than the default."""
        return ratio(self.default_seconds, self.seconds)

    def hierarchy(self, planned: PlannedReduction) -> Hierarchy:
        """The hierarchy of one of the reductions: what its program speaks of."""
        return reduction_hierarchy(self.placement, planned.reduction.axes)

    def model(self, planned: PlannedReduction) -> CostModel:
        """The cost model of one of the reductions."""
        layout = layout_of(self.placement, planned.reduction.axes)
        return CostModel(layout, self.library, planned.reduction.bytes)

    def document(self) -> dict[str, Any]:
        """The plan as plain data."""
        return {
            "placement": {
                "axes": list(self.placement.axes),
                "matrix": [list(row) for row in self.placement.matrix],
            },
            **_times(self),
            "speedup": self.speedup,
            "reductions": [
                {
                    "axes": list(r.reduction.axes),
                    "bytes": r.reduction.bytes,
                    "count": r.reduction.count,
                    "goal": str(r.reduction.goal),
                    "program": r.program.text(self.hierarchy(r)),
                    **_times(r),
                }
                for r in self.reductions
            ],
        }


def ratio(a: float, b: float) -> float:
    """How many times b fits into a; 1 where there is nothing to do."""
    return a / b if b else 1.0


_TIMES = ("seconds", "default_seconds", "bound_seconds")


def _times(plan: Plan | PlannedReduction) -> dict[str, float]:
    return {name: getattr(plan, name) for name in _TIMES}


def flat_program(goal: Goal, levels: int) -> Program:
    """The goal as one collective over the whole group: what a library does by default."""
    if levels == 0:
        return Program(())
    return Program((Step(FLAT[goal], Grouping(0, levels - 1)),))


FLAT = {
    Goal.ALL_REDUCE: Collective.ALL_REDUCE,
    Goal.REDUCE_SCATTER: Collective.REDUCE_SCATTER,
    Goal.ALL_GATHER: Collective.ALL_GATHER,
    Goal.REDUCE: Collective.REDUCE,
    Goal.BROADCAST: Collective.BROADCAST,
}


def planned_reduction(model: CostModel, reduction: Reduction, program: Program) -> PlannedReduction:
    """A reduction with a program, and its times under a model."""
    goal = reduction.goal
    flat = flat_program(goal, len(model.layout.levels))
    return PlannedReduction(
        reduction, program, model.seconds(program, goal), model.seconds(flat, goal), model.bound(goal)
    )


def write_plan(plan: Plan, path: Path) -> None:
    """Write a plan to a file, all or nothing."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "system": system_document(plan.placement.system),
        "library": library_document(plan.library),
        **plan.document(),
    }
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():  # a device or a pipe is written to, never replaced
            target.write_text(text, encoding="utf-8")
            return
        with NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, prefix=".plan-", delete=False) as new:
            partial = Path(new.name)
        try:
            partial.write_text(text, encoding="utf-8")
            partial.chmod(0o666 & ~_umask())
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise SpecError(f"cannot write the plan file {str(path)!r}: {error}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_plan(path: Path) -> Plan:
    """A plan from a file; every part is checked, and every program is valid for its goal."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except FileNotFoundError:
        raise SpecError(f"there is no plan file {str(path)!r}") from None
    except json.JSONDecodeError as error:
        raise SpecError(
            f"{path} line {error.lineno}: not a whole JSON document ({error.msg}); was the file cut off or edited?"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError(f"cannot read the plan file {str(path)!r}: {error}") from None
    return _Reader(str(path)).plan(document)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys appear once each."""
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"the key {key!r} appears {keys.count(key)} times in one object")
    return dict(pairs)


class _Reader:
    """Turns the document of a plan file into a plan; every complaint names the place in the file."""

    def __init__(self, source: str) -> None:
        self.source = source

    def fail(self, place: str, message: str) -> SpecError:
        return SpecError(f"{self.source}: {place}: {message}" if place else f"{self.source}: {message}")

    def take(self, document: Any, place: str, keys: dict[str, type | tuple[type, ...]]) -> dict[str, Any]:
        """An object with exactly these keys, of these types."""
        if not isinstance(document, dict):
            raise self.fail(place, f"expected an object with {', '.join(keys)}, not {document!r:.40}")
        for key in document:
            if key not in keys:
                raise self.fail(place, unknown("key", key, keys))
        for key, kinds in keys.items():
            if key not in document:
                raise self.fail(place, f"{key!r} is missing")
            value = document[key]
            if not isinstance(value, kinds) or isinstance(value, bool):
                raise self.fail(f"{place}.{key}".lstrip("."), f"{value!r:.40} is not what is expected here")
        return document

    def convert(self, place: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except InvalidProgramError as error:
            raise self.fail(place, f"the program is not valid: {error}") from None
        except MeshwrightError as error:
            raise self.fail(place, str(error)) from None

    def plan(self, document: Any) -> Plan:
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise self.fail("", f"this is not a plan file: 'format' is not {FORMAT!r}")
        if document.get("version") != VERSION:
            raise self.fail(
                "",
                f"this is a plan file of version {document.get('version')!r}; this Meshwright reads version {VERSION}: "
                "make the plan again",
            )
        keys: dict[str, type | tuple[type, ...]] = {"format": str, "version": int, "system": dict, "library": dict}
        keys |= {"placement": dict, "reductions": list, **dict.fromkeys(("speedup", *_TIMES), (int, float))}
        self.take(document, "", keys)
        system = read_system_text(json.dumps(document["system"]), f"{self.source}: system")
        library = read_library_text(json.dumps(document["library"]), f"{self.source}: library")
        at = self.take(document["placement"], "placement", {"axes": list, "matrix": list})
        if not all(isinstance(axis, str) for axis in at["axes"]):
            raise self.fail("placement.axes", "expected names")
        if not all(isinstance(row, list) for row in at["matrix"]):
            raise self.fail("placement.matrix", "expected a list of rows, one per axis")
        placement = self.convert("placement", lambda: Placement(system, at["axes"], at["matrix"]))
        if not document["reductions"]:
            raise self.fail("reductions", "there are none")
        reductions = tuple(
            self.reduction(entry, f"reductions[{k}]", placement, library)
            for k, entry in enumerate(document["reductions"])
        )
        plan = Plan(placement, library, reductions)
        for name, value in {**_times(plan), "speedup": plan.speedup}.items():
            if not _near(document[name], value):
                raise self.fail(name, f"it is {document[name]!r}, but the reductions add up to {value!r}")
        return plan

    def reduction(self, entry: Any, place: str, placement: Placement, library: Library) -> PlannedReduction:
        keys: dict[str, type | tuple[type, ...]] = {"axes": list, "bytes": int, "count": int, "goal": str}
        keys |= {"program": str, **dict.fromkeys(_TIMES, (int, float))}
        self.take(entry, place, keys)
        reduction = self.convert(place, lambda: Reduction(entry["axes"], entry["bytes"], entry["count"], entry["goal"]))
        hierarchy = self.convert(f"{place}.axes", lambda: reduction_hierarchy(placement, reduction.axes))
        program = self.convert(f"{place}.program", lambda: parse_program(entry["program"], hierarchy))
        self.convert(f"{place}.program", lambda: check_program(program, hierarchy, reduction.goal))
        model = self.convert(place, lambda: CostModel(layout_of(placement, reduction.axes), library, reduction.bytes))
        planned = self.convert(place, lambda: planned_reduction(model, reduction, program))
        for name, value in _times(planned).items():
            if not _near(entry[name], value):
                raise self.fail(
                    f"{place}.{name}",
                    f"it is {entry[name]!r:.40}, but this program on this system with this library takes {value!r}: "
                    "the file was edited, or written by another version",
                )
        return PlannedReduction(reduction, program, entry["seconds"], entry["default_seconds"], entry["bound_seconds"])


def _near(given: float, value: float) -> bool:
    return abs(given) < 1e300 and isclose(given, value, rel_tol=1e-9)
