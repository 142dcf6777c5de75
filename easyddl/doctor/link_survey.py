"""Measures the links between all hosts, and repeats the measurement of suspicious links."""

import time

from easyddl.doctor import link_faults
from easyddl.doctor.link_faults import Fault
from easyddl.doctor.link_table import Link, rounds
from easyddl.doctor.remote_agent import gather

_PACKETS, _MORE_PACKETS, _FEW_PACKETS = 400, 1000, 64
_SECONDS = 0.25  # duration of sending at full rate, for each direction
_AGREE = 4  # a link is slow if this many measurements find the same low rate,
_TRIES = 8  # or if it is slow in this many repeated measurements
_QUIET = 0.85  # if a good link has less than this part of its own rate, the hosts are busy


class LinkSurvey:
    """The links between the hosts that can reach each other.

    Args:
        agents: Dictionary of `RemoteAgent` by host.
        ends: Dictionary by pair (from, to) of the pair (address, port) of the second host.
        seconds: Number. The time for all links. Links for which it is too short are left out.
        progress: Function of a string that describes the current activity.

    Attributes:
        links: Dictionary of `Link` by pair.
        left_out: Integer. The number of pairs that were left out.
    """

    def __init__(self, agents, ends, seconds, progress):
        self.links = {pair: Link() for pair in ends}
        self.left_out = 0
        self._agents = agents
        self._ends = ends
        self._seconds = seconds
        self._progress = progress

    def measure(self):
        """Measures every link, and then suspicious links again."""
        end = time.monotonic() + self._seconds
        all_rounds = rounds(list(self._agents))
        for number, pairs in enumerate(all_rounds, 1):
            if time.monotonic() > end:
                self.left_out = sum(len(each) for each in all_rounds[number - 1 :])
                break
            self._progress(f"measuring links, round {number} of {len(all_rounds)}")
            self._measure(pairs)
            self._measure([(b, a) for a, b in pairs])
        self._look_again(time.monotonic() + max(10.0, self._seconds / 4))

    def _measure(self, pairs, packets=_PACKETS, seconds=_SECONDS):
        """Measures some links at once, and adds the results to `links`. Returns the rates."""
        answers, problems = measure(self._agents, self._ends, pairs, packets, seconds)
        for pair, answer in answers.items():
            self.links[pair].add(answer)
        for pair, problem in problems.items():
            self.links[pair].problems.append(problem)
        return {pair: answer.get("rate") for pair, answer in answers.items()}

    def _look_again(self, end):
        """Measures suspicious links one at a time, until they look good or stay bad."""
        good = link_faults.reference(self.links)
        tries = {
            pair: 0
            for pair, link in self.links.items()
            if link_faults.faults(link, good, first_look=True) or self._failed_once(pair)
        }
        control = self._control(tries)
        while tries and time.monotonic() < end:
            self._progress(f"measuring {len(tries)} suspicious links again")
            is_quiet = self._is_quiet(control)
            for pair in sorted(tries, key=lambda pair: tries[pair]):
                if time.monotonic() > end:
                    break
                self._try_again(pair, tries, good, is_quiet)
        for pair, count in tries.items():  # links for which the time was too short
            link = self.links[pair]
            is_slow_only = link_faults.faults(link, good) == {Fault.RATE}
            link.confirmed = count > 0 and (not is_slow_only or link.agreeing_rates > 1)

    def _try_again(self, pair, tries, good, is_quiet):
        link = self.links[pair]
        before = link_faults.faults(link, good, first_look=True)
        packets = _FEW_PACKETS
        if Fault.LOSS in before and link.sent < _MORE_PACKETS:
            packets = _MORE_PACKETS
        self._measure([pair], packets, _SECONDS if Fault.RATE in before else 0)
        after = link_faults.faults(link, good)
        if not after and (link.measured or not link.problems):
            del tries[pair]
            return
        # A busy host slows links down, but neither delays all round trips nor loses packets.
        is_sure = after != {Fault.RATE}
        tries[pair] += is_quiet or is_sure
        if is_sure or (tries[pair] and link.agreeing_rates >= _AGREE) or tries[pair] >= _TRIES:
            link.confirmed = True
            del tries[pair]

    def _failed_once(self, pair):
        return bool(self.links[pair].problems) and not self.links[pair].measured

    def _control(self, suspects):
        """Returns the fastest link that is not suspicious; `None` if all are suspicious."""
        others = [pair for pair in self.links if pair not in suspects and self.links[pair].rate]
        return max(others, key=lambda pair: self.links[pair].rate, default=None)

    def _is_quiet(self, control):
        if control is None:
            return True
        rate = self._measure([control], _FEW_PACKETS, _SECONDS).get(control)
        return rate is not None and rate >= _QUIET * self.links[control].rate


def measure(agents, ends, pairs, packets, seconds):
    """Measures some links at once.

    Args:
        agents: Dictionary of `RemoteAgent` by host.
        ends: Dictionary by pair (from, to) of the pair (address, port) of the second host.
        pairs: List of pairs. Those without an end are left out.
        packets: Integer. The number of small packets to send, for each link.
        seconds: Number. The duration of sending at full rate.

    Returns:
        Pair of dictionaries by pair: the answers of `probe.measure`, and the reasons of failures.
    """
    futures = {}
    for a, b in pairs:
        if (a, b) in ends:
            address, port = ends[a, b]
            arguments = {"address": address, "port": port, "packets": packets}
            futures[a, b] = agents[a].ask("link", seconds=seconds, **arguments)
    return gather(futures)
