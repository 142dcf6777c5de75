"""Judges which hosts form groups, by the rates between them.

A group is clear if its hosts reach each other at 1.5 times the rate, or more, at which any of them
reaches any other host. Groups may nest. If no group is clear while one pair of hosts sends at a
time, groups may be clear while all hosts send, because the hosts of a group share an uplink.
Nothing is proposed unless the groups and the links of the hosts explain all rates.
"""

import dataclasses
import itertools
import statistics

from easyddl.machine.units import bit_rate
from easyddl.plan.cost import LATENCY_BYTES
from easyddl.plan.graph import Graph, Link

CLEAR = 1.5  # rates that differ by less count as equal


@dataclasses.dataclass(frozen=True)
class Survey:
    """The measurements between all pairs of some hosts.

    Attributes:
        hosts: List of strings.
        alone: Dictionary by pair (from, to): the bytes per second while no other pair sends.
        together: List of measurements. Each is a list of rounds, in which all pairs of hosts occur
            once. A round is a dictionary of rates by pair, of pairs that send at the same time.
        latencies: Dictionary by pair (from, to) of seconds.
    """

    hosts: list
    alone: dict
    together: list
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
    """

    name: str
    hosts: tuple
    within: float
    across: float
    uplink: float

    def __str__(self):
        return (
            f"{self.name}: {' '.join(self.hosts)}, {bit_rate(self.within)} or more between them, "
            f"{bit_rate(self.across)} or less to other hosts, {bit_rate(self.uplink)} for all "
            "of them at the same time"
        )


@dataclasses.dataclass(frozen=True)
class Judgement:
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
    missing = [pair for pair in itertools.combinations(hosts, 2) if frozenset(pair) not in rates]
    if missing:
        pair = " and ".join(missing[0])
        return Judgement(None, [], f"the rate between {pair} could not be measured")
    if len(hosts) < 3:
        return Judgement(None, [], "two hosts can be in one order and one group only")
    sets = _clear_groups(hosts, rates) or _groups_of_all(survey)
    own = {host: max(rates[frozenset((host, b))] for b in hosts if b != host) for host in hosts}
    free = (name for name in map("group{}".format, itertools.count(1)) if name not in hosts)
    groups = [
        _group(name, members, survey, rates) for name, members in zip(free, sets, strict=False)
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
    return Judgement(_graph(hosts, own, groups, uplinks, survey.latencies), groups)


def _of_pairs(rates):
    """Returns the rate of each pair in its slower direction."""
    return {
        frozenset((a, b)): min(rate, rates[b, a])
        for (a, b), rate in rates.items()
        if (b, a) in rates
    }


def _clear_groups(hosts, rates):
    """Returns the clear groups, each a tuple in the order of the hosts, the smallest first.

    Only sets of hosts that the links above some rate connect can be clear groups.
    """
    group_of = {host: frozenset([host]) for host in hosts}
    found = set()
    for pair in sorted(rates, key=rates.get, reverse=True):
        a, b = pair
        if group_of[a] is group_of[b]:
            continue
        joined = group_of[a] | group_of[b]
        for host in joined:
            group_of[host] = joined
        if len(joined) == len(hosts):
            break
        if _within(joined, rates) >= CLEAR * _across(joined, rates):
            found.add(joined)
    ordered = [tuple(host for host in hosts if host in group) for group in found]
    return sorted(ordered, key=lambda group: (len(group), hosts.index(group[0])))


def _within(group, rates):
    return min(rate for pair, rate in rates.items() if pair <= group)


def _across(group, rates):
    return max(rate for pair, rate in rates.items() if len(pair & group) == 1)


def _groups_of_all(survey):
    """Returns the groups that are clear while all hosts send, in every measurement."""
    found = []
    for rounds in survey.together:
        rates = _of_pairs({pair: rate for each in rounds for pair, rate in each.items()})
        if len(rates) < len(survey.hosts) * (len(survey.hosts) - 1) // 2:
            return []
        found.append(_clear_groups(survey.hosts, rates))
    return found[0] if len(found) > 1 and all(each == found[0] for each in found) else []


def _group(name, members, survey, rates):
    inside = frozenset(members)
    across = _across(inside, rates)
    # In either direction, the most that left or reached the group in any round.
    most = [0.0, 0.0]
    for each in itertools.chain.from_iterable(survey.together):
        for way in (0, 1):
            passing = [
                rate for pair, rate in each.items() if pair[way] in inside and not inside >= {*pair}
            ]
            most[way] = max(most[way], sum(passing))
    # A sum slightly above the rate of one pair alone is noise of several simultaneous connections.
    uplink = min(most) if min(most) >= CLEAR * across else across
    return Group(name, members, _within(inside, rates), across, uplink)


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


def _graph(hosts, own, groups, uplinks, latencies):
    """Returns a tree: a switch for each group, and one that joins them."""
    core = "core" if "core" not in hosts else "core_of_hosts"

    def switch_above(members):
        around = [group for group in groups if {*members} < {*group.hosts}]
        return around[0].name if around else core  # the smallest comes first

    def latency(pairs):
        return min((latencies[pair] for pair in pairs if pair in latencies), default=0.0)

    links = []
    for host in hosts:
        near = latency([(host, other) for other in hosts if other != host]) / 2
        links.append(
            Link((host, switch_above([host])), own[host], max(near, LATENCY_BYTES / 2 / own[host]))
        )
    for group in groups:
        inner = latency(itertools.permutations(group.hosts, 2))
        outer = latency([(a, b) for a in group.hosts for b in hosts if b not in group.hosts])
        more = max(0.0, outer - inner) / 2
        links.append(Link((group.name, switch_above(group.hosts)), uplinks[group.name], more))
    return Graph(hosts, [*(group.name for group in groups), core], links)
