"""Give every rank its own part of the data."""

import numpy as np

from easyddl.data import arrays as whole
from easyddl.data import kinds
from easyddl.data.shard import EPOCH, Part
from easyddl.runtime import validators, world


def split_data(*arrays, shuffle=False, seed=0, remainder="drop", batch_size=None):
    """Takes this rank's part of the data.

    Of `k` ranks, rank `r` gets the samples `r`, `r + k`, `r + 2 * k` and so
    on, the same ones of each array. The ranks' parts do not overlap. Every
    rank must pass the same data and the same arguments.

    A dataset, a loader or an iterator is passed alone, and comes back as one
    of its kind. What it yields is dealt out in the same way, be it samples or
    batches: rank `r` gets the elements `r`, `r + k` and so on, so that the
    batches of a step are those that follow one another in one process, and a
    batch is as large as before.

    - `tf.data.Dataset`, of any cardinality. One that was shuffled before needs
      seeds, the same on all ranks; better split it first and shuffle then.
      All ranks must make this call, in which they compare these seeds.
    - `keras.utils.PyDataset`, whose batches are dealt out. Its workers,
      processes and epoch hooks stay. What it shuffles itself, it must shuffle
      alike on all ranks.
    - PyTorch's `DataLoader`, made again with a sampler that takes this rank's
      part of what the loader's own sampler draws, in each epoch anew. Batches
      of a `batch_sampler`, or of an `IterableDataset`, are dealt out.
    - Grain's `MapDataset`, `IterDataset` and `DataLoader`.
    - Generators and other iterators, which become generators. All ranks draw
      all elements, which must be the same ones. As Keras does not know where
      they end, `model.fit()` needs `steps_per_epoch`, per rank.

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
            as for an absent `sample_weight`, stays `None`. Or one dataset,
            loader or iterator.
        shuffle: `False`, `True` or `"epoch"`. `True` permutes the samples once
            before they are split, all arrays alike. Use it for data that are
            sorted, or whose order has a period. `"epoch"` permutes them anew
            in every epoch, over all ranks: each sample may come to any rank,
            and to one only. The order follows from `seed` and the number of
            the epoch, so that a training that goes on after an interruption
            finds it again. `DDLCallback` tells the data which epoch begins; in
            a loop of your own call `set_epoch(epoch)` of the result. Arrays,
            `PyDataset` and `tf.data.Dataset` of finite cardinality can be
            shuffled. The other kinds shuffle by themselves: see above.
            Defaults to `False`.
        seed: Non-negative integer. Seed of the permutation. It has to be the
            same on all ranks. Defaults to `0`.
        remainder: `"drop"` or `"keep"`. What to do when the number of samples
            is not a multiple of the number of ranks. `"drop"` leaves out the
            last few, so that all ranks get equally many, and says so on the
            root. `"keep"` leaves out none; the ranks' numbers of samples
            then differ by at most one. Of a `tf.data.Dataset` of
            unknown or infinite length none are left out. Defaults to `"drop"`.
        batch_size: Integer. How many samples this rank takes in a step, where
            arrays are passed with `shuffle="epoch"`; `fit` ignores its own
            `batch_size` then. Defaults to 32, as in `fit`.

    Returns:
        This rank's part of the data: one object where one argument was
        passed, else a tuple with one entry for each argument, of the same
        types. NumPy arrays are copied, so that the whole array can be freed;
        a memory-mapped array that is not shuffled stays on disk, and HDF5
        datasets become NumPy arrays. In a world of one rank, the data that
        are not shuffled are returned as they are.

        Arrays with `shuffle="epoch"`: one `keras.utils.PyDataset` of all of
        them, to be passed to `fit` as `x`. It keeps the whole arrays, as any
        sample may come to this rank, and yields tuples of NumPy arrays. With
        `steps_per_epoch` an epoch takes the first so many batches of its
        order. `tf.data.Dataset` with `shuffle`: a pass fills a buffer with all
        elements, so shuffle what is small, such as indices or the names of
        files, and load the samples after that. Do not `repeat` it.

    Raises:
        ValueError: If no array is passed, the arrays differ in their numbers
            of samples, there are fewer samples than ranks, a list could be
            taken as several inputs, or an argument has an unknown value. If
            a dataset may have another order on each rank, or cannot be
            shuffled.
        TypeError: If the data have no length or are of a type that is not
            supported, or if an argument is of a wrong type.
        RuntimeError: On all ranks, if they pass a `tf.data.Dataset` that was
            shuffled with seeds that differ by rank.

    Example:
    ```python
    import easyddl as ddl

    x_train, y_train = ddl.split_data(x_train, y_train)
    inputs, y_train = ddl.split_data({"image": images, "age": ages}, y_train)
    model.fit(x_train, y_train, callbacks=[ddl.DDLCallback()])

    data = ddl.split_data(x_train, y_train, shuffle="epoch", batch_size=16)
    model.fit(data, callbacks=[ddl.DDLCallback()])

    dataset = ddl.split_data(tf.data.TFRecordDataset(paths))
    dataset = dataset.shuffle(10_000).map(parse).batch(16)
    ```

    References:
    - [Goyal et al., 2017](https://arxiv.org/abs/1706.02677), Accurate, Large Minibatch SGD:
      Training ImageNet in 1 Hour, section 2.3: one shuffle an epoch, divided among the workers.
    """
    _check_options(shuffle, seed, remainder)
    part = Part(world.rank(), world.size(), shuffle, int(seed), remainder)
    kind = kinds.module_of(arrays[0]) if len(arrays) == 1 else None
    _check_batch_size(batch_size, is_taken=kind is None and shuffle == EPOCH)
    if kind is not None:
        return kind.split(arrays[0], part)
    if shuffle == EPOCH:
        return _epoch_batches(arrays, part, 32 if batch_size is None else int(batch_size))
    parts = whole.split(arrays, part)
    return parts[0] if len(parts) == 1 else parts


def _epoch_batches(arrays, part, batch_size):
    leaves, arrays = whole.leaves_of(arrays)
    samples = whole.count_samples(leaves, part)
    if len(arrays) > 3 or arrays[0] is None:
        raise ValueError(
            'With shuffle="epoch" pass what `fit` takes: x, or x and y, or x, y and '
            f"sample_weight. Received: {len(arrays)} argument(s), of types "
            f"{[kinds.type_name(each) for each in arrays]}"
        )
    while arrays[-1] is None:
        arrays = arrays[:-1]
    from easyddl.data.epoch_batches import EpochBatches  # which imports Keras

    return EpochBatches(arrays, samples, part, batch_size)


def _check_options(shuffle, seed, remainder):
    if not isinstance(shuffle, bool | np.bool_) and not _is_text(shuffle, (EPOCH,)):
        raise TypeError(
            f'Argument `shuffle` must be a boolean or "{EPOCH}". Received: shuffle={shuffle!r}'
        )
    if not validators.is_integer(seed):
        raise TypeError(
            "Argument `seed` must be an integer, the same on all ranks, which "
            "would else take overlapping samples. "
            f"Received: seed={seed!r}"
        )
    if seed < 0:
        raise ValueError(f"Argument `seed` must not be negative. Received: seed={seed!r}")
    if not _is_text(remainder, ("drop", "keep")):
        raise ValueError(
            f'Argument `remainder` must be "drop" or "keep". Received: remainder={remainder!r}'
        )


def _is_text(value, choices):
    return isinstance(value, str) and value in choices


def _check_batch_size(batch_size, is_taken):
    if batch_size is None:
        return
    if not is_taken:
        raise ValueError(
            "Argument `batch_size` is for arrays that are passed with "
            f'shuffle="{EPOCH}". Otherwise batch the dataset, or pass it to `model.fit()`. '
            f"Received: batch_size={batch_size!r}"
        )
    validators.positive_integer("batch_size", batch_size)
