"""The names that `import meshwright` offers, each from its room."""

from meshwright.cost.forecasts import Forecast, Seen
from meshwright.cost.library import Library, LibraryRule, load_library
from meshwright.errors import (
    EngineError,
    InvalidProgramError,
    MeshwrightError,
    MeshwrightWarning,
    PlacementError,
    ProgramSyntaxError,
    SpecError,
    TooLargeError,
)
from meshwright.language.goals import Goal, TransferKind
from meshwright.language.interpreter import run_program
from meshwright.language.parse import parse_pipelined, parse_program
from meshwright.language.program import ROOTED, Collective, Grouping, Pipelined, Program, Step
from meshwright.language.semantics import check_program
from meshwright.language.synthesis import ProgramGraph, program_graph
from meshwright.placement.hierarchy import Hierarchy, parse_hierarchy
from meshwright.placement.layout import reduction_hierarchy
from meshwright.placement.placement import Placement, count_placements, parse_axes, placements
from meshwright.planning.constraints import Constraint, ConstraintRule, fixed_row, inside, not_across
from meshwright.planning.plan import Measured, Plan, Planned, Timed, Tuned
from meshwright.planning.planfile import read_plan, write_plan
from meshwright.planning.planner import plan
from meshwright.planning.ranking import Ranking
from meshwright.system.model import Fabric, Level, Link, System
from meshwright.system.read import load_system, parse_system, preset
from meshwright.workload.communication import Communication, Line, Reduction, Transfer, parse_reduction
from meshwright.workload.llm import Model, Recompute
from meshwright.workload.read import WorkloadFile, load_workload
from meshwright.workload.workload import Workload

__all__ = [
    "ROOTED",
    "Collective",
    "Communication",
    "Constraint",
    "ConstraintRule",
    "EngineError",
    "Fabric",
    "Forecast",
    "Goal",
    "Grouping",
    "Hierarchy",
    "InvalidProgramError",
    "Level",
    "Library",
    "LibraryRule",
    "Line",
    "Link",
    "Measured",
    "MeshwrightError",
    "MeshwrightWarning",
    "Model",
    "Pipelined",
    "Placement",
    "PlacementError",
    "Plan",
    "Planned",
    "Program",
    "ProgramGraph",
    "ProgramSyntaxError",
    "Ranking",
    "Recompute",
    "Reduction",
    "Seen",
    "SpecError",
    "Step",
    "System",
    "Timed",
    "TooLargeError",
    "Transfer",
    "TransferKind",
    "Tuned",
    "Workload",
    "WorkloadFile",
    "check_program",
    "count_placements",
    "fixed_row",
    "inside",
    "load_library",
    "load_system",
    "load_workload",
    "not_across",
    "parse_axes",
    "parse_hierarchy",
    "parse_pipelined",
    "parse_program",
    "parse_reduction",
    "parse_system",
    "placements",
    "plan",
    "preset",
    "program_graph",
    "read_plan",
    "reduction_hierarchy",
    "run_program",
    "write_plan",
]
