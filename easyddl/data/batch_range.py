"""Takes consecutive batches of data for `predict`, of each kind that it accepts."""

import keras

from easyddl.data import array_data, kinds


def count_batches(data, batch_size):
    """Returns the number of batches in the data.

    Args:
        data: Arrays, or a dataset or loader of batches.
        batch_size: Integer. The number of samples in a batch of arrays.

    Raises:
        TypeError: If the kind of the data is not supported.
        ValueError: If the number of batches is not known, or the order of the batches is random.
    """
    module = kinds.module_of(data)
    if module is None:
        return -(-_count_samples(data) // batch_size)
    if not hasattr(module, "count_batches"):
        raise TypeError(
            "`predict` takes arrays, a tf.data.Dataset, a keras.utils.PyDataset or a PyTorch "
            "DataLoader, because each rank must be able to begin at any batch. "
            f"Received: data of type {kinds.type_name(data)}"
        )
    return module.count_batches(data)


def take_batches(data, start, stop, batch_size):
    """Returns the batches from `start` up to `stop`, as data of the same kind."""
    module = kinds.module_of(data)
    if module is not None:
        return module.take_batches(data, start, stop)
    rows = slice(start * batch_size, stop * batch_size)
    return keras.tree.map_structure(lambda leaf: array_data.take(leaf, rows), data)


def _count_samples(data):
    lengths = [_length(leaf) for leaf in keras.tree.flatten(data)]
    if len(set(lengths)) != 1:
        raise ValueError(
            "`predict` needs arrays with the same number of samples, the length of their first "
            f"dimension. Received: {lengths or 'no array'}"
        )
    return lengths[0]


def _length(leaf):
    shape = getattr(leaf, "shape", None)
    if not shape or shape[0] is None:
        raise TypeError(
            "`predict` takes arrays whose first dimension counts the samples, and lists, tuples "
            f"and dicts of them. Received: {kinds.type_name(leaf)} of shape {shape}"
        )
    return int(shape[0])
