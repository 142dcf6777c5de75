"""Splits arrays, and dicts and tuples of arrays, by samples.

The structure consists of mappings and tuples. Everything else, including a list, is a leaf.
"""

import collections.abc
import copy
import sys

import numpy as np

from easyddl.data import sparse
from easyddl.data.kinds import is_a, module_of, type_name

# The number of rows that are read from a file at a time when rows are shuffled.
_BLOCK_ROWS = 4096

_SUPPORTED = (
    "`split_data` takes NumPy arrays, tensors, sparse and ragged tensors, SciPy sparse matrices, "
    "pandas objects, HDF5 datasets and lists of samples, and dicts and tuples of "
    "them; or one tf.data.Dataset, keras.utils.PyDataset, PyTorch DataLoader, "
    "grain dataset, generator or other iterator. Convert the data to one of these, for example "
    "with `np.asarray`, or with `iter` if they have no length. A tuple is treated as several "
    "inputs."
)

_LIST_ADVICE = (
    "A list is treated as a list of samples: pass several inputs as a tuple, "
    "and samples that are arrays as one array, made with `np.stack`."
)


def leaves_of(arrays):
    """Collects the leaves of a structure.

    Args:
        arrays: A structure of arrays.

    Returns:
        Pair of a dict from path to leaf, and the same structure. In the structure, mappings that
        read a file, such as an open `.npz` file, are replaced by dicts.
    """
    leaves = {}
    arrays = map_leaves(leaves.setdefault, arrays, "arrays")
    return leaves, arrays


def split(arrays, samples, shard):
    """Takes this rank's samples of each array.

    Args:
        arrays: Tuple of structures of arrays.
        samples: Integer. The number of samples in the arrays.
        shard: The `Shard` of the samples.

    Returns:
        Tuple of the same structures, with this rank's samples.
    """
    if shard.size == 1 and not shard.shuffle:
        return arrays
    rows = shard.rows(samples)
    return map_leaves(lambda _, leaf: take(leaf, rows), arrays, "arrays")


# Traversal of the structure.


def map_leaves(function, structure, path):
    """Replaces each leaf by `function(path, leaf)`, and keeps `None`.

    `keras.tree` does not fit here, because it treats a list as a structure.
    """
    if structure is None:
        return None
    if sparse.is_sparse(structure):  # SciPy's `dok_matrix` is a mapping too
        return function(path, structure)
    if isinstance(structure, collections.abc.Mapping):
        return _map_mapping(function, structure, path)
    if isinstance(structure, tuple):
        return _map_tuple(function, structure, path)
    return function(path, structure)


def _map_mapping(function, mapping, path):
    items = {key: map_leaves(function, value, f"{path}[{key!r}]") for key, value in mapping.items()}
    if not isinstance(mapping, dict):
        return items  # for example of an open .npz or HDF5 file
    # A copy keeps the attributes of the class, such as the factory of a defaultdict.
    mapped = copy.copy(mapping)
    mapped.update(items)
    return mapped


def _map_tuple(function, structure, path):
    fields = getattr(structure, "_fields", None)  # only a namedtuple has them
    items = [
        map_leaves(function, value, f"{path}.{fields[i]}" if fields else f"{path}[{i}]")
        for i, value in enumerate(structure)
    ]
    return type(structure)(*items) if fields else tuple(items)


# Checks of the leaves.


def _length_of(path, leaf):
    """Checks the type of a leaf, and returns its number of samples."""
    received = f"Received: {path} of type {type_name(leaf)}"
    if module_of(leaf) is not None:
        raise TypeError(
            "A dataset, a loader or an iterator must be the only argument, not nested in another: "
            "split each of them separately. It yields x, y and the sample weights together. "
            f"{received}"
        )
    if isinstance(leaf, range):
        return len(leaf)
    if isinstance(leaf, list):
        _refuse_list_of_inputs(path, leaf)
        return len(leaf)
    if not _is_array_like(leaf):
        raise TypeError(f"{_SUPPORTED} {received}")
    if len(leaf.shape) == 0 or leaf.shape[0] is None:
        raise ValueError(
            "An array must have at least one dimension, which counts its samples, and their number "
            f"must be known. {received} and shape {tuple(leaf.shape)}"
        )
    return int(leaf.shape[0])


def _is_array_like(leaf):
    # Tables of other libraries have a shape too, but no single dtype, and a slice of them has
    # another meaning. The attribute `iloc` identifies pandas.
    return hasattr(leaf, "iloc") or (
        getattr(leaf, "shape", None) is not None
        and hasattr(leaf, "dtype")
        and (hasattr(leaf, "__getitem__") or sparse.is_sparse(leaf))
    )


def _refuse_list_of_inputs(path, leaf):
    """Raises an error for `[x1, x2]`, which Keras would treat as two inputs."""
    if not all(_is_array_like(element) and len(element.shape) for element in leaf):
        return
    lengths = {element.shape[0] for element in leaf}
    if len(lengths) == 1 and len(leaf) < max(lengths):
        raise ValueError(
            "This list could mean several inputs or several samples. "
            f"{_LIST_ADVICE} Received: {path}, a list of {len(leaf)} arrays "
            f"with {max(lengths)} rows each"
        )


def count_samples(leaves):
    """Returns the number of samples, and checks that it is the same in all leaves.

    Args:
        leaves: Dict of the leaves of a structure, by path.
    """
    if not leaves:
        raise ValueError(
            "`split_data` needs at least one array that is not `None`. Received: no data"
        )
    lengths = {path: _length_of(path, leaf) for path, leaf in leaves.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            "All arrays must have the same number of samples, the length of their "
            f"first dimension. {_LIST_ADVICE} Received: "
            + ", ".join(f"{path} with {n}" for path, n in lengths.items())
        )
    return next(iter(lengths.values()))


# Selection of rows, by type of leaf.


def take(leaf, rows):
    """Takes rows of one leaf.

    Args:
        leaf: An array, a tensor, a table or a list.
        rows: Slice, or an integer array of indices.
    """
    if sparse.is_sparse(leaf):
        return sparse.take_rows(leaf, rows)
    if isinstance(rows, slice):
        return _take_slice(leaf, rows)
    return _take_indices(leaf, rows)


def _take_slice(leaf, rows):
    if hasattr(leaf, "iloc"):
        return leaf.iloc[rows].copy()
    shard = leaf[rows]
    if isinstance(leaf, np.ndarray) and not isinstance(leaf, np.memmap):
        return shard.copy()  # a view would keep the whole array in memory
    if hasattr(shard, "contiguous"):
        return shard.contiguous()  # the same for PyTorch
    return shard


def _take_indices(leaf, indices):
    if hasattr(leaf, "iloc"):
        return leaf.iloc[indices]
    if isinstance(leaf, (list, range)):
        return [leaf[i] for i in indices.tolist()]
    if is_a(leaf, "h5py"):
        return _read_in_blocks(leaf, indices)
    if is_a(leaf, "tensorflow"):
        # TensorFlow's tensors cannot be indexed by an array. `keras.ops.take` could do it, but
        # only for the active backend, and not for ragged tensors.
        return sys.modules["tensorflow"].gather(leaf, indices)
    shard = leaf[indices]
    # NumPy keeps the memory order of the whole array, which may be column-major.
    return np.asanyarray(shard, order="C") if isinstance(shard, np.ndarray) else shard


def _read_in_blocks(dataset, indices):
    """Reads rows of an HDF5 dataset in one pass, with at most one block in memory.

    HDF5 accepts indices only in increasing order, and reads them slowly.
    """
    order = np.argsort(indices)
    ordered = indices[order]
    shard = np.empty((len(indices), *dataset.shape[1:]), dataset.dtype)
    for start in range(0, dataset.shape[0], _BLOCK_ROWS):
        first, last = np.searchsorted(ordered, [start, start + _BLOCK_ROWS])
        block = dataset[start : start + _BLOCK_ROWS]
        shard[order[first:last]] = block[ordered[first:last] - start]
    return shard
