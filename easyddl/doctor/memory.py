"""Measures the memory of this host: the bandwidth of a copy, and the latency of an access.

This does not use NumPy, because importing it takes longer than the measurement.
"""

import array
import time

from easyddl.doctor.hardware_facts import memory as memory_of_host

_COPY = 32 << 20  # bytes
_LINES = 1 << 20  # cache lines of the table, which has 64 MiB
_LINE = 8  # integers in a cache line
_STEPS = 50_000
# A linear congruential generator. It visits all lines once, in an order that no CPU prefetches.
_FACTOR, _SUMMAND = 1_664_525, 1_013_904_223


def measure(rounds=3):
    """Measures the memory. Keeps the best of several rounds, because other work disturbs some.

    Args:
        rounds: Integer. The number of rounds.

    Returns:
        Dictionary: `copy`, the copied bytes per second, and `latency` in seconds. Both are `None`
        on a host with too little free memory.
    """
    if memory_of_host("MemAvailable") < 512 << 20:
        return {"copy": None, "latency": None}
    far, near = _table(_LINES, rounds * _STEPS), _table(64, 64)
    # The copies also push the table out of the caches.
    source, target = memoryview(bytearray(_COPY)), memoryview(bytearray(_COPY))
    copy = min(_copy(target, source) for _ in range(2 * rounds))
    inside, outside, position = [], [], 0
    for _ in range(rounds):
        inside.append(_walk(near, 0)[0])
        seconds, position = _walk(far, position)  # continue: the lines before are cached by now
        outside.append(seconds)
    # The difference excludes the time of the interpreter.
    latency = max(0.0, min(outside) - min(inside)) / _STEPS
    return {"copy": _COPY / copy, "latency": latency}


def _table(lines, steps):
    """Returns a table. The first entry of a cache line is the index of the next line to visit."""
    table, line = array.array("q", [0]) * (lines * _LINE), 0
    for _ in range(steps):
        following = (line * _FACTOR + _SUMMAND) % lines
        table[line * _LINE] = following * _LINE
        line = following
    return table


def _copy(target, source):
    start = time.perf_counter()
    target[:] = source
    return time.perf_counter() - start


def _walk(table, position):
    """Follows the table. Returns the seconds that it took, and the last position."""
    start = time.perf_counter()
    for _ in range(_STEPS):
        position = table[position]
    return time.perf_counter() - start, position
