"""The time of an allreduce between hosts on a network.

An allreduce is a sequence of rounds. A round takes the latency of its longest route, plus the time
of its fullest link: the bytes that the link carries, over its rate (Hockney, 1994, with links that
flows share). The rounds are those of the engine, `ext/algorithms/inter_host_algorithm.cpp`. For n
members and N bytes, with a the latency and b the time of a byte where members share no link
(Thakur, Rabenseifner and Gropp, 2005; Patarasuk and Yuan, 2009, for the ring):

- whole: a + (n-1) u N b
- direct: 2 a + 2 (n-1)/n u N b, with u = 1 + 0.08 (n-2), because the n-1 connections of a member
  share its link unevenly
- halving: 2 log2(n) a + 2 (n-1)/n N b, and 2 (a + N b) if n is not a power of two, with the powers
  of two within n
- ring: 2 (n-1) a + 2 (n-1)/n N b

A hierarchy reduces and scatters within the groups of the innermost level, continues with each shard
between the groups, and gathers on the way back (Cho et al., BlueConnect, 2019).

A nest says who is in which group: a tuple of hosts, or of nests of the same depth.
"""

import collections
import dataclasses
import functools
import itertools
import math
import operator

from easyddl import _core

LATENCY_BYTES = _core.LATENCY_BYTES

ALGORITHMS = ("whole", "direct", "halving", "ring")
FLAT = ("flat",)  # in place of the algorithms of the levels: one level of all hosts, as listed

# With more flows in a round, `whole` and `direct` are not the cheapest, and take long to compute.
_MOST_FLOWS = 1 << 16


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of an allreduce.

    Attributes:
        seconds: Float.
        algorithms: Tuple of strings: the algorithm of each level, the innermost first.
        link_bytes: Dict. The bytes that each link carries, by its ends in the direction of the
            data, as in `("h1", "r1")`.
    """

    seconds: float
    algorithms: tuple
    link_bytes: dict


# ---- nests


def hosts_of(nest):
    """Returns the hosts of a nest, in its order."""
    if isinstance(nest, str):
        return [nest]
    return [host for child in nest for host in hosts_of(child)]


def depth(nest):
    """Returns the number of levels of a nest; 0 for a host."""
    return 0 if isinstance(nest, str) else 1 + depth(nest[0])


def groups_at(nest, level):
    """Returns the groups of a level of a nest. Level 0 is the innermost one."""
    groups = [nest]
    for _ in range(depth(nest) - 1 - level):
        groups = [child for group in groups for child in group]
    return groups


def owners_of(nest):
    """Returns how many members of a group own a shard, for each level.

    It is the size of the smallest group of the level, as in the engine. On the outermost level
    all members do.
    """
    return [min(map(len, groups_at(nest, level))) for level in range(depth(nest))]


def lanes_of(nest, owners):
    """Returns the hosts of a group that own its shards, in the order of the shards."""
    if isinstance(nest, str):
        return [nest]
    level = depth(nest) - 1
    lanes = [lanes_of(child, owners) for child in nest[: owners[level]]]
    return [host for shard in zip(*lanes, strict=True) for host in shard]


# ---- algorithms


def engine_algorithm(size, members):
    """Returns the algorithm that the engine uses where the members need no shards.

    Args:
        size: Number. The bytes to reduce.
        members: Integer.
    """
    return _core.cheapest_inter_host_algorithm(int(size), members)


def candidates(group_sizes, owners, is_last, size):
    """Returns the algorithms among which a plan may choose for a level.

    Args:
        group_sizes: List of integers. The sizes of the level's groups.
        owners: Integer. How many members of a group own a shard.
        is_last: Boolean. Whether this is the outermost level.
        size: Number. The bytes that a group reduces.
    """
    most, found = max(group_sizes), []
    sizes = set() if is_last else {n for n in group_sizes if n > 1}
    for algorithm in ALGORITHMS:
        used = {_core.algorithm_with_shards(algorithm, int(size), n, owners) for n in sizes}
        if used - {algorithm}:
            continue
        if algorithm == "direct" and not _core.direct_is_safe(int(size), most, owners):
            continue
        if {"whole": most, "direct": owners}.get(algorithm, 0) * most > _MOST_FLOWS:
            continue
        found.append(algorithm)
    return found


def phases(algorithm, members, owners, size, is_last=True):
    """Returns the rounds of an algorithm: those of the reduce-scatter and those of the all-gather.

    Args:
        algorithm: String.
        members: List of strings, hosts.
        owners: Integer. How many of the first members own a shard.
        size: Number. Bytes.
        is_last: Boolean. Whether no other level continues with the shards: `halving` then sends the
            most to the nearest members.

    Returns:
        Pair of lists. A round is a pair: how often it is repeated, and its flows, each a tuple of
        sender, receiver and bytes. `whole` has no all-gather.
    """
    if len(members) == 1:
        return [], []
    if algorithm == "halving":
        return _halving(members, size, is_last)
    if algorithm == "ring":
        return _ring(members, owners, size)
    if algorithm == "whole":
        return [(1, [(a, b, size) for a, b in itertools.permutations(members, 2)])], []
    flows = [(a, b, size / owners) for b in members[:owners] for a in members if a != b]
    return [(1, flows)], [(1, [(b, a, bytes_) for a, b, bytes_ in flows])]


def _ring(members, owners, size):
    n = len(members)
    following = [*members[1:], members[0]]
    if owners == n:
        flows = [(a, b, size / n) for a, b in zip(members, following, strict=True)]
        return [(n - 1, flows)], [(n - 1, flows)]

    def rounds(first):
        # In each round a member sends the shard before the one that it sent in the last round.
        return [
            (
                1,
                [
                    (members[i], following[i], size / owners)
                    for i in range(n)
                    if (i - round_ - first) % n < owners
                ],
            )
            for round_ in range(n - 1)
        ]

    return rounds(1), rounds(0)


def _halving(members, size, is_last):
    power = 1 << (len(members).bit_length() - 1)
    beyond = list(zip(members[power:], members, strict=False))
    reduce = [(1, [(a, b, size) for a, b in beyond])] if beyond else []
    distances = [power >> number for number in range(1, power.bit_length())]
    for number, distance in enumerate(reversed(distances) if is_last else distances, 1):
        pairs = [(members[i], members[i ^ distance]) for i in range(power)]
        reduce.append((1, [(a, b, size / 2**number) for a, b in pairs]))
    back = [(1, [(b, a, bytes_) for a, b, bytes_ in flows]) for _, flows in reversed(reduce)]
    return reduce, back


# ---- time


def level_rounds(nest, level, size, algorithm=None):
    """Returns the rounds of a level, and the algorithm of its largest group.

    Args:
        nest: A nest.
        level: Integer. 0 is the innermost one.
        size: Number. The bytes to reduce.
        algorithm: String. By default the one that the engine uses for each group.
    """
    owners, is_last = owners_of(nest), level + 1 == depth(nest)
    kept = owners[level]
    shard = size / math.prod(owners[:level])
    groups = groups_at(nest, level)
    used, all_phases = {}, []
    for group in groups:
        n = len(group)
        used[n] = algorithm or engine_algorithm(shard, n)
        if not is_last:
            used[n] = _core.algorithm_with_shards(used[n], int(shard), n, kept)
        lanes = [lanes_of(child, owners) for child in group]
        all_phases += [
            phases(used[n], members, kept, shard, is_last) for members in zip(*lanes, strict=True)
        ]
    reduce, gather = zip(*all_phases, strict=True)
    return _together(reduce) + _together(gather), used[max(used)]


def _together(sequences):
    """Joins the rounds of groups that work at the same time."""
    sequences = [each for each in sequences if each]
    if not sequences:
        return []
    repeats = [[count for count, _ in each] for each in sequences]
    if any(each != repeats[0] for each in repeats):
        sequences = [
            [(1, flows) for count, flows in each for _ in range(count)] for each in sequences
        ]
    joined = []
    for rounds in itertools.zip_longest(*sequences, fillvalue=(1, [])):
        joined.append((rounds[0][0], [flow for _, flows in rounds for flow in flows]))
    return joined


def round_loads(graph, flows):
    """Returns the longest latency of a round, and what each link carries.

    Returns:
        Tuple of a float, and two dicts by link: what its messages cost their senders, in bytes, and
        the bytes of data.
    """
    messages, loads = collections.Counter(), collections.Counter()
    receivers = collections.Counter(source for source, _, _ in flows)
    latency = 0.0
    for source, target, size in flows:
        route = graph.route(source, target)
        latency = max(latency, route.latency)
        load = size * (1 + _core.UNEVENNESS * (receivers[source] - 1))
        for link, share in route.links:
            loads[link] += share * load
            if link[0] == source:
                messages[link] += share * _core.SENDER_BYTES
    return latency, messages, loads


def round_line(graph, flows):
    """Returns the time of a round as a function of the factor by which its data grow.

    It is the longest latency, plus the time of the fullest link: the greatest of some straight
    lines.
    """
    latency, messages, loads = round_loads(graph, flows)
    rates = graph.rates
    lines = {(messages[link] / rates[link], load / rates[link]) for link, load in loads.items()}
    return lambda factor: latency + max((at + slope * factor for at, slope in lines), default=0.0)


def level_line(graph, nest, level, algorithm):
    """Returns the time of a level as a function of the bytes; all its groups use an algorithm."""
    rounds, _ = level_rounds(nest, level, 1, algorithm)
    lines = [(count, round_line(graph, flows)) for count, flows in rounds]
    return lambda size: sum(count * line(size) for count, line in lines)


def best_levels(graph, nest):
    """Returns a function of the bytes: the least time of each level, and the algorithm for it.

    The levels follow one another, and what one sends does not depend on the algorithm of another.
    """
    line = functools.cache(functools.partial(level_line, graph, nest))
    owners, last = owners_of(nest), depth(nest) - 1
    members = [[len(group) for group in groups_at(nest, level)] for level in range(last + 1)]

    def best(level, size):
        shard = size / math.prod(owners[:level])
        names = candidates(members[level], owners[level], level == last, shard)
        timed = [(line(level, name)(size), name) for name in names]
        return min(timed, key=operator.itemgetter(0))

    return lambda size: [best(level, size) for level in range(last + 1)]


def allreduce(graph, nest, size, algorithms=None):
    """Returns the `Cost` of an allreduce.

    Args:
        graph: `Graph`.
        nest: A nest of hosts.
        size: Number. The bytes to reduce.
        algorithms: List of strings, one for each level, the innermost first. Defaults to `None`:
            those that the engine uses.
    """
    seconds, used, link_bytes = 0.0, [], collections.defaultdict(float)
    for level in range(depth(nest)):
        rounds, algorithm = level_rounds(nest, level, size, algorithms and algorithms[level])
        used.append(algorithm)
        for count, flows in rounds:
            seconds += count * round_line(graph, flows)(1)
            for source, target, bytes_ in flows:
                for link, share in graph.route(source, target).links:
                    link_bytes[link] += count * share * bytes_
    return Cost(seconds, tuple(used), dict(link_bytes))
