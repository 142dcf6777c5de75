"""Chooses the groups of hosts, their order and the algorithm of each level, at least cost.

On up to 8 hosts all partitions of the hosts into groups are compared. On more hosts, and for more
than two levels, only those that the network suggests: see `partitions.py`. Hosts are in the order
of a walk through the network, which stays behind a link as long as it can. The members of the best
partitions are then ordered. In a group of up to 8, the order of a ring is solved exactly
(`ring_order.py`), and all orders of `halving` are compared; in a larger one 2-opt improves the ring
(Croes, 1958). The first hosts of a group, which own its shards, are those with the fastest links.
"""

import dataclasses
import functools
import importlib.util
import itertools
import math

from easyddl.plan import cost, partitions, ring_order

MOST_EXACT = 8  # members of a level

_KEPT_PARTITIONS = 8  # on more hosts
_KEPT_NESTS = {True: 12, False: 4}  # whose orders are searched, by whether there are few hosts
_MOST_MESSAGES = 20_000  # of the reduce-scatter of a ring whose rounds differ
_TRIED_TURNS = 50_000  # flows that 2-opt may look at, for a group
_TOLERANCE = 1e-9

# The sizes for which a plan has algorithms: 1 KiB to 1 GiB.
_SIZES = tuple(4**exponent for exponent in range(5, 16))


@dataclasses.dataclass(frozen=True)
class Plan:
    """Groups of hosts and their order.

    Attributes:
        nest: A nest of hosts: see `cost.py`.
        rules: Tuple of pairs, in ascending order. The number of bytes from which a rule holds, and
            the algorithm of each level.
        method: String. How the plan was found.
    """

    nest: tuple
    rules: tuple
    method: str

    def algorithms(self, size):
        """Returns the algorithm of each level for a size in bytes."""
        return next(each for begin, each in reversed(self.rules) if begin <= size)


def plan(graph, hosts, size):
    """Finds the plan of an allreduce.

    Args:
        graph: `Graph`.
        hosts: List of strings, at least one. The order of the user is one of the alternatives, so
            no plan costs more.
        size: Number. The bytes of the allreduce for which groups and order are chosen.

    Returns:
        `Plan`.
    """
    walk = network_order(graph, hosts)
    is_small = len(hosts) <= MOST_EXACT
    nests = [tuple(walk), *_nests(graph, walk, is_small)]
    seconds = functools.cache(lambda nest: _seconds(graph, nest, size))
    by_cost = sorted(nests, key=seconds)
    ordered = [_ordered(graph, nest, size, seconds) for nest in by_cost[: _KEPT_NESTS[is_small]]]
    best = tuple(hosts)
    for nest in sorted(ordered, key=cost.depth):
        if seconds(nest) < seconds(best) * (1 - _TOLERANCE):
            best = nest
    if not is_small:
        method = "clusters by rate, then 2-opt"
    elif not _has_scipy():
        method = "all groups, then 2-opt, because SciPy is not installed"
    else:
        method = "all groups, exact rings"
    return Plan(best, _rules(graph, best, size), method)


def _rules(graph, nest, size):
    """Returns the best algorithms of a nest for all sizes, of which `size` is one.

    A rule of a size begins at the geometric mean of this and the next smaller one.
    """
    rules, sizes = [], sorted({size, *_SIZES})
    for smaller, each in zip((None, *sizes), sizes, strict=False):
        algorithms = cost.best_algorithms(graph, nest, each)
        if not rules or rules[-1][1] != algorithms:
            rules.append((0 if smaller is None else math.isqrt(int(smaller * each)), algorithms))
    return tuple(rules)


def _seconds(graph, nest, size):
    return sum(seconds for seconds, _ in cost.best_levels(graph, nest, size))


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


def _nests(graph, walk, is_small):
    """Returns the nests of two and more levels among which the planner chooses."""
    suggested = [
        partition
        for partition in partitions.of_network(graph, walk)
        if 1 < len(partition.groups) < len(walk)
    ]
    suggested.sort(key=lambda partition: -partition.seconds(1.0)[0])
    if not is_small:
        # For equal racks, each partition into one rack and all other hosts is equivalent.
        alike = {}
        for partition in suggested:
            sizes = tuple(sorted(map(len, partition.groups)))
            alike.setdefault((sizes, partition.seconds(1.0)), partition)
        suggested = list(alike.values())
    kept = [partition.groups for partition in suggested[:_KEPT_PARTITIONS]]
    chains = [[groups] for groups in kept]
    chains += [
        list(chain)
        for count in (2, 3)
        for chain in itertools.permutations(kept, count)
        if all(map(_refines, chain, chain[1:]))
    ]
    nests = [nest for nest in map(_nest, chains) if _is_tractable(nest)]
    if is_small:
        known = {_shape(graph, nest) for nest in nests if cost.depth(nest) == 2}
        for groups in _set_partitions(tuple(walk)):
            if 1 < len(groups) < len(walk) and _shape(graph, groups) not in known:
                known.add(_shape(graph, groups))
                nests.append(groups)
    return nests


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


def _set_partitions(items):
    """Yields all partitions of some items into groups, in the order of the items."""
    if not items:
        yield ()
        return
    first, rest = items[0], items[1:]
    for count in range(len(rest) + 1):
        for others in itertools.combinations(rest, count):
            left = tuple(item for item in rest if item not in others)
            for groups in _set_partitions(left):
                yield ((first, *others), *groups)


def _shape(graph, groups):
    """Returns what distinguishes a partition from others, if hosts that are alike change places."""
    return tuple(sorted(tuple(sorted(_kind(graph, host) for host in group)) for group in groups))


def _kind(graph, host):
    """Returns the links of a host, which it has in common with the hosts that are like it."""
    if not isinstance(host, str):
        return host
    return tuple(
        sorted(
            (neighbor, graph.rates[host, neighbor], graph.latency(host, neighbor))
            for neighbor in graph.neighbors[host]
        )
    )


# ---- order


def _has_scipy():
    return importlib.util.find_spec("scipy") is not None


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
        order = _halving_order(graph, group, lanes, shard)
    else:
        order = None
        if n <= MOST_EXACT:
            arcs = {
                (i, j): _arc(graph, lanes[i], lanes[j], shard / kept)
                for i, j in itertools.permutations(range(n), 2)
            }
            if _is_least(graph, arcs):
                order = list(range(n))
            elif _has_scipy():
                order = ring_order.solve(arcs, graph.rates)
        if order is None:
            order = _two_opt(graph, lanes, shard / kept)
    return tuple(group[index] for index in order)


def _arc(graph, senders, receivers, size):
    """Returns the latency of the messages between the lanes of two members, and their loads."""
    pairs = zip(senders, receivers, strict=True)
    return cost.round_loads(graph, [(*pair, size) for pair in pairs])


def _is_least(graph, arcs):
    """Returns whether the order of the numbers is certainly a cheapest ring."""
    n = 1 + max(i for i, _ in arcs)
    ring = [arcs[i, (i + 1) % n] for i in range(n)]
    total = {}
    for _, loads in ring:
        for link, load in loads.items():
            total[link] = total.get(link, 0.0) + load
    latency = max(latency for latency, _ in ring)
    transfer = max(load / graph.rates[link] for link, load in total.items())
    # Each member has an arc, and the arcs of a ring connect all members.
    least_transfer = max(
        min(
            max(load / graph.rates[link] for link, load in arcs[i, j][1].items())
            for j in range(n)
            if j != i
        )
        for i in range(n)
    )
    connected, least_latency = {0}, 0.0
    while len(connected) < n:
        step, nearest = min(
            (arcs[i, j][0], j) for i in connected for j in range(n) if j not in connected
        )
        connected.add(nearest)
        least_latency = max(least_latency, step)
    return latency + transfer <= (least_latency + least_transfer) * (1 + _TOLERANCE)


def _halving_order(graph, group, lanes, size):
    """Returns the best order for `halving`: of all on a small group, of two on a larger one.

    The largest messages are those between members that are half of the group apart. So an order
    whose numbers have their bits reversed sends them to near members.
    """
    n = len(group)
    power = 1 << (n.bit_length() - 1)
    if n <= MOST_EXACT:
        # Flipping the same bit in all numbers gives an equivalent order.
        fixed = 1 if power == n else 0
        tails = itertools.permutations(range(fixed, n))
        orders = ([*range(fixed), *tail] for tail in tails)
    else:
        bits = power.bit_length() - 1
        reverse = [int(f"{i:0{bits}b}"[::-1], 2) for i in range(power)]
        orders = ([*range(n)], [*reverse, *range(power, n)])
    kinds = [_kind(graph, member) for member in group]
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    kinds = [numbers[kind] for kind in kinds]
    best, best_seconds, seen = None, math.inf, set()
    for order in orders:
        alike = tuple(kinds[index] for index in order)
        if alike in seen:
            continue
        seen.add(alike)
        sequences = [
            cost.phases("halving", [lanes[index][lane] for index in order], n, size)[0]
            for lane in range(len(lanes[0]))
        ]
        seconds = sum(
            cost.round_seconds(graph, [flow for _, flows in rounds for flow in flows])
            for rounds in zip(*sequences, strict=True)
        )
        if seconds < best_seconds * (1 - _TOLERANCE):
            best, best_seconds = order, seconds
    return best


def _two_opt(graph, lanes, size):
    """Returns an order of a ring that no reversal of a part makes cheaper."""
    n = len(lanes)
    flows = n * len(lanes[0])
    tries = _TRIED_TURNS // flows

    def price(order):
        loads, latencies = {}, []
        for a, b in zip(order, [*order[1:], order[0]], strict=True):
            latency, arc = _cached_arc(a, b)
            latencies.append(latency)
            for link, load in arc.items():
                loads[link] = loads.get(link, 0.0) + load
        times = {link: load / graph.rates[link] for link, load in loads.items()}
        # Among orders with equal rounds, prefer less load on all links: it leads to better orders.
        total = math.fsum(latencies) + math.fsum(times.values())
        fullest = max(times, key=times.get)
        # A link of a host carries the same in any order.
        is_least = min(latencies) == max(latencies) and not own.isdisjoint(fullest)
        return max(latencies) + times[fullest], total, is_least

    @functools.cache
    def _cached_arc(a, b):
        return _arc(graph, lanes[a], lanes[b], size)

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
