"""Measures the memory of this host: bandwidth of a copy, and latency of one access.

It is plain Python, since importing NumPy takes longer than the measurement.
"""

import array
import time

from easyddl.doctor.hardware import memory as memory_of_host

_COPY = 32 << 20  # bytes
_LINES = 1 << 20  # cache lines of the table that is walked, 64 MiB
_LINE = 8  # integers in a cache line
_STEPS = 50_000
# Steps from line to line that visit all lines once, in an order that no CPU foresees.
_FACTOR, _SUMMAND = 1_664_525, 1_013_904_223


def measure(rounds=3):
    """Measures, and keeps the best of several rounds, since other work takes cores away.

    Args:
        rounds: Integer. How many.

    Returns:
        Dictionary: `copy` in bytes per second, read and written ones counted once; `latency` in
        seconds. Both are `None` on a host with too little free memory.
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
        seconds, position = _walk(far, position)  # goes on, since these lines are in a cache now
        outside.append(seconds)
    # The difference leaves the time of the interpreter out.
    latency = max(0.0, min(outside) - min(inside)) / _STEPS
    return {"copy": _COPY / copy, "latency": latency}


def _table(lines, steps):
    """A table in which the first entry of a cache line names that of the next line to visit."""
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
    """Follows the table. Returns the seconds that it took, and where it ended."""
    start = time.perf_counter()
    for _ in range(_STEPS):
        position = table[position]
    return time.perf_counter() - start, position
