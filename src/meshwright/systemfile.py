"""Systems as YAML files. Every complaint names the file and the line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from meshwright.errors import SpecError
from meshwright.spec import unknown
from meshwright.system import Fabric, Level, Link, System
from meshwright.units import parse_bandwidth, parse_seconds

_EXAMPLE = "levels: [{name: node, count: 4, bandwidth: 8GB/s, latency: 20us}, {name: gpu, count: 16}]"
_FILE_KEYS = ("name", "levels")


def read_system(path: Path) -> System:
    """A system from a YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError(f"there is no system file {str(path)!r}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot read the system file {str(path)!r}: {error}") from None
    return read_system_text(text, str(path))


def read_system_text(text: str, source: str) -> System:
    """A system from YAML text; `source` is what error messages call it.

    >>> read_system_text("levels: [{name: node, count: 4, bandwidth: 8GB/s}]", "x.yaml").levels[0].count
    4
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}" if mark else ""
        raise SpecError(f"{source}{line}: malformed YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{source}: malformed YAML: {error}") from None
    if root is None:
        raise SpecError(f"{source}: the file is empty; expected, for example: {_EXAMPLE}")

    fields = _mapping(root, source, "a system", _FILE_KEYS)
    if "levels" not in fields:
        raise SpecError(f"{source}: the key 'levels' is missing; expected, for example: {_EXAMPLE}")
    levels_node = fields["levels"]
    if not isinstance(levels_node, yaml.SequenceNode) or not levels_node.value:
        raise _error(levels_node, source, f"'levels' must be a list, outermost first, as in {_EXAMPLE}")
    levels = tuple(_level(node, source) for node in levels_node.value)
    name = _string(fields["name"], source) if "name" in fields else Path(source).stem
    try:
        return System(name, levels)
    except SpecError as error:
        raise _error(levels_node, source, str(error)) from None


def _level(node: yaml.Node, source: str) -> Level:
    fields = _mapping(node, source, "a level", tuple(_READERS))
    for key in ("name", "count"):
        if key not in fields:
            raise _error(node, source, f"a level needs {key!r}, as in {_EXAMPLE}")

    values = {key: _READERS[key](value, source) for key, value in fields.items()}
    name, count = values.pop("name"), values.pop("count")
    try:
        return Level(name, count, Link(**values))
    except SpecError as error:
        raise _error(node, source, str(error)) from None


def _error(node: yaml.Node, source: str, message: str) -> SpecError:
    return SpecError(f"{source} line {node.start_mark.line + 1}: {message}")


def _mapping(node: yaml.Node, source: str, what: str, allowed: tuple[str, ...]) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        raise _error(node, source, f"{what} must be a mapping with the keys {', '.join(allowed)}")
    fields: dict[str, yaml.Node] = {}
    for key_node, value_node in node.value:
        key = _string(key_node, source)
        if key not in allowed:
            raise _error(key_node, source, unknown("key", key, allowed))
        if key in fields:
            raise _error(key_node, source, f"the key {key!r} appears twice")
        fields[key] = value_node
    return fields


def _string(node: yaml.Node, source: str) -> str:
    if not isinstance(node, yaml.ScalarNode) or not node.value:
        raise _error(node, source, "expected a word here")
    return str(node.value)


def _quantity(parse: Callable[[str], float]) -> Callable[[yaml.Node, str], float]:
    def read(node: yaml.Node, source: str) -> float:
        text = _string(node, source)
        try:
            return parse(text)
        except SpecError as error:
            raise _error(node, source, str(error)) from None

    return read


def _count(node: yaml.Node, source: str) -> int:
    text = _string(node, source)
    if not (text.isascii() and text.isdecimal() and len(text) < 99) or int(text) < 1:
        raise _error(node, source, f"the count is {text!r}; expected a positive whole number")
    return int(text)


def _fabric(node: yaml.Node, source: str) -> Fabric:
    text = _string(node, source)
    if text not in list(Fabric):
        raise _error(node, source, unknown("fabric", text, [str(fabric) for fabric in Fabric]))
    return Fabric(text)


def _boolean(node: yaml.Node, source: str) -> bool:
    text = _string(node, source)
    if text not in ("true", "false"):
        raise _error(node, source, f"expected true or false, not {text!r}")
    return text == "true"


_READERS: dict[str, Callable[[yaml.Node, str], Any]] = {
    "name": _string,
    "count": _count,
    "bandwidth": _quantity(parse_bandwidth),
    "latency": _quantity(parse_seconds),
    "per_device": _quantity(parse_bandwidth),
    "fabric": _fabric,
    "bypass": _boolean,
    "reduces": _boolean,
}
