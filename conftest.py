"""Which files the tests are collected from; what tests need of their surroundings is in tests/conftest.py."""

from pathlib import Path

SOURCE = Path(__file__).parent / "src"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Modules without doctests: to look for some would import PyTorch and JAX, in every worker."""
    if collection_path.suffix != ".py" or not collection_path.is_relative_to(SOURCE):
        return None
    return None if ">>>" in collection_path.read_text() else True
