"""The assignment of gradients to buckets, and the order of the buckets."""


def plan(sizes, dtypes, bucket_bytes, left_out=()):
    """Packs a list of gradients into buckets of one dtype.

    The last gradient goes into the first bucket, because a backward pass computes the gradients of
    the last layer first. So their bucket is reduced while the pass computes the other gradients.

    Args:
        sizes: List of integers. The bytes of each gradient.
        dtypes: List of strings. The dtype of each gradient.
        bucket_bytes: Integer. A bucket is full when it holds at least this many bytes. It may hold
            more, because a gradient is never split.
        left_out: Indices of gradients that are in no bucket.

    Returns:
        List of buckets, in the order in which they are reduced. A bucket is a list of indices.
    """
    buckets, filling = [], {}
    for index in reversed(range(len(sizes))):
        if index in left_out:
            continue
        bucket = filling.setdefault(dtypes[index], [])
        bucket.append(index)
        if sum(sizes[i] for i in bucket) >= bucket_bytes:
            buckets.append(filling.pop(dtypes[index]))
    return [*buckets, *filling.values()]
