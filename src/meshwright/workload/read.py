"""Workload files: YAML that lists communications, or describes the model that they are derived from.

name: my-step
axes: data=4,tensor=8
overlap: {backward: 0.9}
communications:
  - {name: gradients, kind: all-reduce, axes: data, bytes: 2GiB, overlap: backward}
  - {name: activations, kind: all-reduce, axes: tensor, bytes: 64MiB, count: 320}
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import yaml

from meshwright.errors import PlacementError, SpecError
from meshwright.language.goals import Goal
from meshwright.placement.placement import parse_axes
from meshwright.text.builtin import builtin_names, load_text
from meshwright.text.files import write_file
from meshwright.text.spec import check_type, format_counts, one_of, parse_count, shown
from meshwright.text.units import parse_bytes, parse_seconds
from meshwright.text.yamlfile import Reader, boolean, compose, items, made, mapping, parsed, problem, word
from meshwright.workload.communication import Communication, Line
from meshwright.workload.llm import DTYPES, Model, Recompute
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
    expected = "the name of a workload, or the path of a .yaml file"
    return parse_workload_yaml(*load_text(spec, "workload", expected, "meshwright.workload", "examples"))


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
        "model": _model,
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
    for key in ("memory", "device_memory", "compute"):
        if found.model is not None and key in values:
            raise problem(root, source, f"{key!r} goes with listed communications; a model has its own")
    try:
        if found.axes or found.model is None:
            found.workload()
    except (SpecError, PlacementError) as error:
        raise type(error)(f"{source}: {error}") from None
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
    amounts = (values["bytes"], values.get("count", 1))
    one = made(node, source, Communication, values["axes"], *amounts, values["kind"], name, hidden)
    return Line(one, *(values.get(key, "") for key in ("overlap", "formula", "source")))


def _axes(node: yaml.Node, source: str) -> tuple[str, ...]:
    """A list, or names joined by `+`."""
    if isinstance(node, yaml.SequenceNode):
        return tuple(word(child, source) for child in items(node, source, "axes"))
    return tuple(name.strip() for name in word(node, source).split("+"))


_READERS: dict[str, Reader] = {
    "name": word,
    "kind": parsed(partial(one_of, Goal, "kind")),
    "axes": _axes,
    "bytes": parsed(parse_bytes),
    "count": parsed(lambda text: parse_count(text, "a communication", "workload", "count: 80")),
    "overlap": word,
    "hidden": parsed(parse_share),
    "formula": word,
    "source": word,
}

_LETTERS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def parse_params(text: str) -> int:
    """A number of parameters, like 70B.

    >>> parse_params("1.5B")
    1500000000
    """
    check_type(text, str, "a number of parameters as text, like 70B")
    match = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]{1,12})?)\s*([KMBT]?)\s*", text)
    if match is None:
        raise SpecError(f"{shown(text)} is not a number of parameters: write it like 70B, 350M or 1.5T")
    number = Fraction(match[1]) * _LETTERS[match[2]]
    if number.denominator != 1 or not number:
        raise SpecError(f"{text!r} is not a whole number of parameters above zero")
    return int(number)


def parse_flops(text: str) -> float:
    """Operations per second, like 400TFLOP/s.

    >>> parse_flops("400TFLOP/s")
    400000000000000.0
    """
    prefixes = {"G": 1e9, "T": 1e12, "P": 1e15}
    match = re.fullmatch(r"\s*([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*([GTP])FLOP/s\s*", text)
    if match is None or not float(match[1]):
        raise SpecError(f"{shown(text)} is not a rate of operations: write what a device reaches, like 400TFLOP/s")
    return float(match[1]) * prefixes[match[2]]


def _parse_whole(text: str) -> int:
    return parse_count(text, "the model", "workload", "layers: 80")


PARSERS: dict[str, Callable[[str], Any]] = {
    "params": parse_params,
    "expert_params": parse_params,
    **dict.fromkeys(("layers", "hidden", "seq", "micro_batch", "global_batch", "heads", "kv_heads"), _parse_whole),
    **dict.fromkeys(("experts", "top_k"), _parse_whole),
    "dtype": partial(one_of, DTYPES, "type"),
    "gradients": partial(one_of, DTYPES, "type"),
    "recompute": partial(one_of, Recompute, "recompute"),
    "device_memory": lambda text: float(parse_bytes(text)),
    "flops": parse_flops,
}
"""How each field of a description is read from text."""


def _model(node: yaml.Node, source: str) -> Model:
    """A model from its description in a workload file."""
    readers: dict[str, Reader] = {name: parsed(parse) for name, parse in PARSERS.items()}
    readers["sequence_parallel"] = boolean
    needed = ["params", "layers", "hidden", "seq", "micro_batch", "global_batch"]
    values = mapping(node, source, "a model", readers, needed)
    return made(node, source, Model, **values)
