"""What is asked on the page of `meshwright explore`, as text, and the answer: a view, or what is wrong in which field.

Everything comes from outside, so that everything is checked again, and no text is ever taken for the name of a file.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache, partial
from math import prod
from typing import Any, TypeVar

from meshwright.cost.library import library_names
from meshwright.errors import MeshwrightError, PlacementError, SpecError
from meshwright.language.synthesis import MAX_STEPS
from meshwright.placement.layout import check_links
from meshwright.placement.placement import check_fit, parse_axes
from meshwright.planning.constraints import Constraint, ConstraintRule, check_constraint, parse_constraint
from meshwright.planning.planner import DEFAULT_CHUNKS, plan
from meshwright.planning.settings import ENGINES, MOST_CHUNKS, MOST_STEPS, Settings
from meshwright.planning.sizes import check_memory, choose_sizes, fixed_sizes
from meshwright.show.snippets import named_system
from meshwright.show.view import MOST_PLANS, view_of
from meshwright.system.model import EXAMPLE, System
from meshwright.system.read import preset, preset_names
from meshwright.text.spec import check_type, format_counts, one_of, shown, split_items, unknown
from meshwright.text.units import format_bandwidth
from meshwright.workload.communication import Communication, parse_reduction
from meshwright.workload.read import load_workload, workload_names

MOST_CHARACTERS = 4000
"""The most characters in one field."""

MOST_LINES = 64
"""The most lines in one field: reductions, or constraints."""


@dataclass(frozen=True)
class Asked:
    """The fields of the page.

    reductions and constraints have a line each; a workload takes the place of reductions. choose: axes of a workload
    whose sizes are chosen too. library: that of the system, where there is none. The others are the options of
    `meshwright plan`, where they are not empty; those that are on or off are "yes", or empty.
    """

    system: str
    axes: str
    reductions: str = ""
    workload: str = ""
    library: str = ""
    constraints: str = ""
    choose: str = ""
    engine: str = ""
    chunks: str = ""
    max_steps: str = ""
    no_rooted: str = ""
    placement_only: str = ""


class FieldError(Exception):
    """A field that cannot be read, and why."""

    def __init__(self, field: str, message: str) -> None:
        """The message says what would fit."""
        self.field, self.message = field, message
        super().__init__(message)


def answer(document: Any) -> dict[str, Any]:
    """The answer to what was asked, as plain data: `view`, or `errors` by field."""
    try:
        return {"view": _view(_asked(document))}
    except FieldError as error:
        return {"errors": {error.field: error.message}}
    except MeshwrightError as error:
        return {"errors": {"": str(error)}}


def _asked(document: Any) -> Asked:
    """The fields from a JSON document; refuses everything else."""
    check_type(document, dict, "an object with the fields of the page")
    known = [each.name for each in fields(Asked)]
    for key, value in document.items():
        if key not in known:
            raise SpecError(unknown("field", key, known))
        if not isinstance(value, str) or len(value) > MOST_CHARACTERS:
            raise FieldError(key, f"expected text of at most {MOST_CHARACTERS} characters, not {shown(value)}")
        if value.count("\n") >= MOST_LINES:
            raise FieldError(key, f"expected at most {MOST_LINES} lines")
    for key in ("system", "axes"):
        if key not in document:
            raise FieldError(key, "expected text")
    return Asked(**document)


def _view(asked: Asked) -> dict[str, Any]:
    system = _read("system", lambda: named_system(asked.system.strip()))
    _read("system", lambda: check_links(system))
    settings = _settings(asked)
    constraints = _read("constraints", lambda: [_constraint(line) for line in _lines(asked.constraints)])
    if asked.choose.strip():
        return _chosen(asked, system, settings, constraints)
    axes = _read("axes", lambda: parse_axes(asked.axes))
    communications = _communications(asked, axes)
    _read("axes", lambda: check_fit(system, axes))
    for one in communications:
        for axis in one.axes:
            if axis not in axes:
                raise FieldError("reductions", unknown("axis", axis, axes))
    arguments = settings.arguments() | {"constraints": constraints, "top": MOST_PLANS, "ranges": False}
    try:
        ranking = plan(system, axes, communications, **arguments)
    except PlacementError as error:
        raise FieldError("constraints" if constraints else "axes", str(error)) from None
    except SpecError as error:  # there is no program of what is allowed
        rooted = "engine" if settings.engine == "jax" else "no_rooted" if settings.no_rooted else ""
        raise FieldError(rooted, str(error)) from None
    return view_of(ranking.candidates[0], ranking, constraints, workload=asked.workload, settings=settings)


def _settings(asked: Asked) -> Settings:
    """What plans may be made of."""
    return Settings(
        library=_read("library", lambda: one_of(library_names(), "library", asked.library) if asked.library else None),
        engine=_read("engine", lambda: one_of(ENGINES, "engine", asked.engine) if asked.engine else None),
        chunks=_read("chunks", lambda: _number(asked.chunks, DEFAULT_CHUNKS, MOST_CHUNKS)),
        max_steps=_read("max_steps", lambda: _number(asked.max_steps, MAX_STEPS, MOST_STEPS)),
        no_rooted=_read("no_rooted", lambda: _flag(asked.no_rooted)),
        placement_only=_read("placement_only", lambda: _flag(asked.placement_only)),
    )


def _chosen(asked: Asked, system: System, settings: Settings, constraints: list[Constraint]) -> dict[str, Any]:
    """The view of the best plan for the best sizes of the axes that are to be chosen."""
    if not asked.workload:
        raise FieldError(
            "choose", "sizes are chosen for a workload that describes its model: take one, or leave this empty"
        )
    file = load_workload(_read("workload", lambda: one_of(workload_names(), "workload", asked.workload)))
    axes = _read("axes", lambda: parse_axes(asked.axes)) if asked.axes.strip() else {}
    free = _read("choose", lambda: split_items(asked.choose, "axes to choose", "data,tensor,pipeline"))
    fixed = fixed_sizes(file, free, axes)
    for one in constraints:
        _read("constraints", partial(check_constraint, one, system, (*fixed, *free)))
    arguments = settings.arguments() | {"constraints": constraints, "top": MOST_PLANS}
    choices = _read("choose", lambda: choose_sizes(system, file, free, fixed, **arguments))
    ranking = choices.best[0].ranking
    more: dict[str, Any] = {"workload": asked.workload, "settings": settings, "choices": choices}
    return view_of(ranking.candidates[0], ranking, constraints, **more)


def _communications(asked: Asked, axes: Mapping[str, int]) -> tuple[Communication, ...]:
    """What is sent: the reductions, a line each, or those of a workload."""
    if asked.workload:
        name = _read("workload", lambda: one_of(workload_names(), "workload", asked.workload))
        workload = _read("axes", lambda: load_workload(name).workload(axes))
        _read("axes", lambda: check_memory(workload))
        return workload.communications
    found = _read("reductions", lambda: tuple(parse_reduction(line) for line in _lines(asked.reductions)))
    if not found:
        raise FieldError("reductions", "expected at least one reduction, like data=2GiB or data+shard=64MiB*80")
    return found


T = TypeVar("T")


def _read(field: str, read: Callable[[], T]) -> T:
    """What a field says; where it cannot be read, the error belongs to the field."""
    try:
        return read()
    except MeshwrightError as error:
        raise FieldError(field, str(error)) from None


def _number(text: str, default: int, most: int) -> int:
    """A whole number from 1 to `most`; the default where the field is empty."""
    text = text.strip()
    if not text:
        return default
    if not re.fullmatch("[0-9]{1,9}", text) or not 1 <= int(text) <= most:
        raise SpecError(f"expected a whole number from 1 to {most}, not {shown(text)}; empty means {default}")
    return int(text)


def _flag(text: str) -> bool:
    """Whether something is switched on."""
    if text not in ("", "yes"):
        raise SpecError(f"expected 'yes', or nothing, not {shown(text)}")
    return text == "yes"


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _constraint(line: str) -> Constraint:
    rule, _, rest = line.partition(" ")
    return parse_constraint(ConstraintRule(one_of(ConstraintRule, "constraint", rule)), rest)


@cache
def choices() -> dict[str, Any]:
    """What the page offers: presets and workloads, each with fields that give an answer at once; libraries."""
    return {
        "start": _example("gcp-a100"),
        "presets": [{"name": name, "about": _about(preset(name)), **_example(name)} for name in preset_names()],
        "workloads": [_workload(name) for name in workload_names()],
        "libraries": list(library_names()),
        "engines": list(ENGINES),
        "most": {"chunks": MOST_CHUNKS, "max_steps": MOST_STEPS},
        "default": {"chunks": DEFAULT_CHUNKS, "max_steps": MAX_STEPS},
        "system_example": EXAMPLE,
    }


def _example(name: str) -> dict[str, str]:
    """A preset with axes and reductions that fit it: data outside, and the rest inside."""
    system = preset(name)
    inside = system.devices // system.counts[0]
    return {
        "system": name,
        "axes": format_counts({"data": system.counts[0], "shard": inside}),
        "reductions": "data=2GiB\nshard=64MiB*80",
        "workload": "",
    }


def _about(system: System) -> str:
    levels = [
        f"{level.count} {level.name}{'s' if level.count > 1 else ''} at {format_bandwidth(level.link.bandwidth or 0)}"
        for level in system.levels
    ]
    return f"{system.devices:,} devices: {', '.join(levels)}"


def _workload(name: str) -> dict[str, str]:
    """A workload with its axes, and DGX H100s that they fit."""
    workload = load_workload(name).workload()
    devices, axes = prod(workload.axes.values()), format_counts(workload.axes)
    nodes = devices // preset("dgx-h100").counts[-1]
    sent = f"{devices:,} devices, {len(workload.communications)} communications"
    return {
        "name": name,
        "about": sent,
        "system": f"dgx-h100:{nodes}",
        "axes": axes,
        "reductions": "",
        "workload": name,
    }
