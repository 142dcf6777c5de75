"""Measures all pairs of hosts, one at a time, and then several hosts at the same time."""

import itertools
import time

from easyddl.doctor import link_survey
from easyddl.doctor.link_table import Link
from easyddl.plan import measured_network
from easyddl.plan.measured_network import Survey

_REPEATS = 3
_ALONE = 0.2  # seconds of sending, of which the best window counts
_TOGETHER = 0.6  # seconds of sending, of which the mean counts: what several share is a sum


def measure(agents, ends, seconds, progress):
    """Measures the rates between hosts.

    Args:
        agents: Dictionary of `RemoteAgent` by host.
        ends: Dictionary by pair (from, to) of the pair (address, port) of the second host.
        seconds: Number. The time after which no repetition begins. The first one always ends.
        progress: Function of a string that describes the current activity.

    Returns:
        `Survey`.
    """
    hosts, end = list(agents), time.monotonic() + seconds
    pairs, links = list(itertools.permutations(hosts, 2)), {}
    for number in range(_REPEATS):
        if number and time.monotonic() > end:
            break
        for index, pair in enumerate(pairs, 1):
            progress(f"measuring pair {index} of {len(pairs)}, repetition {number + 1}")
            answers, _ = link_survey.measure(agents, ends, [pair], 0, _ALONE)
            for answer in answers.values():
                links.setdefault(pair, Link()).add(answer)
    alone = {pair: link.rate for pair, link in links.items() if link.rate}
    latencies = {pair: link.median_rtt / 2 for pair, link in links.items()}
    counted = itertools.count(1)

    # All send for so long that the slow start of the most distant hosts counts little.
    longest = max([_TOGETHER, *(40 * link.min_rtt for link in links.values())])

    def send(together):
        progress(f"measuring several hosts at once, round {next(counted)}")
        answers, _ = link_survey.measure(agents, ends, together, 0, longest)
        return {pair: answer["mean_rate"] for pair, answer in answers.items()}

    return Survey(hosts, alone, measured_network.uplinks(hosts, alone, send), latencies)
