"""`tf.data.Dataset`, whose elements are dealt out, be they samples or batches."""

import tensorflow as tf

from easyddl.data.shard import EPOCH
from easyddl.runtime import world

_SPLIT_FIRST = (
    "Split the dataset before it is shuffled, as in `ddl.split_data(dataset).shuffle(...)`, or "
)


def split(dataset, part):
    """This rank's elements of a dataset, as a dataset.

    All ranks must call it, since they compare how the dataset is shuffled.
    """
    count = int(dataset.cardinality())
    if count < 0:
        found = "infinite" if count == tf.data.INFINITE_CARDINALITY else "unknown"
        part.refuse_shuffle(
            "`split_data` shuffles a `tf.data.Dataset` of known and finite cardinality only; that "
            f"of this one is {found}. If you know it, call "
            "`dataset.apply(tf.data.experimental.assert_cardinality(n))` first; or shuffle the "
            "dataset yourself after it is split."
        )
    if part.size > 1:
        _check_order(dataset)
    if count >= 0:
        part.check(count, "element")
    if part.shuffle:
        return _shuffled(dataset, count, part)
    return dataset if part.size == 1 else _dealt(dataset, count, part)


def _dealt(dataset, count, part):
    if count >= 0:
        dataset = dataset.take(part.kept(count))
    return dataset.shard(part.size, part.rank)


def _shuffled(dataset, count, part):
    """The elements after a permutation of all of them, drawn as a pass over them begins."""
    with tf.init_scope(), tf.device("CPU:0"):
        epoch = tf.Variable(0, dtype=tf.int64, trainable=False, name="easyddl_epoch")

    def begin(_):
        # The seed of this function's graph, and not what the rank gave to tf.random.set_seed.
        # A pair of zeros would mean no seed.
        tf.random.set_seed(1 + part.seed % (2**31 - 2))
        # Read once a pass: what comes later must not change the order of one under way.
        number = epoch.assign_add(1) - 1 if part.shuffle == EPOCH else tf.constant(0, tf.int64)
        shuffled = dataset.shuffle(count, seed=number, reshuffle_each_iteration=False)
        return _dealt(shuffled, count, part)

    length = tf.data.experimental.assert_cardinality(part.length(count))
    result = tf.data.Dataset.from_tensors(0).flat_map(begin).apply(length)
    if part.shuffle == EPOCH:
        result.set_epoch = epoch.assign
    return result


def inputs_of(dataset):
    """The dataset and those that it is made of, as a list."""
    found = [dataset]
    for inner in dataset._inputs():
        found.extend(inputs_of(inner))
    return found


def _seeds(dataset):
    """The pairs of seeds of all that draws random numbers, also within functions.

    A pair of zeros means that another seed is drawn in each process.
    """
    seeds = []
    for inner in inputs_of(dataset):
        if hasattr(inner, "_seed") and hasattr(inner, "_seed2"):
            seeds.append((int(inner._seed), int(inner._seed2)))
        for function in inner._functions():
            for op in function.function.graph.get_operations():
                if op.type.startswith("ShuffleDataset"):
                    seeds.append(tuple(map(_constant, op.inputs[2:4])))
    return seeds


def _constant(tensor):
    value = tf.get_static_value(tensor)
    return None if value is None else int(value)


def _is_free(dataset):
    """Whether elements may come in any order, as far as can be seen."""
    return dataset.options().deterministic is False or any(
        getattr(inner, "_deterministic", None) == "false" for inner in inputs_of(dataset)
    )


def _check_order(dataset):
    """Raises an error unless the elements come in one order on all ranks.

    If they do not, the ranks' parts overlap, and nothing else would tell.
    """
    seeds = _seeds(dataset)
    if seeds:
        world.agree(
            "split_data() of a tf.data.Dataset that was shuffled before. "
            f"{_SPLIT_FIRST}set the same seeds on all ranks. Its seeds are {seeds}"
        )
    if (0, 0) in seeds:
        raise ValueError(
            "A dataset that was shuffled without a seed has another order on each rank, so that "
            f"the ranks' parts would overlap. {_SPLIT_FIRST}pass the same `seed` to `shuffle` on "
            "all ranks. Received: a tf.data.Dataset with a shuffle that has no seed"
        )
    if _is_free(dataset):
        raise ValueError(
            "A dataset that need not be deterministic may have another order on each rank, so "
            "that the ranks' parts would overlap. Split it before the step with "
            "`deterministic=False`, or leave that out. Received: a tf.data.Dataset with "
            "deterministic=False"
        )
