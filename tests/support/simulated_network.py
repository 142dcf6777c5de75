"""Hosts that a simulated network joins, and what a survey of the rates between them measures."""

import itertools
import random

from easyddl.plan import measured_network
from easyddl.plan.measured_network import Survey

G = 125e6  # bytes per second of 1 Gbit/s
RTT = 1e-4


def named(text, rate=G):
    return dict.fromkeys(text.split(), rate)


class Network:
    """Hosts whose links, and the uplinks of groups, divide their rates among the pairs that send.

    Args:
        hosts: Dictionary of rates by host.
        groups: List of pairs: the hosts of a group, and the rate of its uplink.
        slow: Dictionary of rates by pair, for links that are slow for another reason.
    """

    def __init__(self, hosts, groups=(), slow=None):
        self.hosts, self.groups, self.slow = hosts, groups, slow or {}

    def rates(self, pairs):
        """The rates of pairs that send at the same time: the narrowest of their equal shares."""
        links = [self._links(pair) for pair in pairs]
        users = [link for each in links for link in each]
        return {
            pair: min(rate / users.count((link, rate)) for link, rate in each)
            for pair, each in zip(pairs, links, strict=True)
        }

    def _links(self, pair):
        found = [((host, way), self.hosts[host]) for way, host in enumerate(pair)]
        for number, (members, rate) in enumerate(self.groups):
            inside = [host in members for host in pair]
            if sum(inside) == 1:
                found.append(((number, inside[0]), rate))
        if frozenset(pair) in self.slow:
            found.append((pair, self.slow[frozenset(pair)]))
        return found

    def survey(self, seed):
        """A survey on hosts that other work slows down, some measurements by much."""
        chance, hosts = random.Random(seed), list(self.hosts)

        def noisy(rate):
            return rate * chance.choice([chance.uniform(0.93, 1)] * 5 + [chance.uniform(0.6, 0.93)])

        alone = {
            pair: max(noisy(self.rates([pair])[pair]) for _ in range(3))
            for pair in itertools.permutations(hosts, 2)
        }

        def send(pairs):
            return {pair: noisy(rate) for pair, rate in self.rates(pairs).items()}

        latencies = {pair: RTT / 2 for pair in alone}
        return Survey(hosts, alone, measured_network.uplinks(hosts, alone, send), latencies)
