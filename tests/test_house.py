"""Rooms are entered in the order of the data flow, and CONTRIBUTING.md shows them as they are."""

from graphlib import CycleError, TopologicalSorter

import pytest

import meshwright
from tests.house import (
    DOCUMENT,
    FRONT_DOORS,
    LONG,
    LONGEST_FILE,
    LONGEST_FUNCTION,
    ROOMS,
    ROOT,
    document,
    floor,
    imported_names,
    imports,
    lengths,
    modules,
    room,
)


def test_every_room_is_in_the_order() -> None:
    rooms = {room(module) for module in modules() if module not in FRONT_DOORS}
    assert rooms == {name for side_by_side in ROOMS for name in side_by_side}


def test_a_room_imports_only_from_those_before_it() -> None:
    wrong = []
    for each in imports():
        if each.importer in FRONT_DOORS:
            continue
        here, there = floor(each.importer), floor(each.imported)
        if there > here or (there == here and room(each.importer) != room(each.imported)):
            wrong.append(str(each))
    assert not wrong


def test_nothing_imports_in_a_circle() -> None:
    graph: dict[str, set[str]] = {module: set() for module in modules()}
    for each in imports():
        graph[each.importer].add(each.imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_room_imports_the_front_doors() -> None:
    """Not even a package: `from meshwright import …` is for users."""
    inside = [each for each in imports() if each.importer not in FRONT_DOORS]
    assert not [str(each) for each in inside if each.imported in FRONT_DOORS]


def test_benchmarks_use_the_library_and_not_the_command_line() -> None:
    """The soak, which tries the verbs, starts them through the front door."""
    files = sorted((ROOT / "benchmarks").rglob("*.py"))
    found = [(path.name, name, line) for path in files for name, line in imported_names(path)]
    assert {file for file, name, _ in found if name.startswith("meshwright.testbed.")} >= {"study.py"}
    assert not [each for each in found if each[1].startswith("meshwright.cli")]


def test_lazy_imports_are_seen() -> None:
    found = {(each.importer, each.imported) for each in imports()}
    assert ("meshwright", "meshwright.mpi") in found  # by name
    assert ("meshwright.measure.trials.runners", "meshwright.measure.trials.jax") in found  # inside a function


def test_no_public_name_hides_a_module() -> None:
    names = {module.rpartition(".")[2] for module in modules() if module.count(".") == 1}
    assert names.isdisjoint(set(meshwright.__all__))


def test_files_and_functions_are_short() -> None:
    long = {name for name, (lines, most) in lengths().items() if lines > most}
    assert sorted(long - set(LONG)) == [], f"over {LONGEST_FILE} lines in a file, or {LONGEST_FUNCTION} in a function"
    assert sorted(set(LONG) - long) == [], "no longer long: take it off the list in tests/house.py"


def test_contributing_shows_the_house() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == document(text), "python -m tests.house draws it again"
