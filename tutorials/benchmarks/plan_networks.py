"""Computes what a plan gains on the networks of the tests, by a simulation of flows.

    python tutorials/benchmarks/plan_networks.py
    python tutorials/benchmarks/plan_networks.py --only "racks of Cho" --orders 20

The simulation is `flow_simulation.py` beside this file, which shares nothing with the planner. Each
number is a simulated time without a plan over that with one: by the algorithm of the engine, and by
a ring, of the hosts in the order of the file, and in random orders (the median and the worst). It
needs no ranks, and its results do not depend on the machine.
"""

import argparse
import pathlib
import statistics
import sys

TESTS = pathlib.Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS / "plan"), str(TESTS / "support")]

import flow_simulation  # noqa: E402
import topologies  # noqa: E402
from test_plan_cost import graph_of  # noqa: E402

from easyddl.plan import cost, planner  # noqa: E402

NETWORKS = {**topologies.SMALL, **topologies.LARGE}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=float, default=16e6, help="bytes to reduce")
    parser.add_argument("--orders", type=int, default=5, help="random orders")
    parser.add_argument("--only", nargs="+", default=list(NETWORKS), help="networks")
    return parser.parse_args()


def gains(name, size, orders):
    """Returns the gains over the engine's algorithm, then a ring: as listed, median, worst."""
    hosts, links = NETWORKS[name]
    network, graph = flow_simulation.Network(hosts, links), graph_of(hosts, links)
    engine = cost.engine_algorithm(size, len(hosts))

    def time(nest, algorithms):
        job = flow_simulation.simulate(network, nest, algorithms, size)
        assert all((job.data[host] == job.sum).all() for host in hosts), (name, nest)
        return job.time

    def gains_of(order):
        found = planner.plan(graph, order, size)
        algorithms = found.algorithms(size)
        is_flat = algorithms == cost.FLAT
        planned = time(tuple(order), [engine]) if is_flat else time(found.nest, algorithms)
        return [time(tuple(order), [each]) / planned for each in (engine, "ring")]

    listed = gains_of(hosts)
    shuffled = zip(
        *(gains_of(topologies.random_order(hosts, seed)) for seed in range(orders)), strict=True
    )
    return [
        gain
        for first, others in zip(listed, shuffled, strict=True)
        for gain in (first, statistics.median(others), max(others))
    ]


def main(options):
    columns = [f"{how}{way}" for way in ("", ", ring") for how in ("listed", "random", "worst")]
    print(f"{'':22} hosts " + " ".join(f"{column:>12}" for column in columns))
    found = {}
    for name in options.only:
        found[name] = gains(name, options.size, options.orders)
        print(f"{name:22} {len(NETWORKS[name][0]):5} " + line_of(found[name]), flush=True)
    for how, of in (("median", statistics.median), ("least", min), ("greatest", max)):
        print(f"{how:28} " + line_of(map(of, zip(*found.values(), strict=True))))


def line_of(gains):
    return " ".join(f"{gain:12.2f}" for gain in gains)


if __name__ == "__main__":
    main(parse())
