"""Splits a `tf.data.Dataset` by elements, which are samples or batches."""

import tensorflow as tf

from easyddl.data import shuffle_seeds, tf_graph
from easyddl.data.shard import EPOCH

# tf.data's classes whose function determines which elements there are.
_FILTERS = ("_FilterDataset", "_TakeWhileDataset")


def split(dataset, shard):
    """Returns a dataset of this rank's elements of a dataset."""
    count = int(dataset.cardinality())
    if count < 0:
        found = "infinite" if count == tf.data.INFINITE_CARDINALITY else "unknown"
        shard.refuse_shuffle(
            "`split_data` shuffles a `tf.data.Dataset` of known and finite cardinality only. The "
            f"cardinality of this dataset is {found}. If you know it, call "
            "`dataset.apply(tf.data.experimental.assert_cardinality(n))` first. Otherwise shuffle "
            "the dataset yourself after the split."
        )
    if count >= 0:
        shard.check(count, "element")
    if shard.size == 1 and not shard.shuffle:
        return dataset
    result = (_shuffled if shard.shuffle else _sharded)(dataset, count, shard)
    # `keras.utils.image_dataset_from_directory` sets `class_names` and `file_paths`, for example.
    for name, value in vars(dataset).items():
        if not name.startswith("_") and not hasattr(result, name):
            setattr(result, name, value)
    return result


def _sharded(dataset, count, shard):
    if count >= 0:
        dataset = dataset.take(shard.kept(count))
    return dataset.shard(shard.size, shard.rank)


def _shuffled(dataset, count, shard):
    """Permutes all elements at the beginning of each pass, and takes this rank's shard."""
    with tf.init_scope(), tf.device("CPU:0"):
        epoch = tf.Variable(0, dtype=tf.int64, trainable=False, name="easyddl_epoch")

    def pass_of_epoch(_):
        # This sets the seed of this function's graph only. Otherwise the rank's own
        # tf.random.set_seed would change the order. The number must not be 0: a pair of zeros
        # means that there is no seed.
        tf.random.set_seed(1 + shard.seed % (2**31 - 2))
        # Read once per pass: a later set_epoch must not change the order of an active pass.
        number = epoch.assign_add(1) - 1 if shard.shuffle == EPOCH else tf.constant(0, tf.int64)
        shuffled = dataset.shuffle(count, seed=number, reshuffle_each_iteration=False)
        return _sharded(shuffled, count, shard)

    length = tf.data.experimental.assert_cardinality(shard.length(count))
    whole = tf.data.Dataset.from_tensors(0).flat_map(pass_of_epoch)
    whole.unsplit = dataset  # see `tf_graph.direct_inputs_of`
    result = whole.apply(length)
    if shard.shuffle == EPOCH:
        result.set_epoch = epoch.assign
    return result


def _draws(dataset):
    """Yields the random draws of a dataset that decide the order or the choice of its elements.

    A pair of zeros as seeds means that each process draws its own seed.

    Yields:
        Pairs of the kind of the draw and its seeds. `"shuffle"` changes the order, `"choice"`
        changes which elements there are.
    """
    name = type(dataset).__name__
    if hasattr(dataset, "_seed") and hasattr(dataset, "_seed2"):
        kind = "choice" if name == "_RandomDataset" else "shuffle"
        yield kind, (int(dataset._seed), int(dataset._seed2))
    for op in tf_graph.operations_of(dataset):
        if op.type.startswith("ShuffleDataset"):
            yield "shuffle", tuple(map(tf_graph.constant, op.inputs[2:4]))
        elif name in _FILTERS and "seed2" in op.node_def.attr:
            yield "choice", (op.get_attr("seed"), op.get_attr("seed2"))
    for inner in tf_graph.direct_inputs_of(dataset):
        yield from _draws(inner)


def _is_free(dataset):
    """Returns whether elements may come in any order, as far as the dataset shows."""
    return dataset.options().deterministic is False or any(
        getattr(inner, "_deterministic", None) == "false" for inner in tf_graph.inputs_of(dataset)
    )


def check_order(dataset):
    """Raises an error unless the elements come in the same order on all ranks.

    With different orders the ranks' shards would overlap, and no other check would find it.
    Collective: the ranks compare the seeds with which the dataset is shuffled.
    """
    draws = shuffle_seeds.compared(lambda: list(_draws(dataset)))
    unseeded = [kind for kind, pair in draws if pair == (0, 0)]
    if "shuffle" in unseeded:
        raise ValueError(
            "A dataset that was shuffled without a seed has a different order on each rank, so "
            "the ranks' shards would overlap. Split the dataset before it is shuffled, as in "
            "`ddl.split_data(dataset).shuffle(...)`, or pass the same `seed` to `shuffle` or "
            "`list_files`, or `shuffle_seed` to `make_csv_dataset`, on all ranks. "
            "Received: a tf.data.Dataset with a shuffle that has no seed"
        )
    if "choice" in unseeded:
        raise ValueError(
            "A dataset from which elements were chosen at random without a seed has other elements "
            "on each rank, so the ranks' shards would overlap. Split the dataset before that step, "
            "or pass the same `seed` to it on all ranks: to `rejection_resample`, to "
            "`sample_from_datasets`, or to the `tf.random` function of the `filter`. "
            "Received: a tf.data.Dataset with a random choice that has no seed"
        )
    if _is_free(dataset):
        raise ValueError(
            "A dataset with `deterministic=False` may have a different order on each rank, so "
            "the ranks' shards would overlap. Split the dataset before that step, or leave out "
            "`deterministic=False`. Received: a tf.data.Dataset with deterministic=False"
        )


def arrays_in(dataset):
    """Returns the arrays that a dataset holds, by name: those of `from_tensor_slices`."""
    sources = [each for each in tf_graph.inputs_of(dataset) if hasattr(each, "_tensors")]
    tensors = [each for source in sources for each in source._tensors]
    return {f"its tensor {i}": each for i, each in enumerate(tensors) if each.dtype != tf.variant}


def count_batches(dataset):
    """Returns the number of elements of a dataset: see `check_order`."""
    count = int(dataset.cardinality())
    if count < 0:
        found = "infinite" if count == tf.data.INFINITE_CARDINALITY else "unknown"
        raise ValueError(
            "`predict` needs the number of batches. If you know it, call "
            "`dataset.apply(tf.data.experimental.assert_cardinality(n))` first. "
            f"Received: a tf.data.Dataset of {found} cardinality"
        )
    check_order(dataset)
    return count


def take_batches(dataset, start, stop):
    """Returns a dataset of the elements from `start` up to `stop` of another dataset."""
    return dataset.skip(start).take(stop - start)
