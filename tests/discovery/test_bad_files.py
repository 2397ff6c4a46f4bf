"""Truncated and hostile files are refused with the file and the line."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.discovery.assemble import assemble
from meshwright.discovery.read import FORMATS, MOST_BYTES, parse_topology, read_topology
from meshwright.errors import SpecError, TooLargeError
from tests.discovery.test_files import FILES, SINGLE

LAUGHS = """<?xml version="1.0"?>
<!DOCTYPE system [
<!ENTITY a "ha">
<!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">
]>
<system version="1"><cpu numaid="&b;"/></system>
"""
OUTSIDE = '<!DOCTYPE system [<!ENTITY x SYSTEM "file:///etc/passwd">]><system version="1">&x;</system>'
GPU = '<system><cpu numaid="0"><pci busid="1" class="0x030200"><gpu dev="0" sm="{}">{}</gpu></pci></cpu></system>'

BAD = [
    ("nccl", LAUGHS, "f line 3: declares the entity 'a'; no topology file needs entities"),
    ("nccl", OUTSIDE, "f line 1: declares the entity 'x'"),
    ("nccl", '<system version="1">\n<cpu numaid="0">\n', "f line 3: malformed XML: no element found"),
    ("nccl", "<system>" * 200, "f line 1: more than 100 elements inside one another"),
    ("nccl", "<system>" + "<a/>" * 300_001 + "</system>", "f line 1: more than 300,000 elements"),
    ("nccl", "<graphs/>", "f line 1: expected the element <system>, not <graphs>"),
    ("nccl", '<system version="1"><cpu/></system>', "f line 1: no GPU in it"),
    ("nccl", GPU.format("x", ""), "f line 1: sm='x'; expected a compute capability like 90"),
    ("nccl", GPU.format("90", '\n<nvlink target="2" count="-1"/>'), "f line 2: count='-1'; expected how many links"),
    ("nccl", GPU.replace("</pci>", '<gpu dev="0"/>' * 576 + "</pci>").format("90", ""), "f line 1: more than 576 GPUs"),
    ("hwloc", "<topology/>", "f line 1: expected <topology> with an <object> in it"),
    (
        "hwloc",
        '<topology><object type="Machine"><object type="PCIDev" pci_type="0302"/></object>'
        '<distances2 nbobjs="2" name="NVLinkBandwidth"><indexes>1 2</indexes><u64values>0 x 1 0</u64values>'
        "</distances2></topology>",
        "f line 1: 3 values for 2 objects; expected one for each pair",
    ),
    ("hwloc", '<topology><object type="Machine"/></topology>', "f line 1: neither a GPU nor a core in it"),
    ("nvidia-smi", "\tGPU0\tGPU1\nGPU0\t X \tNV18\n", "f: there is no row of GPU1; the matrix is cut off"),
    ("nvidia-smi", "\tGPU0\tGPU1\nGPU0\t X \n", "f line 2: 1 entries in the row; expected 2"),
    ("nvidia-smi", "\tGPU0\tGPU1\nGPU0\tX\tNV\nGPU1\tNV\tX\n", "f line 2: 'NV'; expected X, SYS, NODE"),
    ("nvidia-smi", "\tGPU0\tGPU1\nGPU0\tX\tPIX\nGPU1\tSYS\tX\n", "f: GPU0 and GPU1: 'PIX' one way and 'SYS' the other"),
    ("nvidia-smi", "nothing", "f line 1: no line with the columns GPU0, GPU1"),
    ("slurm", "SwitchName=a Nodes=n[1-1000000000]", "f line 1: the host list names more than 1,000,000 hosts"),
    ("slurm", "SwitchName=a Nodes=n[1-4", "f line 1: a bracket is open or closed alone"),
    ("slurm", "# x\nSwitchName=a Switches=b\nSwitchName=b Switches=a Nodes=n", "f line 2: switch 'a' is above itself"),
    ("slurm", "SwitchName=a Switches=b Nodes=n1", "f line 1: 'a' has the switch 'b', which is not defined"),
    ("slurm", "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1", "f line 2: host 'n1' is in 'b' and in 'a' (line 1)"),
    ("slurm", "SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2", "f line 2: 'a' is defined a second time"),
    ("slurm", "SwitchName=a Nodes=n1\nBlockName=b Nodes=n1", "f line 2: blocks and switches in one file"),
    (
        "slurm",
        "SwitchName=a Switches=c\nSwitchName=b Switches=b,c\nSwitchName=c Nodes=n",
        "f line 2: switch 'c' is below",
    ),
    ("slurm", "SwitchName=a\n", "f line 1: no hosts: no Nodes=… anywhere"),
    ("slurm", "SwitchName=a Colour=red", "f line 1: 'Colour=red'; expected each of switchname"),
    ("slurm", "Nodes=n1", "f line 1: expected SwitchName=… or BlockName=… first"),
    ("slurm", "# nothing\n", "f: no switch and no block in it"),
    ("slurm-yaml", "- topology: t\n  flat: true\n", "f line 1: this topology has neither a tree nor blocks"),
    (
        "slurm-yaml",
        "- topology: t\n  tree:\n    switches:\n      - nodes: n1\n",
        "f line 4: this one of the swi",
    ),
    ("slurm-yaml", "- topology: [\n", "f line 2: malformed YAML"),
    ("slurm-yaml", "- " * 500, "f line 1: malformed YAML: nested far too deeply"),
    ("slurm-yaml", "topology: t", "f line 1: the list of topologies must be a list"),
    ("ibnetdiscover", "vendid=0x2c9\n", "f: no host in it"),
    ("ibnetdiscover", 'Switch 2 "S-a" # "s"\n[1] "H-b"[1](b) # "n mlx5_0" lid 1', "f line 2: no rate like 4xNDR"),
    ("ibnetdiscover", 'Switch 2 "S-a" # "s"\n[1] "H-b"[1', "f line 2: '[1] \"H-b\"[1'; expected a port like"),
    (
        "ibnetdiscover",
        'Switch 2 "S-a" # "s"\n' + '[1] "S-b"[1] # "t" 4xNDR\n' * 2049,
        "f line 2050: more than 2048 ports",
    ),
    ("aws", '{"Instances": [\n{', "f line 2: malformed JSON"),
    ("aws", '{"Instances": [{"InstanceId": "i"}]}', "f: instance 'i' has no list NetworkNodes; is it running?"),
    ("aws", '{"Instances": [{}]}', "f: entry 1 has no name"),
    ("aws", '{"Instances": [7]}', "f: entry 1 is 7; expected an object"),
    ("aws", '{"Instances": ' + "[" * 100_000, "f: malformed JSON"),
    ("aws", '{"Instances": NaN}', "f: malformed JSON: NaN is not a number of JSON"),
    ("gcp", '[{"name": "a"}]', "f: instance 'a' has no resourceStatus.physicalHostTopology"),
    ("kubernetes", '{"items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "a"}}]}', "f: 'a' is there 2 times"),
    ("kubernetes", '{"items": [{"metadata": {"name": "a", "labels": {"nvidia.com/gpu.count": "1e9"}}}]}', "'1e9' GPUs"),
    ("csv", "host,rack\na,1\nb\n", "f line 3: 1 columns; expected 2: host, rack"),
    ("csv", "host,rack\na,1\na,2\n", "f line 3: 'a' is there twice"),
    ("csv", "host,gpus\na,many\n", "f line 2: 'many' GPUs; expected a number from 1 to 999"),
    ("csv", "host,type\na,abacus\n", "f line 2: nothing is known of the type 'abacus'"),
    ("csv", "host\n", "f: no hosts in it"),
    ("csv", '"', "f: no hosts in it"),
]


@pytest.mark.parametrize(("form", "text", "message"), BAD)
def test_bad_files(form: str, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)) as error:
        parse_topology(text, "f", form)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("name", SINGLE)
def test_truncated_files_are_refused_or_tell_less(name: str) -> None:
    whole = (FILES / name).read_text()
    said = []
    for k in range(40):
        try:
            assemble([parse_topology(whole[: len(whole) * k // 40], name)])
        except SpecError as error:
            said.append(str(error))
    assert said
    assert [text for text in said if name not in text and "no host" not in text] == []


SHAPES = {
    "slurm": r"((SwitchName|BlockName|Nodes|Switches|LinkSpeed|Level)=[a-c0-3\[\],-]{0,6}[ \n]){0,9}",
    "ibnetdiscover": r'(Switch 1 "S-[ab]" # "s"\n(\[1\] "[SH]-[abc]"\[1\] # "[nm1-3 ]{0,4}" 4x[NE]DR\n){0,4}){0,4}',
    "hwloc": r'<topology><object type="M">(<object type="PCIDev" gp_index="[1-4]" pci_type="0302"/>){0,4}</object>'
    r'(<distances2 nbobjs="[23]" name="NVLinkBandwidth"><indexes>[1-5] [1-5]( [1-5])?</indexes>'
    r"<u64values>([0-9]|4000|25000)( ([0-9]|4000|25000)){3,8}</u64values></distances2>){0,2}</topology>",
    "nvidia-smi": r"\tGPU0\tGPU1\n(GPU[01](\t(X|SYS|PIX|NV[0-9]{0,2})){0,3}\n){0,3}",
    "csv": r"(host|rack|gpus|[ab])(,(host|rack|row|gpus|type|[ab])){0,3}\n(([ab1-3]{0,2},){0,3}[ab1-3]{0,2}\n){0,5}",
    "nccl": r'<system>(<cpu numaid="[01]">(<pci busid="[a-c]" class="0x030200">(<gpu dev="[0-3]" sm="[6-9]0">'
    r'(<nvlink target="[a-d]" count="[0-9]{1,2}" tclass="0x068000"/>){0,2}</gpu>)?</pci>){0,4}</cpu>){0,3}</system>',
}


@pytest.mark.parametrize("form", SHAPES)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_has_the_shape_of_a_file(form: str, data: st.DataObject) -> None:
    text = data.draw(st.from_regex(SHAPES[form], fullmatch=True))
    try:
        found = assemble([parse_topology(text, "f", form)])
    except SpecError:
        return
    assert found.system.devices % len(found.hosts) == 0
    assert not set(found.hosts) & set(found.left_out)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(FORMATS)), st.text(max_size=200))
def test_any_text_is_refused_or_read(form: str, text: str) -> None:
    try:
        assemble([parse_topology(text, "f", form)])
    except SpecError as error:
        said = str(error)
        assert said


def test_nothing_that_is_known(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "large").write_bytes(b"a" * (MOST_BYTES + 1))
    (tmp_path / "zeros").write_bytes(bytes(100))
    with pytest.raises(SpecError, match=r"cannot read the topology file '.*binary': 'utf-8' codec"):
        read_topology(tmp_path / "binary")
    with pytest.raises(SpecError, match="large' has more than 16,777,216 bytes"):
        read_topology(tmp_path / "large")
    with pytest.raises(SpecError, match=r"zeros line 1: no format that is known \(nccl, nvidia-smi"):
        read_topology(tmp_path / "zeros")
    with pytest.raises(SpecError, match="there is no topology file"):
        read_topology(tmp_path / "none")
    with pytest.raises(SpecError, match="unknown format 'xml'"):
        parse_topology("", "f", "xml")


def test_far_too_many_devices() -> None:
    nodes = [{"metadata": {"name": f"n{k}"}, "status": {"capacity": {"nvidia.com/gpu": "999"}}} for k in range(3000)]
    with pytest.raises(TooLargeError, match="2,997,000 devices on 3,000 hosts; at most 2,097,152"):
        assemble([parse_topology(json.dumps({"items": nodes}), "f")])


def test_names_that_are_no_names_of_hosts() -> None:
    for name in ("a\nb", "-rf", "a b", "ä", "x" * 256):
        text = json.dumps([{"name": name, "physicalHostTopology": {"block": "b"}}])
        with pytest.raises(SpecError, match="not the name of a host"):
            assemble([parse_topology(text, "f")])
