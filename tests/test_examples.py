"""The examples run as the quick start and their own first lines say."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def path_of(title: str) -> list[str]:
    """The commands of the first block in a section of the quick start."""
    section = (ROOT / "docs" / "quickstart.md").read_text().split(f"\n## {title}\n")[1]
    return section.split("```sh\n")[1].split("\n```")[0].splitlines()


def walked(title: str, folder: Path, **variables: str) -> str:
    """What the last command of a path prints. The folder has the examples, as a checkout has."""
    (folder / "examples").symlink_to(ROOT / "examples")
    found = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for command in path_of(title):
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=folder,
            env=os.environ | variables | {"PATH": found},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def test_ddp(tmp_path: Path) -> None:
    output = walked("PyTorch", tmp_path, OMP_NUM_THREADS="1", PET_STANDALONE="1")  # a port that nobody else has
    assert output.startswith("loss after 50 steps: ")
    assert float(output.split()[-1]) < 5  # it is 64 for a model that knows nothing


def test_jax_step(tmp_path: Path) -> None:
    words = walked("JAX", tmp_path, JAX_PLATFORMS="cpu").split()
    assert float(words[-1]) < float(words[2]) / 10


@pytest.mark.skipif(not shutil.which("mpirun"), reason="mpirun is not installed")
def test_mpi_step(tmp_path: Path) -> None:
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    output = walked("MPI", tmp_path, **as_root)
    assert output.startswith("largest error after 100 steps: ")
    assert float(output.split()[-1]) < 0.1  # it is 63 at the start


@pytest.mark.parametrize(("title", "name"), [("PyTorch", "ddp.py"), ("JAX", "jax_step.py"), ("MPI", "mpi_step.py")])
def test_what_is_added(title: str, name: str) -> None:
    text = (ROOT / "examples" / name).read_text()
    assert text.count("# >>>") == 3
    for command in path_of(title):
        assert command in text.split('"""')[1]
