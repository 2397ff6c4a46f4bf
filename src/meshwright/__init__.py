"""Meshwright places parallelism axes on hierarchical clusters and synthesizes the collectives that reduce over them."""

from meshwright.errors import (
    InvalidProgramError,
    MeshwrightError,
    PlacementError,
    ProgramSyntaxError,
    SpecError,
    TooLargeError,
)
from meshwright.hierarchy import Hierarchy, parse_hierarchy, reduction_hierarchy
from meshwright.interpreter import run_program
from meshwright.placement import Placement, count_placements, parse_axes, placements
from meshwright.program import Collective, Goal, Grouping, Program, Step, parse_program
from meshwright.semantics import check_program
from meshwright.synthesis import ProgramGraph, program_graph
from meshwright.system import Fabric, Level, Link, System, load_system, parse_system, preset

__all__ = [
    "Collective",
    "Fabric",
    "Goal",
    "Grouping",
    "Hierarchy",
    "InvalidProgramError",
    "Level",
    "Link",
    "MeshwrightError",
    "Placement",
    "PlacementError",
    "Program",
    "ProgramGraph",
    "ProgramSyntaxError",
    "SpecError",
    "Step",
    "System",
    "TooLargeError",
    "check_program",
    "count_placements",
    "load_system",
    "parse_axes",
    "parse_hierarchy",
    "parse_program",
    "parse_system",
    "placements",
    "preset",
    "program_graph",
    "reduction_hierarchy",
    "run_program",
]
