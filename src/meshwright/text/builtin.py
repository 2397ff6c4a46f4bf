"""The YAML files that ship with the package: system presets, libraries, workloads."""

from importlib.resources import files
from os import PathLike
from pathlib import Path

from meshwright.errors import SpecError
from meshwright.text.spec import check_path, check_type, unknown
from meshwright.text.yamlfile import read_text


def builtin_names(package: str, folder: str) -> tuple[str, ...]:
    """The names of the files in a folder of a package, sorted.

    >>> "gloo" in builtin_names("meshwright.cost", "libraries")
    True
    """
    names = (entry.name for entry in files(package).joinpath(folder).iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


def builtin_text(package: str, folder: str, name: str) -> str:
    """The text of one of these files."""
    return files(package).joinpath(folder, f"{name}.yaml").read_text(encoding="utf-8")


def load_text(spec: str | PathLike[str], what: str, expected: str, package: str, folder: str) -> tuple[str, str]:
    """The text of a YAML file, and what error messages call it: `spec` is its path, or the name of one of these files.

    what: what the file describes; expected: what a user may give for `spec`, for the message where it is no text.
    """
    spec = str(check_path(spec, what)) if isinstance(spec, PathLike) else spec
    check_type(spec, str, expected)
    if spec.lower().endswith((".yaml", ".yml")):
        return read_text(Path(spec), what), spec
    if spec not in (names := builtin_names(package, folder)):
        raise SpecError(f"{unknown(what, spec, names)}; or give the path of a .yaml file")
    return builtin_text(package, folder, spec), f"{spec}.yaml"
