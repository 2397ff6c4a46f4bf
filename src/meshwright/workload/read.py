"""Workload files: YAML that lists communications, or describes the model that they are derived from.

name: my-step
axes: data=4,tensor=8
overlap: {backward: 0.9}
communications:
  - {name: gradients, kind: all-reduce, axes: data, bytes: 2GiB, overlap: backward}
  - {name: activations, kind: all-reduce, axes: tensor, bytes: 64MiB, count: 320}
"""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import yaml

from meshwright.errors import PlacementError, SpecError
from meshwright.language.goals import Goal
from meshwright.placement.placement import parse_axes
from meshwright.text.builtin import builtin_names, builtin_text
from meshwright.text.files import write_file
from meshwright.text.spec import check_path, check_type, format_counts, parse_count, shown, unknown
from meshwright.text.units import parse_bytes, parse_seconds
from meshwright.text.yamlfile import Reader, compose, items, mapping, parsed, problem, read_text, word
from meshwright.workload.communication import Communication, Line
from meshwright.workload.description import model_of
from meshwright.workload.llm import Model
from meshwright.workload.workload import Workload, derive

_EXAMPLE = "communications: [{name: gradients, kind: all-reduce, axes: data, bytes: 2GiB}]"


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
        one = Communication(values["axes"], values["bytes"], values.get("count", 1), values["kind"], name, hidden)
    except SpecError as error:
        raise problem(node, source, str(error)) from None
    return Line(one, *(values.get(key, "") for key in ("overlap", "formula", "source")))


def _parse_kind(text: str) -> Goal:
    if text not in list(Goal):
        raise SpecError(unknown("kind", text, list(Goal)))
    return Goal(text)


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
