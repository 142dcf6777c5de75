"""The planner, against all plans of small networks, the order of hosts, and the lower bound."""

import itertools
import subprocess
import sys
import time

import mpi
import pytest
import topologies
from test_plan_cost import graph_of

from easyddl.plan import cost, partitions, planner

G = topologies.G
NEARLY = 1.05


def seconds(graph, nest, size):
    algorithms = [name for _, name in cost.best_levels(graph, nest)(size)]
    return cost.allreduce(graph, nest, size, algorithms).seconds


def names(*counts):
    return [name for name, (hosts, _) in topologies.SMALL.items() if len(hosts) in counts]


def set_partitions(items):
    if not items:
        yield []
        return
    for groups in set_partitions(items[1:]):
        yield [[items[0]], *groups]
        for i, group in enumerate(groups):
            yield [*groups[:i], [items[0], *group], *groups[i + 1 :]]


def all_nests(hosts):
    """All orders of all groups, of one level and of two."""
    yield from itertools.permutations(hosts)
    for groups in set_partitions(hosts):
        if 1 < len(groups) < len(hosts):
            orders = [list(itertools.permutations(group)) for group in groups]
            for order in itertools.permutations(orders):
                yield from itertools.product(*order)


@pytest.mark.parametrize("size", [2000, 1e5, 1e7])
@pytest.mark.parametrize(
    "name", [*names(4), *[pytest.param(name, marks=pytest.mark.full) for name in names(5)]]
)
def test_a_plan_is_nearly_the_best_of_all(name, size):
    hosts, links = topologies.SMALL[name]
    graph = graph_of(hosts, links)
    listed = tuple(topologies.worst_order(hosts))
    found = planner.plan(graph, listed, size)
    least = min(seconds(graph, nest, size) for nest in all_nests(hosts))
    most = NEARLY if found.nest != listed else 1 / (1 - planner.LEAST_GAIN)
    assert seconds(graph, found.nest, size) <= least * most, found


@pytest.mark.parametrize("name", names(5, 6))
def test_its_groups_are_nearly_the_best(name):
    hosts, links = topologies.SMALL[name]
    graph = graph_of(hosts, links)
    found = planner.plan(graph, topologies.worst_order(hosts), 1e6)
    least = min(
        seconds(graph, tuple(map(tuple, groups)), 1e6)
        for groups in set_partitions(planner.network_order(graph, hosts))
        if 1 < len(groups) < len(hosts)
    )
    assert seconds(graph, found.nest, 1e6) <= least * NEARLY, found


RINGS = {
    "a ring of six switches": topologies.chain([1] * 6, G / 3, True),
    "a ring of seven switches": topologies.chain([1] * 7, G / 3, True),
    "a line of switches": topologies.chain([2, 1, 2, 1], G / 3, False),
    "racks": topologies.racks([3, 2, 2], G / 3),
}


@pytest.mark.parametrize("name", RINGS)
def test_the_order_of_a_ring_is_nearly_the_best(name):
    hosts, links = RINGS[name]
    graph, size = graph_of(hosts, links), 1e5
    shuffled = topologies.random_order(hosts, seed=3)
    order = planner._two_opt(graph, [[host] for host in shuffled], size / len(hosts))
    assert order[0] == 0 and sorted(order) == list(range(len(hosts)))
    least = min(
        cost.level_line(graph, (shuffled[0], *rest), 0, "ring")(size)
        for rest in itertools.permutations(shuffled[1:])
        if len(hosts) < 7 or rest[0] < rest[-1]  # either direction costs the same
    )
    found = cost.level_line(graph, tuple(shuffled[i] for i in order), 0, "ring")(size)
    assert found <= least * NEARLY


@pytest.mark.parametrize(
    "name",
    [*topologies.SMALL, *(pytest.param(name, marks=pytest.mark.full) for name in topologies.LARGE)],
)
def test_a_plan_costs_no_more_than_the_hosts_as_listed(name):
    hosts, links = {**topologies.SMALL, **topologies.LARGE}[name]
    graph = graph_of(hosts, links)
    for order in (topologies.worst_order(hosts), topologies.random_order(hosts, seed=1)):
        for size in (2000, 1e7):
            found = planner.plan(graph, order, size)
            assert sorted(cost.hosts_of(found.nest)) == sorted(hosts)
            planned = found.allreduce(graph, size)
            listed = cost.allreduce(graph, tuple(order), size)
            of_engine = cost.allreduce(graph, found.nest, size)
            assert planned.seconds <= listed.seconds * (1 + 1e-9)
            assert planned.seconds <= of_engine.seconds * (1 + 1e-9)
            assert planned.seconds >= partitions.lower_bound(graph, order, size)[0]


def test_racks_are_found_in_any_order():
    """Halving on a list rack by rack costs no more than the racks."""
    hosts, links = topologies.racks([2, 2], G / 5)
    graph = graph_of(hosts, links)
    racks = {frozenset(hosts[:2]), frozenset(hosts[2:])}
    for order in itertools.permutations(hosts):
        nest = planner.plan(graph, order, 16e6).nest
        if frozenset(order[:2]) in racks:
            assert nest == order
        else:
            assert {frozenset(rack) for rack in nest} == racks


def test_a_flat_network_has_no_groups_and_keeps_its_order():
    hosts, links = topologies.racks([6], G)
    order = topologies.random_order(hosts, seed=2)
    assert planner.plan(graph_of(hosts, links), order, 1e6).nest == tuple(order)


def test_racks_of_cho():
    """Three racks of 16 hosts whose uplink has the rate of one host, beside a flat ring."""
    hosts, links = topologies.LARGE["racks of Cho"]
    graph, order = graph_of(hosts, links), topologies.worst_order(hosts)
    found = planner.plan(graph, order, 1e8)
    planned = found.allreduce(graph, 1e8).seconds
    ring = cost.allreduce(graph, tuple(order), 1e8, ["ring"]).seconds
    assert planned < ring / 1.5


@pytest.mark.parametrize("size", [10, 5e4, 1e6, 7e8, 1e11])
def test_the_rules_have_the_best_algorithms_of_a_size(size):
    hosts, links = topologies.LARGE["racks of Cho"]
    graph = graph_of(hosts, links)
    found = planner.plan(graph, hosts, size)
    listed = cost.allreduce(graph, tuple(hosts), size).seconds
    least = min(listed, seconds(graph, found.nest, size))
    assert found.allreduce(graph, size).seconds == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize("name", topologies.SMALL)
def test_no_size_costs_more_than_the_hosts_as_listed_or_other_algorithms(name):
    hosts, links = topologies.SMALL[name]
    graph, order = graph_of(hosts, links), topologies.random_order(hosts, seed=5)
    found = planner.plan(graph, order, 16e6)
    begins = [begin for begin, _ in found.rules]
    assert begins[0] == 0 and begins == sorted({*begins})
    for size in (int(10 ** (3 + step / 9)) for step in range(46)):
        planned = found.allreduce(graph, size).seconds
        assert planned <= cost.allreduce(graph, tuple(order), size).seconds * (1 + 1e-9), size
        assert planned <= seconds(graph, found.nest, size) * planner._NEARLY, size


def test_one_host_and_two():
    hosts, links = topologies.racks([2], G)
    graph = graph_of(hosts, links)
    assert planner.plan(graph, hosts[:1], 1e6).nest == (hosts[0],)
    assert planner.plan(graph, hosts, 1e6).nest == tuple(hosts)


def test_it_is_light_to_import():
    code = (
        "import sys, easyddl.plan.planner, easyddl.plan.network_file, easyddl.plan.plan_file; "
        "print(sorted({'keras', 'mpi4py', 'numpy', 'tensorflow'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=mpi.environment({})
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.full
def test_a_thousand_hosts_take_less_than_30_seconds():
    hosts, links = topologies.racks([40] * 25, 10 * G)
    graph, begin = graph_of(hosts, links), time.process_time()
    found = planner.plan(graph, topologies.worst_order(hosts), 16e6)
    assert time.process_time() - begin < 30
    assert len(found.nest) == 25
