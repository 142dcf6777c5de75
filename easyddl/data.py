"""Give every rank its own part of the samples."""

import collections.abc
import copy
import numbers
import sys

import numpy as np

from easyddl import console, world

# How many rows are read from a file at a time when they are shuffled.
_BLOCK_ROWS = 4096

_SUPPORTED = (
    "`split_data` takes NumPy arrays, tensors, SciPy sparse matrices, pandas "
    "objects, HDF5 datasets and lists of samples, and dicts and tuples of "
    "them."
)

_TORCH_ADVICE = (
    "`split_data` does not support PyTorch datasets and data loaders yet. "
    "Give the `DataLoader` of each rank a `sampler=torch.utils.data."
    "DistributedSampler(dataset, num_replicas=ddl.size(), rank=ddl.rank())`."
)

# Recognised by name, because naming a class of a framework would import it:
# (package, class, what to do instead).
_UNSUPPORTED = (
    (
        "tensorflow",
        "DatasetV2",
        "`split_data` does not support `tf.data.Dataset` yet. Call "
        "`dataset.shard(ddl.size(), ddl.rank())` before it is shuffled and "
        "batched.",
    ),
    (
        "keras",
        "PyDataset",
        "`split_data` does not support `keras.utils.PyDataset` yet. Split the "
        "arrays or the indices that it reads first, as in "
        "`indices = ddl.split_data(np.arange(n))`, and make it from these.",
    ),
    ("torch", "DataLoader", _TORCH_ADVICE),
    ("torch", "Dataset", _TORCH_ADVICE),
)

_ITERATOR_ADVICE = (
    "`split_data` does not support generators and iterators yet: their "
    "length is unknown. Use `itertools.islice(gen, ddl.rank(), None, "
    "ddl.size())`."
)

_LIST_ADVICE = (
    "A list is taken as a list of samples: pass several inputs as a tuple, "
    "and samples that are arrays as one array, made by `np.stack`."
)


def split_data(*arrays, shuffle=False, seed=0, remainder="drop"):
    """Takes this rank's part of the data.

    Of `k` ranks, rank `r` gets the samples `r`, `r + k`, `r + 2 * k` and so
    on, the same ones of each array. The ranks' parts do not overlap. Every
    rank must pass the same data and the same arguments.

    The whole data has to be readable on every rank. Arrays that stay on disk,
    such as those of `np.load(path, mmap_mode="r")` and HDF5 datasets, are
    read only where they are needed.

    Args:
        *arrays: The data, in the form that `model.fit()` takes: NumPy arrays,
            tensors of TensorFlow, JAX or PyTorch, SciPy sparse matrices,
            pandas DataFrames and Series, HDF5 datasets, lists, or dicts and
            tuples of them, nested as you like. The samples lie along the
            first dimension, and all have the same number of them. A list is
            a list of samples; several inputs go in a tuple or a dict. `None`,
            as for an absent `sample_weight`, stays `None`.
        shuffle: Boolean. Whether the samples are permuted before they are
            split, all arrays alike. Use it for data that are sorted, or whose
            order has a period. Defaults to `False`.
        seed: Non-negative integer. Seed of the permutation. It has to be the
            same on all ranks. Defaults to `0`.
        remainder: `"drop"` or `"keep"`. What to do when the number of samples
            is not a multiple of the number of ranks. `"drop"` leaves out the
            last few, so that all ranks get equally many, and says so on the
            root. `"keep"` leaves out none; the ranks' numbers of samples
            then differ by at most one. Defaults to `"drop"`.

    Returns:
        This rank's part of the data: one object where one argument was
        passed, else a tuple with one entry for each argument, of the same
        types. NumPy arrays are copied, so that the whole array can be freed;
        a memory-mapped array that is not shuffled stays on disk, and HDF5
        datasets become NumPy arrays. In a world of one rank, the data that
        are not shuffled are returned as they are.

    Raises:
        ValueError: If no array is passed, the arrays differ in their numbers
            of samples, there are fewer samples than ranks, a list could be
            taken as several inputs, or an argument has an unknown value.
        TypeError: If the data have no length or are of a type that is not
            supported, or if an argument is of a wrong type.

    Example:
    ```python
    import easyddl as ddl

    x_train, y_train = ddl.split_data(x_train, y_train)
    inputs, y_train = ddl.split_data({"image": images, "age": ages}, y_train)
    model.fit(x_train, y_train, callbacks=[ddl.DDLCallback()])
    ```
    """
    _check_options(shuffle, seed, remainder)
    rank, size = world.rank(), world.size()
    leaves = {}
    # From here on, mappings that read a file at each access are plain dicts.
    arrays = _map_leaves(leaves.setdefault, arrays, "arrays")
    samples = _common_length(leaves)
    _check_enough(samples, size, leaves)
    left_out = samples % size if remainder == "drop" else 0
    if left_out and world.is_root():
        _report_left_out(left_out, samples, size)
    if size > 1 or shuffle:
        rows = _rows(samples - left_out, rank, size)
        if shuffle:
            rows = np.random.default_rng(seed).permutation(samples)[rows]
        arrays = _map_leaves(lambda _, leaf: _take(leaf, rows), arrays, "arrays")
    return arrays[0] if len(arrays) == 1 else arrays


def _rows(samples, rank, size):
    """The rows of `samples` that belong to `rank` of `size`, as a slice."""
    return slice(rank, samples, size)


def _report_left_out(left_out, samples, size):
    console.say(
        f"split_data left out {left_out} of {samples} samples, so that each "
        f"of the {size} ranks gets {samples // size}. "
        'Pass remainder="keep" to keep them.'
    )


# The structure: dicts and tuples hold leaves, and lists are leaves.


def _map_leaves(function, structure, path):
    """Replaces each leaf by `function(path, leaf)`, and keeps `None`.

    `keras.tree` is no help here: to it a list is a structure.
    """
    if structure is None:
        return None
    if isinstance(structure, collections.abc.Mapping):
        return _map_mapping(function, structure, path)
    if isinstance(structure, tuple):
        return _map_tuple(function, structure, path)
    return function(path, structure)


def _map_mapping(function, mapping, path):
    items = {
        key: _map_leaves(function, value, f"{path}[{key!r}]") for key, value in mapping.items()
    }
    if not isinstance(mapping, dict):
        return items  # such as an open .npz or HDF5 file
    # A copy keeps what the class adds, such as the factory of a defaultdict.
    mapped = copy.copy(mapping)
    mapped.update(items)
    return mapped


def _map_tuple(function, structure, path):
    fields = getattr(structure, "_fields", None)  # a namedtuple has them
    items = [
        _map_leaves(function, value, f"{path}.{fields[i]}" if fields else f"{path}[{i}]")
        for i, value in enumerate(structure)
    ]
    return type(structure)(*items) if fields else tuple(items)


# What is refused, and why.


def _check_options(shuffle, seed, remainder):
    if not isinstance(shuffle, (bool, np.bool_)):
        raise TypeError(f"Argument `shuffle` must be a boolean. Received: shuffle={shuffle!r}")
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise TypeError(
            "Argument `seed` must be an integer, the same on all ranks, which "
            "would else take overlapping samples. "
            f"Received: seed={seed!r}"
        )
    if seed < 0:
        raise ValueError(f"Argument `seed` must not be negative. Received: seed={seed!r}")
    if not isinstance(remainder, str) or remainder not in ("drop", "keep"):
        raise ValueError(
            f'Argument `remainder` must be "drop" or "keep". Received: remainder={remainder!r}'
        )


def _count_samples(path, leaf):
    """The number of samples in one leaf, which it checks for its type."""
    _refuse_unsupported(path, leaf)
    if isinstance(leaf, range):
        return len(leaf)
    if isinstance(leaf, list):
        _refuse_list_of_inputs(path, leaf)
        return len(leaf)
    if not _is_array_like(leaf):
        _refuse_type(path, leaf)
    if len(leaf.shape) == 0:
        raise ValueError(
            "An array must have at least one dimension, along which its "
            "samples lie. Pass the samples as one array or as a list. "
            f"Received: {path} of shape () and type {_type_name(leaf)}"
        )
    if leaf.shape[0] is None:
        raise ValueError(
            "The number of samples must be known. Pass an array or a tensor "
            "that holds values. "
            f"Received: {path} of shape {tuple(leaf.shape)} and type "
            f"{_type_name(leaf)}"
        )
    return int(leaf.shape[0])


def _is_array_like(leaf):
    # Tables of other libraries have a shape too, but not one type of values,
    # and what a slice of them means differs. pandas is known by its `iloc`.
    return hasattr(leaf, "iloc") or (
        getattr(leaf, "shape", None) is not None
        and hasattr(leaf, "dtype")
        and (hasattr(leaf, "__getitem__") or hasattr(leaf, "tocsr"))
    )


def _refuse_unsupported(path, leaf):
    for package, name, advice in _UNSUPPORTED:
        if _is_a(leaf, package, name):
            raise TypeError(f"{advice} Received: {path} of type {_type_name(leaf)}")


def _refuse_list_of_inputs(path, leaf):
    """Refuses `[x1, x2]`, which Keras would take as two inputs."""
    if not _is_list_of_arrays(leaf):
        return
    lengths = {element.shape[0] for element in leaf}
    if len(lengths) == 1 and len(leaf) < max(lengths):
        raise ValueError(
            "This list could mean several inputs or several samples. "
            f"{_LIST_ADVICE} Received: {path}, a list of {len(leaf)} arrays "
            f"with {max(lengths)} rows each"
        )


def _is_list_of_arrays(leaf):
    return (
        isinstance(leaf, list)
        and len(leaf) > 0
        and all(_is_array_like(element) and len(element.shape) for element in leaf)
    )


def _refuse_type(path, leaf):
    received = f"Received: {path} of type {_type_name(leaf)}"
    if isinstance(leaf, (str, bytes, numbers.Number)):
        raise TypeError(
            "A single value cannot be split. Pass the samples as an array or "
            "as a list; a tuple is taken as several inputs. "
            f"Received: {path}={leaf!r}"
        )
    if hasattr(leaf, "__iter__") and not hasattr(leaf, "__len__"):
        raise TypeError(f"{_ITERATOR_ADVICE} {received}")
    raise TypeError(
        f"{_SUPPORTED} Convert the data to one of these, for example with `np.asarray`. {received}"
    )


def _common_length(leaves):
    """The number of samples that all leaves have, which it checks."""
    if not leaves:
        raise ValueError(
            "`split_data` needs at least one array that is not `None`. Received: no data"
        )
    lengths = {path: _count_samples(path, leaf) for path, leaf in leaves.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            "All arrays must have the same number of samples, which is their "
            f"first dimension.{_list_hint(leaves)} Received: "
            + ", ".join(f"{path} with {n}" for path, n in lengths.items())
        )
    return next(iter(lengths.values()))


def _check_enough(samples, size, leaves):
    if samples < size:
        raise ValueError(
            "There must be at least one sample for each rank. Start fewer "
            f"ranks or pass more data.{_list_hint(leaves)} "
            f"Received: {samples} sample(s) for {size} rank(s)"
        )


def _list_hint(leaves):
    """Says what a list means, where one of the leaves is a list of arrays."""
    return f" {_LIST_ADVICE}" if any(map(_is_list_of_arrays, leaves.values())) else ""


# How the rows of each kind of leaf are taken.


def _take(leaf, rows):
    """The given rows, a slice or an array of indices, of one leaf."""
    if hasattr(leaf, "tocsr"):
        # Not every format of a sparse matrix can be indexed.
        return leaf.tocsr()[rows].asformat(leaf.format)
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
    if _is_a(leaf, "h5py"):
        return _read_in_blocks(leaf, indices)
    if _is_a(leaf, "tensorflow"):
        # Its tensors take no arrays of indices. `keras.ops.take` would do,
        # but only for the active backend, and not for ragged tensors.
        return sys.modules["tensorflow"].gather(leaf, indices)
    shard = leaf[indices]
    # NumPy lays it out as the whole array is, which may be by columns.
    return np.asanyarray(shard, order="C") if isinstance(shard, np.ndarray) else shard


def _read_in_blocks(dataset, indices):
    """Reads rows of a file in one pass, and no more than a block at a time.

    HDF5 takes indices only in increasing order, and slowly.
    """
    order = np.argsort(indices)
    ordered = indices[order]
    shard = np.empty((len(indices), *dataset.shape[1:]), dataset.dtype)
    for start in range(0, dataset.shape[0], _BLOCK_ROWS):
        first, last = np.searchsorted(ordered, [start, start + _BLOCK_ROWS])
        block = dataset[start : start + _BLOCK_ROWS]
        shard[order[first:last]] = block[ordered[first:last] - start]
    return shard


def _is_a(value, package, name=None):
    """Whether a class of `package` is among the classes of `value`."""
    return any(
        cls.__module__.partition(".")[0] == package and name in (None, cls.__name__)
        for cls in type(value).__mro__
    )


def _type_name(value):
    return f"{type(value).__module__}.{type(value).__qualname__}"
