"""How many bytes of gradients travel together."""

import functools
import os
import time

import numpy as np

from easyddl.collectives import arrays
from easyddl.runtime import validators

_VARIABLE = "EASYDDL_BUCKET_BYTES"

_LEAST, _MOST = 1 << 20, 1 << 25
_SHARE = 0.05


def bucket_bytes(latency, seconds_per_byte):
    """The bucket size for a collective that takes `latency + bytes * seconds_per_byte`.

    Small buckets leave sooner, and hide more of the exchange behind the backward pass; but each
    pays the latency again. The size chosen is that at which the latency is a twentieth of the
    transfer, and lies between 1 and 32 MiB.

    Args:
        latency: Float. Seconds that the smallest collective takes.
        seconds_per_byte: Float. Seconds for each byte of a large one.

    Returns:
        Integer. The bytes of a bucket.

    Example:
    ```python
    bucket_bytes(50e-6, 1 / 8e9)  # 8 MB
    ```
    """
    if seconds_per_byte <= 0:
        return _MOST
    return int(min(_MOST, max(_LEAST, latency / (_SHARE * seconds_per_byte))))


def requested(bucket_bytes):
    """What the user asks for: an argument, else the environment's, else `None`."""
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
def measured():
    """The bucket size that follows from the measured cost of this job's collectives.

    All ranks measure it together, once, and all take the root's figure.
    """
    small, large = 16 << 10, 1 << 20
    latency = _seconds(small)
    per_byte = (_seconds(large) - latency) / (large - small)
    mine = np.array(bucket_bytes(latency, per_byte), np.int64)
    return int(arrays.broadcast(mine))


def _seconds(size, rounds=5):
    """The least time that an all-reduce of so many bytes takes in a few rounds."""
    data = np.ones(size // 4, np.float32)
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        arrays.allreduce(data, "sum")
        times.append(time.perf_counter() - start)
    return min(times)
