from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from meshwright import Fabric, Level, Link, SpecError, System, load_system, parse_system, preset
from meshwright.system.read import parse_system_yaml, preset_names


def test_inline() -> None:
    system = parse_system("node=4@8GB/s+20us, gpu=16@270GB/s")
    assert system.levels == (Level("node", 4, Link(8e9, 2e-5)), Level("gpu", 16, Link(2.7e11)))
    assert system.devices == 64


def test_inline_without_links() -> None:
    assert parse_system("node=4,gpu=16").levels[0].link == Link()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node=4,,gpu=16", "empty item"),
        ("node=4,gpu", "not NAME=COUNT"),
        ("node=0", "whole number from 1"),
        ("node=-2", "positive whole number"),
        ("node=2.5", "positive whole number"),
        ("node=four", "positive whole number"),
        ("node=4,node=2", "appears 2 times"),
        ("4=4", "is not a name"),
        ("node=4@8", "has no unit"),
        ("node=4@8GB/s+20", "has no unit"),
        ("node=4@", "not a bandwidth"),
        ("node=9999999999999999", "whole number from 1 to"),
        ("node=010", "positive whole number"),
        ("node=4@1e999GB/s", "not a bandwidth"),
        ("node=4@1e99GB/s", "not a sensible bandwidth"),
        ("node=4@1GB/s+1e-99s", "not a sensible time"),
        ("rack/node=4", "is not a name"),
        (",".join(f"l{k}=2" for k in range(17)), "at most 16"),
    ],
)
def test_malformed_inline_systems_are_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load_system(text)


def test_every_link_property_from_yaml() -> None:
    system = parse_system_yaml(
        """
name: mine
levels:
  - {name: node, count: 2, bandwidth: 100Gbit/s, latency: 5us, per_device: 25Gbit/s}
  - {name: gpu, count: 8, bandwidth: 300GB/s, fabric: switch, bypass: true, reduces: true}
  - {name: die, count: 2, fabric: bus}
""",
        "mine.yaml",
    )
    assert system == System(
        "mine",
        (
            Level("node", 2, Link(12.5e9, 5e-6, per_device=3.125e9)),
            Level("gpu", 8, Link(3e11, bypass=True, reduces=True)),
            Level("die", 2, Link(fabric=Fabric.BUS)),
        ),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("levels:\n  - {name: node, count: 2\n", r"x.yaml line \d+: malformed YAML"),
        ("levels: [", r"x.yaml line \d+: malformed YAML"),
        ("", "the file is empty"),
        ("- a", "line 1: a system must be a mapping"),
        ("name: x", "line 1: a system needs 'levels'"),
        ("levels: 3", "line 1: 'levels', outermost first, must be a list"),
        ("levels: []", "line 1: 'levels', outermost first, must be a list"),
        ("levels:\n- {count: 2}", "line 2: a level needs 'name'"),
        ("levels:\n- {name: node}", "line 2: a level needs 'count'"),
        ("levels:\n- {name: node, count: 0}", "line 2: .* has the count 0; expected"),
        ("levels:\n- {name: node, count: 2.0}", "line 2: .* has the count '2.0'; expected"),
        ("levels:\n- name: node\n  count: 2\n  bandwith: 8GB/s", "line 4: unknown key 'bandwith'; did you mean"),
        ("levels:\n- name: node\n  count: 2\n  bandwidth: 8", "line 4: '8' is not a bandwidth"),
        ("levels:\n- name: node\n  count: 2\n  latency: soon", "line 4: 'soon' is not a time"),
        ("levels:\n- name: node\n  count: 2\n  fabric: mesh", "line 4: unknown fabric 'mesh'"),
        ("levels:\n- name: node\n  count: 2\n  bypass: 1", "line 4: expected true or false"),
        ("levels:\n- {name: node, count: 2, fabric: ring, reduces: true}", "line 2: only a switch can reduce"),
        ("levels:\n- {name: node, count: 2}\n- {name: node, count: 2}", "line 3: there is already a level 'node'"),
        ("levels:\n- {name: node, count: 2, count: 3}", "line 2: the key 'count' appears twice"),
        ("levels:\n- {name: node, count: [2]}", "line 2: expected a plain word"),
        ("levels:\n- {name: null, count: 2}", "line 2: expected a plain word"),
        ("levels:\n- {name: node, count: !!python/object:os.system 4}", "line 2: expected a plain word"),
        ("levels:\n- {name: node, count: 010}", "line 2: .* positive whole number"),
        ("levels:\n- name: node\n  count: 2\n  bandwidth:", "line 4: 'bandwidth' has no value"),
        ("levels: [{name: a, count: 2}]\n---\nlevels: []", "expected a single document"),
        ("[" * 5000, "nested far too deeply"),
    ],
)
def test_malformed_files_are_refused_with_the_line(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_system_yaml(text, "x.yaml")


def test_a_file_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("levels: [{name: node, count: 3}]")
    assert load_system(str(path)) == System("cluster", (Level("node", 3),))
    with pytest.raises(SpecError, match="there is no system file"):
        load_system(str(tmp_path / "absent.yaml"))


PRESETS = {
    # outermost first: count, GB/s of a port, GB/s of one device, us
    "aws-p4d": [(16, 50, 12.5, 4), (8, 300, None, 1.9)],
    "aws-p5": [(16, 400, 50, 4), (8, 450, None, 1.9)],
    "azure-nd-a100-v4": [(16, 200, 25, 4), (8, 300, None, 1.9)],
    "azure-nd-h100-v5": [(16, 400, 50, 4), (8, 450, None, 1.9)],
    "cpu-cluster": [(8, 12.5, None, 20), (2, 62.4, None, 1), (16, 204.8, None, 0.5)],
    "cpu-racks": [(8, 50.0, 12.5, 30.0), (16, 12.5, None, 20.0), (2, 62.4, None, 1.0), (16, 204.8, None, 0.5)],
    "dgx-a100": [(16, 200, 25, 4), (8, 300, None, 1.9)],
    "dgx-h100": [(16, 400, 50, 4), (8, 450, None, 1.9)],
    "gb200-nvl72": [(16, 3600, 50, 4), (72, 900, None, 1.9)],
    "gcp-a100": [(4, 8, None, 0), (16, 270, None, 0)],
    "gcp-v100": [(4, 8, None, 0), (8, 135, None, 0)],
    "tpu-v4": [(16, 12800, 50, 0), (16, 800, 50, 0), (16, 50, None, 0)],
    "tpu-v5p": [(24, 25600, 100, 0), (16, 1600, 100, 0), (16, 100, None, 0)],
}


def test_the_presets_have_the_figures_of_their_sources() -> None:
    found = {}
    for name in preset_names():
        found[name] = [
            (
                level.count,
                (level.link.bandwidth or 0) / 1e9,
                level.link.per_device and level.link.per_device / 1e9,
                pytest.approx(level.link.latency * 1e6),
            )
            for level in preset(name).levels
        ]
    assert found == PRESETS


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_complete_and_name_their_source(name: str) -> None:
    system = preset(name)
    assert system.name == name
    assert all(level.link.bandwidth for level in system.levels)
    assert files("meshwright.system").joinpath("presets", f"{name}.yaml").read_text().startswith("# ")


def test_preset_with_another_outermost_count() -> None:
    assert load_system("gcp-a100:2").counts == (2, 16)
    with pytest.raises(SpecError, match="positive whole number"):
        load_system("gcp-a100:two")


def test_an_unknown_preset_gets_a_suggestion() -> None:
    with pytest.raises(SpecError, match="unknown preset 'gcp-a10'; did you mean 'gcp-a100'"):
        load_system("gcp-a10:4")


@pytest.mark.parametrize(
    "bad",
    [
        {"bandwidth": 0.0},
        {"bandwidth": float("nan")},
        {"bandwidth": "8GB/s"},
        {"bandwidth": True},
        {"latency": -1.0},
        {"latency": None},
        {"per_device": -1.0},
        {"fabric": "mesh"},
        {"fabric": "bus", "reduces": True},
        {"bypass": "no"},
    ],
)
def test_impossible_links_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        Link(**bad)


def test_a_fabric_by_its_name_is_the_same_as_its_constant() -> None:
    assert Link(fabric="switch", reduces=True).fabric is Fabric.SWITCH  # type: ignore[arg-type]
    assert System("s", [Level("a", 2)]) == System("s", (Level("a", 2),))  # type: ignore[arg-type]


def test_a_file_without_an_ending_and_a_bandwidth_with_an_exponent(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("levels: [{name: node, count: 3}]")
    assert load_system(tmp_path / "mine").counts == (3,)
    assert load_system("node=4@1e+3MB/s+5us").levels[0].link == Link(1e9, 5e-6)


def test_a_system_needs_a_level() -> None:
    with pytest.raises(SpecError, match="at least one level"):
        System("empty", ())
