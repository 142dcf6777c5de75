"""Simulates an allreduce on a network, message by message. It uses nothing of `easyddl.plan`.

Messages carry slices of arrays, so it is seen whether the result is the sum. The flows of a round
share links fairly (max-min), and a round ends with its last flow.
"""

import functools
import itertools

import numpy as np

MESSAGE = 2048  # bytes that a message costs its sender


class Network:
    """Links with their rates, and the paths of fewest links."""

    def __init__(self, hosts, links):
        self.hosts, self.names = hosts, sorted({name for a, b, *_ in links for name in (a, b)})
        self.number = {name: index for index, name in enumerate(self.names)}
        self.directed = [(a, b) for x, y, *_ in links for a, b in ((x, y), (y, x))]
        self.index = {ends: index for index, ends in enumerate(self.directed)}
        self.rates = np.array([rate for *_, rate, _ in links for _ in range(2)])
        self.delays = np.array([delay for *_, delay in links for _ in range(2)])
        self.near = {name: [] for name in self.names}
        for a, b in self.directed:
            self.near[a].append(b)
        self.known = {}

    def paths(self, source, target):
        """All paths of fewest links, found by trying one length after the other."""
        paths = [[source]]
        while True:
            longer = [
                [*path, node]
                for path in paths
                for node in self.near[path[-1]]
                if node not in path and (node == target or node not in self.hosts)
            ]
            assert longer, (source, target)
            done = [path for path in longer if path[-1] == target]
            if done:
                return done
            paths = longer

    def route(self, source, target):
        """The share of each link, and the latency. Each switch divides evenly between next hops."""
        if (source, target) not in self.known:
            paths, shares = self.paths(source, target), np.zeros(len(self.directed))
            for path in paths:
                share = 1.0
                for step in range(len(path) - 1):
                    begin = path[: step + 1]
                    share /= len({other[step + 1] for other in paths if other[: step + 1] == begin})
                for ends in itertools.pairwise(path):
                    shares[self.index[ends]] += share
            delays = [
                sum(self.delays[self.index[ends]] for ends in itertools.pairwise(path))
                for path in paths
            ]
            self.known[source, target] = shares, max(delays)
        return self.known[source, target]

    def seconds(self, messages):
        """The time of a round of messages, each a source, a target and its bytes."""
        if not messages:
            return 0.0
        left = np.array([size for *_, size in messages], float)
        usage = np.array([self.route(a, b)[0] for a, b, _ in messages]).T
        for flow, (source, _, size) in enumerate(messages):
            own = [self.index[source, node] for node in self.near[source]]
            usage[own, flow] *= (size + MESSAGE) / size
        time, active = 0.0, np.ones(len(left), bool)
        while active.any():
            speed = self._fair(usage, active)
            step = (left[active] / speed[active]).min()
            time += step
            left = np.where(active, left - speed * step, left)
            active &= left > 1e-6
        return time + max(self.route(a, b)[1] for a, b, _ in messages)

    def _fair(self, usage, active):
        speed, rising, room = np.zeros(len(active)), active.copy(), self.rates.astype(float)
        while rising.any():
            demand = usage[:, rising].sum(axis=1)
            limit = np.divide(room, demand, where=demand > 0, out=np.full_like(room, np.inf))
            most = limit.min()
            speed[rising] += most
            room = room - demand * most
            full = limit <= most * (1 + 1e-9)
            rising &= ~(usage[full] > 0).any(axis=0)
        return speed


class Job:
    """Hosts with an array each, which they reduce by messages."""

    def __init__(self, network, elements, scale=1.0):
        self.network, self.scale = network, scale
        self.data = {h: np.arange(elements) * 3.0 + i for i, h in enumerate(network.hosts)}
        self.sum = sum(self.data.values())
        self.time, self.carried = 0.0, np.zeros(len(network.directed))

    def run(self, programs):
        """Runs generators that yield their messages of each round, side by side."""
        programs = list(programs)
        while programs:
            rounds = [(program, next(program, None)) for program in programs]
            programs = [program for program, messages in rounds if messages is not None]
            messages = [m for _, several in rounds if several for m in several if m[3] > m[2]]
            values = [self.data[source][low:high].copy() for source, _, low, high, _ in messages]
            for (_, target, low, high, adds), value in zip(messages, values, strict=True):
                self.data[target][low:high] = value + adds * self.data[target][low:high]
            flows = [(a, b, (high - low) * self.scale) for a, b, low, high, _ in messages]
            for a, b, size in flows:
                self.carried += self.network.route(a, b)[0] * size
            self.time += self.network.seconds(flows)

    def allreduce(self, nest, algorithms):
        """Reduces inside of the innermost groups, between their shards, and gathers."""
        levels = [nest]
        while not isinstance(levels[-1][0], str):
            levels.append(tuple(child for group in levels[-1] for child in group))
        depth = len(levels)
        # The hosts of a group that own something, with what they own: for each unit of a level.
        units = {host: [(host, 0, len(self.sum))] for host in self.network.hosts}
        gathers = []
        for level, algorithm in enumerate(algorithms):
            groups = [nest] if level + 1 == depth else list(levels[depth - 2 - level])
            owners = min(map(len, groups))
            is_last = level + 1 == depth
            teams, above = [], {}
            for group in groups:
                owned = []
                for lane in zip(*(units[child] for child in group), strict=True):
                    members = [host for host, _, _ in lane]
                    team = (members, len(members) if is_last else owners, *lane[0][1:])
                    teams.append(team)
                    owned += [
                        (members[i], *bounds)
                        for i, bounds in enumerate(cut(*team[1:]))
                        if i < owners
                    ]
                above[group] = sorted(owned, key=lambda each: each[1])
            steps = (LAST_PROGRAMS if is_last else PROGRAMS)[algorithm]
            self.run(steps[0](*team) for team in teams if len(team[0]) > 1)
            gathers.append((steps[1], teams))
            units = above
        for gather, teams in reversed(gathers):
            if gather is not None:
                self.run(gather(*team) for team in teams if len(team[0]) > 1)


def cut(parts, low, high):
    edges = np.linspace(low, high, parts + 1).round().astype(int)
    return list(itertools.pairwise(edges.tolist()))


def whole(members, owners, low, high):
    yield [(a, b, low, high, True) for a, b in itertools.permutations(members, 2)]


def direct_reduce(members, owners, low, high):
    yield [
        (a, members[i], *part, True)
        for i, part in enumerate(cut(owners, low, high))
        for a in members
        if a != members[i]
    ]


def direct_gather(members, owners, low, high):
    yield [
        (members[i], a, *part, False)
        for i, part in enumerate(cut(owners, low, high))
        for a in members
        if a != members[i]
    ]


def _parts(members, owners, low, high):
    return [*cut(owners, low, high), *[(high, high)] * (len(members) - owners)]


def ring_reduce(members, owners, low, high):
    """A shard starts behind its owner, and arrives there with all values."""
    n, parts = len(members), _parts(members, owners, low, high)
    at = [(owner + 1) % n for owner in range(n)]
    for _ in range(n - 1):
        yield [(members[at[o]], members[(at[o] + 1) % n], *parts[o], True) for o in range(n)]
        at = [(where + 1) % n for where in at]


def ring_gather(members, owners, low, high):
    n, parts = len(members), _parts(members, owners, low, high)
    for step in range(n - 1):
        yield [
            (members[(o + step) % n], members[(o + step + 1) % n], *parts[o], False)
            for o in range(n)
        ]


def _halvings(members, low, high, near_first):
    """The rounds of pairs: who sends which bounds to whom."""
    rounds = int(np.log2(len(members)))
    power = 2**rounds
    if len(members) > power:
        yield [(members[i], members[i - power], low, high) for i in range(power, len(members))]
    bounds = [(low, high)] * power
    for number in range(rounds):
        distance = 2 ** (number if near_first else rounds - 1 - number)
        messages, kept = [], []
        for i, (begin, end) in enumerate(bounds):
            lower, upper = cut(2, begin, end)
            is_upper = i // distance % 2 == 1
            messages.append((members[i], members[i ^ distance], *(lower if is_upper else upper)))
            kept.append(upper if is_upper else lower)
        yield messages
        bounds = kept


def halving_reduce(members, owners, low, high, near_first=False):
    for messages in _halvings(members, low, high, near_first):
        yield [(*message, True) for message in messages]


def halving_gather(members, owners, low, high, near_first=False):
    for messages in reversed(list(_halvings(members, low, high, near_first))):
        yield [(b, a, begin, end, False) for a, b, begin, end in messages]


PROGRAMS = {
    "whole": (whole, None),
    "direct": (direct_reduce, direct_gather),
    "ring": (ring_reduce, ring_gather),
    "halving": (halving_reduce, halving_gather),
}
# On the last level nobody needs the shards in the order of the members.
LAST_PROGRAMS = {
    **PROGRAMS,
    "halving": tuple(functools.partial(each, near_first=True) for each in PROGRAMS["halving"]),
}


def simulate(network, nest, algorithms, size, elements=6720):
    """Simulates an allreduce of `size` bytes. Returns the finished `Job`."""
    job = Job(network, elements, size / elements)
    job.allreduce(nest, algorithms)
    return job
