"""Measures all pairs of hosts, one at a time, and then all hosts at the same time."""

import random
import time

from easyddl.doctor import link_survey
from easyddl.doctor.link_table import Link, rounds
from easyddl.plan.measured_network import Survey

_REPEATS = 3
_ALONE = 0.2  # seconds of sending, of which the best window counts
_TOGETHER = 0.6  # seconds of sending, of which the median counts: the pairs do not begin at once


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
    links, together = {}, []
    for number in range(_REPEATS):
        if number and time.monotonic() > end:
            break
        # In another order each time, so that other pairs send at the same time.
        order = random.Random(number).sample(hosts, len(hosts))
        planned = rounds(order)
        alone = [pair for each in planned for pair in each]
        for index, (a, b) in enumerate(alone, 1):
            progress(f"measuring pair {index} of {len(alone)}, repetition {number + 1}")
            for way in ((a, b), (b, a)):
                answers, _ = link_survey.measure(agents, ends, [way], 0, _ALONE)
                for pair, answer in answers.items():
                    links.setdefault(pair, Link()).add(answer)
        found = []
        for index, pairs in enumerate(planned, 1):
            progress(f"measuring all hosts, round {index} of {len(planned)}")
            both = [*pairs, *((b, a) for a, b in pairs)]
            answers, _ = link_survey.measure(agents, ends, both, 0, _TOGETHER)
            found.append({pair: answer["median_rate"] for pair, answer in answers.items()})
        together.append(found)
    rates = {pair: link.rate for pair, link in links.items() if link.rate}
    latencies = {pair: link.median_rtt / 2 for pair, link in links.items()}
    return Survey(hosts, rates, together, latencies)
