"""The docs say what is true: their commands are accepted, their code runs, their tables are complete."""

import ast
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import yaml
from benchmarks import nccl, regret

import meshwright
from meshwright import (
    Collective,
    load_library,
    load_system,
    load_workload,
    parse_reduction,
    parse_system,
    plan,
    write_plan,
)
from meshwright.cli import VERBS, main
from meshwright.cost.algorithms import ALGORITHMS, phases
from meshwright.cost.library import library_document, library_names
from meshwright.language.goals import PROGRAM_GOALS
from meshwright.system.read import preset_names
from meshwright.workload.read import workload_names
from tests.cli.test_verbs import run
from tests.house import modules
from tests.measure.test_logs import NCCL, OSU
from tests.ranks import run_ranks

ROOT = Path(__file__).parents[1]
VERB_COMMANDS = {name: verb for name in VERBS if (verb := main.get_command(click.Context(main), name))}
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


@dataclass(frozen=True)
class Block:
    """Code between fences: where it is, in which language."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(page.name, text[: found.start()].count("\n") + 2, found[1], found[2])


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def in_language(*languages: str) -> list[Any]:
    return [pytest.param(block, id=str(block)) for block in BLOCKS if block.language in languages]


def prose(page: Path) -> str:
    """A page without its blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def spans(page: Path) -> list[str]:
    """What stands between backticks in the prose of a page."""
    return re.findall(r"`([^`\n]+)`", prose(page))


# Commands


def commands(text: str) -> Iterator[list[str]]:
    """The commands of meshwright in lines of a shell, also behind sudo, torchrun, mpirun and `testbed exec --`."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=";&|<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if not set(word) <= set(";&|<>"):
                words.append(word)
                continue
            while "meshwright" in words:
                words = words[words.index("meshwright") + 1 :]
                end = words.index("--") if "--" in words else len(words)
                yield words[:end] + (["--", "true"] if end < len(words) else [])
            words = []


COMMANDS = {
    f"{block}-{k}": command
    for block in BLOCKS
    if block.language in ("sh", "console", "")
    for k, command in enumerate(commands(block.text))
}


def parsed(command: list[str]) -> click.Context:
    """The context of a command line, which is parsed as it would be when it is run, and not run."""
    context = main.make_context("meshwright", list(command))
    while isinstance(context.command, click.Group):
        _, verb, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        assert verb is not None
        context = verb.make_context(verb.name, rest, parent=context)
    return context


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_commands_are_accepted_by_the_parser(command: list[str]) -> None:
    parsed(command)


def test_commands_are_found() -> None:
    assert len(COMMANDS) >= 25
    assert len(RUNNABLE) >= 8
    text = "sudo meshwright testbed exec --mpi -- python -m meshwright run p --engine mpi  # why\n"
    text += "A=b meshwright x > y && z"
    assert list(commands(text)) == [
        ["testbed", "exec", "--mpi", "--", "true"],
        ["run", "p", "--engine", "mpi"],
        ["x"],
    ]
    with pytest.raises(click.NoSuchOption):
        parsed(["plan", "--lies"])


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the docs' commands name."""
    tmp_path = tmp_path_factory.mktemp("files")
    systems = [block for block in BLOCKS if block.page == "cost.md" and "levels:" in block.text]
    (tmp_path / "cluster.yaml").write_text(systems[0].text)
    (tmp_path / "all_reduce_8.log").write_text("\n".join(NCCL.splitlines()[1:]))  # as of the nccl-tests of old
    (tmp_path / "osu_allreduce.log").write_text(OSU)
    for hosts in ("nodes", "hosts"):
        (tmp_path / hosts).write_text("a\nb\n")
    (tmp_path / "nodes.csv").write_text("host,rack\na,1\nb,1\nc,2\nd,2\n")
    switches = "SwitchName=spine Switches=leaf[1-2]\nSwitchName=leaf1 Nodes=n[1-4]\nSwitchName=leaf2 Nodes=n[5-7]\n"
    (tmp_path / "topology.conf").write_text(switches)
    found = "levels: [{name: node, count: 4, bandwidth: 8GB/s}, {name: gpu, count: 8, bandwidth: 9GB/s}]"
    (tmp_path / "system.yaml").write_text(found)
    fitted = "levels: [{name: group, count: 2, bandwidth: 1MB/s}, {name: node, count: 4, bandwidth: 3MB/s}]"
    (tmp_path / "calibrated.yaml").write_text(fitted)
    (tmp_path / "library.yaml").write_text(yaml.safe_dump(library_document(load_library("gloo"))))
    sent = "{name: gradients, kind: all-reduce, axes: data, bytes: 64MiB, count: 1}"
    (tmp_path / "step.yaml").write_text(f"name: step\naxes: data=4,tensor=2\ncommunications: [{sent}]\n")
    shutil.copy(ROOT / "tests" / "discovery" / "files" / "dgx-h100.xml", tmp_path / "nccl.xml")
    traces = ROOT / "tests" / "traces" / "files"
    shutil.copy(traces / "nccl-rank0.pt.trace.json.gz", tmp_path / "rank0.pt.trace.json.gz")
    for rank in (0, 3):
        shutil.copy(traces / f"nccl_trace_rank_{rank}.json", tmp_path / f"nccl_trace_rank_{rank}")
    write(tmp_path / "plan.json", "node=2@1GB/s,gpu=4@8GB/s", {"data": 4, "tensor": 2})
    write(tmp_path / "racks.json", "rack=2@1GB/s,node=2@2GB/s,gpu=4@8GB/s", {"data": 8, "tensor": 2})
    (profile,) = (block for block in BLOCKS if block.page == "profile.md" and block.language == "yaml")
    (tmp_path / "mine.yaml").write_text(profile.text)
    return tmp_path


@pytest.fixture
def workplace(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of them in the current folder."""
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, system: str, axes: dict[str, int]) -> None:
    sizes = {"data": "64MiB", "tensor": "4MiB"}
    reductions = [parse_reduction(f"{axis}={sizes[axis]}") for axis in axes]
    no_rooted = ("AllReduce", "ReduceScatter", "AllGather")
    best = plan(parse_system(system), axes, reductions, collectives=no_rooted).candidates[0]
    write_plan(best, path)


NEEDS_MORE = {"testbed", "bench", "launch", "run", "tune", "explore"}
"""Verbs whose commands need a cluster or a testbed, or take a launcher; others test them for real."""


IN_JOB = (["discover", "--out"], ["discover", "--measure"], ["calibrate", "--measurements"])
"""How commands begin that need the ranks of a job."""


RUNNABLE = {
    name: command
    for name, command in COMMANDS.items()
    if command[0] not in NEEDS_MORE and "--testbed" not in command and command[:2] not in IN_JOB
}


@pytest.mark.parametrize("command", RUNNABLE.values(), ids=RUNNABLE)
@pytest.mark.usefixtures("workplace")
def test_commands_run(command: list[str]) -> None:
    expanded = [word.replace("$SLURM_JOB_NODELIST", "n[1-2]") for word in command]
    done = run(*expanded)
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize("block", in_language("console"))
@pytest.mark.usefixtures("workplace")
def test_what_commands_print(block: Block) -> None:
    first, *shown = block.text.splitlines()
    (command,) = commands(first)
    lines = [line.rstrip() for line in run(*command, columns=100).stdout.splitlines()]
    at = 0
    for expected in shown:
        if expected != "…":
            assert expected in lines[at:], f"{expected!r} is not printed"
            at = lines.index(expected, at) + 1


def test_examples_of_help_are_accepted() -> None:
    count = 0
    for name, verb in VERB_COMMANDS.items():
        for kept in re.findall(r"\b\n(.*?)(?:\n\n|\Z)".replace(r"\b", "\b"), verb.help or "", re.DOTALL):
            for command in commands(kept):
                parsed(command)
                count += 1
                assert command[0] == name
    assert count >= 6


@pytest.mark.usefixtures("workplace")
def test_the_examples_of_plan_run() -> None:
    (kept,) = re.findall("\b\n(.*?)(?:\n\n|\\Z)", VERB_COMMANDS["plan"].help or "", re.DOTALL)
    found = list(commands(kept))
    assert len(found) == 4
    for command in found:
        done = run(*command)
        assert done.exit_code == 0, done.stderr


def test_verbs_are_listed_in_the_same_order_everywhere() -> None:
    listed = re.findall(r"^  (\w+)  ", run("--help").stdout.split("Commands:")[1], re.MULTILINE)
    in_docs = [words.split()[1] for words in first_column(ROOT / "docs" / "cli.md", "## The verbs")]
    assert listed == list(VERBS) == in_docs
    for sentence in VERBS.values():
        assert re.fullmatch(r"[A-Z][^.]+\.", sentence)


# Code


@pytest.mark.parametrize("block", in_language("python"))
def test_names_in_code_are_known(block: Block) -> None:
    """Nothing is used that is neither imported, nor made, nor plainly the reader's own."""
    own = {
        "quickstart.md": ["model"],
        "engines.md": ["model", "tensor", "other", "fully_shard", "plan", "array", "step", "weights", "batch"],
    }.get(block.page, [])
    text = "".join(f"{name} = None\n" for name in own) + block.text
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F821,E9", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def code(page: str, *parts: str) -> list[str]:
    """The Python blocks of a page that have some text in them."""
    return [
        block.text
        for block in BLOCKS
        if block.page == page and block.language == "python" and all(part in block.text for part in parts)
    ]


RUN_BELOW = (
    ("reading.md", "load_system"),
    ("describe.md", "Level("),
    ("ideas.md", "count_placements"),
    ("workloads.md", "Workload("),
    ("cost.md", "apart"),
    *((page, f"meshwright.{engine}") for page in ("engines.md", "quickstart.md") for engine in ("torch", "jax", "mpi")),
)
"""A page and a text in each of its Python blocks that the tests below run."""

PICTURED = {"drop-in.md": "the collectives of rank 0", "measuring.md": "the library's own"}
"""Blocks that show what was printed with real times, which differ every time."""


def test_no_block_is_left_out() -> None:
    for block in BLOCKS:
        if block.language == "python":
            assert any(page == block.page and part in block.text for page, part in RUN_BELOW), block
        elif block.language == "text":
            assert PICTURED[block.page] in block.text, block
        else:
            assert block.language in ("sh", "console", "yaml"), block


def test_the_code_of_plain_planning_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (reading,) = code("reading.md", "load_system")
    exec(reading, {})
    assert capsys.readouterr().out.splitlines()[-1] == "AllReduce all"
    (described,) = code("describe.md", "Level(")
    exec(described, {})
    assert "4 gpus inside one node" in capsys.readouterr().out
    (counted,) = code("ideas.md", "count_placements")
    exec(counted, {})
    assert capsys.readouterr().out.splitlines()[-1] == "11"
    (step,) = code("workloads.md", "Workload(")
    names: dict[str, Any] = {}
    exec(step, names)
    assert names["best"].placement.sizes == names["axes"]
    (ring,) = code("cost.md", "apart")
    exec(ring, {})
    assert [float(line) for line in capsys.readouterr().out.splitlines()] == pytest.approx([30, 17.75])


def test_the_code_for_pytorch_runs(tmp_path: Path) -> None:
    engines = "\n".join(code("engines.md", "meshwright.torch"))
    (quick,) = code("quickstart.md", "meshwright.torch")
    blocks: list[tuple[str, str]] = []
    for text, axes in ((engines, {"data": 4, "tensor": 2}), (quick, {"data": 8})):
        folder = tmp_path / str(len(blocks))
        folder.mkdir()
        write(folder / "plan.json", "node=2@1GB/s,gpu=4@8GB/s", axes)
        blocks.append((text, str(folder)))
    outcomes = run_ranks("tests.torch.documented:run_blocks", 8, blocks, limit=300.0)
    results = [[4.0], [1.0]]  # the sum of four ones, averaged then; and nothing was done to the other
    assert [(outcome.error, outcome.result) for outcome in outcomes] == [("", results)] * 8


def test_the_code_for_jax_runs(workplace: Path) -> None:
    from meshwright import read_plan

    (block,) = code("engines.md", "from meshwright.jax")
    names: dict[str, Any] = {"plan": read_plan(workplace / "plan.json")}
    exec(block, names)
    assert np.array_equal(np.asarray(names["reduced"](np.arange(8.0))), [12.0, 16.0])


@pytest.mark.usefixtures("workplace")
def test_the_quick_start_of_jax_runs(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("plan.json"), "node=2@1GB/s,gpu=4@8GB/s", {"data": 8})
    (block,) = code("quickstart.md", "meshwright.jax")
    exec(block, {})
    assert capsys.readouterr().out == "[64.]\n"


def test_the_code_for_compiled_programs_runs() -> None:
    import jax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    (block,) = code("engines.md", "meshwright.jax.workload")
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "tensor"))
    weights = jax.device_put(np.ones((8, 8)), NamedSharding(mesh, P("data", None)))
    batch = jax.device_put(np.ones((4, 8)), NamedSharding(mesh, P("tensor", "data")))
    names: dict[str, Any] = {
        "step": jax.jit(lambda weights, batch: batch @ weights),
        "weights": weights,
        "batch": batch,
    }
    exec(block, names)
    assert np.array_equal(names["result"], np.full((4, 8), 8.0))
    assert names["weights"].sharding.mesh.devices.tolist() != mesh.devices.tolist()


def test_the_code_for_mpi_runs(tmp_path: Path) -> None:
    (block,) = code("engines.md", "meshwright.mpi")
    (quick,) = code("quickstart.md", "meshwright.mpi")
    write(tmp_path / "plan.json", "node=1@1GB/s,gpu=1@8GB/s", {"data": 1})
    before = (
        "import numpy\nfrom pathlib import Path\nfrom meshwright import read_plan\n"
        f"plan, array = read_plan(Path({str(tmp_path / 'plan.json')!r})), numpy.ones(4)\n"
    )
    after = "assert array.sum() == 4 and gradient.sum() == 1000\n"
    command = [sys.executable, "-c", before + block + quick + after]  # importing MPI makes it a rank
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_files_shown_can_be_read(tmp_path: Path) -> None:
    read = 0
    for block in BLOCKS:
        if block.language == "yaml":
            path = tmp_path / f"{block.line}.yaml"
            path.write_text(block.text)
            kind = {"levels:": load_system, "collectives:": load_library, "communications:": load_workload}
            (reader,) = (reader for key, reader in kind.items() if key in block.text)
            reader(str(path))
            read += 1
    assert read == 7


def test_constraints_are_written_in_python_as_the_table_says() -> None:
    table = (ROOT / "docs" / "workloads.md").read_text().split("## Constraints")[1].split("\n\n")[1]
    rows = [re.findall(r"`([^`]+)`", row)[:2] for row in table.splitlines()[2:]]
    assert len(rows) == 3
    for option, call in rows:
        flags = [
            "plan",
            "--system",
            "node=2@1GB/s,gpu=8@8GB/s",
            "--axes",
            "pipeline=2,tensor=8",
            "--reduce",
            "tensor=1MiB",
        ]
        assert run(*flags, *option.split()).exit_code == 0
        names = {name: getattr(meshwright, name) for name in meshwright.__all__}  # loaded when they are asked for
        assert isinstance(eval(call, names), meshwright.Constraint)


# Tables and sentences


def first_column(page: Path, after: str) -> list[str]:
    """What the first column of a table has in backticks, behind a text on the page."""
    table = page.read_text().split(after, 1)[1].split("\n\n|", 1)[1].split("\n\n", 1)[0]
    return [word for row in table.splitlines()[2:] for word in re.findall(r"`([^`]+)`", row.split("|")[1])]


def test_the_tables_are_complete() -> None:
    verbs = [words.split()[1] for words in first_column(ROOT / "docs" / "cli.md", "## The verbs")]
    assert sorted(verbs) == sorted(VERBS)
    assert sorted(first_column(ROOT / "docs" / "cost.md", "## What a group sends")) == sorted(ALGORITHMS)


def test_what_algorithms_are_for() -> None:
    page = (ROOT / "docs" / "cost.md").read_text()
    for row in page.split("| algorithm | for |")[1].split("\n\n")[0].splitlines()[2:]:
        name, said, _ = (cell.strip(" `") for cell in row.strip("|").split("|", 2))
        known = {str(kind) for kind in Collective if any(phases(name, kind, (2,) * n, False) for n in (1, 2))}
        assert known == (set(Collective) if said == "all" else set(said.split(", "))), name
    (only,) = re.findall(r"Of the built-in libraries\s+only `(\w+)` has `two-way-ring`", page)
    rules = {name: [*load_library(name).rules, *load_library(name).in_chunks] for name in library_names()}
    assert [name for name, found in rules.items() if "two-way-ring" in str(found)] == [only]


def test_the_changelog_counts_right() -> None:
    numbers = {"two": 2, "three": 3, "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14}
    text = (ROOT / "CHANGELOG.md").read_text()
    there = {"presets": preset_names(), "algorithms": ALGORITHMS, "examples": workload_names()}
    for what, known in there.items():
        (said,) = re.findall(rf"(\w+) {what}\b", text)
        assert numbers[said] == len(known), what
    for name in (*library_names(), *VERBS, *PROGRAM_GOALS):
        assert re.search(rf"\b{name}\b", text), name


def third_party() -> dict[str, set[str]]:
    """The packages of others that each module of the package imports, also inside functions."""
    found: dict[str, set[str]] = {}
    for module, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for top in {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"meshwright"}:
                found.setdefault(top, set()).add(module)
    return found


def test_the_dependencies_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    table = (ROOT / "CONTRIBUTING.md").read_text().split("## Dependencies")[1].lower()
    extras = project["optional-dependencies"]
    listed = [re.split(r"[><=]", requirement)[0].lower() for requirement in project["dependencies"]]
    rows = [row.split("|")[1].strip().lower() for row in table.split("\n\n")[1].splitlines()[2:]]
    assert [row for row in rows if not row.startswith("extra")] == listed
    for requirement in [*extras["dev"], *extras["report"], *extras["explore"], *extras["docs"]]:
        assert re.split(r"[\[><=]", requirement)[0].lower() in table
    imports = third_party()
    modules_of = {"pyyaml": "yaml", "torch": "torch", "jax": "jax", "mpi": "mpi4py", "report": "matplotlib"}
    needed = {modules_of.get(name, name) for name in (*listed, "torch", "jax", "mpi", "report")}
    needed |= {"starlette", "uvicorn"}  # the extra explore
    assert set(imports) - {"pytest"} == needed  # pytest has those who use the testbed's fixture
    assert f"Python {project['requires-python'].removeprefix('>=')} or newer" in (ROOT / "README.md").read_text()
    for page in PAGES:
        for named in re.findall(r"pip install '?\.\[([\w,]+)\]", page.read_text()):
            assert set(named.split(",")) <= set(extras)
        assert not re.search(r"pip install '?meshwright", page.read_text()), "it is on no package index"


def test_which_commands_take_json() -> None:
    without = []
    for name, verb in VERB_COMMANDS.items():
        subs = verb.commands.values() if isinstance(verb, click.Group) else [verb]
        for sub in subs:
            if not sub.hidden and "as_json" not in {parameter.name for parameter in sub.params}:
                without.append(name if sub is verb else f"{name} {sub.name}")
    said = re.search(r"takes `--json`: all but ([^.]+)\.", (ROOT / "docs" / "cli.md").read_text())
    assert said is not None
    assert sorted(re.findall(r"`([^`]+)`", said[1])) == sorted(without)


OTHERS = {
    "--allow-run-as-root",
    "--cases",
    "--distribution",
    "--exclude",
    "--mca",
    "--of",
    "--oversubscribe",
    "--quick",
    "--node-rank",
    "--rdzv-backend",
    "--rankfile",
    "--strict",
    "--xla",
}
"""Options of torchrun, mpirun, srun, lstopo, mypy, XLA and our own benchmarks that the prose names."""


def test_pages_of_measurements_are_what_the_measurements_give() -> None:
    assert regret.DOCUMENT.read_text() == regret.document()
    assert nccl.DOCUMENT.read_text() == nccl.page({name: nccl.pairs(name) for name in nccl.SYSTEMS})


def test_options_in_the_prose_exist() -> None:
    known = {"--help", "--version"}
    verbs = list(VERB_COMMANDS.values())
    while verbs:
        verb = verbs.pop()
        verbs += verb.commands.values() if isinstance(verb, click.Group) else []
        known |= {name for parameter in verb.params for name in parameter.opts}
    for page in PAGES:
        for span in spans(page):
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", span):
                assert option in known | OTHERS, f"{page.name}: `{span}`"


def test_verbs_in_the_prose_exist() -> None:
    for page in PAGES:
        for span in spans(page):
            if span.startswith("meshwright "):
                words = span.split()[1:]
                found = VERB_COMMANDS[words[0]]
                if isinstance(found, click.Group) and len(words) > 1:
                    assert words[1] in found.commands, f"{page.name}: `{span}`"


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_somewhere() -> None:
    targets = set((ROOT / "Makefile").read_text().replace(":", " ").split())
    for page in PAGES:
        for link in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text()):
            path, _, anchor = link.partition("#")
            assert (page.parent / path).exists(), f"{page.name}: {link}"
            if anchor:
                assert anchor in anchors(page.parent / path if path else page), f"{page.name}: {link}"
        for span in spans(page):
            if found := re.fullmatch(r"make ([a-z-]+)", span):
                assert found[1] in targets, f"{page.name}: `{span}`"
            if re.fullmatch(r"(src|docs|scripts|examples|benchmarks|tests)/[\w./-]+", span):
                assert (ROOT / span).exists(), f"{page.name}: `{span}`"


# The site


def test_the_site_has_every_page_once() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    from_root = {"index.md", "changelog.md", "contributing.md"}  # docs/hooks.py makes them of README.md and so on
    assert sorted(re.findall(r"\S+\.md$", nav, re.MULTILINE)) == sorted(
        from_root | {page.name for page in (ROOT / "docs").glob("*.md")}
    )


def test_the_reference_has_every_public_name_once() -> None:
    named = re.findall(r"^::: meshwright\.(\S+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    offered = list(meshwright.__all__)
    for module in ("torch/__init__.py", "jax.py", "mpi/__init__.py", "testbed/__init__.py"):
        text = (ROOT / "src" / "meshwright" / module).read_text()
        lists = "".join(re.findall(r"^__all__ \+?= \[.*?\]", text, re.MULTILINE | re.DOTALL))
        offered += [f"{re.split('[/.]', module)[0]}.{name}" for name in re.findall(r'"(\w+)"', lists)]
    assert sorted(named) == sorted(offered)


def test_the_drawings_are_what_the_package_gives() -> None:
    for name, draw in runpy.run_path(str(ROOT / "docs" / "drawings.py"))["DRAWINGS"].items():
        assert (ROOT / "docs" / "pictures" / f"{name}.svg").read_text() == draw(), "make pictures draws it again"
