"""Batches of arrays that are reshuffled over all ranks in every epoch."""

import numbers

import keras
import numpy as np

from easyddl.data import array_data, sparse
from easyddl.data.epoch_order import EpochOrder
from easyddl.data.kinds import is_a


class EpochBatches(EpochOrder):
    """One rank's batches of arrays, in a different order in each epoch.

    Args:
        data: Tuple of the whole arrays: `x`, `y` and `sample_weight`, or the first of these.
        samples: Integer. The number of samples in the arrays.
        shard: The `Shard` of the samples.
        batch_size: Integer. The number of this rank's samples in a batch.
    """

    def __init__(self, data, samples, shard, batch_size):
        super().__init__(shard)
        self.data = data
        self.samples = samples
        self.batch_size = self.items_per_step = batch_size
        self._reorder()

    def __getitem__(self, index):
        begin = index * self.batch_size
        rows = self._rows[begin : begin + self.batch_size]
        return array_data.map_leaves(lambda _, leaf: _batch(leaf, rows), self.data, "arrays")

    def _count_items(self):
        return self.samples

    def _reorder(self):
        self._rows = self.shard.rows(self.samples, self.epoch)


def _batch(leaf, rows):
    """Takes rows of a leaf, in the form in which Keras expects a batch."""
    batch = _read(leaf, rows) if is_a(leaf, "h5py") else array_data.take(leaf, rows)
    if is_a(batch, "tensorflow", "RaggedTensor"):
        return batch
    if hasattr(batch, "iloc"):
        batch = batch.to_numpy()
        batch = batch[:, None] if batch.ndim == 1 else batch  # Keras does this with a Series
    elif sparse.is_sparse(batch):
        batch = sparse.to_dense(batch)
    elif hasattr(batch, "detach"):
        batch = batch.detach().cpu()
    array = batch if is_a(batch, "tensorflow") else np.asarray(batch)
    if _is_text(array) and not _is_numbers(array):
        return _as_tensor_of_text(batch)  # NumPy would cut zeros at the end of a list's bytes
    array = np.asarray(array)
    # Keras casts the floats of arrays in the same way. Of objects, other batches may have floats.
    return array.astype(keras.backend.floatx()) if array.dtype.kind in "fO" else array


def _is_text(array):
    dtype = array.dtype
    return getattr(dtype, "name", None) == "string" or getattr(dtype, "kind", None) in {*"OSU"}


def _is_numbers(array):
    """Returns whether an array of objects, such as a table of floats and booleans, has no texts."""
    if not isinstance(array, np.ndarray) or array.dtype != object:
        return False
    return all(isinstance(each, numbers.Real | np.bool_) for each in array.reshape(-1).tolist())


def _as_tensor_of_text(batch):
    """Converts texts to a tensor of TensorFlow, the only backend with such tensors.

    Keras accepts arrays of text, but not in the batches of a `PyDataset`.
    """
    if keras.backend.backend() != "tensorflow":
        raise TypeError(
            'With shuffle="epoch", only the TensorFlow backend supports texts. Convert them to '
            f"numbers first. Received: an array of dtype {getattr(batch, 'dtype', 'str')} with "
            f"the backend {keras.backend.backend()}"
        )
    import tensorflow as tf

    return tf.convert_to_tensor(batch)


def _read(dataset, rows):
    """Reads rows of an HDF5 dataset, which accepts indices in increasing order only."""
    order = np.argsort(rows)
    batch = np.empty((len(rows), *dataset.shape[1:]), dataset.dtype)
    batch[order] = dataset[rows[order]]
    return batch
