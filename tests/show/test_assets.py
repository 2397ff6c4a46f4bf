"""What ships of the page is what its sources give, and its own tests pass."""

import json
import math
import os
import re
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.show.fixture import FIXTURE, WEB, fixture_text

ASSETS = Path(__file__).parents[2] / "src" / "meshwright" / "show" / "assets"


def sources() -> list[str]:
    """The files that the assets are built from, as web/stamp.mjs lists them."""
    named = re.findall(r'^  "([\w.-]+)",$', (WEB / "stamp.mjs").read_text(), re.MULTILINE)
    return sorted([*named, *(f"src/{path.name}" for path in (WEB / "src").iterdir() if ".test." not in path.name)])


def test_the_assets_are_what_the_sources_give() -> None:
    assert {"package-lock.json", "src/main.tsx", "stamp.mjs"} <= set(sources())
    found = sha256()
    for name in sources():
        found.update(f"{name}\n".encode())
        found.update((WEB / name).read_bytes())
    stamped = (ASSETS / "sources.sha256").read_text().strip()
    assert stamped == found.hexdigest(), "the page in src/meshwright/show/assets is stale: `make web` builds it again"


def test_the_page_is_small_and_can_stand_inside_a_script_element() -> None:
    script, style = ((ASSETS / name).read_text() for name in ("app.js", "app.css"))
    assert len(script) + len(style) < 150_000
    assert "</script" not in script.lower()
    assert "<!--" not in script
    assert "</style" not in style.lower()


def test_the_lock_file_names_no_private_registry() -> None:
    found = re.findall(r'"resolved": "(https?://[^/]+)', (WEB / "package-lock.json").read_text())
    assert set(found) <= {"https://registry.npmjs.org"}


def same(one: Any, other: Any) -> bool:
    """Whether two documents are equal, but for the last digits of numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-4)
    return bool(one == other)


def test_the_fixture_is_what_python_gives() -> None:
    written = json.loads(FIXTURE.read_text(encoding="utf-8"))
    assert same(json.loads(fixture_text()), written), "`python -m tests.show` writes web/fixture.json again"


@pytest.mark.skipif(
    shutil.which("node") is None or not (WEB / "node_modules" / "vitest").exists(),
    reason="the tests of the page's TypeScript need Node and `npm ci` in web/",
)
def test_the_tests_of_the_page_pass() -> None:
    command = ["node", "node_modules/vitest/vitest.mjs", "run", "--pool=threads", "--poolOptions.threads.singleThread"]
    done = subprocess.run(
        command, cwd=WEB, capture_output=True, text=True, timeout=300, env={**os.environ, "CI": "1"}, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
