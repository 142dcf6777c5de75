"""The lookup tables of a `tf.data.Dataset`, such as the vocabulary of a `TextVectorization`.

A layer that is used in `Dataset.map` is no layer of the model. So a vocabulary that each rank has
adapted to its own shard gives a word another number on each rank, and nothing else shows it.
"""

import zlib

import numpy as np

from easyddl.data import kinds


@kinds.reads_tf_dataset(otherwise=list)
def checksums_of(data, tf_graph):
    """Returns the size and the checksum of each lookup table that a dataset's functions use.

    Args:
        data: An argument of `fit`.
        tf_graph: The module, which the decorator passes.

    Returns:
        List of pairs of integers; empty if the data are no `tf.data.Dataset`.
    """
    tables = map(tf_graph.content_of_table, tf_graph.captured_by(data))
    return [_checksum(*each) for each in tables if each is not None]


def _checksum(keys, values):
    order = np.argsort(keys)  # a table has no order
    content = zlib.crc32(repr(keys[order].tolist()).encode())
    return len(keys), zlib.crc32(repr(values[order].tolist()).encode(), content)
