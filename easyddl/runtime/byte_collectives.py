"""Collectives on bytes, whose number may differ between ranks. They need no Keras."""

import numpy as np

from easyddl.runtime import world


def gather(data, text):
    """Returns the bytes of all ranks.

    Args:
        data: Array of bytes. Its length may differ between ranks.
        text: String. The description of the call, which must be equal on all ranks.

    Returns:
        List of arrays of bytes, in the order of the ranks.
    """
    joined, ends = [], []

    def allocate(counts):
        ends.extend(np.cumsum(counts)[:-1])
        joined.append(np.empty(sum(counts), np.uint8))
        return joined[0]

    fingerprint = world.fingerprint(text)
    world.communicator().all_gather(data, data.size, 1, fingerprint, allocate)
    return np.split(joined[0], ends)


def broadcast(data, root_rank, text):
    """Returns the bytes of the root.

    Args:
        data: Array of bytes on the root; the other ranks pass an empty one.
        root_rank: Integer. The root.
        text: String. The description of the call, which must be equal on all ranks.

    Returns:
        Array of bytes; on the root, the one that it passed.
    """
    received = []

    def allocate(counts):
        received.append(np.empty(sum(counts), np.uint8))
        return received[0]

    fingerprint = world.fingerprint(text)
    world.communicator().broadcast_unknown(data, root_rank, fingerprint, allocate)
    return data if world.rank() == root_rank else received[0]
