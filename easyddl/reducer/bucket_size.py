"""The size of a bucket of gradients."""

import functools
import os
import time

import numpy as np

from easyddl import backends
from easyddl.collectives import arrays
from easyddl.runtime import affinity, validators, world

_VARIABLE = "EASYDDL_BUCKET_BYTES"

_LEAST, _MOST = 1 << 20, 1 << 25
_UNLIMITED = 1 << 62  # one bucket for all gradients of a dtype, after the backward pass
_LATENCY_SHARE = 0.05  # latency over transfer time


def bucket_bytes(latency, seconds_per_byte):
    """Returns the bucket size for a collective that takes `latency + bytes * seconds_per_byte`.

    Small buckets are submitted earlier, so that more of the communication overlaps with the
    backward pass, but every bucket costs the latency once. At the chosen size the latency is a
    twentieth of the transfer time. The size is at least 1 MiB and at most 32 MiB.

    Args:
        latency: Float. The seconds that the smallest collective takes.
        seconds_per_byte: Float. The additional seconds for each byte.

    Returns:
        Integer. The bucket size in bytes.

    Example:
    ```python
    bucket_bytes(50e-6, 1 / 8e9)  # 8 MB
    ```
    """
    if seconds_per_byte <= 0:
        return _MOST
    return int(min(_MOST, max(_LEAST, latency / (_LATENCY_SHARE * seconds_per_byte))))


def requested(bucket_bytes):
    """Returns the bucket size that the user chose, by an argument or by EASYDDL_BUCKET_BYTES.

    Args:
        bucket_bytes: The user's argument. If it is not `None`, it takes precedence.

    Returns:
        Integer, or `None` if the user chose no size.
    """
    if bucket_bytes is not None:
        otherwise = ", or None for a size that easyddl measures"
        return validators.positive_integer("bucket_bytes", bucket_bytes, otherwise)
    text = os.environ.get(_VARIABLE, "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{_VARIABLE} must be a positive number of bytes. Received: {text!r}")
    return int(text)


@functools.cache
def of_job():
    """Returns the bucket size that suits this job's backend, cores and speed of collectives.

    All ranks call it together once, and use the same result.
    """
    gains = backends.require().gains_by_overlap(affinity.compute_threads())
    overlaps = world.num_nodes() > 1 or arrays.allreduce(np.array(gains, np.uint8), "max")
    return _measured() if overlaps else _UNLIMITED


def _measured():
    small, large = 16 << 10, 1 << 20
    latency = _seconds(small)
    per_byte = (_seconds(large) - latency) / (large - small)
    mine = np.array(bucket_bytes(latency, per_byte), np.int64)
    return int(arrays.broadcast(mine))


def _seconds(size, rounds=5):
    """Returns the shortest time of an allreduce in a few rounds.

    Args:
        size: Integer. The number of bytes.
        rounds: Integer. The number of measurements.
    """
    data = np.ones(size // 4, np.float32)
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        arrays.allreduce(data, "sum")
        times.append(time.perf_counter() - start)
    return min(times)
