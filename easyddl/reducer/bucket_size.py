"""What a collective costs, and what follows from it."""

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
