"""Judgements of `easyddl doctor` on links, from constructed measurements."""

import concurrent.futures
import itertools
import random

import pytest

from easyddl.doctor import judge_links, link_faults
from easyddl.doctor.finding import Level
from easyddl.doctor.link_faults import Fault
from easyddl.doctor.link_survey import LinkSurvey
from easyddl.doctor.link_table import Link, rounds

GIGABIT = 1e9 / 8


def hosts(count):
    return [f"h{i + 1}" for i in range(count)]


def link(rate=GIGABIT, rtt=50e-6, lost=0, sent=2000, confirmed=True):
    made = Link(confirmed=confirmed)
    result = {"min_rtt": rtt, "median_rtt": 2 * rtt, "rate": rate, "sent": sent, "lost": lost}
    made.add({**result, "retransmitted": 0, "interface_address": "10.0.0.1"})
    return made


def network_of(names, bad=()):
    """Good links between all hosts, but for those given."""
    return {pair: dict(bad).get(pair) or link() for pair in itertools.permutations(names, 2)}


def warned(findings):
    return [finding.hosts for finding in findings if finding.level is not Level.FINE]


@pytest.mark.parametrize("count", range(1, 12))
def test_rounds_hold_each_pair_once_and_each_host_at_most_once_a_round(count):
    all_rounds = rounds(hosts(count))
    for pairs in all_rounds:
        busy = [host for pair in pairs for host in pair]
        assert len(busy) == len(set(busy))
    found = [frozenset(pair) for pairs in all_rounds for pair in pairs]
    assert len(found) == len(set(found)) == count * (count - 1) // 2
    # As few rounds as there can be.
    assert len(all_rounds) == (count - 1 if count % 2 == 0 else count)


@pytest.mark.parametrize(
    ("bad", "fault", "word"),
    [
        (link(rate=GIGABIT / 2), Fault.RATE, "500 Mbit/s"),
        (link(rtt=20e-3), Fault.LATENCY, "20 ms"),
        (link(lost=40), Fault.LOSS, "2.0%"),
    ],
)
@pytest.mark.parametrize("count", [3, 4, 8, 16])
def test_one_bad_link_is_named(bad, fault, word, count):
    names = hosts(count)
    a, b = names[1], names[-1]
    measured = network_of(names, [((a, b), bad)])
    assert link_faults.confirmed(measured) == {(a, b): {fault}}
    findings = judge_links.links(names, measured)
    assert warned(findings) == [(a, b)]
    assert word in findings[0].message
    assert findings[0].advice


@pytest.mark.parametrize("count", [3, 4, 8])
def test_a_host_is_named_if_most_of_its_links_are_bad(count):
    names = hosts(count)
    bad = [(("h3", other), link(rate=GIGABIT / 2)) for other in names if other != "h3"]
    findings = judge_links.links(names, network_of(names, bad))
    assert warned(findings) == [("h3",)]


SLOW, LATE, LOSSY = link(rate=GIGABIT / 3), link(rtt=20e-3), link(rtt=20e-3, lost=30)


@pytest.mark.parametrize(
    ("bad", "expected", "word"),
    [
        # A link that is bad both ways is one finding.
        ({("h2", "h4"): LATE, ("h4", "h2"): LOSSY}, [("h2", "h4")], "from h4 to h2 are lost"),
        # A bad host and a bad link elsewhere are both named.
        (
            {**{(f"h{i}", "h3"): link(lost=50) for i in (1, 2, 4, 5, 6, 7, 8)}, ("h1", "h8"): SLOW},
            [("h3",), ("h1", "h8")],
            "the network connection of h3 is bad",
        ),
        # Two bad links of one host among many are links.
        ({("h1", "h2"): LATE, ("h1", "h3"): LATE}, [("h1", "h2"), ("h1", "h3")], "20 ms"),
        # A link is accused only if it was bad again.
        ({("h1", "h2"): link(rtt=20e-3, confirmed=False)}, [], "alike"),
        # Nothing could be measured.
        ({("h1", "h2"): Link(problems=["x", "timed out"], confirmed=True)}, [("h1", "h2")],
         "timed out"),
    ],
)  # fmt: skip
def test_the_bad_links_of_eight_hosts(bad, expected, word):
    findings = judge_links.links(hosts(8), network_of(hosts(8), bad.items()))
    assert warned(findings) == expected
    assert word in findings[0].message
    assert (findings[0].level is Level.ERROR) == (word == "timed out")


def test_chance_is_no_fault():
    random.seed(1)
    names = hosts(8)
    measured = {
        pair: link(GIGABIT * random.uniform(0.85, 1), random.uniform(20e-6, 400e-6), lost=1)
        for pair in itertools.permutations(names, 2)
    }
    assert link_faults.confirmed(measured) == {}
    assert warned(judge_links.links(names, measured)) == []


def test_two_hosts_far_apart_are_warned_about():
    names = hosts(2)
    measured = {pair: link(rtt=30e-3) for pair in itertools.permutations(names, 2)}
    findings = judge_links.links(names, measured)
    assert [finding.level for finding in findings] == [Level.WARNING]
    assert "30 ms" in findings[0].message


def test_links_of_lost_hosts_are_not_judged():
    names = hosts(4)
    measured = network_of(names, [(("h1", "h2"), Link(problems=["lost"] * 2, confirmed=True))])
    assert warned(judge_links.links(["h1", "h3", "h4"], measured)) == []


def test_blocked_ports_are_named_with_their_host():
    names = hosts(3)
    open_ports = {"address": "10.0.0.1", "ports": {"5000": None, "5001": None}}
    blocked = {"address": None, "ports": {"5000": "timed out", "5001": "timed out"}}
    reached = {pair: open_ports for pair in itertools.permutations(names, 2)}
    assert warned(judge_links.reachability(names, reached)) == []
    reached["h1", "h3"] = blocked
    finding = judge_links.reachability(names, reached)[0]
    assert (finding.level, finding.hosts) == (Level.ERROR, ("h3",))
    assert "from h1: timed out" in finding.message
    reached["h2", "h3"] = blocked
    assert "from any other host" in judge_links.reachability(names, reached)[0].message


class SimulatedAgent:
    """Answers as an agent whose host is busy now and then, and whose links may be bad."""

    def __init__(self, host, bad, busy, chance):
        self.host, self.bad, self.busy, self.chance = host, bad, busy, chance

    def ask(self, question, address, port, packets, seconds):
        future = concurrent.futures.Future()
        bad = self.bad.get((self.host, address))
        rate = GIGABIT / 2 if bad == "rate" else GIGABIT
        rtt = 20e-3 if bad == "delay" else 60e-6
        slowed = self.chance.random() < self.busy
        result = {
            "min_rtt": rtt * self.chance.uniform(1, 3),
            "median_rtt": rtt * self.chance.uniform(1, 300 if slowed else 4),
            "sent": packets + 30,
            "lost": sum(self.chance.random() < 0.02 for _ in range(packets)) * (bad == "loss"),
            "interface_address": self.host,
        }
        if slowed and self.chance.random() < 0.1:
            result["lost"] += 1
        if seconds:
            result["rate"] = rate * (self.chance.uniform(0.2, 0.9) if slowed else 1)
            result["retransmitted"] = 0
        future.set_result(result)
        return future


def surveyed(bad, busy, seed, count=8):
    names = hosts(count)
    chance = random.Random(seed)
    agents = {name: SimulatedAgent(name, bad, busy, chance) for name in names}
    ends = {(a, b): (b, 1) for a, b in itertools.permutations(names, 2)}
    survey = LinkSurvey(agents, ends, 60, lambda text: None)
    survey.measure()
    return warned(judge_links.links(names, survey.links))


@pytest.mark.parametrize("fault", ["rate", "delay", "loss", None])
@pytest.mark.parametrize("busy", [0.0, 0.3, 0.5])
def test_a_survey_on_busy_hosts_names_the_bad_link_alone(fault, busy):
    for seed in range(40):
        bad = {("h2", "h7"): fault} if fault else {}
        assert surveyed(bad, busy, seed) == ([("h2", "h7")] if fault else [])


def test_a_survey_without_time_says_what_it_left_out():
    agents = {name: SimulatedAgent(name, {}, 0, random.Random(0)) for name in hosts(4)}
    ends = {(a, b): (b, 1) for a, b in itertools.permutations(agents, 2)}
    survey = LinkSurvey(agents, ends, -1, lambda text: None)
    survey.measure()
    assert survey.left_out == 6
    findings = judge_links.links(list(agents), survey.links, survey.left_out)
    assert any("6 pairs were left out" in finding.message for finding in findings)
