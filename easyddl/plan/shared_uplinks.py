"""Finds groups of hosts that share an uplink, by rates while several hosts send.

A link that carries what one host sends shows only while more hosts send over it. Rounds of random
pairs suggest groups: two hosts of a group reach each other at their full rate in every round. Then
the members of each suggested group send to others, as many at once as there are. It is a group if
its members together reach others at less than they can send, and neither its own switch nor other
groups explain that.
"""

import collections
import itertools
import random
import statistics

CLEAR = 1.5  # rates that differ by less count as equal

_SUGGESTED = 1.1  # pairs within a group are faster by so much than those to the group next to it
_ROUNDS_PER_HOST = 6  # above two; among six hosts a pair often has the uplink for itself
_LOOKS = 3  # what is measured of one group may suggest others
_TURNS = 4  # of a suggested group, in each of which its members reach other hosts


class SharedUplinks:
    """Measures which hosts share an uplink.

    Args:
        hosts: List of strings.
        own: Dictionary of the rate of each host's own link, in bytes per second.
        send: Function of a list of pairs (from, to), in which no host sends twice or receives
            twice. It returns a dictionary of the rates while all these pairs send.
    """

    def __init__(self, hosts, own, send):
        self._hosts, self._own, self._send = hosts, own, send
        self._rounds = []  # dictionaries of rates by pair
        self._rounds_of = {}  # those in which a group sends to others

    def find(self, known):
        """Measures, and returns a dictionary of the rates of uplinks by group.

        Args:
            known: Dictionary by group, a frozenset of hosts: the rate of one pair across. These are
                groups in any case.
        """
        self._send_at_random()
        for _ in range(_LOOKS):
            groups = {*known, *self._suggested()}
            for group in sorted(groups - self._rounds_of.keys(), key=sorted):
                self._rounds_of[group] = self._send_out_of(group)
        return self._decide(groups, known)

    def _send_at_random(self):
        chance, order = random.Random(0), list(self._hosts)
        for _ in range(_ROUNDS_PER_HOST * (len(order) - 2)):
            chance.shuffle(order)
            pairs = list(zip(order[::2], order[1::2], strict=False))
            self._measure([*pairs, *_back(pairs)])

    def _send_out_of(self, group):
        """Measures one way at a time: data that fill a link delay the other way's answers."""
        inside = [host for host in self._hosts if host in group]
        outside = [host for host in self._hosts if host not in group]
        found = []
        for turn in range(_TURNS):
            pairs = list(zip(_turned(inside, turn), _turned(outside, turn), strict=False))
            found += [self._measure(pairs), self._measure(_back(pairs))]
        return found

    def _measure(self, pairs):
        self._rounds.append(self._send(pairs))
        return self._rounds[-1]

    def _suggested(self):
        """Returns groups of near hosts, by average linkage."""
        near = self._nearness()
        height = {frozenset([host]): 0.0 for host in self._hosts}  # at which a group was joined
        parts, found = list(height), []

        def mean(a, b):
            return statistics.mean(near[frozenset(pair)] for pair in itertools.product(a, b))

        while len(parts) > 1:
            pair = max(itertools.combinations(parts, 2), key=lambda each: mean(*each))
            joined, height_of_all = pair[0] | pair[1], mean(*pair)
            found += [part for part in pair if height[part] > _SUGGESTED * height_of_all]
            parts = [part for part in parts if part not in pair] + [joined]
            height[joined] = height_of_all
        return [group for group in found if len(group) < len(self._hosts) - 1]

    def _nearness(self):
        """Returns a number by pair: how fast it is while others send, and how alike its hosts are.

        A pair across may have met no other on the uplink. So the two hosts must also be as fast as
        each other to all others.
        """
        shares = collections.defaultdict(list)
        for each in self._rounds:
            for (a, b), rate in each.items():
                shares[frozenset((a, b))].append(rate / min(self._own[a], self._own[b]))
        usual = {pair: _usual_low(each) for pair, each in shares.items()}

        def share(a, b):
            return usual.get(frozenset((a, b)), 0.0)

        found = {}
        for a, b in itertools.combinations(self._hosts, 2):
            others = [host for host in self._hosts if host not in (a, b)]
            difference = statistics.mean(abs(share(a, other) - share(b, other)) for other in others)
            found[frozenset((a, b))] = share(a, b) * (1 - difference)
        return found

    def _decide(self, groups, known):
        """Returns the uplinks of those groups whose rates no other groups explain."""
        uplinks = {}
        largest_first = sorted(groups, key=lambda each: (-len(each), sorted(each)))
        for group in [*largest_first, *largest_first]:  # the second time with the smaller ones
            found = self._uplink(group, uplinks, known)
            if found:
                uplinks[group] = found
            else:
                uplinks.pop(group, None)
        return uplinks

    def _uplink(self, group, uplinks, known):
        """Returns the rate of a group's uplink; `None` if other links explain its rates."""
        others = {each: rate for each, rate in uplinks.items() if each != group}
        # Two groups that are all hosts may share one link. Both are told, unless one has groups.
        if not any(each < group for each in others):
            others.pop(frozenset(self._hosts) - group, None)
        rate, possible = self._leaving(group, others)
        if group in known:
            # A sum slightly above the rate of one pair is noise of several connections.
            return rate if rate >= CLEAR * known[group] else known[group]
        is_shared = rate * CLEAR <= possible * self._steadiness(group, others)
        return rate if is_shared else None

    def _leaving(self, group, uplinks):
        """Returns how much leaves or reaches a group while all send, and how much could."""
        ways = []
        for way in (0, 1):
            totals = []
            for each in self._rounds_of[group]:
                expected = _expected(each, self._own, uplinks)
                passing = [p for p in each if p[way] in group]
                totals.append([sum(of[p] for p in passing) for of in (expected, each)])
            possible = max(totals)[0]
            full = [measured for could, measured in totals if could >= 0.9 * possible]
            ways.append((statistics.median(full), possible))
        return min(ways)

    def _steadiness(self, group, uplinks):
        """Returns the part of their rates that hosts of a group reach while all hosts send."""
        parts = []
        for each in self._rounds:
            expected = _expected(each, self._own, uplinks)
            parts += [rate / expected[pair] for pair, rate in each.items() if group >= {*pair}]
        return min(1.0, statistics.median(parts)) if parts else 0.0


def _back(pairs):
    return [(b, a) for a, b in pairs]


def _turned(items, count):
    count %= len(items)
    return items[count:] + items[:count]


def _usual_low(shares):
    """Returns the mean of the lower half of some numbers."""
    return statistics.mean(sorted(shares)[: (len(shares) + 1) // 2])


def _expected(pairs, own, uplinks):
    """Returns the rates of pairs that send at once, if hosts and uplinks alone limit them."""
    rates = {(a, b): min(own[a], own[b]) for a, b in pairs}
    for group, uplink in uplinks.items():
        for way in (0, 1):
            passing = [p for p in rates if p[way] in group and p[1 - way] not in group]
            total = sum(rates[pair] for pair in passing)
            for pair in passing:
                rates[pair] *= min(1.0, uplink / total)
    return rates
