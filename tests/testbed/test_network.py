"""The commands that build a network, without building it."""

import re
from socket import inet_aton

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
        ("node=2@1Gbit/s+2s", "level 'node' has 2 s of latency; a testbed can have 0.5 s"),
    ],
)
def test_what_cannot_be_built(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Network("t", load_system(spec))


def test_packets_are_held_by_the_level_at_which_devices_part() -> None:
    network = Network("t", parse_system("rack=2@10Mbit/s+5ms,node=2@20Mbit/s,gpu=3@100Mbit/s+1ms"))
    assert [network.latency(0, device) for device in (0, 2, 3, 6)] == [0, 1e-3, 0, 5e-3]
    assert network.latency(11, 5) == 5e-3
    assert inet_aton(network.address(7)) == bytes([198, 18, 0, 8])


def test_with_latency_what_is_for_a_device_leaves_through_its_outbox_alone() -> None:
    network = Network("t", parse_system("node=2@20Mbit/s+5ms,gpu=2@100Mbit/s"))
    assert [port.down for port in network.ports()][2:] == [("mw-t", f"t{device}") for device in range(4)]
    lines = network.link_commands()
    for device in range(4):
        assert f"tuntap add dev t{device} mode tap vnet_hdr" in lines
        assert f"link set t{device} master b0-{device // 2} up" in lines
        assert f"link set p{device} master b0-{device // 2} up" in lines
        assert any(line.startswith(f"link set p{device} type bridge_slave learning off flood off") for line in lines)
        assert f"fdb replace 02:00:00:00:00:0{device} dev t{device} master static" in network.bridge_commands()
        assert f"link set in0 address 02:00:00:00:00:0{device} up" in network.device_commands(device)
    assert any("dev t3 root tbf" in line for line in network.shape_commands()["mw-t"])
    without = Network("t", THREE)
    assert not without.bridge_commands()
    assert not any("tuntap" in line for line in [*without.link_commands(), *without.device_commands(0)])


def test_packets_are_no_larger_than_the_burst() -> None:
    for burst, mtu, rate, shared in (
        (18_000, 9_000, "200Mbit/s", 18_200),
        (9_100, 9_000, "200Mbit/s", 18_200),
        (9_100, 9_000, "20Mbit/s", 9_100 + 1_250),  # a packet, and what comes in half a millisecond
        (9_000, 1_500, "200Mbit/s", 3_200),
        (9_000, 1_500, "8Mbit/s", 1_600 + 500),
    ):
        network = Network("t", parse_system(f"node=2@{rate},gpu=3@1Gbit/s"), burst)
        assert {re.search(r"mtu (\d+)", line)[1] for line in network.link_commands() if " mtu " in line} == {str(mtu)}  # type: ignore[index]
        assert any(f"burst {shared} cburst" in line for lines in network.shape_commands().values() for line in lines)


def test_the_burst_of_device_links() -> None:
    assert any("burst 18000" in line for line in Network("t", THREE, 18_000).shape_commands()["mw-t-0"])
    assert any("burst 70000" in line for line in Network("t", THREE).shape_commands()["mw-t-0"])
    # 100 Mbit/s bring 6,250 bytes in half a millisecond, by which timers may be late.
    assert any("burst 7850" in line for line in Network("t", THREE, 1_600).shape_commands()["mw-t-0"])
    for burst in (1_500, 1 << 30):
        with pytest.raises(SpecError, match=r"expected 1,600 \(a packet\) to 67,108,864"):
            Network("t", THREE, burst)


def test_tcp_waits_while_queues_of_slow_links_grow() -> None:
    assert "route replace 198.18.0.0/15 dev eth0 src 198.18.0.3 rto_min 5s" in Network("t", THREE).device_commands(2)


def test_names() -> None:
    with pytest.raises(SpecError, match="at most 20 letters and digits, unlike 'a/b'"):
        Network("a/b", THREE)
