"""The lookup tables of a `tf.data.Dataset`, such as the vocabulary of a `TextVectorization`.

A layer that is used in `Dataset.map` is no layer of the model. So a vocabulary that each rank has
adapted to its own shard gives a word another number on each rank, and nothing else shows it.
"""

import itertools
import zlib

import numpy as np

from easyddl.data.kinds import is_a


def checksums_of(data):
    """Returns the size and the checksum of each lookup table that a dataset's functions use.

    Args:
        data: An argument of `fit`.

    Returns:
        List of pairs of integers; empty if the data are no `tf.data.Dataset`.
    """
    if not is_a(data, "tensorflow", "DatasetV2"):
        return []
    from easyddl.data import tf_graph  # imports TensorFlow

    try:
        datasets = tf_graph.inputs_of(data)
        handles = itertools.chain.from_iterable(map(tf_graph.captured_by, datasets))
        tables = [tf_graph.content_of_table(each) for each in handles]
    except AttributeError:  # another TensorFlow, with other private names
        return []
    return [_checksum(*each) for each in tables if each is not None]


def _checksum(keys, values):
    order = np.argsort(keys)  # a table has no order
    content = zlib.crc32(repr(keys[order].tolist()).encode())
    return len(keys), zlib.crc32(repr(values[order].tolist()).encode(), content)
