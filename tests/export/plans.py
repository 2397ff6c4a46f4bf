"""Plans for the tests of exports: of one program on one hierarchy, or as the planner finds them."""

from pathlib import Path

from meshwright import (
    Goal,
    Hierarchy,
    Level,
    Link,
    Pipelined,
    Placement,
    Plan,
    Planned,
    Reduction,
    System,
    load_library,
)

SIZE = 2**20


def plan_of(pipelined: Pipelined, hierarchy: Hierarchy, goal: Goal = Goal.ALL_REDUCE, library: str = "ring") -> Plan:
    """A plan for the one reduction over all devices of a system with these levels. Its times are made up."""
    levels = [
        Level(name, radix, Link(bandwidth=1e9 * 4**k))
        for k, (name, radix) in enumerate(zip(hierarchy.names, hierarchy.radices, strict=True))
    ]
    placement = Placement(System("test", tuple(levels)), ("data",), (hierarchy.radices,))
    planned = Planned(Reduction(("data",), SIZE, goal=goal), pipelined, 1.0, 1.0, 1.0)
    return Plan(placement, load_library(library), (planned,))


def written(folder: Path, text: str) -> str:
    """The path of a file with this text."""
    path = folder / "file"
    path.write_text(text)
    return str(path)
