"""The groups of hosts that a network suggests, and the lower bounds that they set."""

import dataclasses
import operator

from easyddl.machine.units import bit_rate

_MOST_LINKS = 256  # between switches that are cut one after the other


@dataclasses.dataclass(frozen=True)
class Partition:
    """Hosts in groups.

    Attributes:
        groups: Tuple of tuples of hosts, in the order of the graph.
        capacities: Tuple of floats: the bytes per second that can leave each group.
        cut: String. What separates the groups.
    """

    groups: tuple
    capacities: tuple
    cut: str

    def seconds(self, size):
        """Returns the least time of an allreduce, and the number of groups that set it.

        Each byte of the sum takes k-1 messages between k groups until it is complete, and k-1 more
        until all groups have it (Patarasuk and Yuan, 2009). Two groups are some group and all other
        hosts.
        """
        groups = len(self.groups)
        if groups < 2:
            return 0.0, groups
        among_all = 2 * (groups - 1) * size / sum(self.capacities)
        of_two = size / min(self.capacities)
        return (among_all, groups) if among_all >= of_two else (of_two, 2)


def of_network(graph, hosts):
    """Returns the partitions of some hosts that a network suggests, without duplicates.

    They are each host by itself; what is left connected without the links below each rate; the
    parts around each switch; and the two sides of each link.
    """
    rates = sorted({link.rate for link in graph.links})
    found = [_of(graph, hosts, [{host} for host in hosts], "each host by itself")]
    for rate in rates[1:]:
        parts = graph.components(lambda a, b, rate=rate: graph.rates[a, b] < rate)
        found.append(_of(graph, hosts, parts, f"the links below {bit_rate(rate)}"))
    for switch in graph.switches:
        parts = graph.components(lambda a, b, switch=switch: switch in (a, b))
        # The hosts of the switch itself are one group.
        own = {host for host in graph.neighbors[switch] if len(graph.neighbors[host]) == 1}
        parts = [part - own for part in parts if part != {switch}] + [own | {switch}]
        found.append(_of(graph, hosts, parts, f"the links of {switch}"))
    for link in graph.switch_links()[:_MOST_LINKS]:
        parts = graph.components(lambda a, b, ends=set(link.ends): {a, b} == ends)
        found.append(_of(graph, hosts, parts, "the link {}-{}".format(*link.ends)))
    attached = {}
    for host in graph.hosts:
        attached.setdefault(graph.switch_of(host), {graph.switch_of(host)}).add(host)
    parts = list(attached.values())
    parts += [{switch} for switch in graph.switches if switch not in attached]
    found.append(_of(graph, hosts, parts, "the switches of the hosts"))
    unique = {}
    for partition in found:
        known = unique.get(partition.groups)
        # Of several cuts between the same groups, the narrowest one sets the bound.
        if known is None or partition.seconds(1.0)[0] > known.seconds(1.0)[0]:
            unique[partition.groups] = partition
    return list(unique.values())


def _of(graph, hosts, parts, cut):
    """Makes a partition of parts of the graph. A part without hosts only forwards."""
    part_of = {node: number for number, part in enumerate(parts) for node in part}
    members = {}
    for host in hosts:
        members.setdefault(part_of[host], []).append(host)
    capacities = dict.fromkeys(members, 0.0)
    for (source, target), rate in graph.rates.items():
        if part_of.get(source) in capacities and part_of.get(target) != part_of[source]:
            capacities[part_of[source]] += rate
    return Partition(tuple(map(tuple, members.values())), tuple(capacities.values()), cut)


def lower_bound(graph, hosts, size):
    """Returns the least time of any allreduce of `size` bytes between some hosts.

    Returns:
        Pair: the seconds, and a string of what sets them.
    """
    first = hosts[0]
    latency = max((graph.route(first, host).latency for host in hosts[1:]), default=0.0)
    bounds = [(latency, "the latency of a message")]
    for partition in of_network(graph, hosts):
        seconds, groups = partition.seconds(size)
        bounds.append((seconds, _reason(partition, groups)))
    return max(bounds, key=operator.itemgetter(0))


def _reason(partition, groups):
    if groups > 2:
        return f"the narrowest cut, {partition.cut}: {groups} groups"
    narrow = partition.capacities.index(min(partition.capacities))
    hosts = partition.groups[narrow]
    names = ", ".join(hosts[:4]) + (", ..." if len(hosts) > 4 else "")
    rate = bit_rate(partition.capacities[narrow])
    return f"the narrowest cut, {partition.cut}: {rate} from {names} to the other hosts"
