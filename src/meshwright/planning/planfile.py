"""Plan files: JSON, versioned. Reading one checks everything in it, and that the times are those of its programs."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import isclose
from os import PathLike
from typing import Any

from meshwright.cost.library import Library, library_document, library_of
from meshwright.cost.model import CostModel
from meshwright.cost.pipeline import Pipeline
from meshwright.errors import InvalidProgramError, MeshwrightError, SpecError
from meshwright.language.goals import Goal, as_goal
from meshwright.language.parse import parse_pipelined
from meshwright.language.program import Pipelined
from meshwright.language.semantics import check_program
from meshwright.language.symbolic import is_valid
from meshwright.language.synthesis import MAX_LEVELS
from meshwright.placement.hierarchy import Hierarchy
from meshwright.placement.layout import layout_of, reduction_hierarchy
from meshwright.placement.placement import Placement
from meshwright.planning.plan import DEFAULT_PROGRAM, TIMES, Measured, Plan, Planned, Timed, Tuned, predict, times_of
from meshwright.planning.tuning import where
from meshwright.system.model import System
from meshwright.system.read import system_document, system_of
from meshwright.text.files import write_file
from meshwright.text.spec import check_path, check_type, no_constant, shown, unknown
from meshwright.text.yamlfile import read_text
from meshwright.workload.communication import Communication, Transfer

FORMAT, VERSION = "meshwright-plan", 4

MAX_TEXT = 2**22
"""The most bytes of a plan file."""

_REDUCTION = ("axes", "bytes", "count", "goal", "name", "hidden", "program", *TIMES, "ranges", "alternatives", "tuned")
_TRANSFER = ("axes", "bytes", "kind", "count", "name", "hidden", "seconds", "bound_seconds")


def write_plan(plan: Plan, path: str | PathLike[str]) -> None:
    """Write a plan to a file, all or nothing; `read_plan` gives it back.

    >>> import meshwright
    >>> reductions = [meshwright.parse_reduction("data=1MiB")]
    >>> best = meshwright.plan("node=2@1GB/s,gpu=4@8GB/s", {"data": 8}, reductions).candidates[0]
    >>> write_plan(best, "/dev/null")
    """
    check_type(plan, Plan, "a Plan")
    path = check_path(path, "plan")
    document = {
        "format": FORMAT,
        "version": VERSION,
        "system": system_document(plan.placement.system),
        "library": library_document(plan.library),
        **plan.document(),
    }
    write_file(path, json.dumps(document, indent=1, allow_nan=False) + "\n", "the plan file")


def where_document(plan: Plan) -> dict[str, Any]:
    """What a plan runs on, as plain data: the system as in its file, the number of devices, and the placement."""
    at = plan.placement
    return {"system": system_document(at.system), "devices": at.system.devices, "placement": at.document()}


def read_plan(path: str | PathLike[str]) -> Plan:
    """A plan from a file; everything in it is checked, and every program is valid for its goal.

    >>> read_plan("plan.yaml")
    Traceback (most recent call last):
    meshwright.errors.SpecError: there is no plan file 'plan.yaml'
    """
    path = check_path(path, "plan")
    text = read_text(path, "plan", MAX_TEXT)
    try:
        document = json.loads(text, object_pairs_hook=_once, parse_constant=no_constant)
    except json.JSONDecodeError as error:
        raise SpecError(
            f"{path} line {error.lineno}: not a whole JSON document ({error.msg}); was the file cut off or edited?"
        ) from None
    except (ValueError, RecursionError) as error:
        raise SpecError(f"cannot read the plan file {shown(str(path))}: {error}") from None
    return _Reader(str(path)).plan(document)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys appear once each."""
    found = dict(pairs)
    if len(found) < len(pairs):
        key, count = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {shown(key)} appears {count} times in one object")
    return found


class _Reader:
    """Turns the document of a plan file into a plan; every complaint names the place in the file."""

    def __init__(self, source: str) -> None:
        self.source = source

    def fail(self, place: str, message: str) -> SpecError:
        return SpecError(f"{self.source}: {place}: {message}" if place else f"{self.source}: {message}")

    def take(self, document: Any, place: str, keys: dict[str, type | tuple[type, ...]]) -> dict[str, Any]:
        """An object with exactly these keys, of these types."""
        if not isinstance(document, dict):
            raise self.fail(place, f"expected an object with {', '.join(keys)}, not {shown(document)}")
        for key in document:
            if key not in keys:
                raise self.fail(place, unknown("key", key, keys))
        for key, kinds in keys.items():
            if key not in document:
                raise self.fail(place, f"{key!r} is missing")
            value = document[key]
            if not isinstance(value, kinds) or isinstance(value, bool):
                raise self.fail(f"{place}.{key}".lstrip("."), f"{shown(value)} is not what is expected here")
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
        version = document.get("version")
        if type(version) is not int or not 1 <= version <= VERSION:
            raise self.fail(
                "",
                f"this is a plan file of version {shown(version)}; this Meshwright reads versions 1 to {VERSION}: "
                "make the plan again",
            )
        if version == 1:  # had reductions only, without names, and hid nothing
            document = {"transfers": [], **document}
        keys: dict[str, type | tuple[type, ...]] = {"format": str, "version": int, "system": dict, "library": dict}
        keys |= {"placement": dict, "reductions": list, "transfers": list}
        keys |= {**dict.fromkeys(("speedup", *TIMES), (int, float))}
        self.take(document, "", keys)
        system = system_of(document["system"], f"{self.source}: system")
        library = library_of(document["library"], f"{self.source}: library")
        placement = self.placement(document["placement"], system, dict if version > 3 else list)
        if not document["reductions"] and not document["transfers"]:
            raise self.fail("reductions", "there are none")
        old: dict[str, Any] = {"name": "", "hidden": 0.0} if version == 1 else {}
        old |= {"ranges": [], "alternatives": []} if version < 3 else {}  # one program for every payload
        old |= {"tuned": []}  # is only written where something was measured
        entries = [{**old, **entry} if isinstance(entry, dict) else entry for entry in document["reductions"]]
        programmed = [
            self.planned(entry, f"reductions[{k}]", placement, library, True) for k, entry in enumerate(entries)
        ]
        others = [
            self.planned(entry, f"transfers[{k}]", placement, library, False)
            for k, entry in enumerate(document["transfers"])
        ]
        plan = Plan(placement, library, (*programmed, *others))
        for name, value in {**times_of(plan), "speedup": plan.speedup}.items():
            if not _near(document[name], value):
                raise self.fail(name, f"it is {shown(document[name])}, but the communications add up to {value!r}")
        return plan

    def placement(self, document: Any, system: System, kind: type) -> Placement:
        """The placement. Before version 4 it had the names of its axes, but not their sizes."""
        at = self.take(document, "placement", {"axes": kind, "matrix": list})
        if not all(isinstance(axis, str) for axis in at["axes"]):
            raise self.fail("placement.axes", "expected names")
        if not all(isinstance(row, list) for row in at["matrix"]):
            raise self.fail("placement.matrix", "expected a list of rows, one per axis")
        found: Placement = self.convert("placement", lambda: Placement(system, tuple(at["axes"]), at["matrix"]))
        if kind is dict and found.sizes != at["axes"]:
            raise self.fail("placement.axes", f"they are {shown(at['axes'])}, but the rows multiply to {found.sizes}")
        return found

    def planned(self, entry: Any, place: str, placement: Placement, library: Library, has_programs: bool) -> Planned:
        """One of the communications; those with programs have keys of their own."""
        kinds: dict[str, type | tuple[type, ...]] = {"axes": list, "bytes": int, "count": int, "hidden": (int, float)}
        kinds |= {"ranges": list, "alternatives": list, "tuned": list}
        keys = _REDUCTION if has_programs else _TRANSFER
        self.take(entry, place, {key: kinds.get(key, (int, float) if key in TIMES else str) for key in keys})
        given = {key: entry[key] for key in ("axes", "bytes", "count", "name", "hidden")}
        if has_programs:
            one = self.convert(place, lambda: Communication(goal=as_goal(entry["goal"]), **given))
        else:
            one = self.convert(place, lambda: Transfer(kind=entry["kind"], **given))
        hierarchy = self.convert(f"{place}.axes", lambda: reduction_hierarchy(placement, one.axes))
        tuned = (
            []
            if not has_programs
            else [
                self.tuned(each, f"{place}.tuned[{k}]", placement, hierarchy, one.goal)
                for k, each in enumerate(entry["tuned"])
            ]
        )
        pipelined = self.pipelined(entry["program"], f"{place}.program", hierarchy, one.goal) if has_programs else None
        model = self.convert(place, lambda: CostModel(layout_of(placement, one.axes), library, one.bytes))
        planned: Planned = self.convert(place, lambda: predict(model, one, pipelined))
        times = {name: value for name, value in times_of(planned).items() if name in keys}
        for name, value in times.items():
            self.check_time(entry, place, name, value)
        # The times as they are written, so that a plan that is read equals the one that was written.
        written = {"default_seconds": entry["seconds"], **{name: entry[name] for name in times}}
        if has_programs and entry["ranges"] + entry["alternatives"]:
            pipeline = Pipeline(model, one.goal)
            for name in ("ranges", "alternatives"):
                found = [self.timed(each, f"{place}.{name}[{k}]", pipeline) for k, each in enumerate(entry[name])]
                written[name] = tuple(found)
        written |= {"tuned": tuple(tuned)} if tuned else {}
        changed: Planned = self.convert(place, lambda: replace(planned, **written))
        return changed

    def check_time(self, entry: Any, place: str, name: str, value: float) -> None:
        """Refuse a time that is not what the model predicts."""
        if not _near(entry[name], value):
            raise self.fail(
                f"{place}.{name}",
                f"it is {shown(entry[name])}, but this program on this system with this library takes {value!r}: "
                "the file was edited, or written by another version",
            )

    def timed(self, entry: Any, place: str, pipeline: Pipeline) -> Timed:
        """Programs for a payload, with their time."""
        self.take(entry, place, {"bytes": int, "program": str, "seconds": (int, float)})
        hierarchy, goal = pipeline.model.layout.hierarchy, pipeline.goal
        pipelined = self.pipelined(entry["program"], f"{place}.program", hierarchy, goal)
        self.check_time(
            entry, place, "seconds", self.convert(place, lambda: pipeline.at(entry["bytes"]).seconds(pipelined))
        )
        timed: Timed = self.convert(place, lambda: Timed(entry["bytes"], pipelined, entry["seconds"]))
        return timed

    def tuned(self, entry: Any, place: str, placement: Placement, hierarchy: Hierarchy, goal: Goal) -> Tuned:
        """What was measured for a payload; not if that was on another system than the file has now."""
        sizes: dict[str, type | tuple[type, ...]] = dict.fromkeys(("bytes", "least", "most"), int)
        times: dict[str, type | tuple[type, ...]] = {"program": str, "seconds": (int, float), "noise": (int, float)}
        self.take(entry, place, {**sizes, "engine": str, "where": str, **times, "compared": list})
        if entry["where"] != where(placement):
            raise self.fail(
                place,
                "the plan was tuned on another system or placement than the file has now, so its measurements no "
                "longer count: make the plan again, and tune it",
            )

        def measured(each: Any, at: str) -> Measured:
            own = each["program"] == DEFAULT_PROGRAM and at != place
            pipelined = None if own else self.pipelined(each["program"], f"{at}.program", hierarchy, goal)
            found: Measured = self.convert(at, lambda: Measured(pipelined, each["seconds"], each["noise"]))
            return found

        compared = []
        for k, each in enumerate(entry["compared"]):
            at = f"{place}.compared[{k}]"
            compared.append(measured(self.take(each, at, times), at))
        given = {name: entry[name] for name in ("bytes", "least", "most", "engine", "where")}
        chosen = measured(entry, place)
        tuned: Tuned = self.convert(place, lambda: Tuned(**given, chosen=chosen, compared=tuple(compared)))
        return tuned

    def pipelined(self, text: str, place: str, hierarchy: Hierarchy, goal: Goal) -> Pipelined:
        """The programs of a communication, each of them valid."""
        found: Pipelined = self.convert(place, lambda: parse_pipelined(text, hierarchy))
        levels = len(hierarchy.names)
        for program, _ in found.shares:
            if levels > MAX_LEVELS or not is_valid(program, levels, goal):
                self.convert(place, partial(check_program, program, hierarchy, goal))
        return found


def _near(given: float, value: float) -> bool:
    return abs(given) < 1e300 and isclose(given, value, rel_tol=1e-9)
