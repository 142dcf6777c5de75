"""The graph of a network: hosts, switches, and the links between them."""

import collections
import dataclasses
import itertools


@dataclasses.dataclass(frozen=True)
class Link:
    """A link between two nodes. Both directions have its rate at the same time.

    Attributes:
        ends: Pair of strings. The names of a host or a switch.
        rate: Float. Bytes per second.
        latency: Float. Seconds.
    """

    ends: tuple
    rate: float
    latency: float


@dataclasses.dataclass(frozen=True)
class Route:
    """How data travel from one host to another.

    Attributes:
        links: Tuple of pairs: a link in its direction, as in `("h1", "r1")`, and the share of the
            data that it carries.
        latency: Float. Seconds, on the slowest of the paths.
    """

    links: tuple
    latency: float


class Graph:
    """A network.

    Data take the paths with the fewest links. If there are several, each switch divides the data
    evenly between them, as equal-cost multi-path routing does for many flows (RFC 2992). Hosts
    forward nothing.

    Args:
        hosts: List of strings.
        switches: List of strings.
        links: List of `Link`. At most one between two nodes.
    """

    def __init__(self, hosts, switches, links):
        self.hosts, self.switches, self.links = tuple(hosts), tuple(switches), tuple(links)
        self.rates, self._latencies = {}, {}
        self.neighbors = {name: [] for name in (*hosts, *switches)}
        for link in links:
            for source, target in (link.ends, link.ends[::-1]):
                self.rates[source, target] = link.rate
                self._latencies[source, target] = link.latency
                self.neighbors[source].append(target)
        self._switches = set(switches)
        self._only_switch = {
            host: self.neighbors[host][0]
            for host in hosts
            if len(self.neighbors[host]) == 1 and self.neighbors[host][0] in self._switches
        }
        self._routes, self._distances = {}, {}

    def route(self, source, target):
        """Returns the `Route` between two hosts.

        Raises:
            ValueError: If there is none.
        """
        first, last = self._only_switch.get(source), self._only_switch.get(target)
        if source == target or last == source or first == target:
            first = last = None
        between = (first or source, last or target)
        found = self._routes.get(between)
        if found is None:
            found = self._routes[between] = self._spread(*between)
        # A host with a single link shares the rest of the route with its switch.
        links, latency = found.links, found.latency
        if first:
            links = (((source, first), 1.0), *links)
            latency += self._latencies[source, first]
        if last:
            links = (*links, ((last, target), 1.0))
            latency += self._latencies[last, target]
        return Route(links, latency)

    def _spread(self, source, target):
        if source == target:
            return Route((), 0.0)
        distances = self._distances_to(target)
        if source not in distances:
            raise ValueError(f"No links lead from {source} to {target}.")
        links, shares, latencies = [], {source: 1.0}, {source: 0.0}
        while target not in shares:
            next_shares, next_latencies = collections.defaultdict(float), {}
            for node, share in shares.items():
                nearer = [
                    neighbor
                    for neighbor in self.neighbors[node]
                    if distances.get(neighbor) == distances[node] - 1
                    and (neighbor == target or neighbor in self._switches)
                ]
                for neighbor in nearer:
                    links.append(((node, neighbor), share / len(nearer)))
                    next_shares[neighbor] += share / len(nearer)
                    latency = latencies[node] + self._latencies[node, neighbor]
                    next_latencies[neighbor] = max(next_latencies.get(neighbor, 0.0), latency)
            shares, latencies = next_shares, next_latencies
        return Route(tuple(links), latencies[target])

    def _distances_to(self, target):
        """Returns the number of links from each switch, and from hosts next to them, to a node."""
        if target not in self._distances:
            distances, pending = {target: 0}, collections.deque([target])
            while pending:
                node = pending.popleft()
                if node != target and node not in self._switches:
                    continue  # a host forwards nothing
                for neighbor in self.neighbors[node]:
                    if neighbor not in distances:
                        distances[neighbor] = distances[node] + 1
                        pending.append(neighbor)
            self._distances[target] = distances
        return self._distances[target]

    def switch_of(self, host):
        """Returns the neighbor of a host with the fastest link; without links, the host."""
        near = self.neighbors[host]
        return max(near, key=lambda neighbor: self.rates[host, neighbor], default=host)

    def switch_links(self):
        """Returns the links between two switches."""
        return [link for link in self.links if self._switches.issuperset(link.ends)]

    def check_routes(self):
        """Raises a `ValueError` that names two hosts between which there is no route."""
        parts = self.components(lambda *ends: not self._switches.issuperset(ends))
        part_of = {node: number for number, part in enumerate(parts) for node in part}
        near = {
            host: {part_of[node] for node in self.neighbors[host] if node in self._switches}
            for host in self.hosts
        }
        if set.intersection(*near.values()):
            return
        for a, b in itertools.combinations(self.hosts, 2):
            if near[a].isdisjoint(near[b]) and b not in self.neighbors[a]:
                raise ValueError(f"No links lead from {a} to {b}. Hosts forward nothing.")

    def components(self, is_cut):
        """Returns the sets of nodes that remain connected when some links are cut.

        Args:
            is_cut: Function of the ends of a link, two names. Returns a boolean.
        """
        found, seen = [], set()
        for start in (*self.hosts, *self.switches):
            if start in seen:
                continue
            component, pending = {start}, [start]
            while pending:
                node = pending.pop()
                for neighbor in self.neighbors[node]:
                    if neighbor not in component and not is_cut(node, neighbor):
                        component.add(neighbor)
                        pending.append(neighbor)
            seen |= component
            found.append(component)
        return found
