"""The survey of all pairs of hosts, and what `easyddl doctor` says of a plan."""

import collections
import concurrent.futures
import itertools

import pytest
from simulated_network import G, Network, named

from easyddl.doctor import judge_plan, pair_survey
from easyddl.doctor.finding import Level
from easyddl.doctor.link_table import Link

HOSTS = ["h1", "h2", "h3", "h4", "h5"]


class Agents(dict):
    """Agents whose answers come once all that were asked at the same time are known."""

    def __init__(self):
        super().__init__({host: self for host in HOSTS})
        self.batches, self.open = [], {}

    def ask(self, question, address, port, packets, seconds):
        assert question == "link"
        source, target = address
        if not self.open:
            self.batches.append([])
        self.batches[-1].append((source, target))
        future = concurrent.futures.Future()
        self.open[future] = (source, target)
        return future

    def answer(self):
        pairs, self.open = self.open, {}
        for future, pair in pairs.items():
            # Each measurement of a pair is faster than the one before.
            times = sum(batch.count(pair) for batch in self.batches)
            rate = 100 * times / len(pairs)
            result = {
                "rate": 2 * rate,
                "mean_rate": rate,
                "min_rtt": 1,
                "median_rtt": 4 - times / 9,
            }
            future.set_result({**result, "sent": 0, "lost": 0, "interface_address": "a"})


@pytest.fixture
def agents(monkeypatch):
    found = Agents()
    wait = concurrent.futures.wait

    def answer_and_wait(futures):
        found.answer()
        return wait(futures)

    monkeypatch.setattr(concurrent.futures, "wait", answer_and_wait)
    return found


def survey(agents, seconds, left_out=()):
    pairs = [pair for pair in itertools.permutations(HOSTS, 2) if pair not in left_out]
    return pair_survey.measure(
        agents, {pair: (pair, 1) for pair in pairs}, seconds, lambda text: None
    )


def back(pairs):
    return {(b, a) for a, b in pairs}


def test_pairs_alone_and_together(agents):
    found = survey(agents, 60)
    pairs = set(itertools.permutations(HOSTS, 2))
    alone = collections.Counter(batch[0] for batch in agents.batches if len(batch) == 1)
    assert alone == dict.fromkeys(pairs, 3)
    assert found.hosts == HOSTS and set(found.alone) == set(found.latencies) == pairs
    # Each measurement of a pair is faster than the one before.
    assert set(found.alone.values()) == {2 * 100 * 3}
    assert set(found.latencies.values()) == {(4 - 3 / 9) / 2}
    together = [batch for batch in agents.batches if len(batch) > 1]
    assert together
    for batch in together:
        # Both directions of two pairs, which have no host in common, or one direction of them.
        assert len({frozenset(pair) for pair in batch}) == 2 and len(set().union(*batch)) == 4
        assert len(batch) == len(set(batch)) and (len(batch) == 2 or back(batch) == {*batch})
    ways = [batch for batch in together if len(batch) == 2]
    assert ways and all(back(a) == {*b} for a, b in zip(ways[::2], ways[1::2], strict=True))


def test_without_time_each_pair_is_measured_once(agents):
    assert len(survey(agents, -1).alone) == 20
    assert sum(len(batch) == 1 for batch in agents.batches) == 20


def test_a_pair_that_cannot_be_reached_is_left_out(agents):
    found = survey(agents, -1, left_out=[("h2", "h4")])
    assert ("h2", "h4") not in found.alone and len(found.alone) == 19


RACKS = Network(named("h1 h2 h3 h4"), [(("h1", "h3"), G / 5), (("h2", "h4"), G / 5)])


def test_what_a_plan_would_gain():
    (finding,) = judge_plan.gain(RACKS.survey(0), {})
    assert finding.level is Level.WARNING and finding.subject == "plan"
    assert "1.7 times as fast as" in finding.message
    assert "group1: h1 h3, " in finding.message
    assert "`easyddl plan -H h1,h2,h3,h4 -o plan.toml`" in finding.advice


def test_named_racks_leave_nothing_to_gain():
    racks = {"h1": "x", "h2": "y", "h3": "x", "h4": "y"}
    assert judge_plan.gain(RACKS.survey(0), racks) == []
    assert judge_plan.gain(RACKS.survey(0), dict(zip(racks, "xxyy", strict=True)))


def test_hosts_that_are_alike_have_no_plan():
    assert judge_plan.gain(Network(named("h1 h2 h3 h4")).survey(0), {}) == []


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({"h1 h2": G, "h1 h3": G / 2, "h2 h3": G}, True),
        ({"h1 h2": G, "h1 h3": G / 1.4, "h2 h3": G}, False),
        ({"h1 h2": G, "h2 h1": G / 3}, False),  # two hosts
        ({}, False),
    ],
)
def test_when_pairs_are_measured_again(rates, expected):
    links = {tuple(pair.split()): Link(rates=[rate]) for pair, rate in rates.items()}
    assert judge_plan.is_worth_a_survey(links) == expected
