"""Which groups of hosts the rates between them show, with the noise of a busy machine."""

import itertools
import random

import pytest
from simulated_network import RTT, G, Network, named

from easyddl.plan import measured_network, planner

SEEDS = range(10)
WANTED = 9  # of the seeds: noise may hide a member of a rack


def judge(network, seed):
    return measured_network.judge(network.survey(seed))


def groups_of(judgement):
    return [group.hosts for group in judgement.groups]


@pytest.mark.parametrize("seed", SEEDS)
def test_racks_with_a_slow_uplink(seed):
    racks = [(("h1", "h3"), G / 5), (("h2", "h4"), G / 5)]
    found = judge(Network(named("h1 h2 h3 h4"), racks), seed)
    assert groups_of(found) == [("h1", "h3"), ("h2", "h4")] and not found.reason
    for group in found.groups:
        assert group.within >= 0.8 * G and group.across <= G / 5
        assert G / 8 < group.uplink <= G / 5
        assert str(group).startswith(f"{group.name}: {' '.join(group.hosts)}, ")
    assert found.graph.route("h1", "h2").latency == pytest.approx(RTT / 2)
    hosts = ["h1", "h2", "h3", "h4"]
    assert planner.plan(found.graph, hosts, 16e6).nest == (("h1", "h3"), ("h2", "h4"))


def test_connections_that_seem_to_share_more_than_one_has():
    """Connections that take turns have medians whose sum is more than the rate of their link."""
    racks = [(("h1", "h3"), G / 5), (("h2", "h4"), G / 5)]
    network = Network(named("h1 h2 h3 h4"), racks)
    alone = {pair: network.rates([pair])[pair] for pair in itertools.permutations(network.hosts, 2)}

    def send(pairs):
        return {pair: 1.3 * rate for pair, rate in network.rates(pairs).items()}

    found = measured_network.uplinks(list(network.hosts), alone, send)
    assert found == {frozenset(members): rate for members, rate in racks}


def test_the_rate_of_an_uplink_is_that_of_one_way_at_a_time():
    """Two ways that fill a link at once delay each other's acknowledgements."""
    racks = [(("h1", "h3", "h5"), G), (("h2", "h4", "h6"), G)]
    network = Network(named("h1 h2 h3 h4 h5 h6"), racks)
    alone = {pair: network.rates([pair])[pair] for pair in itertools.permutations(network.hosts, 2)}

    def send(pairs):
        across = {pair for pair in pairs if (pair[0] in racks[0][0]) != (pair[1] in racks[0][0])}
        slower = 0.65 if {(b, a) for a, b in across} & across else 1
        return {
            pair: rate * (slower if pair in across else 1)
            for pair, rate in network.rates(pairs).items()
        }

    found = measured_network.uplinks(list(network.hosts), alone, send)
    assert found == {frozenset(members): pytest.approx(rate) for members, rate in racks}


@pytest.mark.parametrize(
    ("sizes", "uplinks"),
    [
        ((2, 2), (1, 1)),
        ((3, 3), (1, 1)),
        ((3, 2), (1, 1)),
        ((5, 3), (1, 1)),
        ((4, 2, 1), (1, 1, 1)),
        ((5, 5), (2, 2)),
        ((8, 8), (2, 2)),
        ((3, 3, 3), (1, 1, 1)),
        ((4, 4, 4, 4), (2, 2, 2, 2)),
    ],
)
def test_uplinks_that_show_only_while_several_send(sizes, uplinks):
    """Racks of which each has an uplink of 1 to 2 times the rate of a host."""
    found_in = []
    for seed in SEEDS:
        names = iter(random.Random(seed).sample([f"h{i}" for i in range(sum(sizes))], sum(sizes)))
        racks = [tuple(itertools.islice(names, size)) for size in sizes]
        groups = [(rack, G * rate) for rack, rate in zip(racks, uplinks, strict=True)]
        hosts = sorted(host for rack in racks for host in rack)
        found = judge(Network(named(" ".join(hosts)), groups), seed)
        wanted = {frozenset(rack): rate for rack, rate in groups if len(rack) > 1}
        found_in.append({frozenset(group.hosts) for group in found.groups} == {*wanted})
        if found_in[-1]:
            for group in found.groups:
                assert 0.75 < group.uplink / wanted[frozenset(group.hosts)] <= 1.01
    assert sum(found_in) >= WANTED, found_in


@pytest.mark.parametrize("seed", SEEDS)
def test_aisles_of_racks_of_unequal_size(seed):
    hosts = "a b c d e f g"
    groups = [(("a", "b", "c"), G / 2), (("d", "e"), G / 2), (("f", "g"), G / 2)]
    aisle = ("a", "b", "c", "d", "e")
    found = judge(Network(named(hosts), [*groups, (aisle, G / 8)]), seed)
    assert sorted(groups_of(found)) == sorted([*(members for members, _ in groups), aisle])
    of_aisle = {group.hosts: group.name for group in found.groups}[aisle]
    assert found.graph.route("a", "d").links[1:3] == (
        (("group3", of_aisle), 1.0),
        ((of_aisle, "group1"), 1.0),
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", [3, 4, 5, 8])
def test_hosts_that_are_alike(seed, count):
    found = judge(Network(named(" ".join(f"h{i}" for i in range(count)))), seed)
    assert found.graph is None and not found.groups
    assert found.reason.startswith("the hosts are alike: 1 Gbit/s") or "alike: 9" in found.reason


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slow_host(seed):
    found = judge(Network({**named("h1 h2 h4"), "h3": G / 4}), seed)
    # The three others are a group of which only the slow host is no member.
    rates = {host: found.graph.route(host, "h3").links for host in ("h1", "h2", "h4")}
    assert all(found.graph.rates[links[-1][0]] <= G / 4 for links in rates.values())
    assert found.graph.rates[found.graph.route("h1", "h2").links[0][0]] > 0.9 * G


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slow_link_is_no_group(seed):
    found = judge(Network(named("h1 h2 h3 h4"), slow={frozenset(("h2", "h4")): G / 3}), seed)
    assert found.graph is None and not found.groups
    assert "no groups explain them: h2 and h4 reach 3" in found.reason


@pytest.mark.parametrize("third", ["e f", "e"])
def test_latencies_to_a_third_site_that_is_far_from_both_others(third):
    sites = [(tuple(members.split()), G / 5) for members in ("a b", "c d", third)]
    survey = Network(named("a b c d " + third), sites).survey(0)
    for pair in survey.latencies:
        survey.latencies[pair] = {"ab": 1e-3, "cd": 1e-3}.get("".join(sorted(pair)), 0.1)
    between = {("a", "b"): 1e-3, ("a", "c"): 1e-2, ("a", "e"): 0.1, ("c", "e"): 0.1}
    for pair in itertools.product("ab", "cd"):
        survey.latencies[pair] = survey.latencies[pair[::-1]] = 1e-2
    graph = measured_network.judge(survey).graph
    assert {pair: graph.route(*pair).latency for pair in between} == pytest.approx(between)


def test_what_is_not_measured_is_told():
    survey = Network(named("h1 h2 h3")).survey(0)
    del survey.alone["h3", "h1"]
    found = measured_network.judge(survey)
    assert found.graph is None and found.reason == (
        "the rate between h1 and h3 could not be measured"
    )


def test_two_hosts():
    found = judge(Network(named("h1 h2")), 0)
    assert found.graph is None and found.reason.startswith("two hosts")


def test_hosts_with_the_names_of_groups():
    racks = [(("core", "h3"), G / 5), (("group1", "h4"), G / 5)]
    found = judge(Network(named("core group1 h3 h4"), racks), 0)
    assert groups_of(found) == [("core", "h3"), ("group1", "h4")]
    assert [group.name for group in found.groups] == ["group2", "group3"]
    assert len({*found.graph.hosts, *found.graph.switches}) == 7
