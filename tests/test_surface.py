"""What `import meshwright` offers: names that mean what they say, examples, and no type that is returned but hidden."""

import ast
import inspect
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cached_property
from typing import Any, get_args, get_type_hints

import pytest

import meshwright
from tests.house import modules

PUBLIC = {name: getattr(meshwright, name) for name in meshwright.__all__}
FUNCTIONS = {name: value for name, value in PUBLIC.items() if inspect.isfunction(value)}
CLASSES = {name: value for name, value in PUBLIC.items() if inspect.isclass(value) and not issubclass(value, Enum)}


def ours(annotation: Any) -> Iterator[type]:
    """The classes of the package that an annotation names."""
    if isinstance(annotation, type) and annotation.__module__.startswith("meshwright"):
        yield annotation
    for argument in annotation if isinstance(annotation, list) else get_args(annotation):
        yield from ours(argument)


def given(function: Callable[..., Any]) -> Iterator[type]:
    yield from ours(get_type_hints(function)["return"])


def members(owner: type) -> Iterator[tuple[str, type]]:
    """The types of fields, of properties and of what methods return, each with the name that leads to it."""
    for name, annotation in get_type_hints(owner).items():
        yield from ((name, found) for found in ours(annotation))
    for name, value in vars(owner).items():
        function = getattr(value, "fget", None) or getattr(value, "__func__", None) or value
        function = value.func if isinstance(value, cached_property) else function
        if not name.startswith("_") and inspect.isfunction(function):
            yield from ((name, found) for found in given(function))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_function_returns_can_be_imported(name: str) -> None:
    for found in given(FUNCTIONS[name]):
        assert found in PUBLIC.values(), f"{name} returns {found.__name__}"


@pytest.mark.parametrize("name", CLASSES)
def test_what_a_class_holds_can_be_imported(name: str) -> None:
    for member, found in members(CLASSES[name]):
        assert found in PUBLIC.values(), f"{name}.{member} is a {found.__name__}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_an_example(name: str) -> None:
    assert ">>>" in (FUNCTIONS[name].__doc__ or "")


def test_names_are_listed_and_a_wrong_one_is_refused() -> None:
    assert dir(meshwright) == sorted(meshwright.__all__)
    with pytest.raises(AttributeError, match="module 'meshwright' has no attribute 'plam'"):
        meshwright.plam  # type: ignore[attr-defined]  # noqa: B018


def test_names_say_what_is_taken() -> None:
    takes = {"load_": "spec", "read_": "path", "parse_": "text"}
    count = 0
    for module, path in modules().items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                for prefix, wanted in takes.items():
                    if node.name.startswith(prefix):
                        count += 1
                        names = [argument.arg for argument in node.args.args]
                        assert wanted in names, f"{module}.{node.name} takes {names}: expected {wanted!r}"
    assert count >= 20
