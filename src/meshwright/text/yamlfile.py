"""YAML files, read so that every error message names the file and the line."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from meshwright.errors import SpecError
from meshwright.text.spec import shown, unknown

T = TypeVar("T")

Reader = Callable[[yaml.Node, str], Any]
"""Turns a node into a value; the second argument is what error messages call the file."""

MAX_TEXT = 2**18
"""The most bytes in a YAML file: PyYAML takes about two seconds for these."""

MAX_DEPTH = 20
"""How deep lists and mappings may be nested."""


def read_text(path: Path, what: str, most: int = MAX_TEXT) -> str:
    """The text of a file of at most `most` bytes; `what` is what the file describes."""
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
        text = data.decode() if len(data) <= most else None
    except FileNotFoundError:
        raise SpecError(f"there is no {what} file {shown(str(path))}") from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or not a path, as with a null character in it
        reason = error.strerror if isinstance(error, OSError) else error
        raise SpecError(f"cannot read the {what} file {shown(str(path))}: {reason}") from None
    if text is None:
        raise SpecError(f"the {what} file {shown(str(path))} has more than {most:,} bytes; none needs as many")
    return text


class _Loader(yaml.SafeLoader):
    """Refuses deep nesting at once: PyYAML's time grows with the square of the depth, or faster."""

    def fetch_flow_collection_start(self, token: Any) -> None:
        if self.flow_level >= MAX_DEPTH:
            raise yaml.scanner.ScannerError(None, None, _TOO_DEEP, self.get_mark())
        super().fetch_flow_collection_start(token)

    def add_indent(self, column: int) -> bool:
        if len(self.indents) > MAX_DEPTH:
            raise yaml.scanner.ScannerError(None, None, _TOO_DEEP, self.get_mark())
        return super().add_indent(column)


_TOO_DEEP = f"nested far too deeply: more than {MAX_DEPTH} lists and mappings inside one another"


def compose(text: str, source: str, example: str) -> yaml.Node:
    """The root node of a YAML text."""
    if len(text) > MAX_TEXT:
        raise SpecError(f"{source}: {len(text):,} characters; at most {MAX_TEXT:,} are read")
    try:
        root: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}" if mark else ""
        context = f"{error.context}, " if error.context else ""
        raise SpecError(f"{source}{line}: malformed YAML: {context}{error.problem}") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{source}: malformed YAML: {str(error).splitlines()[0]}") from None
    except (RecursionError, ValueError, IndexError) as error:  # bugs of PyYAML with malformed text
        raise SpecError(f"{source}: malformed YAML: {error}") from None
    if root is None:
        raise SpecError(f"{source}: the file is empty; expected, for example: {example}")
    return root


def node_of(document: Any, source: str, depth: int = 0) -> yaml.Node:
    """A node made of plain data, as from JSON: the readers of YAML files read it too, without writing it as text."""
    if depth > MAX_DEPTH:
        raise SpecError(f"{source}: {_TOO_DEEP}")
    if isinstance(document, dict):
        pairs = [(node_of(key, source), node_of(value, source, depth + 1)) for key, value in document.items()]
        return yaml.MappingNode(f"{_TAG}map", pairs)
    if isinstance(document, list):
        return yaml.SequenceNode(f"{_TAG}seq", [node_of(value, source, depth + 1) for value in document])
    if isinstance(document, bool):
        return yaml.ScalarNode(f"{_TAG}bool", str(document).lower())
    kind = {str: "str", int: "int", float: "float"}.get(type(document), "null")
    return yaml.ScalarNode(f"{_TAG}{kind}", str(document) if kind != "null" else "")


_TAG = "tag:yaml.org,2002:"


def problem(node: yaml.Node, source: str, message: str) -> SpecError:
    """An error about a node; it names the node's line if the node comes from a text."""
    line = "" if node.start_mark is None else f" line {node.start_mark.line + 1}"
    return SpecError(f"{source}{line}: {message}")


def mapping(
    node: yaml.Node, source: str, what: str, readers: Mapping[str, Reader], required: Iterable[str]
) -> dict[str, Any]:
    """The values of a mapping, each read by its key's reader; refuses unknown, repeated and missing keys."""
    if not isinstance(node, yaml.MappingNode):
        raise problem(node, source, f"{what} must be a mapping with the keys {', '.join(readers)}")
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = word(key_node, source)
        if key not in readers:
            raise problem(key_node, source, unknown("key", key, readers))
        if key in values:
            raise problem(key_node, source, f"the key {shown(key)} appears twice")
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
    """The nodes of a list; refuses an empty one."""
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise problem(node, source, f"{what} must be a list that is not empty")
    return list(node.value)


def word(node: yaml.Node, source: str) -> str:
    """The text of a scalar: a word or a number."""
    if not isinstance(node, yaml.ScalarNode) or node.tag not in _PLAIN or not node.value:
        raise problem(node, source, "expected a plain word or number here")
    if not node.value.isprintable():
        raise problem(node, source, f"{shown(node.value)} holds what cannot be printed")
    return str(node.value)


_PLAIN = {f"{_TAG}{kind}" for kind in ("str", "int", "float", "bool")}


def made(node: yaml.Node, source: str, make: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """What `make` makes of the arguments, which were read from a node; its errors get the file and the line."""
    try:
        return make(*args, **kwargs)
    except SpecError as error:
        raise problem(node, source, str(error)) from None


def parsed(parse: Callable[[str], T]) -> Callable[[yaml.Node, str], T]:
    """A reader for scalars whose text is given to `parse`."""
    return lambda node, source: made(node, source, parse, word(node, source))


def boolean(node: yaml.Node, source: str) -> bool:
    """`true` or `false`."""
    text = word(node, source)
    if text.lower() not in ("true", "false"):
        raise problem(node, source, f"expected true or false, not {shown(text)}")
    return text.lower() == "true"
