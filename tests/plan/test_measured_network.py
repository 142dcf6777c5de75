"""Which groups of hosts the rates between them show, with the noise of a busy machine."""

import dataclasses
import itertools

import pytest
from simulated_network import G, Network, named

from easyddl.doctor.link_table import rounds
from easyddl.plan import measured_network, planner
from easyddl.plan.measured_network import Survey

SEEDS = range(10)


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
    hosts = ["h1", "h2", "h3", "h4"]
    assert planner.plan(found.graph, hosts, 16e6).nest == (("h1", "h3"), ("h2", "h4"))


def test_connections_that_seem_to_share_more_than_one_has():
    """Connections that take turns have medians whose sum is more than the rate of their link."""
    racks = [(("h1", "h3"), G / 5), (("h2", "h4"), G / 5)]
    survey = Network(named("h1 h2 h3 h4"), racks).survey(seed=0)
    together = [
        [{pair: 1.3 * rate for pair, rate in each.items()} for each in all_rounds]
        for all_rounds in survey.together
    ]
    found = measured_network.judge(dataclasses.replace(survey, together=together))
    assert len(found.groups) == 2
    assert all(group.uplink == group.across for group in found.groups), found.groups


def test_an_uplink_that_shows_only_while_all_send():
    racks = [(("h1", "h3", "h5", "h7"), G), (("h2", "h4", "h6", "h8"), 2 * G)]
    network = Network(named("h1 h2 h3 h4 h5 h6 h7 h8"), racks)
    together = []
    for order in ("h1 h2 h3 h4 h5 h6 h7 h8", "h3 h2 h5 h4 h7 h6 h1 h8"):
        both = [[*pairs, *(p[::-1] for p in pairs)] for pairs in rounds(order.split())]
        together.append([network.rates(each) for each in both])
    alone = {pair: G for pair in itertools.permutations(network.hosts, 2)}
    judged = measured_network.judge(Survey(list(network.hosts), alone, together, {}))
    assert groups_of(judged) == [hosts for hosts, _ in racks]


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
