"""Every topology file, written from the documentation of its format, with the hierarchy that it describes."""

import json
from pathlib import Path

import pytest

from meshwright.discovery.assemble import Discovery, assemble
from meshwright.discovery.nominal import NODE_TYPES
from meshwright.discovery.read import FORMATS, parse_topology, read_topology, recognised
from meshwright.errors import SpecError
from meshwright.system.model import Fabric
from meshwright.system.read import preset
from meshwright.text.hostlist import format_hosts, parse_hosts
from meshwright.text.units import format_bandwidth

FILES = Path(__file__).parent / "files"


def found(*names: str, hosts: str | None = None, node: str | None = None) -> Discovery:
    topologies = [read_topology(FILES / name) for name in names]
    only = parse_hosts(hosts) if hosts is not None else None
    return assemble(topologies, only, node)


def text(discovery: Discovery) -> str:
    """The levels as `level=count@bandwidth`, with what one device reaches alone behind a slash."""
    words = []
    for level in discovery.system.levels:
        rates = [level.link.bandwidth, level.link.per_device]
        shown = "/".join(format_bandwidth(rate) for rate in rates if rate is not None)
        words.append(f"{level.name}={level.count}" + (f"@{shown}" if shown else ""))
    return " ".join(words)


SINGLE = {
    "dgx-1.xml": "gpu=8@150GB/s",
    "dgx-a100.xml": "gpu=8@300GB/s",
    "dgx-h100.xml": "gpu=8@450GB/s",
    "pcie-box.xml": "numa=2@10GB/s gpu=4@31.5GB/s",
    "mi300x.xml": "gpu=8@448GB/s",
    "p5-vendor.xml": "gpu=8@31.5GB/s",
    "ndv5-vendor.xml": "numa=2@22GB/s gpu=4@63GB/s",
    "gb200-trays.xml": "node=2@3.6TB/s/900GB/s gpu=4@900GB/s",
    "h100-smi.txt": "gpu=8@450GB/s",
    "bridges-smi.txt": "numa=2 island=2 gpu=2@100GB/s",
    "pcie-smi.txt": "numa=2 pci=2 gpu=2",
    "gpus-hwloc.xml": "numa=2 gpu=2@63GB/s",
    "nvlink-hwloc.xml": "gpu=8@450GB/s",
    "cores-hwloc.xml": "socket=2 core=4",
    "tree.conf": "spine=2@200GB/s leaf=2 node=4",
    "uneven.conf": "leaf=3 node=4",
    "blocks.conf": "block=2 node=18",
    "topology.yaml": "leaf=3 node=8",
    "rails.ibnet": "leaf=2@800GB/s/50GB/s node=4@200GB/s/50GB/s",
    "aws.json": "spine=2@1.6TB/s/50GB/s leaf=2@800GB/s/50GB/s node=2@400GB/s/50GB/s gpu=8@450GB/s",
    "gcp.json": "block=2@800GB/s/25GB/s subblock=2@400GB/s/25GB/s node=2@200GB/s/25GB/s gpu=8@450GB/s",
    "nvl72-nodes.json": "domain=2 node=18@3.6TB/s/900GB/s gpu=4@900GB/s",
    "racks.csv": "row=2 rack=2 node=2 gpu=4",
}


@pytest.mark.parametrize("name", SINGLE)
def test_what_a_file_describes(name: str) -> None:
    assert text(found(name)) == SINGLE[name]


def test_every_format_and_file_is_there() -> None:
    assert {path.name for path in FILES.iterdir()} == set(SINGLE)
    forms = {name: recognised((FILES / name).read_text(), name) for name in SINGLE}
    assert set(forms.values()) == set(FORMATS)
    for name, form in forms.items():
        assert read_topology(FILES / name, form) == read_topology(FILES / name)


TREE = "spine=2@200GB/s/50GB/s leaf=2@1.6TB/s/50GB/s node=4@400GB/s/50GB/s gpu=8@450GB/s"
MERGED = [
    (
        ("tree.conf", "dgx-h100.xml"),
        {},
        "spine=2@200GB/s/50GB/s leaf=2@1.6TB/s/50GB/s node=4@400GB/s/50GB/s gpu=8@450GB/s",
    ),
    (("rails.ibnet", "h100-smi.txt"), {}, "leaf=2@800GB/s/50GB/s node=4@200GB/s/50GB/s gpu=8@450GB/s"),
    (("p5-vendor.xml", "h100-smi.txt"), {"hosts": "n[1-4]"}, "node=4@400GB/s/50GB/s gpu=8@450GB/s"),
    (("ndv5-vendor.xml",), {"node": "Standard_ND96isr_H100_v5"}, "gpu=8@450GB/s"),
    (("dgx-1.xml",), {"hosts": "a,b"}, "node=2@50GB/s/12.5GB/s gpu=8@150GB/s"),
    (("dgx-a100.xml", "cores-hwloc.xml"), {"hosts": "a,b"}, "node=2@200GB/s/25GB/s gpu=8@300GB/s"),
    (("tree.conf",), {"hosts": "n[01-02,05-06]"}, "leaf=2 node=2"),
    (("tree.conf",), {"hosts": "n[03-04]", "node": "dgx-b200"}, "node=2@400GB/s/50GB/s gpu=8@900GB/s"),
    (("blocks.conf",), {"node": "gb200-nvl72"}, "block=2@3.6TB/s/50GB/s node=18@3.6TB/s/900GB/s gpu=4@900GB/s"),
    (
        ("nvl72-nodes.json",),
        {"node": "gb200-nvl72"},
        "domain=2@3.6TB/s/50GB/s node=18@3.6TB/s/900GB/s gpu=4@900GB/s",
    ),
    ((), {"hosts": "a,b", "node": "p4d.24xlarge"}, "node=2@50GB/s/12.5GB/s gpu=8@300GB/s"),
]


@pytest.mark.parametrize(("names", "options", "expected"), MERGED)
def test_what_files_describe_together(names: tuple[str, ...], options: dict[str, str], expected: str) -> None:
    assert text(found(*names, **options)) == expected


def test_fabrics() -> None:
    links = {
        name: found(name).system.levels[-1].link for name in ("dgx-1.xml", "dgx-a100.xml", "dgx-h100.xml", "mi300x.xml")
    }
    assert [link.fabric for link in links.values()] == [Fabric.RING, Fabric.SWITCH, Fabric.SWITCH, Fabric.SWITCH]
    assert [link.reduces for link in links.values()] == [False, False, True, False]
    assert all(link.bypass for link in links.values())
    assert not found("pcie-box.xml").system.levels[-1].link.bypass


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("dgx-a100", "dgx-a100"),
        ("dgx-h100", "dgx-h100"),
        ("p4d.24xlarge", "aws-p4d"),
        ("p5.48xlarge", "aws-p5"),
        ("Standard_ND96asr_v4", "azure-nd-a100-v4"),
        ("Standard_ND96isr_H100_v5", "azure-nd-h100-v5"),
    ],
)
def test_types_of_hosts_are_as_in_the_presets(kind: str, name: str) -> None:
    system = found(hosts="n[1-16]", node=kind).system
    assert system.levels == preset(name).levels


def test_a_dump_of_nccl_is_as_the_preset() -> None:
    for name in ("dgx-a100", "dgx-h100"):
        assert found(f"{name}.xml", hosts="n[1-16]").system.levels == preset(name).levels


@pytest.mark.parametrize("kind", NODE_TYPES)
def test_every_type_of_host(kind: str) -> None:
    system = found(hosts="a,b", node=kind).system
    assert system.counts == (2, NODE_TYPES[kind].gpus)
    assert 0 < (system.levels[0].link.per_device or 0) <= 100e9 or NODE_TYPES[kind].cards == 1


def test_the_order_of_hosts_is_that_of_the_network() -> None:
    aws = found("aws.json")
    assert aws.hosts == ("i-0000", "i-0001", "i-0002", "i-0003", "i-0004", "i-0005", "i-0006", "i-0007")
    assert format_hosts(found("tree.conf").hosts) == "n[01-16]"


def test_where_figures_come_from() -> None:
    merged = found("tree.conf", "dgx-h100.xml")
    assert dict(merged.sources) == {
        "spine": f"LinkSpeed=1600Gbit/s in {FILES / 'tree.conf'}",
        "leaf": "assumed: no oversubscription, 4 x 400GB/s",
        "node": f"8 x 50GB/s, speed of the cards in {FILES / 'dgx-h100.xml'}",
        "gpu": "18 x NVLink 4 of 25 GB/s",
    }


def of(*texts: str) -> Discovery:
    return assemble([parse_topology(each, f"file{k}") for k, each in enumerate(texts)])


def test_what_scontrol_shows() -> None:
    shown = """SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[3-4]
SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf[1-2]
"""
    discovery = of(shown)
    assert text(discovery) == "leaf=2 node=2"
    assert not discovery.notes  # where the file has no LinkSpeed, 1 is shown
    assert of(shown.replace("LinkSpeed=1 ", "LinkSpeed=400 ")).notes == (
        "file0: LinkSpeed=400 has no unit, as Slurm asks for, so it is not used; write one into a copy of the file, "
        "like 100Gbit/s",
    )
    blocks = """BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2
BlockName=b2 BlockIndex=1 Nodes=n[3-4] BlockSize=2
AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-4] BlockSize=4
"""
    assert text(of(blocks)) == "block=2 node=2"


def test_spaces_and_quotes_as_slurm_takes_them() -> None:
    assert text(of('SwitchName = "a" Nodes="n[1-2]"\r\nSwitchName=b\tNodes =n[3-4]\nSwitchName=c Switches= a,b')) == (
        "leaf=2 node=2"
    )


def test_switches_with_one_other_below_them_group_nothing() -> None:
    """Hosts may have more of them above them than others."""
    racks = "SwitchName=core Switches=spine,leaf2\nSwitchName=spine Switches=leaf1\n"
    racks += "SwitchName=leaf1 Nodes=a,b\nSwitchName=leaf2 Nodes=c,d\n"
    assert text(of(racks)) == "leaf=2 node=2"
    assert not of(racks).irregular
    told = of(racks.replace("Switches=leaf1", "Switches=leaf1 LinkSpeed=10GB/s"))
    assert told.irregular == ("c, d are below 2 switches (core, leaf2), the usual host below 3",)


def test_a_topology_that_groups_hosts_is_taken_of_several() -> None:
    flat = "- {topology: all, cluster_default: true, flat: true}\n"
    tree = "- {topology: gpus, tree: {switches: [{switch: s, nodes: 'a,b'}, {switch: t, nodes: 'c,d'}]}}\n"
    assert text(of(flat + tree)) == "leaf=2 node=2"
    assert of(flat + tree).notes == ("file0 has several topologies: all, gpus; this is gpus",)
    with pytest.raises(SpecError, match="file0 line 1: this topology has neither a tree nor blocks"):
        of(flat)


def test_spines_above_the_same_leaves_are_one() -> None:
    spines = "".join(f"SwitchName=spine{k} Switches=leaf[1-2]\n" for k in (1, 2))
    assert text(of(f"{spines}SwitchName=leaf1 Nodes=a,b\nSwitchName=leaf2 Nodes=c,d")) == "leaf=2 node=2"


def test_a_host_that_says_its_name() -> None:
    hwloc = (FILES / "gpus-hwloc.xml").read_text()
    assert of(hwloc).hosts == ("n3",)
    both = of(hwloc, hwloc.replace('"n3"', '"n4.cluster.local"'))
    assert both.hosts == ("n3", "n4")
    assert text(both) == "node=2 numa=2 gpu=2@63GB/s"
    racks = of("host,rack\nn1,1\nn2,1\nn3,2\nn4,2\n", hwloc)
    assert text(racks) == "rack=2 node=2 numa=2 gpu=2@63GB/s"
    assert racks.notes[0] == "n1, n2, n4: nothing is said of their inside, so they are taken to be like n3"


def test_links_that_hwloc_tells() -> None:
    hwloc = (FILES / "nvlink-hwloc.xml").read_text()
    link = of(hwloc).system.levels[-1].link
    assert (link.fabric, link.bypass, link.reduces) == (Fabric.SWITCH, True, True)
    assert of(hwloc).sources["gpu"] == "18 x NVLink of 25 GB/s"
    untold = of(hwloc.replace("NVLinkBandwidth", "X"))
    assert text(untold) == "numa=2 gpu=4@63GB/s"
    assert "add the output of `nvidia-smi topo -m`" in untold.notes[0]
    third = of(hwloc.replace("H100 80GB HBM3", "B200").replace("125000", "250000").replace("100000 ", "200000 "))
    assert third.sources["gpu"] == "18 x NVLink of 50 GB/s"
    named = hwloc.replace('    <info name="HostName" value="n5"/>\n', "").replace(
        "</topology>", '<info name="HostName" value="n6"/></topology>'
    )
    assert of(named).hosts == ("n6",)  # as hwloc 3 has it


def test_gpus_that_hwloc_joins_directly() -> None:
    """Two pairs, whose links lead to their CPUs too, as on POWER8: values have the links of a pair together."""
    gpus = "".join(
        f'<object type="Package" gp_index="{k}"><object type="NUMANode" gp_index="{k + 2}"/>'
        + "".join(
            f'<object type="PCIDev" gp_index="{10 * m}" pci_type="0302"><object type="OSDev" gp_index="{m}"/></object>'
            for m in (4 * k, 4 * k + 1)
        )
        + "</object>"
        for k in (1, 2)
    )
    rows = ("9 4 0 0 4 0", "4 9 0 0 4 0", "0 0 9 4 0 4", "0 0 4 9 0 4", "4 4 0 0 9 0", "0 0 4 4 0 9")
    values = "".join(f"<u64values>{row.replace('4', '40000')}</u64values>" for row in rows)
    matrix = (
        '<distances2hetero nbobjs="6" name="NVLinkBandwidth"><indexes>OSDev:4 OSDev:5 OSDev:8</indexes>'
        f"<indexes>OSDev:9 Package:1 Package:2</indexes>{values}</distances2hetero>"
    )
    discovery = of(f'<topology><object type="Machine">{gpus}</object>{matrix}</topology>')
    assert text(discovery) == "numa=2 gpu=2@40GB/s"
    assert discovery.sources["gpu"] == "2 x NVLink of 20 GB/s, to each of the others"


def test_names_of_google_in_either_spelling() -> None:
    assert text(of((FILES / "gcp.json").read_text().replace("subblock", "subBlock"))) == SINGLE["gcp.json"]


def test_groups_without_nvlink_are_no_domains() -> None:
    null = (FILES / "aws.json").read_text().replace('"ZoneId"', '"CapacityBlockId": "null", "ZoneId"')
    assert text(of(null)) == SINGLE["aws.json"]
    nodes = (FILES / "nvl72-nodes.json").read_text().replace("NVIDIA-GB200", "NVIDIA-B200")
    plain = of(nodes.replace("nvidia.com/gpu.clique", "x"))
    assert text(plain) == "leaf=2 node=18 gpu=4@900GB/s"  # a domain of topograph may be any group


def test_ultraservers() -> None:
    document = json.loads((FILES / "aws.json").read_text())
    for instance in document["Instances"]:
        instance |= {
            "InstanceType": "p6e-gb200.36xlarge",
            "CapacityBlockId": f"cb-{int(instance['InstanceId'][2:]) // 2}",
        }
    assert text(of(json.dumps(document))) == (
        "spine=2@800GB/s/50GB/s ultraserver=2@400GB/s/50GB/s node=2@3.6TB/s/900GB/s gpu=4@900GB/s"
    )


def test_xgmi_of_unknown_speed() -> None:
    discovery = of((FILES / "mi300x.xml").read_text().replace("gfx942", "gfx1000"))
    assert text(discovery) == "gpu=8"
    assert discovery.sources["gpu"] == "7 x xGMI of unknown speed, to each of the others"


def test_older_fabrics() -> None:
    text_of = """Switch 24 "S-0a" # "MT47396 Infiniscale-III Mellanox Technologies" base port 0 lid 3 lmc 0
[1][ext 2]\t"H-01"[1](02) \t# "node1 HCA-1" lid 4 4xDDR
[2]\t"H-03"[2](04) \t# "node2 HCA-1" lid 5 4xDDR
"""
    assert text(of(text_of)) == "node=2@2GB/s"


def test_gpus_in_two_islands() -> None:
    names = [f"GPU{k}" for k in range(8)]
    rows = [
        [name, *("X" if k == m else "NV18" if k // 4 == m // 4 else "SYS" for m in range(8))]
        for k, name in enumerate(names)
    ]
    matrix = "\n".join("\t".join(row) for row in [["", *names], *rows])
    assert text(of(matrix)) == "island=2 gpu=4@450GB/s"


def test_ten_thousand_hosts(tmp_path: Path) -> None:
    leaves = "".join(f"SwitchName=leaf{k} Nodes=n[{k * 20:05}-{k * 20 + 19:05}]\n" for k in range(500))
    spines = "".join(f"SwitchName=spine{k} Switches=leaf[{k * 20}-{k * 20 + 19}]\n" for k in range(25))
    (tmp_path / "topology.conf").write_text(f"SwitchName=core Switches=spine[0-24]\n{spines}{leaves}")
    topologies = [read_topology(tmp_path / "topology.conf"), read_topology(FILES / "dgx-h100.xml")]
    discovery = assemble(topologies)
    assert discovery.system.counts == (25, 20, 20, 8)
    assert format_hosts(discovery.hosts) == "n[00000-09999]"
