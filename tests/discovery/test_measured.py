"""Discovery by measurement, against simulated networks of which the hierarchy is known."""

from itertools import combinations
from random import Random

import pytest

from meshwright.discovery.assemble import Discovery, assemble
from meshwright.discovery.evidence import LOW, weigh
from meshwright.discovery.job import Told, job_topology, told_groups
from meshwright.discovery.measured import doubts
from meshwright.discovery.rounds import across, all_met, exchange, inside, tournament
from tests.discovery.network import Network, drawn


def quiet(counts: tuple[int, ...], rates: tuple[float, ...], latencies: tuple[float, ...]) -> Network:
    return Network(counts, rates, latencies, 0.03, Random(1), outliers=0.0)


def shape(found: Discovery) -> dict[str, int]:
    return {level.name: level.count for level in found.system.levels}


@pytest.mark.parametrize("ranks", range(2, 9))
def test_in_a_tournament_each_meets_each_once(ranks: int) -> None:
    rounds = tournament(range(ranks))
    met = [tuple(sorted(pair)) for pairs in rounds for pair in pairs]
    assert sorted(met) == list(combinations(range(ranks), 2))
    assert all(len({one for pair in pairs for one in pair}) == 2 * (ranks // 2) for pairs in rounds)


def test_rounds_inside_and_across_clusters() -> None:
    clusters = ((0, 1, 2), (3, 4, 5), (6, 7))
    home = {one: number for number, cluster in enumerate(clusters) for one in cluster}
    for seed in range(20):
        near, far = inside(clusters, Random(seed)), across([clusters], Random(seed))
        assert all(home[one] == home[other] for one, other in near)
        assert len(near) == 3
        assert all(home[one] != home[other] for one, other in far)
        assert len(far) == 4
    (met,) = all_met([[0, 1], [2, 3]], Random(0))
    assert [sorted(pair) for pair in met] == [[0, 1], [2, 3]]
    each = exchange([(0, 1)], ((0, 1), (4, 5)), 8, Random(0))
    assert len(each.pairs) == 4
    assert {sender for sender, _ in each.pairs} == {receiver for _, receiver in each.pairs} == {0, 1, 4, 5}


def right_or_doubted(ratios: tuple[float, ...], clusters: int, seed: int, **more: tuple[float, ...]) -> int:
    """How many hierarchies are right; the others must have a low confidence."""
    random, right = Random(seed), 0
    for _ in range(clusters):
        network = drawn(random, ratios, **more)
        found = network.explored()
        if [tuple(sorted(level.groups)) for level in found.levels] == network.truth():
            right += 1
        else:
            assert found.confidence < LOW, network
    return right


def test_hierarchies_whose_rates_differ_by_two_or_more_are_found() -> None:
    assert right_or_doubted((2.0, 3.0, 5.0), 45, 1) == 45


def test_hierarchies_whose_rates_differ_by_less_are_found() -> None:
    assert right_or_doubted((1.5, 1.7), 30, 2) >= 28


def test_links_as_fast_as_those_of_devices_show_when_many_send() -> None:
    assert right_or_doubted((1.0, 1.4, 0.8), 30, 3) >= 28


def test_what_links_carry() -> None:
    network = quiet((2, 3, 4), (30e6, 20e6, 10e6), (4e-3, 2e-3, 1e-3))
    found = network.explored()
    assert [len(level.groups) for level in found.levels] == [2, 6, 24]
    assert [level.rate for level in found.levels] == pytest.approx(network.rates, rel=0.15)
    assert [level.latency for level in found.levels] == pytest.approx(network.latencies, rel=0.2)
    assert found.confidence > 0.99
    assert not doubts(found)


def test_a_network_without_levels_has_none() -> None:
    found = quiet((12,), (1e7,), (0.0,)).explored()
    assert [len(level.groups) for level in found.levels] == [12]
    assert found.confidence > 0.99


def test_levels_that_only_latency_shows() -> None:
    found = quiet((3, 4), (1e9, 1e7), (5e-3, 1e-3)).explored()
    assert [(len(level.groups), level.by) for level in found.levels] == [(3, "latency"), (12, "told")]


def test_wild_measurements_are_doubted() -> None:
    found = Network((2, 2, 3), (9e6, 1e7, 1e7), (0.0,) * 3, 0.8, Random(5), outliers=0.2).explored()
    assert found.confidence < LOW
    assert all(text.startswith("low confidence (0.") for text in doubts(found))
    assert doubts(found)


def test_many_ranks_take_few_rounds() -> None:
    network = Network((16, 8), (5e8, 1e9), (0.0, 0.0), 0.03, Random(1), 0.0)
    found = network.explored(seconds=0.03)
    assert [tuple(sorted(level.groups)) for level in found.levels] == network.truth()
    assert found.rounds < 350
    assert network.seconds < 20


def test_evidence_needs_trials() -> None:
    assert weigh([({(0, 1): 1.0}, {(0, 2): 0.0})], 1.25).confidence == 0.5
    assert weigh([({(0, 1): 1.0}, {(0, 2): 0.0})] * 3, 1.25).exists


def told(network: Network, level: int) -> list[Told]:
    """Ranks on hosts, which are the instances of a level."""
    return [Told(f"n{network.instance(rank, level)}") for rank in range(len(network.order))]


def test_the_system_and_the_order_of_hosts() -> None:
    network = quiet((2, 3, 2), (10e6, 20e6, 40e6), (0.0,) * 3)
    ranks = told(network, 2)
    found = assemble([job_topology(ranks, network.explored(told_groups(ranks)))])
    assert shape(found) == {"group2": 2, "group": 3, "node": 2}
    places = [network.order[[one.host for one in ranks].index(host)] for host in found.hosts]
    assert [place // 6 for place in places] in ([0] * 6 + [1] * 6, [1] * 6 + [0] * 6)
    assert all(places[k] // 2 == places[k + 1] // 2 for k in range(0, 12, 2))
    assert "confidence" in found.sources["group"]
    assert found.sources["node"] == "measured"


def test_hosts_that_ranks_tell_are_not_looked_for() -> None:
    network = quiet((2, 2, 3), (10e6, 10e6, 40e6), (0.0,) * 3)
    ranks = told(network, 1)
    assert len(told_groups(ranks)) == 1
    measured = network.explored(told_groups(ranks))
    assert [level.by for level in measured.levels] == ["rate", "told", "told"]
    found = assemble([job_topology(ranks, measured)])
    assert shape(found) == {"group": 2, "node": 2, "rank": 3}
    assert [level.link.bandwidth for level in found.system.levels] == pytest.approx([10e6, 10e6, 40e6], rel=0.15)


def test_islands_inside_a_host_and_switches_that_slurm_tells() -> None:
    network = quiet((2, 2, 2, 2), (10e6, 20e6, 40e6, 80e6), (0.0,) * 4)
    ranks = [
        Told(
            f"n{network.instance(rank, 1)}",
            f"top.s{network.instance(rank, 0)}.n{network.instance(rank, 1)}",
            "switch.switch.node",
        )
        for rank in range(16)
    ]
    groups = told_groups(ranks)
    assert [len(each) for each in groups] == [4, 2]
    found = assemble([job_topology(ranks, network.explored(groups))])
    assert shape(found) == {"leaf": 2, "node": 2, "island": 2, "rank": 2}
    assert [level.link.bandwidth for level in found.system.levels] == pytest.approx(network.rates, rel=0.15)


def test_irregular_groups_are_said() -> None:
    network = quiet((3, 4), (10e6, 40e6), (0.0,) * 2)
    network.order = [device for device in network.order if device != 11]  # one host is missing
    ranks = told(network, 1)
    found = assemble([job_topology(ranks, network.explored())])
    assert shape(found) == {"group": 3, "node": 3}
    (line,) = found.irregular
    assert line.endswith("has 3 nodes, the usual group has 4")
