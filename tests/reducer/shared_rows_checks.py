"""Sparse rows that all samples share, such as those of positions: as one process has them."""

import functools
import warnings

import keras
import numpy as np
import tensorflow as tf
from fits import RANK, SIZE, both
from keras import ops
from mpi import run_checks
from sparse_rows import (
    ROWS,
    assert_equal_to_one_process,
    averaging,
    fit_alone,
    new_variable,
    squared_error,
    squaring,
)

WIDTH, LENGTH = 4, 6
STEPS = 5


class Text(keras.layers.Layer):
    """Tokens of which 0 is padding, with a table of words and one of other things."""

    tables = 2

    def __init__(self):
        super().__init__(dtype="float64")
        tables = [keras.layers.Embedding(ROWS, WIDTH, dtype="float64") for _ in range(self.tables)]
        self.words, self.others = tables[0], tables[-1]
        self.last = keras.layers.Dense(1, dtype="float64")

    def call(self, x):
        mask = ops.cast(x > 0, "float64")[:, :, None]
        found = ops.tanh(self.embedded(x)) * mask
        return self.last(ops.sum(found, 1) / ops.sum(mask, 1))


class Positions(Text):
    def embedded(self, x):
        return self.words(x) + self.others(ops.arange(ops.shape(x)[1]))


class OneTable(Text):
    """Words and positions in one table, and one position of its own for all."""

    tables = 1

    def embedded(self, x):
        positions = ops.expand_dims(ops.arange(ops.shape(x)[-1]), 0)
        return self.words(x) + self.words(positions) + self.words(ops.array([[ROWS - 1]]))


class Task(Text):
    def embedded(self, x):
        return self.words(x) * self.others(ops.full((1, 1), 2))


class Segments(Text):
    """Constants that hold an index several times, which one process has several times too."""

    def embedded(self, x):
        return self.words(x) + self.others(ops.array([3, 3, 5, 3, 5, 1]))


class PositionsOfSamples(Text):
    """Each sample has positions of its own, and each process those of its samples."""

    def embedded(self, x):
        positions = ops.broadcast_to(ops.arange(ops.shape(x)[1]), ops.shape(x))
        return self.words(x) + self.others(positions)


class Words(Text):
    def embedded(self, x):
        return self.words(x) + self.others(x[:, :1])


class PositionsAlone(Text):
    """XLA has dense gradients, of which those of words would differ from one process."""

    tables = 1

    def embedded(self, x):
        return ops.one_hot(x % WIDTH, WIDTH, dtype="float64") + self.others(ops.arange(LENGTH))


def new_model(layer, optimizer=squaring, length=LENGTH, **arguments):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Input((length,), dtype="int32"), layer()])
    model.compile(optimizer(), squared_error(), **arguments)
    return model


def batch(samples, length, seed):
    random = np.random.default_rng([9, seed])
    x = random.integers(1, ROWS - 1, (samples, length)).astype("int32")
    x[np.arange(length) >= random.integers(1, length + 1, (samples, 1))] = 0
    y = np.sin(x.sum(1, keepdims=True)) * (1 + seed % 3)
    return x, y.astype("float32").astype("float64")  # Keras takes arrays as float32


def parts_of(sizes, lengths=None):
    """The batches of each rank, whose samples are as many and as long as the lists say."""
    lengths = lengths or [LENGTH] * SIZE
    return [
        [batch(sizes[rank], lengths[rank], step * SIZE + rank) for step in range(STEPS)]
        for rank in range(SIZE)
    ]


def padded(parts, length):
    return [
        [(np.pad(x, ((0, 0), (0, length - x.shape[1]))), y) for x, y in batches]
        for batches in parts
    ]


def assert_trains_as_one_process(make, parts, alone_parts=None):
    model, alone = make(), make()
    spec = (
        tf.TensorSpec((None, *model.input_shape[1:]), "int32"),
        tf.TensorSpec((None, 1), "float64"),
    )
    mine = tf.data.Dataset.from_generator(lambda: iter(parts[RANK]), output_signature=spec)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Your input ran out of data")
        model.fit(mine, shuffle=False, verbose=0, callbacks=both())
    fit_alone(alone, alone_parts or parts)
    assert_equal_to_one_process(model, alone)


def fit_arrays(model, x, y, batch_size):
    model.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0, callbacks=both())


def check_layers():
    # A batch of one sample among them.
    parts = parts_of([1 + 2 * rank for rank in range(SIZE)])
    for layer in (Positions, OneTable, Task, Segments, PositionsOfSamples, Words):
        assert_trains_as_one_process(lambda layer=layer: new_model(layer), parts)


def check_several_steps_at_once():
    parts = parts_of([3] * SIZE)
    assert_trains_as_one_process(lambda: new_model(OneTable, steps_per_execution=2), parts)


def check_ranks_without_batches():
    parts = [part[: rank * STEPS] for rank, part in enumerate(parts_of([2] * SIZE))]
    parts = parts if SIZE > 1 else parts_of([2])
    assert_trains_as_one_process(lambda: new_model(OneTable), parts)


def check_lengths_that_differ_by_rank():
    lengths = [3 + 2 * (SIZE - rank) for rank in range(SIZE)]
    parts = parts_of([1 + rank for rank in range(SIZE)], lengths)
    for layer in (Positions, OneTable, PositionsOfSamples):
        make = lambda layer=layer: new_model(layer, length=None)  # noqa: E731
        assert_trains_as_one_process(make, parts, padded(parts, max(lengths)))


def check_batches_of_a_known_size():
    # Keras traces for batches of just so many samples, but on ranks whose last one is smaller.
    for size in (4, LENGTH):  # the latter is the number of positions too
        everyones = [batch(size * STEPS - rank, LENGTH, rank) for rank in range(SIZE)]
        parts = [
            [(x[at : at + size], y[at : at + size]) for at in range(0, len(x), size)]
            for x, y in everyones
        ]
        for layer in (OneTable, PositionsOfSamples):
            model, alone = new_model(layer), new_model(layer)
            fit_arrays(model, *everyones[RANK], size)
            fit_alone(alone, parts)
            assert_equal_to_one_process(model, alone)


def check_steps_that_xla_compiles():
    parts = parts_of([3] * SIZE)
    arrays = [np.concatenate(each) for each in zip(*parts[RANK], strict=True)]
    for compiled in (False, True):
        model, alone = (new_model(PositionsAlone, jit_compile=compiled) for _ in range(2))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="A gradient of shape .* is sparse")
            fit_arrays(model, *arrays, 3)
        fit_alone(alone, parts)
        assert_equal_to_one_process(model, alone)


def slices(indices):
    """A row for each index, whose first number is the index, and whose second one is the rank."""
    indices = tf.convert_to_tensor(indices)
    ranks = tf.fill([tf.size(indices)], float(SIZE * RANK))
    values = tf.stack([SIZE * tf.cast(indices, "float32"), ranks], 1)
    return tf.IndexedSlices(values, indices, tf.constant([ROWS, 2], indices.dtype))


in_a_graph_of_any_size = functools.partial(
    tf.function, autograph=False, input_signature=[tf.TensorSpec((None, None), "int32")]
)


def means_of(*functions, length=3, wrap=in_a_graph_of_any_size):
    """The indices and values that the optimizer gets in one step after the other.

    Each function computes indices from a batch of zeros.
    """
    variable, found = new_variable(2), []
    with averaging() as average:
        for indices in functions:
            step = wrap(lambda x, i=indices: average.mean([slices(i(x))], [variable]))
            [mean] = step(tf.zeros((3, length), "int32"))
            found.append((np.asarray(mean.indices), np.asarray(mean.values)))
    return found


def positions(x):
    return ops.arange(ops.shape(x)[1])


def positions_by_the_batch(x):
    return x[0] + ops.arange(ops.shape(x)[1])


def positions_in_two_parts(x):
    return tf.concat([tf.range(1), tf.range(1, ops.shape(x)[1])], 0)


def check_each_occurrence_of_an_index_is_a_sum_of_its_own():
    # The last rank alone has the indices 3 and 4 among its positions.
    def indices_of(x):
        return tf.concat([tf.range(ops.shape(x)[1]), [4, 7, 4]], 0)

    [(indices, values)] = means_of(indices_of, length=3 + 2 * (RANK == SIZE - 1))
    everyone = sum(range(SIZE))
    expected = [(i, (SIZE * i, everyone)) for i in (4, 7, 4, 0, 1, 2)]
    expected += [(i, (i, SIZE - 1)) for i in (3, 4)]
    found = [(i, tuple(row)) for i, row in zip(indices.tolist(), values.tolist(), strict=True)]
    assert sorted(found) == sorted(expected), found


def assert_rows_of_all_ranks(indices, values, each):
    np.testing.assert_array_equal(indices, np.tile(each, SIZE))
    np.testing.assert_array_equal(values[:, 0], indices)
    np.testing.assert_array_equal(values[:, 1], np.repeat(range(SIZE), len(each)))


def check_eager_steps_keep_the_rows_of_all_ranks():
    [found] = means_of(positions, wrap=lambda step: step)
    assert_rows_of_all_ranks(*found, [0, 1, 2])


def check_ranks_whose_graphs_differ():
    for others in (positions_by_the_batch, positions_in_two_parts):
        [found] = means_of(positions if RANK == 0 else others)
        assert_rows_of_all_ranks(*found, [0, 1, 2])


def check_steps_that_are_traced_after_the_registration():
    for first, second in (
        (positions, positions_by_the_batch),
        (positions, positions_in_two_parts),
        (positions_by_the_batch, positions),
    ):
        _, found = means_of(first, second)
        assert_rows_of_all_ranks(*found, [0, 1, 2])
    _, (indices, values) = means_of(positions, positions)
    np.testing.assert_array_equal(indices, [0, 1, 2])
    np.testing.assert_array_equal(values, [(SIZE * i, sum(range(SIZE))) for i in range(3)])


if __name__ == "__main__":
    run_checks(globals())
