"""The commands that build a network, without building it."""

import pytest

from meshwright import SpecError, load_system, parse_system
from meshwright.testbed.network import Network

THREE = parse_system("rack=2@10Mbit/s,node=2@20Mbit/s,gpu=3@100Mbit/s")


def test_every_link_has_a_port_with_the_devices_behind_it() -> None:
    network = Network("t", THREE)
    ports = [(p.level, p.instance, p.rate * 8, list(p.devices)) for p in network.ports()]
    assert ports[:2] == [(0, 0, 10e6, [0, 1, 2, 3, 4, 5]), (0, 1, 10e6, [6, 7, 8, 9, 10, 11])]
    assert ports[2:6] == [(1, k, 20e6, [3 * k, 3 * k + 1, 3 * k + 2]) for k in range(4)]
    assert ports[6:] == [(2, k, 100e6, [k]) for k in range(12)]


def test_links_form_the_tree_of_the_system() -> None:
    lines = Network("t", THREE).link_commands()
    assert sum(line.startswith(("link add b", "link add top")) for line in lines) == 1 + 2 + 4
    assert "link set d0-1 master top up" in lines
    assert "link set u0-1 master b0-1 up" in lines
    assert "link set d1-3 master b0-1 up" in lines
    assert "link set p11 master b1-3 up" in lines


def test_shared_links_have_a_class_for_each_device() -> None:
    lines = Network("t", THREE).shape_commands()["mw-t"]
    up = [line for line in lines if " u0-1 " in line]
    assert sum("class add" in line and "classid 1:1" in line for line in up) == 7  # one each, and one for the rest
    assert any("match ip src 198.18.0.7/32 flowid 1:10" in line for line in up)
    assert sum("rate 10000000bit ceil 10000000bit" in line for line in up) == 1
    assert sum("rate 8000bit ceil 10000000bit" in line for line in up) == 7
    down = [line for line in lines if " d0-1 " in line]
    assert any("match ip dst 198.18.0.7/32" in line for line in down)


def test_interfaces_have_names_that_linux_takes() -> None:
    network = Network("t", parse_system("a=4@1Gbit/s,b=4@1Gbit/s,c=16@1Gbit/s"))
    names = [name for port in network.ports() for _, name in (port.up, port.down)]
    assert max(map(len, names)) <= 15
    fabric = [name for port in network.ports() for space, name in (port.up, port.down) if space == network.fabric]
    assert len(set(fabric)) == len(fabric)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("node=2,gpu=2@1Gbit/s", "level 'node' has no bandwidth"),
        ("node=2@100bit/s", "less than 8 kbit/s"),
        ("node=1024@1Gbit/s", "1,024 devices; a testbed can have 256"),
        ("dgx-h100:2", "is more than a plain switch"),
    ],
)
def test_what_cannot_be_built(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Network("t", load_system(spec))


def test_names() -> None:
    with pytest.raises(SpecError, match="at most 20 letters and digits, unlike 'a/b'"):
        Network("a/b", THREE)
