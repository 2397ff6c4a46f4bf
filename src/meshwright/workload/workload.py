"""Workloads: all that the devices of a training program send each other in one step.

A workload comes from Python, from a YAML file that lists its communications, or from a file that describes the model
and leaves the communications to be derived:

    name: my-step
    axes: data=4,tensor=8
    overlap: {backward: 0.9}
    communications:
      - {name: gradients, kind: all-reduce, axes: data, bytes: 2GiB, overlap: backward}
      - {name: activations, kind: all-reduce, axes: tensor, bytes: 64MiB, count: 320}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from os import PathLike
from pathlib import Path
from typing import Any

import yaml

from meshwright.errors import PlacementError, SpecError
from meshwright.language.goals import Goal
from meshwright.placement.placement import AXES_EXAMPLE, parse_axes
from meshwright.text.builtin import builtin_names, builtin_text
from meshwright.text.files import write_file
from meshwright.text.spec import (
    as_tuple,
    check_count,
    check_names,
    check_path,
    check_title,
    check_type,
    format_counts,
    is_number,
    parse_count,
    shown,
    unknown,
)
from meshwright.text.units import format_bytes, parse_bytes, parse_seconds
from meshwright.text.yamlfile import Reader, compose, items, mapping, parsed, problem, read_text, word
from meshwright.workload.communication import Communication
from meshwright.workload.llm import GROUPS, Lines, Model, model_of

KINDS = tuple(map(str, Goal))

_EXAMPLE = "communications: [{name: gradients, kind: all-reduce, axes: data, bytes: 2GiB}]"


@dataclass(frozen=True)
class Line:
    """A communication of a workload.

    overlap: the group of those that overlap with computation to the same share; formula and source: where its size
    and count come from.
    """

    communication: Communication
    overlap: str = ""
    formula: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse what is no line."""
        check_type(self.communication, Communication, "a Reduction or a Transfer")
        for name in ("overlap", "formula", "source"):
            check_title(getattr(self, name), f"the {name} of a line")


@dataclass(frozen=True)
class Workload:
    """The communications of one step.

    axes: the sizes that the amounts are for; empty if they hold for any. overlap: for each group of communications
    that may overlap with computation, the share of its time that is hidden. memory: what a device needs, in bytes, and
    what it has; compute: the seconds that a device computes or waits for other stages, both None if not known.
    """

    name: str
    lines: tuple[Line, ...]
    axes: Mapping[str, int] = field(default_factory=dict)
    overlap: Mapping[str, float] = field(default_factory=dict)
    memory: float | None = None
    device_memory: float | None = None
    compute: float | None = None
    model: Model | None = None

    def __post_init__(self) -> None:
        """Refuse a workload that does not hang together."""
        check_title(self.name, "the name of a workload")
        what = "Lines, each with a communication: Line(Reduction(…))"
        object.__setattr__(self, "lines", as_tuple(self.lines, Line, what))
        if not self.lines:
            raise SpecError(f"the workload {shown(self.name)} has no communications")
        check_type(self.axes, Mapping, "axes with their sizes, like {'data': 4, 'shard': 16}")
        for axis, size in self.axes.items():
            check_count(size, f"axis {shown(axis)}", AXES_EXAMPLE)
        check_names(list(self.axes), "axes", AXES_EXAMPLE)
        check_type(self.overlap, Mapping, "groups with the share of their time that is hidden, like {'backward': 0.9}")
        for group, share in self.overlap.items():
            check_title(group, "the name of a group that overlaps")
            if not is_number(share) or not 0 <= share <= 1:
                raise SpecError(
                    f"overlap {shown(group)} hides {shown(share)} of the time; expected a share from 0 to 1"
                )
        for name in ("memory", "device_memory", "compute"):
            value = getattr(self, name)
            if value is not None and (not is_number(value) or value < 0):
                raise SpecError(f"a workload has {name}={shown(value)}; expected zero or more, or None")
        if self.model is not None:
            check_type(self.model, Model, "a Model")
        known = {line.overlap for line in self.lines if line.overlap}
        if self.model is None:
            for line in self.lines:
                if line.overlap and line.overlap not in self.overlap:
                    raise SpecError(f"{line.communication.name!r}: {unknown('overlap', line.overlap, self.overlap)}")
        for group in self.overlap:
            if self.model is not None and group not in GROUPS:
                raise SpecError(unknown("overlap", group, GROUPS))
            if group not in known and self.model is None:
                raise SpecError(
                    f"overlap {group!r} is in no communication; those named are {', '.join(known) or 'none'}"
                )
        if self.axes:
            for line in self.lines:
                for axis in line.communication.axes:
                    if axis not in self.axes:
                        raise PlacementError(f"{line.communication.name!r}: {unknown('axis', axis, self.axes)}")

    @property
    def communications(self) -> tuple[Communication, ...]:
        """The communications, with the share of their time that is hidden."""
        return tuple(
            replace(line.communication, hidden=self.overlap.get(line.overlap, line.communication.hidden))
            for line in self.lines
        )

    def document(self) -> dict[str, Any]:
        """As plain data; what a workload file holds."""
        entries = []
        for line in self.lines:
            one = line.communication
            entry: dict[str, Any] = {"name": one.name} if one.name else {}
            entry |= {"kind": str(one.goal), "axes": "+".join(one.axes)}
            entry |= {"bytes": format_bytes(one.bytes), "count": one.count}
            entry |= {
                key: value
                for key, value in (("overlap", line.overlap), ("formula", line.formula), ("source", line.source))
                if value and (key != "overlap" or line.overlap in self.overlap)
            }
            if one.hidden and line.overlap not in self.overlap:
                entry["hidden"] = one.hidden
            entries.append(entry)
        named = {line.overlap for line in self.lines}
        overlap = {group: share for group, share in self.overlap.items() if group in named}
        return {
            "name": self.name,
            **({"axes": format_counts(self.axes)} if self.axes else {}),
            **({"overlap": overlap} if overlap else {}),
            **({"memory": f"{ceil(self.memory)}B"} if self.memory is not None else {}),
            **({"device_memory": f"{ceil(self.device_memory)}B"} if self.device_memory is not None else {}),
            **({"compute": f"{self.compute!r}s"} if self.compute is not None else {}),
            "communications": entries,
        }


def derive(name: str, model: Model, axes: Mapping[str, int], overlap: Mapping[str, float] | None = None) -> Workload:
    """The workload of a model whose axes have the given sizes."""
    lines: Lines = model.lines(axes)
    if not lines:
        raise SpecError(
            f"the model communicates nothing with the axes {format_counts(axes)}: every axis has the size 1"
        )
    return Workload(
        name,
        tuple(Line(one, group, formula, source) for one, group, formula, source in lines),
        dict(axes),
        dict(overlap or {}),
        model.memory(axes),
        model.device_memory,
        model.compute(axes),
        model,
    )


@dataclass(frozen=True)
class WorkloadFile:
    """What a workload file holds: communications, or a model that they are derived from for given axis sizes."""

    name: str
    axes: Mapping[str, int]
    overlap: Mapping[str, float]
    lines: tuple[Line, ...]
    model: Model | None
    memory: float | None = None
    device_memory: float | None = None
    compute: float | None = None

    def workload(self, axes: Mapping[str, int] | None = None) -> Workload:
        """The workload for some axis sizes, or for those in the file."""
        check_type(axes, Mapping | None, "axes with their sizes, like {'data': 4}; parse_axes makes them from text")
        sizes = dict(axes or self.axes)
        if self.model is not None:
            if not sizes:
                raise SpecError(
                    f"the workload {self.name!r} is a model without axis sizes: give some, like data=8,tensor=8"
                )
            return derive(self.name, self.model, sizes, self.overlap)
        if self.axes and axes and dict(axes) != dict(self.axes):
            given, own = format_counts(axes), format_counts(self.axes)
            raise PlacementError(
                f"the workload {self.name!r} lists its bytes for the axes {own}, not for {given}; a workload that "
                "describes its model can be had for any sizes"
            )
        return Workload(self.name, self.lines, sizes, self.overlap, self.memory, self.device_memory, self.compute)


def workload_names() -> tuple[str, ...]:
    """The names of the workloads that ship with the package, sorted."""
    return builtin_names("meshwright.workload", "examples")


def load_workload(spec: str | PathLike[str]) -> WorkloadFile:
    """A workload that ships with the package, by its name, or one from the path of a YAML file.

    >>> load_workload("moe-141b").workload({"data": 8, "expert": 8, "tensor": 4}).communications[0].name
    'gradients'
    """
    spec = str(check_path(spec, "workload")) if isinstance(spec, PathLike) else spec
    check_type(spec, str, "the name of a workload, or the path of a .yaml file")
    if spec.lower().endswith((".yaml", ".yml")):
        return parse_workload_yaml(read_text(Path(spec), "workload"), spec)
    if spec not in workload_names():
        raise SpecError(f"{unknown('workload', spec, workload_names())}; or give the path of a .yaml file")
    return parse_workload_yaml(builtin_text("meshwright.workload", "examples", spec), f"{spec}.yaml")


def parse_workload_yaml(text: str, source: str) -> WorkloadFile:
    """A workload file from its text; `source` is what error messages call it."""
    root = compose(text, source, _EXAMPLE)
    readers: dict[str, Reader] = {
        "name": word,
        "axes": parsed(parse_axes),
        "overlap": _overlap,
        "communications": _lines,
        "memory": parsed(parse_bytes),
        "device_memory": parsed(parse_bytes),
        "compute": parsed(parse_seconds),
        "model": model_of,
    }
    values = mapping(root, source, "a workload", readers, [])
    if ("communications" in values) == ("model" in values):
        raise problem(root, source, "a workload has either 'communications' or a 'model' that they are derived from")
    found = WorkloadFile(
        values.get("name", Path(source).stem),
        values.get("axes", {}),
        values.get("overlap", {}),
        values.get("communications", ()),
        values.get("model"),
        *(values.get(key) for key in ("memory", "device_memory", "compute")),
    )
    if found.model is not None:
        for key in ("memory", "device_memory", "compute"):
            if key in values:
                raise problem(root, source, f"{key!r} goes with listed communications; a model has its own")
    try:
        if found.axes or found.model is None:
            found.workload()
    except SpecError as error:
        raise SpecError(f"{source}: {error}") from None
    except PlacementError as error:
        raise PlacementError(f"{source}: {error}") from None
    return found


def write_workload(workload: Workload, path: Path) -> None:
    """Write a workload's communications to a file."""
    text = yaml.safe_dump(workload.document(), sort_keys=False, width=120, allow_unicode=True)
    write_file(path, text, "the workload file")


def _overlap(node: yaml.Node, source: str) -> dict[str, float]:
    if not isinstance(node, yaml.MappingNode):
        raise problem(node, source, "'overlap' must be a mapping from groups to the share of their time that is hidden")
    shares: dict[str, float] = {}
    for key, value in node.value:
        if word(key, source) in shares:
            raise problem(key, source, f"the key {word(key, source)!r} appears twice")
        shares[word(key, source)] = parsed(parse_share)(value, source)
    return shares


def parse_share(text: str) -> float:
    """A share from 0 to 1."""
    check_type(text, str, "a share from 0 to 1 as text")
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise SpecError(f"{shown(text)} is not a share of the time: expected a number from 0 to 1")
    return share


def _lines(node: yaml.Node, source: str) -> tuple[Line, ...]:
    children = items(node, source, "'communications'")
    return tuple(_line(child, source, number) for number, child in enumerate(children, 1))


def _line(node: yaml.Node, source: str, number: int) -> Line:
    values = mapping(node, source, "a communication", _READERS, ["kind", "axes", "bytes"])
    name = values.get("name", f"{number}: {values['kind']} over {'+'.join(values['axes'])}")
    hidden = values.get("hidden", 0.0)
    if hidden and "overlap" in values:
        raise problem(node, source, "either 'hidden' or a group that it overlaps in, not both")
    try:
        one = communication(name, values["kind"], values["axes"], values["bytes"], values.get("count", 1))
    except SpecError as error:
        raise problem(node, source, str(error)) from None
    return Line(replace(one, hidden=hidden), *(values.get(key, "") for key in ("overlap", "formula", "source")))


def communication(name: str, kind: str, axes: Sequence[str], amount: int, count: int = 1) -> Communication:
    """A communication of any kind, by its name."""
    return Communication(tuple(axes), amount, count, Goal(_parse_kind(kind)), name)


def _parse_kind(text: str) -> str:
    if text not in KINDS:
        raise SpecError(unknown("kind", text, KINDS))
    return text


def _axes(node: yaml.Node, source: str) -> tuple[str, ...]:
    """A list, or names joined by `+`."""
    if isinstance(node, yaml.SequenceNode):
        return tuple(word(child, source) for child in items(node, source, "axes"))
    return tuple(name.strip() for name in word(node, source).split("+"))


_READERS: dict[str, Reader] = {
    "name": word,
    "kind": parsed(_parse_kind),
    "axes": _axes,
    "bytes": parsed(parse_bytes),
    "count": parsed(lambda text: parse_count(text, "a communication", "workload", "count: 80")),
    "overlap": word,
    "hidden": parsed(parse_share),
    "formula": word,
    "source": word,
}
