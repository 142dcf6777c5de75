"""The time and the bytes of an allreduce, against formulas and a simulation of flows."""

import itertools
import math
import pathlib
import re

import flow_simulation
import numpy as np
import pytest
import topologies

from easyddl.plan import cost, partitions
from easyddl.plan.graph import Graph, Link

NETWORKS = {**topologies.SMALL, **topologies.LARGE}
G = topologies.G
ENGINE = pathlib.Path(__file__).parents[2] / "ext/algorithms/inter_host_algorithm.cpp"


def graph_of(hosts, links):
    switches = sorted({name for a, b, *_ in links for name in (a, b)} - set(hosts))
    return Graph(hosts, switches, [Link((a, b), rate, delay) for a, b, rate, delay in links])


def star(n):
    return graph_of(*topologies.racks([n], G))


def test_constants_are_those_of_the_engine():
    source = ENGINE.read_text()
    found = dict(re.findall(r"constexpr \w+ (k\w+) = ([0-9 <]+);", source))
    kib = {name: int(text.split()[0]) << 10 for name, text in found.items() if "<<" in text}
    assert kib == {
        "kLatencyBytes": cost.LATENCY_BYTES,
        "kMessageBytes": cost.MESSAGE_BYTES,
        "kFirstWindow": cost.FIRST_WINDOW,
    }
    assert int(found["kMostSenders"]) == cost.MOST_SENDERS


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8, 12])
@pytest.mark.parametrize("size", [100, 1e5, 3e7])
def test_formulas_on_one_switch(n, size):
    graph, nest = star(n), tuple(star(n).hosts)
    a, b, message = 32768 / G, 1 / G, cost.MESSAGE_BYTES
    power = 2 ** int(math.log2(n))
    fold = 0 if power == n else 2 * (a + (message + size) * b)
    halves = 2 * math.log2(power) * (a + message * b) + 2 * (power - 1) / power * size * b
    expected = {
        "whole": a + (n - 1) * (message + size) * b,
        "direct": 2 * (a + (n - 1) * (message + size / n) * b),
        "halving": halves + fold,
        "ring": 2 * (n - 1) * (a + (message + size / n) * b),
    }
    for algorithm, seconds in expected.items():
        found = cost.allreduce(graph, nest, size, [algorithm])
        assert found.seconds == pytest.approx(seconds), algorithm
        assert found.algorithms == (algorithm,)


def test_on_one_switch_the_model_chooses_as_the_engine_does():
    sizes = [64, 4096, 1 << 17, 1 << 20, 1 << 26]
    for n, size in itertools.product([2, 3, 4, 5, 8, 9, 16], sizes):
        found = cost.best_algorithms(star(n), star(n).hosts, size)
        assert found == (cost.engine_algorithm(size, n),), (n, size)


def nests_of(hosts):
    """Some nests: flat, in groups by name, and in two levels of groups."""
    yield tuple(hosts)
    for cut in (lambda host: host[:2], lambda host: host[:3]):
        groups = [tuple(group) for _, group in itertools.groupby(hosts, cut)]
        if 1 < len(groups) < len(hosts):
            yield tuple(groups)
        if len(groups) > 3 and len(groups) % 2 == 0:
            yield (tuple(groups[:2]), tuple(groups[2:]))


CASES = [
    pytest.param(
        hosts,
        links,
        nest,
        id=f"{name}-{cost.depth(nest)}-{len(nest)}",
        marks=pytest.mark.full if len(hosts) > 16 else (),
    )
    for name, (hosts, links) in NETWORKS.items()
    for nest in nests_of(hosts)
]


@pytest.mark.parametrize(("hosts", "links", "nest"), CASES)
def test_simulation(hosts, links, nest):
    network, graph, size = flow_simulation.Network(hosts, links), graph_of(hosts, links), 6720 * 64
    owners, levels = cost.owners_of(nest), cost.depth(nest)
    choices = [
        [
            name
            for name in cost.candidates(
                [len(g) for g in cost.groups_at(nest, k)],
                owners[k],
                k + 1 == levels,
                size / math.prod(owners[:k]),
            )
            if name != "whole" or len(nest) <= 8
        ]
        for k in range(levels)
    ]
    for index in range(max(map(len, choices))):
        chosen = tuple(names[index % len(names)] for names in choices)
        found = cost.allreduce(graph, nest, size, chosen)
        job = flow_simulation.simulate(network, nest, chosen, size)
        for host in hosts:
            assert np.array_equal(job.data[host], job.sum), (chosen, host)
        carried = [found.link_bytes.get(ends, 0.0) for ends in network.directed]
        # The simulation sends whole elements.
        np.testing.assert_allclose(carried, job.carried, rtol=0.02, atol=64 * 64)
        # Fair shares may leave the fullest link idle at times, never the other way round.
        assert found.seconds <= job.time * 1.01
        assert job.time <= found.seconds * 1.5
        assert partitions.lower_bound(graph, hosts, size).seconds <= job.time * 1.001


def test_bytes_of_a_hierarchy():
    """What leaves a rack is 2(r-1)/r of the data, however many hosts it has."""
    hosts, links = topologies.racks([3, 3, 3], G)
    graph = graph_of(hosts, links)
    nest = tuple(tuple(hosts[i : i + 3]) for i in (0, 3, 6))
    found = cost.allreduce(graph, nest, 9000, ["ring", "ring"])
    assert found.link_bytes["r0", "core"] == pytest.approx(2 * 2 / 3 * 9000)


def test_equal_paths_share_data():
    graph = graph_of(*topologies.spines(2, 1, 4, G))
    route = graph.route("h0x0", "h1x0")
    assert dict(route.links)["l0", "spine2"] == 0.25
    assert route.latency == pytest.approx(2 * 16384 / G + 1e-5)


def test_a_host_forwards_nothing():
    links = [("a", "s", G, 0.0), ("s", "b", G, 0.0), ("b", "t", G, 0.0), ("t", "c", G, 0.0)]
    graph = graph_of(["a", "b", "c"], links)
    assert graph.route("a", "b").links
    with pytest.raises(ValueError, match="from a to c"):
        graph.check_routes()


def test_bound_of_a_narrow_link():
    graph = graph_of(*topologies.racks([2, 2], G / 5))
    bound = partitions.lower_bound(graph, ["h0x0", "h1x0"], 1e6)
    assert bound.seconds == pytest.approx(1e6 / (G / 5))
    assert "200 Mbit/s" in bound.reason
