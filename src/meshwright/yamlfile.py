"""Reading YAML files so that every complaint names the file and the line."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from meshwright.errors import SpecError
from meshwright.spec import unknown

T = TypeVar("T")

Reader = Callable[[yaml.Node, str], Any]
"""Turns a node into a value; the text is the source that error messages name."""


def read_text(path: Path, what: str) -> str:
    """The text of a file; `what` is what the file describes."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError(f"there is no {what} file {str(path)!r}") from None
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read the {what} file {str(path)!r}: {error}") from None


def compose(text: str, source: str, example: str) -> yaml.Node:
    """The root node of a YAML text."""
    try:
        root: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}" if mark else ""
        context = f"{error.context}, " if error.context else ""
        raise SpecError(f"{source}{line}: malformed YAML: {context}{error.problem}") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{source}: malformed YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise SpecError(f"{source}: malformed YAML: nested far too deeply") from None
    if root is None:
        raise SpecError(f"{source}: the file is empty; expected, for example: {example}")
    return root


def problem(node: yaml.Node, source: str, message: str) -> SpecError:
    """An error about a node."""
    return SpecError(f"{source} line {node.start_mark.line + 1}: {message}")


def mapping(
    node: yaml.Node, source: str, what: str, readers: Mapping[str, Reader], required: Iterable[str]
) -> dict[str, Any]:
    """A mapping with known keys, each read by its reader."""
    if not isinstance(node, yaml.MappingNode):
        raise problem(node, source, f"{what} must be a mapping with the keys {', '.join(readers)}")
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = word(key_node, source)
        if key not in readers:
            raise problem(key_node, source, unknown("key", key, readers))
        if key in values:
            raise problem(key_node, source, f"the key {key!r} appears twice")
        try:
            values[key] = readers[key](value_node, source)
        except SpecError as error:
            if isinstance(value_node, yaml.ScalarNode) and not value_node.value:
                raise problem(value_node, source, f"{key!r} has no value") from None
            raise error
    for key in required:
        if key not in values:
            raise problem(node, source, f"{what} needs {key!r}")
    return values


def items(node: yaml.Node, source: str, what: str) -> list[yaml.Node]:
    """The nodes of a list that is not empty."""
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise problem(node, source, f"{what} must be a list that is not empty")
    return list(node.value)


def word(node: yaml.Node, source: str) -> str:
    """A plain text."""
    if not isinstance(node, yaml.ScalarNode) or node.tag not in _PLAIN or not node.value:
        raise problem(node, source, "expected a plain word or number here")
    return str(node.value)


_PLAIN = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool")}


def parsed(parse: Callable[[str], T]) -> Callable[[yaml.Node, str], T]:
    """A reader for text that `parse` understands."""

    def read(node: yaml.Node, source: str) -> T:
        text = word(node, source)
        try:
            return parse(text)
        except SpecError as error:
            raise problem(node, source, str(error)) from None

    return read


def boolean(node: yaml.Node, source: str) -> bool:
    """`true` or `false`."""
    text = word(node, source)
    if text.lower() not in ("true", "false"):
        raise problem(node, source, f"expected true or false, not {text!r}")
    return text.lower() == "true"
