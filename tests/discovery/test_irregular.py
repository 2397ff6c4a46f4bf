"""What does not fit is said precisely, and the largest regular part is taken."""

import re
from itertools import product
from math import prod
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.discovery.assemble import assemble
from meshwright.discovery.model import Place, Tier
from meshwright.discovery.nesting import nest
from meshwright.discovery.read import read_topology
from meshwright.discovery.regular import irregularities, largest_part
from meshwright.errors import SpecError
from meshwright.text.hostlist import format_hosts
from tests.discovery.test_files import FILES, found, of, text


def test_leaves_of_different_size() -> None:
    discovery = found("uneven.conf")
    assert discovery.irregular == (
        "login is below 1 switch (spine), the usual host below 2",
        "leaf3 has 3 nodes, the usual leaf has 4",
        "leaf4 has 5 nodes, the usual leaf has 4",
    )
    assert format_hosts(discovery.left_out) == "login,n[9-11,17]"
    assert set(discovery.hosts) | set(discovery.left_out) == {"login", *(f"n{k}" for k in range(1, 18) if k != 12)}


def test_what_is_regular_has_no_complaints() -> None:
    for name in ("tree.conf", "aws.json", "dgx-h100.xml", "nvl72-nodes.json", "rails.ibnet"):
        assert not found(name).irregular
        assert not found(name).left_out


def test_a_missing_gpu_inside_a_host() -> None:
    box = (FILES / "pcie-box.xml").read_text()
    gpu = box[box.index('    <pci busid="0000:90:00.0"') :]
    discovery = of(box.replace(gpu[: gpu.index("</pci>") + 7], ""))
    assert discovery.irregular == ("1 has 3 gpus, the usual numa has 4",)
    assert discovery.system.counts == (2, 3)
    assert discovery.left_out == ("host/gpu3",)


def test_a_gpu_without_its_links() -> None:
    dump = (FILES / "dgx-h100.xml").read_text().split("\n")
    at = next(k for k, line in enumerate(dump) if '<gpu dev="5"' in line)
    discovery = of("\n".join(dump[: at + 1] + dump[at + 5 :]))
    assert discovery.irregular == ("gpu5 has no link to the other GPUs, which have 18 each",)
    assert discovery.system.counts == (7,)
    assert discovery.left_out == ("gpu5",)


def test_a_gpu_with_fewer_links() -> None:
    dump = (FILES / "dgx-h100.xml").read_text()
    discovery = of(dump.replace('count="5"', 'count="1"', 1))
    assert discovery.irregular == (
        "gpu0 (gpu) have other bandwidths than the usual 450GB/s; the smallest is taken for all: 350GB/s",
    )
    assert text(discovery) == "gpu=8@350GB/s"


def test_a_host_that_differs_is_described_by_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "n02.xml").write_text((FILES / "pcie-box.xml").read_text())
    names = [FILES / "tree.conf", FILES / "dgx-h100.xml", tmp_path / "n02.xml"]
    discovery = assemble([read_topology(name) for name in names])
    assert discovery.irregular == (
        "n02 has numa/gpu inside, the usual node gpu",
        "leaf1 has 3 nodes, the usual leaf has 4",
    )
    assert format_hosts(discovery.left_out) == "n[02,08,12,16]"
    assert discovery.system.counts == (2, 2, 3, 8)


def test_several_partitions_of_one_gpu() -> None:
    dump = (FILES / "gb200-trays.xml").read_text()
    twice = re.sub(r"( *<gpu .*?</gpu>\n)", r"\1\1", dump, flags=re.DOTALL)
    assert found("gb200-trays.xml").system.counts == (2, 4)
    assert of(twice).system.counts == (2, 8)


def test_a_host_with_fewer_gpus() -> None:
    rows = "".join(f"n{k},r{k // 4},{7 if k == 5 else 8}\n" for k in range(16))
    discovery = of(f"host,rack,gpus\n{rows}")
    assert discovery.irregular == ("n5 has 7 gpus, the usual node has 8",)
    assert discovery.system.counts == (4, 4, 7)  # 112 devices; without n5's rack mates it would be 96
    assert discovery.left_out[:2] == ("n0/gpu7", "n1/gpu7")
    assert len(discovery.left_out) == 15


def test_a_host_that_one_file_lacks() -> None:
    discovery = of("host,rack\na,1\nb,1\nc,2\nd,2\ne,2", "host,row\na,x\nb,x\nc,y\nd,y\n")
    assert discovery.irregular == ("e is in no row",)
    assert discovery.system.counts == (2, 2)
    assert discovery.left_out == ("e",)


def test_a_host_with_a_card_that_is_down() -> None:
    lines = (FILES / "rails.ibnet").read_text().splitlines()
    discovery = of("\n".join(line for line in lines if '"dgx03 mlx5_2"' not in line))
    assert discovery.notes[-1] == "file0: dgx03 has links to 3 of the 4 leaves of its group"
    assert "dgx03 (node) have other bandwidths than the usual 200GB/s" in discovery.irregular[0]


def test_groups_that_cross() -> None:
    with pytest.raises(SpecError, match="a, b are in one rack, 1, but not in one row: x, y; these groups"):
        of("host,rack,row\na,1,x\nb,1,y\nc,2,x\nd,3,y\n")


def test_files_of_different_hosts() -> None:
    with pytest.raises(SpecError, match="one source says that a host has 8 devices, another 4"):
        of((FILES / "dgx-1.xml").read_text(), (FILES / "gpus-hwloc.xml").read_text().replace("HostName", "X"))
    with pytest.raises(SpecError, match=r"zz: not among the 16 hosts of .*tree\.conf"):
        found("tree.conf", hosts="n01,zz")


def test_hosts_outside_the_job_are_not_complained_about() -> None:
    assert not found("uneven.conf", hosts="n[1-8]").irregular


def tree(shape: list[list[int]]) -> Place:
    """Racks of nodes of devices."""
    racks = []
    for k, counts in enumerate(shape):
        gpus = [tuple(Place("gpu", f"{j}") for j in range(count)) for count in counts]
        racks.append(Place("rack", f"r{k}", tuple(Place("node", f"r{k}n{m}", each) for m, each in enumerate(gpus))))
    return Place("", "root", tuple(racks))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=5), min_size=1, max_size=5))
def test_no_regular_part_is_larger(shape: list[list[int]]) -> None:
    part = largest_part(tree(shape))
    best = 0
    for nodes, gpus in product(range(1, 6), repeat=2):
        racks = sum(sum(each >= gpus for each in rack) >= nodes for rack in shape)
        best = max(best, racks * nodes * gpus)
    assert part.largest
    assert prod(part.counts) == best
    assert [len(level) for level in part.levels] == [prod(part.counts[: k + 1]) for k in range(3)]
    chosen = {place.name for place in part.levels[1]}
    assert len(chosen) == len(part.levels[1])
    for rack in part.levels[0]:
        assert sum(node.name in chosen for node in rack.children) == part.counts[1]
    uneven = len(set(map(len, shape))) > 1 or len({count for rack in shape for count in rack}) > 1
    assert bool(irregularities(tree(shape))) == uneven


@settings(max_examples=100, deadline=None)
@given(st.permutations(range(3)), st.permutations([f"h{k}" for k in range(12)]))
def test_tiers_nest_in_any_order(order: list[int], names: list[str]) -> None:
    tiers = [Tier(f"t{size}", {name: str(int(name[1:]) // size) for name in names}) for size in (2, 4, 12)]
    nested = nest(names, [tiers[k] for k in order])
    assert [tier.kind for tier in nested.tiers] == ["t4", "t2"]
    assert nested.members == tuple(names)
