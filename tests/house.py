"""The house: its rooms in the order in which data flows, who imports whom, and the picture of it in CONTRIBUTING.md.

`python -m tests.house` draws the picture again.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "meshwright"
DOCUMENT = ROOT / "CONTRIBUTING.md"
START, END = "<!-- drawn by python -m tests.house -->", "<!-- end of the drawing -->"

ROOMS = (
    ("errors",),
    ("text",),
    ("system",),
    ("discovery",),
    ("placement",),
    ("language",),
    ("workload",),
    ("cost",),
    ("planning",),
    ("export",),
    ("runtime",),
    ("torch", "jax", "mpi"),
    ("testbed",),
    ("measure",),
    ("show",),
    ("cli",),
)
"""A room may import from itself and from those before it. Those on one line stand side by side: neither imports the
other.
"""

LONGEST_FILE, LONGEST_FUNCTION = 350, 60
"""In lines."""

LONG: dict[str, str] = {}
"""Modules and functions that are longer, each with the reason."""

_NAMED = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

FRONT_DOORS = ("meshwright", "meshwright.names", "meshwright.__main__", "meshwright.autoload")
"""What users start with; no room imports them."""


@dataclass(frozen=True, slots=True)
class Import:
    """One module imports another; `imported` may also be a package."""

    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer} imports {self.imported} (line {self.line})"


def modules() -> dict[str, Path]:
    """All modules of the package, with their files."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ("meshwright", *path.relative_to(SOURCE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def lengths() -> dict[str, tuple[int, int]]:
    """The lines of every module, function and method, each beside the most that there may be."""
    found = {}
    for module, path in modules().items():
        text = path.read_text(encoding="utf-8")
        found[module] = (text.count("\n"), LONGEST_FILE)
        waiting: list[tuple[str, ast.AST]] = [(module, ast.parse(text))]
        while waiting:
            name, node = waiting.pop()
            for child in ast.iter_child_nodes(node):
                inner = f"{name}.{child.name}" if isinstance(child, _NAMED) else name
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                    found[inner] = ((child.end_lineno or 0) - child.lineno + 1, LONGEST_FUNCTION)
                waiting.append((inner, child))
    return found


@lru_cache
def imports() -> list[Import]:
    """Every import of a module of the package in another one, also those inside functions and by name."""
    known = modules()
    found = []
    for name, path in known.items():
        for target, line in imported_names(path):
            while target not in known:  # what is imported may be a function of a module
                target = target.rpartition(".")[0]
            if target != name:  # a package may look its own modules up by name
                found.append(Import(name, target, line))
    return found


def imported_names(path: Path) -> Iterator[tuple[str, int]]:
    """What a file imports of the package, by its full name, and in which line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        yield from ((target, getattr(node, "lineno", 0)) for target in _targets(node))


def _targets(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if _ours(alias.name))
    elif isinstance(node, ast.ImportFrom):
        assert not node.level, f"a relative import in line {node.lineno}: write it out"
        if node.module and _ours(node.module):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        for text in ast.walk(node.args[0]):
            if isinstance(text, ast.Constant) and isinstance(text.value, str) and _ours(text.value):
                # The name of an engine is filled in: it may be any of them.
                whole = isinstance(node.args[0], ast.Constant)
                yield from [text.value] if whole else [f"{text.value}{name}" for name in ("torch", "jax", "mpi")]


def _ours(name: str) -> bool:
    return name.split(".")[0] == "meshwright"


def room(module: str) -> str:
    """The room that a module is in."""
    return module.split(".")[1]


def floor(module: str) -> int:
    """The number of a module's room in the order."""
    return next(number for number, side_by_side in enumerate(ROOMS) if room(module) in side_by_side)


def idea(path: Path) -> str:
    """The one idea in a module: the first sentence of its docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first = " ".join(text.split("\n\n")[0].split())
    sentence = first.split(". ")[0]
    return sentence if sentence.endswith((".", "?")) else f"{sentence}."


def drawing() -> str:
    """The rooms and what is in them, as a table."""
    lines = ["| room | module | the one idea in it |", "|---|---|---|"]
    known = modules()
    for side_by_side in ROOMS:
        for name in side_by_side:
            top = f"meshwright.{name}"
            folder = known[top].name == "__init__.py"
            lines.append(f"| **{name}{'/' if folder else ''}** | | {idea(known[top])} |")
            for module, path in known.items():
                if module.startswith(f"{top}."):
                    lines.append(f"| | `{module.removeprefix(f'{top}.')}` | {idea(path)} |")
    return "\n".join(lines) + "\n"


def document(text: str) -> str:
    """The text of CONTRIBUTING.md with the house as it is now."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n\n{drawing()}\n{END}{after}"


if __name__ == "__main__":
    DOCUMENT.write_text(document(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
