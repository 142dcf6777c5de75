"""Judges which hosts form groups, by the rates between them.

A group is clear if its hosts reach each other at 1.5 times the rate, or more, at which any of them
reaches any other host. Groups may nest. Others show only while several hosts send: see
`shared_uplinks.py`. Nothing is proposed unless the groups and the links of the hosts explain all
rates.
"""

import dataclasses
import itertools
import statistics
import typing

from easyddl.machine.units import bit_rate, seconds
from easyddl.plan.graph import Graph, Link
from easyddl.plan.shared_uplinks import CLEAR, SharedUplinks


@dataclasses.dataclass(frozen=True)
class Survey:
    """The measurements between all pairs of some hosts.

    Attributes:
        hosts: List of strings.
        alone: Dictionary by pair (from, to): the bytes per second while no other pair sends.
        uplinks: Dictionary of the rates of uplinks by group, a frozenset of hosts: see `uplinks`.
        latencies: Dictionary by pair (from, to) of seconds.
    """

    hosts: list
    alone: dict
    uplinks: dict
    latencies: dict


@dataclasses.dataclass(frozen=True)
class Group:
    """A group of hosts.

    Attributes:
        name: String.
        hosts: Tuple of strings.
        within: Number. The least rate between two of its hosts.
        across: Number. The greatest rate between one of its hosts and another host.
        uplink: Number. The rate of the link that its hosts share.
        latency: Number. The least seconds of a message from one of its hosts to another host.
    """

    name: str
    hosts: tuple
    within: float
    across: float
    uplink: float
    latency: float

    def __str__(self):
        return (
            f"{self.name}: {' '.join(self.hosts)}, {bit_rate(self.within)} or more between them, "
            f"{bit_rate(self.across)} or less to other hosts, {bit_rate(self.uplink)} for all "
            f"of them at the same time, {seconds(self.latency)} or more to other hosts"
        )


class Judgement(typing.NamedTuple):
    """What a survey shows.

    Attributes:
        graph: `Graph`; `None` if nothing is proposed.
        groups: List of `Group`, inner ones first.
        reason: String. Why nothing is proposed; empty if something is.
    """

    graph: Graph | None
    groups: list
    reason: str = ""


def judge(survey):
    """Returns the `Judgement` of a `Survey`."""
    hosts, rates = survey.hosts, _of_pairs(survey.alone)
    if obstacle := _obstacle(hosts, rates):
        return Judgement(None, [], obstacle)
    own = _own_rates(hosts, rates)
    free = (name for name in map("group{}".format, itertools.count(1)) if name not in hosts)
    ordered = sorted(survey.uplinks, key=lambda group: (len(group), min(map(hosts.index, group))))
    groups = [
        Group(
            name,
            tuple(host for host in hosts if host in group),
            _within(group, rates),
            _across(group, rates),
            survey.uplinks[group],
            _latency(survey, [(a, b) for a in group for b in hosts if b not in group]),
        )
        for name, group in zip(free, ordered, strict=False)
    ]
    for (a, b), rate in ((tuple(sorted(pair)), rate) for pair, rate in rates.items()):
        uplinks = [group.uplink for group in groups if (a in group.hosts) != (b in group.hosts)]
        expected = min(own[a], own[b], *uplinks)
        if rate * CLEAR < expected:
            reason = (
                f"the rates between hosts differ, and no groups explain them: {a} and {b} reach "
                f"{bit_rate(rate)}, where other pairs of them reach {bit_rate(expected)}"
            )
            return Judgement(None, [], reason)
    own, uplinks = _alike(own), _alike({group.name: group.uplink for group in groups})
    if not groups and len(set(own.values())) == 1:
        rate = bit_rate(next(iter(own.values())))
        return Judgement(None, [], f"the hosts are alike: {rate} between any two of them")
    return Judgement(_graph(survey, own, groups, uplinks), groups)


def uplinks(hosts, alone, send):
    """Measures the uplinks of groups, and returns a dictionary of their rates by group.

    Args:
        hosts: List of strings.
        alone: See `Survey`.
        send: See `SharedUplinks`.
    """
    rates = _of_pairs(alone)
    if _obstacle(hosts, rates):
        return {}
    return SharedUplinks(hosts, _own_rates(hosts, rates), send).find(_clear_groups(hosts, rates))


def _obstacle(hosts, rates):
    """Returns why no groups of the hosts can be found; empty if they can."""
    missing = [pair for pair in itertools.combinations(hosts, 2) if frozenset(pair) not in rates]
    if missing:
        return f"the rate between {' and '.join(missing[0])} could not be measured"
    return "two hosts can be in one order and one group only" if len(hosts) < 3 else ""


def _own_rates(hosts, rates):
    return {host: max(rates[frozenset((host, b))] for b in hosts if b != host) for host in hosts}


def _of_pairs(rates):
    """Returns the rate of each pair in its slower direction."""
    return {
        frozenset((a, b)): min(rate, rates[b, a])
        for (a, b), rate in rates.items()
        if (b, a) in rates
    }


def _clear_groups(hosts, rates):
    """Returns the greatest rate across by clear group.

    Only sets of hosts that the links above some rate connect can be clear groups.
    """
    group_of = {host: frozenset([host]) for host in hosts}
    found = {}
    for pair in sorted(rates, key=rates.get, reverse=True):
        a, b = pair
        if group_of[a] is group_of[b]:
            continue
        joined = group_of[a] | group_of[b]
        for host in joined:
            group_of[host] = joined
        if len(joined) == len(hosts):
            break
        across = _across(joined, rates)
        if _within(joined, rates) >= CLEAR * across:
            found[joined] = across
    return found


def _within(group, rates):
    return min(rate for pair, rate in rates.items() if pair <= group)


def _across(group, rates):
    return max(rate for pair, rate in rates.items() if len(pair & group) == 1)


def _alike(rates):
    """Replaces rates that differ by little by their median."""
    found, bins = {}, []
    for name in sorted(rates, key=rates.get, reverse=True):
        if not bins or rates[name] * CLEAR < rates[bins[-1][0]]:
            bins.append([])
        bins[-1].append(name)
    for names in bins:
        found.update(dict.fromkeys(names, statistics.median(rates[name] for name in names)))
    return found


def _latency(survey, pairs):
    """Returns the least latency of some pairs."""
    known = survey.latencies
    return min((known[pair] for pair in pairs if pair in known), default=0.0)


def _graph(survey, own, groups, uplinks):
    """Returns a tree: a switch for each group, and one that joins them."""
    hosts = survey.hosts
    core = "core" if "core" not in hosts else "core_of_hosts"

    def switch_above(members):
        around = [group for group in groups if {*members} < {*group.hosts}]
        return around[0].name if around else core  # the smallest comes first

    members = {host: (host,) for host in hosts} | {group.name: group.hosts for group in groups}
    above = {name: switch_above(each) for name, each in members.items()}
    nearest = {
        name: _latency(survey, itertools.product(each, {*hosts} - {*each}))
        for name, each in members.items()
    }

    def to_switch(name):
        """Returns the latency from a node's hosts to the switch above it."""
        siblings = [other for other in members if other != name and above[other] == above[name]]
        # Without the neighbor's half, a node far from all others would get only half of the way.
        return min(
            _latency(survey, itertools.product(members[name], members[other])) - nearest[other] / 2
            for other in siblings
        )

    links = []
    for host in hosts:
        links.append(Link((host, above[host]), own[host], to_switch(host)))
    for group in groups:
        inner = _latency(survey, itertools.permutations(group.hosts, 2)) / 2
        more = max(0.0, to_switch(group.name) - inner)
        links.append(Link((group.name, above[group.name]), uplinks[group.name], more))
    return Graph(hosts, [*(group.name for group in groups), core], links)
