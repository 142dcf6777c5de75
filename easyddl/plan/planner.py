"""Chooses the groups of hosts, their order and the algorithm of each level, at least cost.

The groups are those that the network suggests: see `partitions.py`. Hosts are in the order of a
walk through the network, which stays behind a link as long as it can. Single hosts are moved
between the groups of the best nests. The members of the groups are then ordered: 2-opt improves a
ring (Croes, 1958). The first hosts of a group, which own its shards, are those with the fastest
links.
"""

import dataclasses
import functools
import itertools
import math

from easyddl.plan import cost, partitions

_KEPT_PARTITIONS = 8
_KEPT_NESTS = 6  # whose orders are searched
_MOST_MOVED = 16  # hosts of which each is moved to other groups
_MOST_MESSAGES = 20_000  # of the reduce-scatter of a ring whose rounds differ
_TRIED_TURNS = 50_000  # flows that 2-opt may look at, for a group
_TOLERANCE = 1e-9
LEAST_GAIN = 0.1  # of a plan over the hosts as listed: the computed times are not more exact

# The sizes between which the rules of a plan may change: 256 B to 1 GiB.
_SIZES = tuple(2**exponent for exponent in range(8, 31))
_NEARLY = 1.003  # sizes whose rules need not differ


@dataclasses.dataclass(frozen=True)
class Plan:
    """Groups of hosts and their order.

    Attributes:
        nest: A nest of hosts: see `cost.py`.
        rules: Tuple of pairs, in ascending order. The number of bytes from which a rule holds, and
            the algorithm of each level, or `cost.FLAT`.
        listed: Tuple of strings, the hosts as the user listed them.
    """

    nest: tuple
    rules: tuple
    listed: tuple

    def algorithms(self, size):
        """Returns the algorithm of each level for a size in bytes, or `cost.FLAT`."""
        return next(each for begin, each in reversed(self.rules) if begin <= size)

    def allreduce(self, graph, size):
        """Returns the `cost.Cost` of an allreduce of a size in bytes."""
        algorithms = self.algorithms(size)
        if algorithms == cost.FLAT:
            return cost.allreduce(graph, self.listed, size)
        return cost.allreduce(graph, self.nest, size, algorithms)


def plan(graph, hosts, size):
    """Finds the plan of an allreduce.

    Args:
        graph: `Graph`.
        hosts: List of strings, at least one. Where they cost less as they are listed, the plan's
            rule is `cost.FLAT`, so no plan costs more at any size.
        size: Number. The bytes of the allreduce for which groups and order are chosen.

    Returns:
        `Plan`.
    """
    walk = tuple(network_order(graph, hosts))
    is_small = len(hosts) <= _MOST_MOVED
    nests = [walk, *_nests(graph, walk), *(_equal_groups(walk) if is_small else ())]

    @functools.cache
    def seconds(nest):
        return sum(each for each, _ in cost.best_levels(graph, nest)(size))

    kept = sorted(nests, key=seconds)[:_KEPT_NESTS]
    if is_small:
        kept = list(dict.fromkeys(_moved(nest, seconds) for nest in kept))
    ordered = [_ordered(graph, nest, size, seconds) for nest in kept]
    listed = tuple(hosts)
    least = min(map(seconds, ordered)) * (1 + _TOLERANCE)
    best = next(nest for nest in sorted(ordered, key=cost.depth) if seconds(nest) <= least)
    if seconds(best) > seconds(listed) * (1 - LEAST_GAIN):
        best = listed
    return Plan(best, _rules(graph, best, listed, size), listed)


def _rules(graph, nest, listed, size):
    """Returns the best algorithms of a nest for all sizes, of which `size` is one."""
    of_engine = functools.partial(cost.engine_algorithm, members=len(listed))
    best_levels = cost.best_levels(graph, nest)
    as_listed = functools.cache(functools.partial(cost.level_line, graph, listed, 0))

    @functools.cache
    def best(size):
        levels = best_levels(size)
        seconds = sum(seconds for seconds, _ in levels) * (1 - _TOLERANCE)
        if as_listed(of_engine(size))(size) < seconds:
            return cost.FLAT
        return tuple(name for _, name in levels)

    # Where the engine changes its algorithm, the time of the list has a kink.
    kinks = [each - before for each in _changes(of_engine, _SIZES, 1) for before in (0, 1)]
    sizes = sorted({int(size), *_SIZES, *kinks})
    return (
        (0, best(sizes[0])),
        *((begin, best(begin)) for begin in _changes(best, sizes, _NEARLY)),
    )


def _changes(function, sizes, nearly):
    """Yields the sizes at which a function of the size changes.

    Args:
        function: Function of an integer.
        sizes: List of integers in ascending order. Between two of them the function changes only if
            its values for both differ.
        nearly: Number. The ratio up to which sizes need not be told from one another.
    """
    for low, high in itertools.pairwise(sizes):
        middle = math.isqrt(low * high)
        if function(low) == function(high):
            continue
        if high <= nearly * low or middle == low:
            yield high
        else:
            yield from _changes(function, [low, middle, high], nearly)


# ---- groups


def network_order(graph, hosts):
    """Returns hosts in the order of a walk through the network that stays behind each link.

    In a ring of this order a link of a tree carries one message in each direction. The hosts of a
    switch with the fastest links come first, because the first hosts of a group own its shards.
    """
    wanted, order, seen = set(hosts), [], set()
    position = {host: index for index, host in enumerate(hosts)}
    for start in hosts:
        pending = [graph.switch_of(start)]
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            if node in wanted:
                order.append(node)
                continue
            near = sorted(
                graph.neighbors[node],
                key=lambda other, at=node: (
                    other not in wanted,
                    -graph.rates[at, other],
                    position.get(other, 0),
                ),
            )
            pending += reversed(near)
    return order


def _nests(graph, walk):
    """Returns the nests of two and more levels among which the planner chooses."""
    suggested = [
        partition
        for partition in partitions.of_network(graph, walk)
        if 1 < len(partition.groups) < len(walk)
    ]
    suggested.sort(key=lambda partition: -partition.seconds(1.0)[0])
    # For equal racks, each partition into one rack and all other hosts is equivalent.
    alike = {}
    for partition in suggested:
        sizes = tuple(sorted(map(len, partition.groups)))
        alike.setdefault((sizes, partition.seconds(1.0)), partition)
    kept = [partition.groups for partition in list(alike.values())[:_KEPT_PARTITIONS]]
    chains = [[groups] for groups in kept]
    chains += [
        list(chain)
        for count in (2, 3)
        for chain in itertools.permutations(kept, count)
        if all(map(_refines, chain, chain[1:]))
    ]
    return [nest for nest in map(_nest, chains) if _is_tractable(nest)]


def _equal_groups(walk):
    """Yields the nests of groups of equal size, or nearly, whose members all own shards."""
    n = len(walk)
    for count in range(2, n):
        yield tuple(walk[i * n // count : (i + 1) * n // count] for i in range(count))


def _moved(nest, seconds):
    """Returns a nest of two levels at most, to which no move of a host to another group is better.

    Args:
        nest: A nest of hosts.
        seconds: Function of a nest that returns its time.
    """
    if cost.depth(nest) > 2:
        return nest
    cheaper = min(_neighbors(nest), key=seconds, default=nest)
    while seconds(cheaper) < seconds(nest) * (1 - _TOLERANCE):
        nest = cheaper
        cheaper = min(_neighbors(nest), key=seconds, default=nest)
    return nest


def _neighbors(nest):
    """Yields the nests of which one host has another group, which may be new."""
    groups = [(each,) if isinstance(each, str) else each for each in nest]
    count = sum(map(len, groups))
    for i, j in itertools.permutations(range(len(groups) + 1), 2):
        for host in (*groups, ())[i]:
            moved = [*groups, ()]
            moved[i] = tuple(other for other in moved[i] if other != host)
            moved[j] = (*moved[j], host)
            found = tuple(filter(None, moved))
            if 1 < len(found) < count:
                yield found


def _is_tractable(nest):
    """Returns whether a ring has few enough messages to compute its cost quickly.

    Its rounds are alike if all members own a shard. Otherwise each round is computed.
    """
    owners = cost.owners_of(nest)
    return all(
        len(group) == owners[level] or len(group) * owners[level] <= _MOST_MESSAGES
        for level in range(cost.depth(nest) - 1)
        for group in cost.groups_at(nest, level)
    )


def _refines(fine, coarse):
    """Returns whether each group of a partition is within a group of a coarser one."""
    group_of = {host: index for index, group in enumerate(coarse) for host in group}
    return len(coarse) < len(fine) and all(
        len({group_of[host] for host in group}) == 1 for group in fine
    )


def _nest(chain):
    """Makes a nest of partitions, of which each refines the next one."""
    nest = chain[0]
    for coarse in chain[1:]:
        group_of = {host: index for index, group in enumerate(coarse) for host in group}
        parents = {}
        for child in nest:
            parents.setdefault(group_of[cost.hosts_of(child)[0]], []).append(child)
        nest = tuple(map(tuple, parents.values()))
    return nest


# ---- order


def _ordered(graph, nest, size, seconds):
    """Returns a nest with the best orders of the members of its groups that were found.

    Args:
        graph: `Graph`.
        nest: A nest of hosts.
        size: Number. The bytes to reduce.
        seconds: Function of a nest that returns its time.
    """
    best = nest
    for level in range(cost.depth(nest)):
        for algorithm in ("ring", "halving"):
            reorder = functools.partial(_reordered, graph, best, level, size, algorithm)
            changed = _map_groups(best, level, reorder)
            if seconds(changed) < seconds(best) * (1 - _TOLERANCE):
                best = changed
    return best


def _map_groups(nest, level, function):
    if cost.depth(nest) == level + 1:
        return function(nest)
    return tuple(_map_groups(child, level, function) for child in nest)


def _reordered(graph, nest, level, size, algorithm, group):
    """Returns a group of a nest with its members in the best order for an algorithm."""
    owners, is_last = cost.owners_of(nest), level + 1 == cost.depth(nest)
    n, kept = len(group), owners[level]
    shard = size / math.prod(owners[:level])
    if n < 4 or algorithm not in cost.candidates([n], kept, is_last, shard):
        return group
    lanes = [cost.lanes_of(child, owners) for child in group]
    if algorithm == "halving":
        order = _halving_order(graph, lanes, shard, is_last)
    else:
        order = _two_opt(graph, lanes, shard / kept)
    return tuple(group[index] for index in order)


def _halving_order(graph, lanes, size, is_last):
    """Returns the better of two orders for `halving`.

    The largest messages are those between members that are half of the group apart, unless the
    level is the last. So an order whose numbers have their bits reversed sends them to near
    members.
    """
    n = len(lanes)
    power = 1 << (n.bit_length() - 1)
    bits = power.bit_length() - 1
    reverse = [int(f"{i:0{bits}b}"[::-1], 2) for i in range(power)]

    def price(order):
        sequences = [
            cost.phases("halving", [lanes[index][lane] for index in order], n, size, is_last)[0]
            for lane in range(len(lanes[0]))
        ]
        return sum(
            cost.round_line(graph, [flow for _, flows in rounds for flow in flows])(1)
            for rounds in zip(*sequences, strict=True)
        )

    return min([*range(n)], [*reverse, *range(power, n)], key=price)


def _two_opt(graph, lanes, size):
    """Returns an order of a ring that no reversal of a part makes cheaper."""
    n = len(lanes)
    tries = _TRIED_TURNS // (n * len(lanes[0]))

    def price(order):
        loads, latencies = {}, []
        for a, b in zip(order, [*order[1:], order[0]], strict=True):
            latency, carried = arc(a, b)
            latencies.append(latency)
            for link, load in carried.items():
                loads[link] = loads.get(link, 0.0) + load
        times = {link: load / graph.rates[link] for link, load in loads.items()}
        # Among orders with equal rounds, prefer less load on all links: it leads to better orders.
        total = math.fsum(latencies) + math.fsum(times.values())
        fullest = max(times, key=times.get)
        # A link of a host carries the same in any order.
        is_least = min(latencies) == max(latencies) and not own.isdisjoint(fullest)
        return max(latencies) + times[fullest], total, is_least

    @functools.cache
    def arc(a, b):
        """Returns the latency of the messages from a member to another, and their loads."""
        flows = [(*pair, size) for pair in zip(lanes[a], lanes[b], strict=True)]
        latency, messages, loads = cost.round_loads(graph, flows)
        return latency, messages + loads

    def is_less(new, old):
        if abs(new[0] - old[0]) > old[0] * _TOLERANCE:
            return new[0] < old[0]
        return new[1] < old[1] * (1 - _TOLERANCE)

    own = {host for hosts in lanes for host in hosts}
    order = list(range(n))
    least = price(order)
    improved = not least[2]
    while improved:
        improved = False
        for i, j in itertools.combinations(range(1, n), 2):
            if tries == 0:
                return order
            tries -= 1
            turned = order[:i] + order[i : j + 1][::-1] + order[j + 1 :]
            new = price(turned)
            if is_less(new, least):
                order, least, improved = turned, new, True
    return order
