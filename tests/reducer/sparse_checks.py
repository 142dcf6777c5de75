"""Sparse gradients of TensorFlow's: rows of all ranks, as one process would have had them."""

import contextlib
import gc
import io
import warnings

import keras
import numpy as np
import tensorflow as tf
from fits import COMM, RANK, SIZE, assert_replicas_are_equal, both, fails
from mpi import run_checks
from sparse_rows import (
    ROWS,
    assert_equal_to_one_process,
    averaging,
    difference,
    fit_alone,
    in_a_graph,
    new_variable,
    squared_error,
    squaring,
)
from steps import gradients_of

import easyddl as ddl
from easyddl.reducer import gradient_reducer
from easyddl.reducer.reduction_options import ReductionOptions
from easyddl.runtime import notices

WIDTH, WORDS = 4, 6
STEPS = 25
OPTIMIZERS = {
    "Adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.01),
    "SGD clipped": lambda: keras.optimizers.SGD(0.5, clipnorm=0.05),
    "Adam clipped by all": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.05),
}


class Words(keras.layers.Layer):
    """An embedding that two inputs share, another one, and a dense layer."""

    def __init__(self):
        super().__init__(dtype="float64")
        self.words = keras.layers.Embedding(ROWS, WIDTH, dtype="float64")
        self.others = keras.layers.Embedding(ROWS + 3, 2, dtype="float64")
        self.last = keras.layers.Dense(1, dtype="float64")

    def call(self, x):
        first, second = x[:, : WORDS // 2], x[:, WORDS // 2 :]
        parts = [self.words(first), self.words(second), self.others(first)]
        flat = [keras.ops.reshape(part, (-1, WORDS // 2 * part.shape[-1])) for part in parts]
        return self.last(keras.ops.tanh(keras.ops.concatenate(flat, axis=1)))


def new_model(optimizer="sgd", layers=lambda: [Words()], loss=None, **arguments):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Input((WORDS,), dtype="int32"), *layers()])
    model.compile(optimizer, loss or squared_error(), **arguments)
    return model


def batch(size, seed):
    """Words that come several times, within a batch and in those of several ranks."""
    random = np.random.default_rng([4, seed])
    x = random.integers(0, ROWS, (size, WORDS)) // random.integers(1, 5, (size, 1))
    return x.astype("int32"), np.sin(x.sum(1, keepdims=True)) * (1 + seed % 3)


def parts_of(sizes, steps=STEPS):
    """The batches of each rank, which are as large as the list says."""
    return [
        [batch(sizes[rank], step * SIZE + rank) for step in range(steps)] for rank in range(SIZE)
    ]


def dataset(batches):
    """Of a length that nobody knows."""
    spec = (tf.TensorSpec((None, WORDS), "int32"), tf.TensorSpec((None, 1), "float64"))
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)


def fit(model, batches, *callbacks, epochs=1, validation_data=None, **arguments):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Your input ran out of data")
        return model.fit(
            dataset(batches), epochs=epochs, shuffle=False, verbose=0,
            validation_data=validation_data, callbacks=both(*callbacks, **arguments),
        )  # fmt: skip


def assert_trains_as_one_process(make, parts, epochs=1):
    model, alone = make(), make()
    fit(model, parts[RANK], epochs=epochs)
    fit_alone(alone, parts, epochs)
    assert_equal_to_one_process(model, alone)


def check_optimizers():
    parts = parts_of([5] * SIZE)
    for make in OPTIMIZERS.values():
        assert_trains_as_one_process(lambda make=make: new_model(make()), parts)


def check_uneven_batches():
    # A batch of one sample, larger ones; and ranks that run out of them, at different times.
    parts = parts_of([1 + 3 * rank for rank in range(SIZE)])
    parts = [part[: STEPS - 4 * rank] for rank, part in enumerate(parts)]
    assert_trains_as_one_process(lambda: new_model(squaring()), parts, epochs=2)


def check_ranks_without_any_batch():
    parts = [part if rank == SIZE - 1 else [] for rank, part in enumerate(parts_of([4] * SIZE, 7))]
    assert_trains_as_one_process(lambda: new_model(squaring()), parts, epochs=2)


def check_eager_steps_and_several_at_once():
    parts = [part[: 4 + rank] for rank, part in enumerate(parts_of([3] * SIZE, 8))]
    for arguments in ({"run_eagerly": True}, {"steps_per_execution": 2}):
        assert_trains_as_one_process(lambda a=arguments: new_model(squaring(), **a), parts)


def check_a_model_of_an_embedding_alone():
    def layers():
        return [
            keras.layers.Embedding(ROWS, 1, dtype="float64"),
            keras.layers.Lambda(lambda x: keras.ops.sum(x, 1), dtype="float64"),
        ]

    parts = [part[: 4 + rank] for rank, part in enumerate(parts_of([3] * SIZE, 8))]
    before = gradient_reducer.reduced_steps()
    assert_trains_as_one_process(lambda: new_model(squaring(), layers), parts)
    assert gradient_reducer.reduced_steps() - before == (max(map(len, parts)) if SIZE > 1 else 0)


def check_sixteen_bits_between_hosts():
    """The values of all ranks are rounded once, and their indices not at all."""
    weights = [3.0 + 2 * rank for rank in range(SIZE)]
    for wire_dtype in ("bfloat16", "float16"):
        everyones = [np.random.default_rng([rank, 6]).normal(size=(7, 3)) for rank in range(SIZE)]
        everyones = [np.float32(each * 10.0 ** (9 * rank)) for rank, each in enumerate(everyones)]
        indices = [np.arange(7) * (rank + 1) % ROWS for rank in range(SIZE)]
        variable = keras.Variable(np.zeros((ROWS, 3), "float32"))
        options = ReductionOptions(wire_dtype=wire_dtype)
        average = gradient_reducer.GradientReducer(options, weight=lambda: weights[RANK])
        mine = tf.IndexedSlices(everyones[RANK], indices[RANK], dense_shape=(ROWS, 3))
        [mean] = average.mean([mine], [variable])
        average.close()
        np.testing.assert_array_equal(mean.indices, np.concatenate(indices))
        expected = np.concatenate([w * e for w, e in zip(weights, everyones, strict=True)]) / sum(
            weights
        )
        assert_rounded(mean.values.numpy(), expected, wire_dtype if ddl.num_nodes() > 1 else None)
        assert len(set(COMM.allgather(mean.values.numpy().tobytes()))) == 1


def assert_rounded(found, expected, dtype):
    """Asserts that numbers have been rounded to a dtype, but for a power of two."""
    bits = {"bfloat16": 8, "float16": 11, None: 24}[dtype]
    mantissa, _ = np.frexp(found)
    np.testing.assert_array_equal(mantissa * 2.0**bits % 1, 0)
    np.testing.assert_allclose(found, expected, rtol=1.01 * 2.0**-bits + 3e-7)


def check_sums():
    loss = squared_error(reduction="sum")
    parts = [part[: 6 + rank] for rank, part in enumerate(parts_of([3] * SIZE, 8))]
    assert_trains_as_one_process(lambda: new_model(squaring(), loss=loss), parts)


def check_loss_scale_and_validation_in_between():
    def make():
        return new_model(keras.optimizers.LossScaleOptimizer(squaring(), initial_scale=64.0))

    parts = [part[: 6 + rank] for rank, part in enumerate(parts_of([3] * SIZE, 8))]
    held_out = dataset([batch(3, 50 + RANK + i) for i in range(RANK)])

    class Evaluate(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if RANK == 0:
                self.model.evaluate(*batch(4, 60), verbose=0)

    model, alone = make(), make()
    fit(model, parts[RANK], Evaluate(), epochs=2, validation_data=held_out)
    fit_alone(alone, parts, 2)
    assert_equal_to_one_process(model, alone)


def check_gradient_accumulation():
    def make():
        return new_model(keras.optimizers.Adam(0.01, gradient_accumulation_steps=2))

    assert_trains_as_one_process(make, parts_of([3] * SIZE, 8))


def check_all_stop_after_the_same_step():
    class Stop(keras.callbacks.Callback):
        taken = 0

        def on_train_batch_end(self, batch, logs=None):
            self.taken += 1
            self.model.stop_training |= RANK == SIZE - 1 and batch == 2

    stop = Stop()
    fit(new_model(squaring()), parts_of([3] * SIZE, 8)[RANK], stop, epochs=2)
    assert stop.taken == (4 if SIZE > 1 else 3)


def custom_loop(optimizer, wrap, batches):
    """The weights after steps of a loop as users write it."""
    model = new_model()
    variables = model.trainable_variables
    optimizer.build(variables)

    def step(x, y):
        loss = squared_error()
        _, found = gradients_of(lambda: loss(y, model(x, training=True)), variables)
        optimizer.apply_gradients(zip(found, variables, strict=True))

    step = wrap(step)
    for x, y in batches:
        step(tf.constant(x), tf.constant(y))
    return model.get_weights()


def check_custom_loops():
    parts = parts_of([3] * SIZE, 6)
    everything = [
        tuple(np.concatenate(arrays) for arrays in zip(*each, strict=True))
        for each in zip(*parts, strict=True)
    ]
    expected = custom_loop(squaring(), lambda step: step, everything)
    for wrap in (in_a_graph, lambda step: step):
        optimizer = ddl.DistributedOptimizer(squaring())
        weights = custom_loop(optimizer, wrap, parts[RANK])
        assert difference(weights, expected) <= 1e-10


def rows_of(rank, rows, dtype="float32", step=0, width=3):
    """Indices and values of one rank's sparse gradient; sums of the values are exact."""
    random = np.random.default_rng([rank, rows, step])
    values = random.integers(-9, 10, (rows, width)) * 3
    return random.integers(0, ROWS, rows), values.astype("float64") * SIZE


def slices_of(indices, values, dtype="float32", index_dtype="int64"):
    shape = tf.constant([ROWS, *np.shape(values)[1:]], index_dtype)
    return tf.IndexedSlices(tf.constant(values, dtype), tf.constant(indices, index_dtype), shape)


def everyones_rows(counts, step=0, **arguments):
    """All ranks' rows in their order; the values as those of a mean over the ranks."""
    each = [rows_of(rank, count, step=step, **arguments) for rank, count in enumerate(counts)]
    return np.concatenate([i for i, _ in each]), np.concatenate([v for _, v in each]) / SIZE


def check_several_dtypes_and_numbers_of_rows():
    kinds = [("float32", "int32"), ("float16", "int64"), ("bfloat16", "int32"),
             ("float64", "int64"), (None, None)]  # fmt: skip
    variables = [new_variable(width, kind or "float32") for width, (kind, _) in enumerate(kinds, 1)]

    def counts(width, step):
        return [(width * 3 + rank * 5 + step) % 7 * (rank != step) for rank in range(SIZE)]

    def mine(step):
        found = []
        for width, (kind, index_kind) in enumerate(kinds, 1):
            if kind is None:  # a dense one among them
                found.append(tf.fill([ROWS, width], np.float32(RANK)))
            else:
                rows = rows_of(RANK, counts(width, step)[RANK], width=width, step=step)
                found.append(slices_of(*rows, kind, index_kind))
        return found

    for wrap in (lambda step: step, in_a_graph):
        with averaging(ReductionOptions(bucket_bytes=1)) as average:
            for step in range(4):
                found = wrap(lambda step=step, a=average: a.mean(mine(step), variables))()
                np.testing.assert_array_equal(found[-1], np.full((ROWS, 5), (SIZE - 1) / 2))
                for width, (kind, index_kind) in enumerate(kinds[:-1], 1):
                    mean = found[width - 1]
                    indices, values = everyones_rows(counts(width, step), step, width=width)
                    assert (mean.dtype, mean.indices.dtype) == (kind, index_kind)
                    assert tuple(mean.shape) == (ROWS, width)
                    np.testing.assert_array_equal(mean.indices, indices)
                    np.testing.assert_array_equal(tf.cast(mean.values, "float64"), values)


def check_one_rank_alone_traces_again():
    variable, traces = new_variable(), []
    with averaging() as average:

        @in_a_graph
        def step(indices, values):
            traces.append(indices.shape)
            shape = tf.constant([ROWS, 3], tf.int64)
            return average.mean([tf.IndexedSlices(values, indices, shape)], [variable])

        for number, rows in enumerate([8, 8, 0 if RANK == 0 else 8, 8]):
            indices, values = rows_of(RANK, rows, step=number)
            [mean] = step(tf.constant(indices), tf.constant(values, "float32"))
            counts = [0 if number == 2 and rank == 0 else 8 for rank in range(SIZE)]
            want = everyones_rows(counts, number)
            np.testing.assert_array_equal(mean.indices, want[0])
            np.testing.assert_array_equal(mean.values, want[1])
    counts = COMM.allgather(len(traces))
    assert all(counts[0] > count for count in counts[1:]), counts


def check_weights():
    # Those of samples, of which the last rank has none.
    weights = [rank + 1.0 if rank < SIZE - 1 or SIZE == 1 else 0.0 for rank in range(SIZE)]
    variable = new_variable(dtype="float64")
    with averaging(weight=lambda: tf.constant(weights[RANK])) as average:
        for step in range(2):
            mine = slices_of(*rows_of(RANK, 2, step=step), "float64")
            [mean] = average.mean([mine], [variable])
            indices, values = everyones_rows([2] * SIZE, step)
            shares = np.repeat(weights, 2)[:, None] / sum(weights) * SIZE
            np.testing.assert_array_equal(mean.indices, indices)
            np.testing.assert_allclose(mean.values, values * shares, rtol=1e-15)


def check_ranks_that_lack_a_gradient():
    variable = new_variable()
    lacks = RANK == SIZE - 1 and SIZE > 1
    with averaging() as average:
        for wrap in (lambda step: step, in_a_graph):
            mine = None if lacks else slices_of(*rows_of(RANK, 4))
            [mean] = wrap(lambda m=mine: average.mean([m], [variable]))()
            want = everyones_rows([4 * (rank < SIZE - 1 or SIZE == 1) for rank in range(SIZE)])
            np.testing.assert_array_equal(mean.indices, want[0])
            np.testing.assert_array_equal(mean.values, want[1])


def dense_of(indices, values):
    dense = np.zeros((ROWS, values.shape[1]))
    np.add.at(dense, indices, values)
    return dense


def check_ranks_of_which_one_has_a_dense_gradient():
    if SIZE == 1:
        return
    rows = rows_of(RANK, 4)
    mine = tf.constant(dense_of(*rows), "float32") if RANK == 1 else slices_of(*rows)
    with averaging() as average, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        [mean] = average.mean([mine], [new_variable()])
    np.testing.assert_array_equal(mean, dense_of(*everyones_rows([4] * SIZE)))
    told = [str(each.message) for each in caught if "is sparse" in str(each.message)]
    assert len(told) == (RANK == 0), told
    assert RANK != 0 or "this gradient is dense on another rank" in told[0]


def check_a_gradient_that_is_dense_later():
    if SIZE == 1:
        return
    variable = new_variable()
    with averaging() as average:
        average.mean([slices_of(*rows_of(RANK, 4))], [variable])
        error = fails(lambda: average.mean([tf.zeros((ROWS, 3))], [variable]))
        assert isinstance(error, RuntimeError) and "was sparse" in str(error), error


def check_bad_rows_are_an_error_on_all_ranks():
    if SIZE == 1:
        return
    good = rows_of(RANK, 4)
    bad = {
        f"the index {ROWS}": slices_of([0, ROWS], np.zeros((2, 3))),
        "the index -1": slices_of([-1], np.zeros((1, 3))),
        "2 indices, and values of 12 bytes": slices_of([0, 1], np.zeros((1, 3))),
        "values of 16 bytes": slices_of([0], np.zeros((1, 4))),
    }
    for message, wrong in bad.items():
        with averaging() as average:
            variable = new_variable()
            average.mean([slices_of(*good)], [variable])
            mine = wrong if RANK == SIZE - 1 else slices_of(*good)
            error = fails(lambda a=average, m=mine, v=variable: a.mean([m], [v]))
            assert message in str(error), error
            assert RANK == SIZE - 1 or f"ank {SIZE - 1}" in str(error), error
            # Nothing follows in silence.
            fails(lambda a=average, v=variable: a.mean([slices_of(*good)], [v]))


def check_sparse_as_dense():
    parts = parts_of([5] * SIZE, 8)
    for make, least, most in (
        (lambda: keras.optimizers.SGD(0.1), 0, 1e-10),
        (squaring, 1e-3 if SIZE > 1 else 0, 1),
    ):
        model, alone = new_model(make()), new_model(make())
        fit(model, parts[RANK], sparse_as_dense=True)  # a warning would be an error
        fit_alone(alone, parts)
        assert_replicas_are_equal(model)
        if RANK == 0:
            found = difference(model.get_weights(), alone.get_weights())
            assert least <= found <= most, found


def check_sparse_as_dense_must_be_a_boolean():
    for wrong in (1, None, "yes"):
        for make in (ddl.DDLCallback, lambda **a: ddl.DistributedOptimizer(squaring(), **a)):
            error = fails(lambda make=make, wrong=wrong: make(sparse_as_dense=wrong))
            assert isinstance(error, ValueError), error
            assert "`sparse_as_dense` must be True or False. Received:" in str(error), error
            assert repr(wrong) in str(error), error


def check_ranks_that_differ_in_sparse_as_dense():
    if SIZE == 1:
        return
    parts = parts_of([3] * SIZE, 2)
    error = fails(lambda: fit(new_model(), parts[RANK], sparse_as_dense=RANK == 1))
    assert "Rank 1 called" in str(error) and "sparse ones as dense" in str(error), error


def check_a_step_compiled_by_xla():
    parts = parts_of([3] * SIZE, 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = new_model(squaring(), jit_compile=True)
        fit(model, parts[RANK])
    assert_replicas_are_equal(model)
    told = [str(each.message) for each in caught if "is sparse" in str(each.message)]
    assert len(told) == (1 if RANK == 0 and SIZE > 1 else 0), told
    assert all("XLA" in text and "sum" in text for text in told)
    if SIZE == 1:
        return
    variable = new_variable()
    with averaging() as average:

        def step():
            return average.mean([slices_of(*rows_of(RANK, 4))], [variable])

        tf.function(step)()
        error = fails(tf.function(step, jit_compile=True))
        assert "XLA compiles this step" in str(error), error


def check_the_hint_where_dense_is_cheaper():
    gc.collect()  # optimizers of other checks, which may have it said as they end
    notices._told.clear()
    for rows, is_told in ((10_000, False), (2, True)):

        def layers(rows=rows):
            return [keras.layers.Embedding(rows, 1), keras.layers.Lambda(lambda found: found[:, 0])]

        model = new_model(layers=layers)
        x = np.zeros((8, WORDS), "int32")
        output = io.StringIO()
        with contextlib.redirect_stderr(output):
            for _ in range(2):
                model.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=both())
        times = output.getvalue().count("hint: sparse gradients")
        assert times == (is_told and RANK == 0 and SIZE > 1), output.getvalue()


if __name__ == "__main__":
    run_checks(globals())
