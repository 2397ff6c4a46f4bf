"""The YAML files that ship with the package: system presets, libraries, workloads."""

from importlib.resources import files


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
