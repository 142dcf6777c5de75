"""Which gradients travel together, and in which order."""


def plan(sizes, dtypes, bucket_bytes):
    """Cuts a list of gradients into buckets of one dtype.

    The last gradient comes first, because a backward pass produces the last layer's first: its
    bucket can travel while the others are still computed.

    Args:
        sizes: List of integers. The bytes of each gradient.
        dtypes: List of strings. The dtype of each gradient.
        bucket_bytes: Integer. A bucket is full once it holds as many bytes. A gradient is never
            cut, so a bucket may hold more.

    Returns:
        List of buckets, in the order in which they travel: each a list of indices.
    """
    buckets, filling = [], {}
    for index in reversed(range(len(sizes))):
        bucket = filling.setdefault(dtypes[index], [])
        bucket.append(index)
        if sum(sizes[i] for i in bucket) >= bucket_bytes:
            buckets.append(filling.pop(dtypes[index]))
    return [*buckets, *filling.values()]
