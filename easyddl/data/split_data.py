"""`split_data`, which returns each rank's shard of the data."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from easyddl.data import array_data as whole
from easyddl.data import kinds, split_calls
from easyddl.data.shard import EPOCH, Shard
from easyddl.runtime import notices, validators, world


def split_data(
    *arrays: Any,
    shuffle: bool | Literal["epoch"] = False,
    seed: int = 0,
    remainder: Literal["drop", "keep"] = "drop",
    batch_size: int | None = None,
    compare: bool = True,
) -> Any:
    """Returns this rank's shard of the data.

    With `k` ranks, rank `r` gets the samples `r`, `r + k`, `r + 2 * k` and so on, the same samples
    of each array. The ranks' shards are disjoint. Every rank must pass the same data and the same
    arguments, and must be able to read all the data.

    A dataset, a loader or an iterator must be the only argument, and the result is of the same
    kind. `split_data` splits it by elements, which are samples or batches: rank `r` gets the
    elements `r`, `r + k` and so on. Batches keep their size, so the ranks' batches of one step are
    consecutive batches of one process.

    - `tf.data.Dataset`, of any cardinality. If it is already shuffled, its seeds must be the same
      on all ranks. It is better to split first and to shuffle after that. All ranks must make this
      call, because they compare these seeds.
    - `keras.utils.PyDataset` is split by batches. It keeps its workers, processes and epoch hooks.
      If it shuffles itself, it must do so in the same order on all ranks.
    - PyTorch's `DataLoader` gets a sampler that takes this rank's shard of the indices that the
      loader's own sampler draws in each epoch. A loader with a `batch_sampler` or an
      `IterableDataset` is split by batches.
    - Grain's `MapDataset`, `IterDataset` and `DataLoader`.
    - Generators and other iterators become generators. Every rank draws all elements, which must
      be the same on all ranks. Keras does not know where they end: pass `steps_per_epoch`, counted
      for one rank, to `model.fit()`.

    Arrays on disk, such as those of `np.load(path, mmap_mode="r")` and HDF5 datasets, are read only
    where they are needed.

    Args:
        *arrays: The data, in the form that `model.fit()` takes: NumPy arrays, tensors of
            TensorFlow, JAX or PyTorch, also sparse and ragged ones, SciPy sparse matrices, pandas
            DataFrames and Series, HDF5 datasets, lists, or nested dicts and tuples of these. The
            shape of each array is `(samples, ...)`, with the same number of samples in all of them.
            A list is a list of samples; pass several inputs as a tuple or a dict. `None`, for
            example for an absent `sample_weight`, stays `None`. Alternatively one dataset, loader
            or iterator.
        shuffle: `False`, `True` or `"epoch"`. `True` permutes the samples once before the split,
            with the same permutation for all arrays. Use it for data that are sorted or have a
            period. `"epoch"` draws a new permutation over all ranks in every epoch: any sample can
            go to any rank, and goes to one rank only. The order depends only on `seed` and the
            number of the epoch, so that a resumed training finds the same order.
            `DDLCallback` passes the number of the epoch to the data; in a custom loop call
            `set_epoch(epoch)` of the result. Arrays, `PyDataset` and `tf.data.Dataset` of finite
            cardinality can be shuffled. The other kinds shuffle themselves. Defaults to `False`.
        seed: Non-negative integer. The seed of the permutation, the same on all ranks. Defaults
            to `0`.
        remainder: `"drop"` or `"keep"`. What to do if the number of samples is not a multiple of
            the number of ranks. `"drop"` drops the last few, so that all ranks get the same number,
            and the root prints how many. `"keep"` keeps all; the ranks' numbers of samples then
            differ by at most one. A `tf.data.Dataset` of unknown or infinite length loses none.
            Defaults to `"drop"`.
        batch_size: Integer. The number of samples that this rank takes in a step, for arrays with
            `shuffle="epoch"`; `fit` ignores its own `batch_size` for these. Defaults to 32, as in
            `fit`.
        compare: Boolean. Whether the ranks compare their data at the start of the next fit with a
            `DDLCallback`: the lengths of all data, and samples of the contents of arrays and
            lists. Different lengths, integers or texts raise an error on all ranks, and different
            floats cause a warning. Pass `False` if ranks pass different data on purpose. Defaults
            to `True`.

    Returns:
        This rank's shard: one object for one argument, else a tuple with one entry for each
        argument, of the same types. NumPy arrays are copied, so that the whole array can be freed.
        A memory-mapped array that is not shuffled stays on disk. HDF5 datasets become NumPy arrays.
        With one rank and no shuffling the data are returned unchanged.

        For arrays with `shuffle="epoch"`, one `keras.utils.PyDataset` of all arrays, which you pass
        to `fit` as `x`. It keeps the whole arrays, because any sample may go to this rank. It
        yields tuples of dense NumPy arrays; texts and ragged tensors stay tensors. With
        `steps_per_epoch` an epoch takes that number of batches from the beginning of its order.

        For a `tf.data.Dataset` with `shuffle`, a dataset whose every pass fills a buffer with all
        elements. Shuffle small elements, such as indices or file names, and load the samples after
        that. Do not call `repeat` on it.

    Raises:
        ValueError: If no array is passed, the arrays have different numbers of samples, there are
            fewer samples than ranks, a list could mean several inputs, or an argument has an
            unknown value; or if a dataset may have another order on each rank, or cannot be
            shuffled.
        TypeError: If the data have no length or are of an unsupported type, or if an argument is
            of a wrong type.
        ValueError: On all ranks, if they pass a `tf.data.Dataset` that was shuffled with seeds that
            differ by rank.

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
      Training ImageNet in 1 Hour, section 2.3: one shuffle per epoch, divided among the workers.
    """
    _check_options(shuffle, seed, remainder, compare)
    shard = Shard(world.rank(), world.size(), shuffle, int(seed), remainder)
    kind = kinds.module_of(arrays[0]) if len(arrays) == 1 else None
    # Before all else: an interrupt would keep only this rank out of this collective.
    if shard.size > 1 and kind is not None and hasattr(kind, "check_order"):
        kind.check_order(arrays[0])
    leaves, arrays = whole.leaves_of(arrays)
    is_first = shard.size > 1 and not _warn_of_second_split(leaves)
    result = _split(kind, arrays, leaves, shard, batch_size)
    is_noted = compare and is_first
    if is_noted:
        split_calls.note(leaves, f"shuffle={shuffle!r}, seed={seed}, remainder={remainder!r}")
    split_calls.note_result(result, leaves, shard, is_noted)
    return result


def _split(kind, arrays, leaves, shard, batch_size):
    _check_batch_size(batch_size, is_taken=kind is None and shard.shuffle == EPOCH)
    if kind is not None:
        return kind.split(arrays[0], shard)
    samples = whole.count_samples(leaves)
    shard.check(samples, "sample")
    if shard.shuffle == EPOCH:
        return _epoch_batches(arrays, samples, shard, batch_size)
    shards = whole.split(arrays, samples, shard)
    return shards[0] if len(shards) == 1 else shards


def _epoch_batches(arrays, samples, shard, batch_size):
    if len(arrays) > 3 or arrays[0] is None:
        raise ValueError(
            'With shuffle="epoch" pass the arguments of `fit`: x, or x and y, or x, y and '
            f"sample_weight. Received: {len(arrays)} argument(s), of types "
            f"{[kinds.type_name(each) for each in arrays]}"
        )
    while arrays[-1] is None:
        arrays = arrays[:-1]
    from easyddl.data.epoch_batches import EpochBatches  # imports Keras

    return EpochBatches(arrays, samples, shard, 32 if batch_size is None else int(batch_size))


def _warn_of_second_split(leaves):
    twice = [path for path, leaf in leaves.items() if split_calls.is_result(leaf)]
    if twice:
        notices.tell(
            "warning: split_data() received data that it has already split, so each rank gets only "
            f"a part of its shard: {', '.join(twice)}. Split the data once."
        )
    return bool(twice)


def _check_options(shuffle, seed, remainder, compare):
    if not isinstance(shuffle, bool | np.bool_) and not _is_text(shuffle, (EPOCH,)):
        raise TypeError(
            f'Argument `shuffle` must be a boolean or "{EPOCH}". Received: shuffle={shuffle!r}'
        )
    if not validators.is_integer(seed):
        raise TypeError(
            "Argument `seed` must be an integer, the same on all ranks. With different seeds the "
            "ranks' shards would overlap. "
            f"Received: seed={seed!r}"
        )
    if not isinstance(compare, bool | np.bool_):
        raise TypeError(f"Argument `compare` must be a boolean. Received: compare={compare!r}")
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
