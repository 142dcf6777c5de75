"""The order of the members of a ring that makes its rounds shortest, solved exactly."""

import itertools


def solve(arcs, rates):
    """Finds the cheapest ring by a mixed integer program.

    A ring takes one arc out of each member and one into each. It is connected if a flow of n-1
    units from the first member through its arcs can leave one unit at each other member (Gavish and
    Graves, 1978). The cost is that of a round: the largest latency, plus the time of the fullest
    link.

    Args:
        arcs: Dict. For each pair of different members, numbers from 0, a pair: the latency of the
            messages from the first to the second, and a dict of the bytes on each link.
        rates: Dict. Bytes per second of each link.

    Returns:
        List of the members, which begins with 0.

    Raises:
        ImportError: If SciPy is not installed.
        RuntimeError: If the solver finds no solution.
    """
    import numpy as np
    import scipy.optimize

    pairs = sorted(arcs)
    n = 1 + max(pair[0] for pair in pairs)
    scale = max(
        latency + max((size / rates[link] for link, size in loads.items()), default=0.0)
        for latency, loads in arcs.values()
    )
    scale = scale or 1.0
    # The variables: whether the ring takes an arc, the flow of an arc, latency and transfer time.
    taken = {pair: index for index, pair in enumerate(pairs)}
    flow = {pair: index + len(pairs) for pair, index in taken.items()}
    latency, transfer = 2 * len(pairs), 2 * len(pairs) + 1
    rows, lows, highs = [], [], []

    def constrain(terms, low, high):
        row = np.zeros(2 * len(pairs) + 2)
        for index, factor in terms:
            row[index] += factor
        rows.append(row)
        lows.append(low)
        highs.append(high)

    for i in range(n):
        others = [j for j in range(n) if j != i]
        constrain([(taken[i, j], 1) for j in others], 1, 1)
        constrain([(taken[j, i], 1) for j in others], 1, 1)
        left = [(flow[j, i], 1) for j in others] + [(flow[i, j], -1) for j in others]
        constrain(left, *((1, 1) if i else (1 - n, 1 - n)))
        latencies = [(taken[i, j], arcs[i, j][0] / scale) for j in others]
        constrain([*latencies, (latency, -1)], -np.inf, 0)
    for pair in pairs:
        constrain([(flow[pair], 1), (taken[pair], 1 - n)], -np.inf, 0)
    loads = {}
    for pair, (_, sizes) in arcs.items():
        for link, size in sizes.items():
            loads.setdefault(link, []).append((taken[pair], size / rates[link] / scale))
    for terms in loads.values():
        constrain([*terms, (transfer, -1)], -np.inf, 0)

    cost = np.zeros(2 * len(pairs) + 2)
    cost[[latency, transfer]] = 1
    integrality = np.zeros_like(cost)
    integrality[: len(pairs)] = 1
    upper = np.full_like(cost, np.inf)
    upper[: len(pairs)] = 1
    found = scipy.optimize.milp(
        cost,
        integrality=integrality,
        bounds=scipy.optimize.Bounds(0, upper),
        constraints=scipy.optimize.LinearConstraint(np.array(rows), lows, highs),
        options={"mip_rel_gap": 0},
    )
    if found.x is None:
        raise RuntimeError(f"HiGHS found no order of {n} members: {found.message}")
    following = dict(pair for pair in pairs if found.x[taken[pair]] > 0.5)
    order = list(itertools.accumulate(range(n - 1), lambda at, _: following[at], initial=0))
    return order
