"""Networks of the tests: names of hosts, and links as (end, end, bytes per second, seconds)."""

import random

G = 1.25e8  # 1 Gbit/s


def _host(host, switch, rate=G, latency=None):
    return (host, switch, rate, 16384 / rate if latency is None else latency)


def racks(sizes, uplink, slow=(), slow_rate=G / 10, latency=5e-6):
    """Racks below one switch."""
    hosts, links = [], []
    for rack, size in enumerate(sizes):
        links.append((f"r{rack}", "core", uplink, latency))
        for i in range(size):
            name = f"h{rack}x{i}"
            hosts.append(name)
            links.append(_host(name, f"r{rack}", slow_rate if name in slow else G))
    return hosts, links


def aisles(aisle_uplink, rack_uplink, shape=(2, 2, 2)):
    hosts, links = [], []
    for a in range(shape[0]):
        links.append((f"a{a}", "core", aisle_uplink, 2e-5))
        for r in range(shape[1]):
            links.append((f"a{a}r{r}", f"a{a}", rack_uplink, 1e-5))
            for i in range(shape[2]):
                hosts.append(f"h{a}{r}{i}")
                links.append(_host(f"h{a}{r}{i}", f"a{a}r{r}"))
    return hosts, links


def chain(sizes, rate, is_ring):
    """Switches in a line or a ring, with hosts."""
    hosts, links, n = [], [], len(sizes)
    for s, size in enumerate(sizes):
        if s + 1 < n or is_ring:
            links.append((f"s{s}", f"s{(s + 1) % n}", rate, 1e-5))
        for i in range(size):
            hosts.append(f"h{s}x{i}")
            links.append(_host(f"h{s}x{i}", f"s{s}"))
    return hosts, links


def spines(leaves, size, count, rate):
    """Leaf switches, each linked to all spines."""
    hosts, links = [], []
    for leaf in range(leaves):
        links += [(f"l{leaf}", f"spine{s}", rate, 5e-6) for s in range(count)]
        for i in range(size):
            hosts.append(f"h{leaf}x{i}")
            links.append(_host(f"h{leaf}x{i}", f"l{leaf}"))
    return hosts, links


def two_rates(fast, slow):
    hosts = [f"f{i}" for i in range(fast)] + [f"s{i}" for i in range(slow)]
    return hosts, [_host(h, "core", G if h[0] == "f" else G / 4) for h in hosts]


SMALL = {
    "two racks": racks([2, 2], G / 5),
    "one switch": racks([4], G),
    "unequal racks": racks([3, 1], G / 4),
    "unequal racks of six": racks([4, 2], G / 4),
    "a slow host": racks([4], G, slow=["h0x2"]),
    "a slow host of six": racks([3, 3], G, slow=["h1x0"]),
    "two rates": two_rates(3, 2),
    "a line": chain([2, 1, 2], G / 3, False),
    "a ring of racks": chain([1, 2, 1, 1], G / 3, True),
    "three racks": racks([2, 2, 2], G / 3),
}

LARGE = {
    "aisles": aisles(G / 4, G / 2),
    "fat tree": aisles(2 * G, G, (2, 4, 4)),
    "fat tree of 64": aisles(4 * G, 2 * G, (4, 4, 4)),
    "spines": spines(4, 4, 2, G / 2),
    "unequal": racks([8, 4, 3, 1], G),
    "unequal aisles": racks([9, 5], G / 2),
    "a slow host of many": racks([8, 8], G, slow=["h0x3"]),
    "rates": two_rates(10, 5),
    "line": chain([4, 4, 4], G / 2, False),
    "ring": chain([3, 3, 3, 3, 3], G / 2, True),
    "ring of unequal racks": chain([5, 1, 3, 1, 6], G / 3, True),
    "many racks": racks([4] * 16, G),
    "racks of Cho": racks([16, 16, 16], G),
    "flat": racks([24], G),
}


def worst_order(hosts):
    """Hosts so that neighbors are on different switches, as a hostfile by number may have them."""
    shuffled = sorted(hosts, key=lambda host: (host[-1], host))
    return shuffled


def random_order(hosts, seed):
    return random.Random(seed).sample(hosts, len(hosts))
