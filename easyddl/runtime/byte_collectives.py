"""Collectives on bytes, whose number may differ between ranks. They need no Keras."""

import numpy as np

from easyddl.runtime import world


def row_allocator(shape=(), dtype=np.uint8):
    """Returns a function that allocates the array for the rows of all ranks.

    Args:
        shape: Tuple. The shape of a row.
        dtype: NumPy dtype.

    Returns:
        Pair of an empty list and a function. The engine calls the function when it knows the number
        of rows of each rank, and passes these numbers. The function allocates the array, adds it
        and the numbers to the list, and returns its bytes.
    """
    allocated = []

    def allocate(counts):
        allocated.extend([np.empty((sum(counts), *shape), dtype), counts])
        return allocated[0].reshape(-1).view(np.uint8)

    return allocated, allocate


def gather(data, text):
    """Returns the bytes of all ranks.

    Args:
        data: Array of bytes. Its length may differ between ranks.
        text: String. The description of the call, which must be equal on all ranks.

    Returns:
        List of arrays of bytes, in the order of the ranks.
    """
    allocated, allocate = row_allocator()
    fingerprint = world.fingerprint(text)
    world.communicator().all_gather(data, data.size, 1, fingerprint, allocate)
    joined, counts = allocated
    return np.split(joined, np.cumsum(counts)[:-1])


def broadcast(data, root_rank, text):
    """Returns the bytes of the root.

    Args:
        data: Array of bytes on the root; the other ranks pass an empty one.
        root_rank: Integer. The root.
        text: String. The description of the call, which must be equal on all ranks.

    Returns:
        Array of bytes; on the root, the one that it passed.
    """
    allocated, allocate = row_allocator()
    fingerprint = world.fingerprint(text)
    world.communicator().broadcast_unknown(data, root_rank, fingerprint, allocate)
    return data if world.rank() == root_rank else allocated[0]
